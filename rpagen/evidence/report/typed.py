"""From JSON to frozen dataclasses: a value of another kind than its field is an error there."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Annotated, Any

from rpagen import errors

Lines = Annotated[str, "of several lines"]
"""A text that keeps its line breaks, such as the whole message of an error."""


class WrongValueError(ValueError):
    """A value is not what its field holds.

    field: dotted path to it, with indices; empty for all of the file.
    """

    def __init__(self, field: str, problem: str, expected: str) -> None:
        super().__init__(f"{field}: {problem}; expected {expected}")
        self.field = field
        self.problem = problem
        self.expected = expected


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def convert(kind: Any, found: object, field: str = "") -> Any:
    """What was found, as the kind that its field has.

    kind: str, Lines, int, float, bool, Literal of words, X | None, tuple[X, ...], dict[str, X],
        or a dataclass, which is made of the keys that it names; other keys are passed over.

    Raises:
        WrongValueError: it is of another kind.
    """
    if dataclasses.is_dataclass(kind):
        return _converted_object(kind, found, field)
    if kind == Lines:
        lines = _checked(str, found, field, "a text").split("\n")
        return "\n".join(map(errors.printable, lines))
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        (inner,) = (each for each in arguments if each is not type(None))
        return None if found is None else convert(inner, found, field)
    if origin is tuple:
        items = _checked(list, found, field, "a list")
        return tuple(convert(arguments[0], each, f"{field}[{i}]") for i, each in enumerate(items))
    if origin is dict:
        table = _checked(dict, found, field, "an object")
        return {
            errors.printable(key): convert(arguments[1], each, _below(field, key))
            for key, each in table.items()
        }
    if origin is typing.Literal:
        word = _checked(str, found, field, f"one of {', '.join(arguments)}")
        if word not in arguments:
            raise WrongValueError(field, f"is {_shown(word)}", f"one of {', '.join(arguments)}")
        return word
    return _converted_scalar(kind, found, field)


def _converted_object(kind: Any, found: object, field: str) -> Any:
    table = _checked(dict, found, field, "an object")
    hints = _hints(kind)
    values = {}
    for each in dataclasses.fields(kind):
        if each.name in table:
            values[each.name] = convert(
                hints[each.name], table[each.name], _below(field, each.name)
            )
        elif each.default is dataclasses.MISSING:
            raise WrongValueError(
                field, f"has no {each.name}", f"an object with {errors.listed(hints)}"
            )
    return kind(**values)


def _converted_scalar(kind: Any, found: object, field: str) -> Any:
    if kind is str:
        # What a page cannot hold, such as half of a surrogate pair, is spelled out.
        return errors.printable(_checked(str, found, field, "a text"))
    if kind is bool:
        return _checked(bool, found, field, "true or false")
    number = "a number" if kind is float else "a whole number"
    if isinstance(found, bool) or not isinstance(found, (int, kind)):
        raise WrongValueError(field, f"is {_shown(found)}", number)
    try:
        is_finite = math.isfinite(found)
    except OverflowError:
        is_finite = False
    if not is_finite or found < 0:
        raise WrongValueError(field, f"is {_shown(found)}", f"{number}, from 0 up")
    return kind(found)


def _checked(kind: Any, found: object, field: str, expected: str) -> Any:
    if not isinstance(found, kind):
        raise WrongValueError(field, f"is {_shown(found)}", expected)
    return found


def _below(field: str, name: str) -> str:
    name = errors.escaped(name)
    return f"{field}.{name}" if field else name


def _shown(found: object) -> str:
    """A value as an error says it: whole where that is short."""
    if isinstance(found, dict):
        return "an object"
    if isinstance(found, list):
        return "a list"
    if found is None or isinstance(found, bool):
        return {None: "null", True: "true", False: "false"}[found]
    return errors.quoted(found) if isinstance(found, str) else errors.escaped(str(found))
