"""A `config.json` as checked fields: a fault in the file is an error with its place."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rpagen.errors import InputError, escaped, listed, printable, quoted

MOST_BYTES = 1 << 22
"""Of a file that is read. Real ones have a few thousand."""


class _DuplicateKeyError(ValueError):
    pass


@dataclasses.dataclass(frozen=True)
class Document:
    """An object of a file, whose fields are checked as they are read; null is like absent.

    path: where the object is in the file, with a dot at its end; empty for the file's own.
    """

    file: str
    path: str
    fields: Mapping[str, Any]

    def has(self, name: str) -> bool:
        """Whether a field is there, null or not."""
        return name in self.fields

    def inner(self, name: str) -> Document | None:
        """A field that is an object."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, f"is {_said(value)}", "an object")
        return Document(self.file, f"{self.path}{name}.", value)

    def whole(self, name: str, most: int, least: int = 1) -> int | None:
        """A field that is a whole number."""
        value = self.fields.get(name)
        if value is None:
            return None
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= value <= most:
            self.refuse(name, f"is {_said(value)}", f"a whole number from {least} to {most}")
        return int(value)

    def positive(self, name: str) -> float | None:
        """A field that is a number above zero, of a size that float32 knows."""
        value = self.fields.get(name)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 1e-30 <= value <= 1e30:
            self.refuse(name, f"is {_said(value)}", "a number above zero")
        return value if isinstance(value, int) else float(value)

    def flag(self, name: str) -> bool | None:
        """A field that is true or false."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, f"is {_said(value)}", "true or false")
        return value

    def word(self, name: str) -> str | None:
        """A field that is a text."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, str):
            self.refuse(name, f"is {_said(value)}", "a text")
        return value

    def several(self, name: str, length: int, kind: type, said: str) -> list[Any] | None:
        """A field that is a list with an item for each of `length` layers."""
        value = self.fields.get(name)
        if value is None:
            return None
        expected = f"a list of {length} {said}, one for each of num_hidden_layers"
        if not isinstance(value, list):
            self.refuse(name, f"is {_said(value)}", expected)
        if len(value) != length:
            self.refuse(name, f"has {len(value)} items", expected)
        for at, item in enumerate(value):
            if not isinstance(item, kind) or (isinstance(item, bool) and kind is not bool):
                self.refuse(f"{name}[{at}]", f"is {_said(item)}", expected)
        return value

    def refuse(self, name: str, problem: str, expected: str, next_step: str = "") -> NoReturn:
        """Raise the error that the field `name` is wrong."""
        raise InputError(
            problem,
            place=self.file,
            field=f"{self.path}{name}",
            expected=expected,
            next_step=next_step or "correct the file: take it from the model's own page again",
        )


def read(path: Path) -> Document:
    """The object that a file holds.

    Raises:
        InputError: if it holds none.
    """
    file = printable(str(path))
    text = _text(path, file)
    try:
        # NaN and Infinity are read, as transformers does: only a field that is needed matters.
        value = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise _no_config(
            f"{error.msg[0].lower()}{error.msg[1:]}", f"{file}:{error.lineno}:{error.colno}"
        ) from None
    except _DuplicateKeyError as error:
        raise InputError(
            f"the key {quoted(str(error))} is there twice",
            place=file,
            expected="every key once in its object",
            next_step="remove one of the two",
        ) from None
    except RecursionError:
        raise _no_config("it is nested too deeply", file) from None
    except ValueError:  # of Python's own limit on digits
        raise _no_config("a number in it has thousands of digits", file) from None
    if not isinstance(value, dict):
        raise _no_config(f"it holds {_said(value)}", file)
    return Document(file, "", value)


def _text(path: Path, file: str) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except IsADirectoryError:
        raise InputError(
            "it is a folder",
            place=file,
            expected="the config.json of a model",
            next_step=f"name the file in it: {printable(str(path / 'config.json'))}",
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"it cannot be read: {reason}",
            place=file,
            expected="the config.json of a model",
            next_step="correct the path",
        ) from None
    if len(content) > MOST_BYTES:
        raise _no_config(f"it has more than {MOST_BYTES >> 20} MiB", file)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _no_config(f"it is not UTF-8: byte {error.start} is wrong", file) from None


def _no_config(problem: str, place: str) -> InputError:
    return InputError(
        problem,
        place=place,
        expected="a JSON object, the config.json of a model",
        next_step="take the file from the model's own page again, or name another one",
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKeyError(key)
        found[key] = value
    return found


def _said(value: Any) -> str:
    """A value of the file as an error repeats it."""
    match value:
        case str():
            return f"the text {quoted(value)}"
        case bool():
            return "true" if value else "false"
        case int() if abs(value) >= 1 << 63:
            return "a number of more than 63 bits"
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "infinite"
        case float():
            return f"the number {value!r}"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"an object with {listed(map(escaped, value)) or 'nothing in it'}"
        case None:
            return "null"
    return str(value)
