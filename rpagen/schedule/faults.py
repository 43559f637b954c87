"""What a schedule cannot be run for, and the values from which nothing may follow."""

from __future__ import annotations

from typing import Any, NoReturn

from rpagen.errors import InputError


class ScheduleError(InputError):
    """A schedule cannot be run: it does what is not modelled, or what a kernel may not do.

    site: the bundle, where it is known. unknown: operands that its scalar core read until then and
    was not given.
    """

    def __init__(
        self,
        problem: str,
        *,
        site: int | None = None,
        place: str = "",
        expected: str = "a kernel that ends, and follows from its integer operands",
        next_step: str = "check that --device and the operands are those of the call",
        unknown: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(problem, place=place, expected=expected, next_step=next_step)
        self.site = site
        self.unknown = unknown


class _FromVector:
    """A scalar that comes from a vector: it may be stored, and nothing may follow from it."""


class _NeverWritten:
    """A word that nothing wrote: it may be loaded and reckoned with, and decide nothing.

    Kernels load such words ahead of a condition that then tells that they are none. What is
    reckoned with one, or compared, is again such a word.
    """

    def __hash__(self) -> int:
        return id(self)  # it may be an address, at which there is nothing


def _refuse(self: _FromVector, *_: object) -> NoReturn:
    raise ScheduleError("what is executed follows from a value of the vector units")


def _refuse_unwritten(self: _NeverWritten, *_: object) -> NoReturn:
    raise ScheduleError("what is executed follows from a word that nothing wrote")


def _spread(self: _NeverWritten, *_: object) -> _NeverWritten:
    return self


_DECIDE = ("__bool__", "__index__")
_COMPUTE = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__and__", "__rand__"),
    *("__or__", "__ror__", "__xor__", "__rxor__", "__lshift__", "__rlshift__", "__rshift__"),
    *("__rrshift__", "__floordiv__", "__rfloordiv__", "__mod__", "__rmod__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
)
for _method in (*_DECIDE, *_COMPUTE, "__hash__"):
    setattr(_FromVector, _method, _refuse)
for _method in _COMPUTE:
    setattr(_NeverWritten, _method, _spread)
for _method in _DECIDE:
    setattr(_NeverWritten, _method, _refuse_unwritten)

FROM_VECTOR: Any = _FromVector()
NEVER_WRITTEN: Any = _NeverWritten()


def is_known(word: object) -> bool:
    """Whether something may follow from a word."""
    return word is not FROM_VECTOR and word is not NEVER_WRITTEN


def pand(one: Any, other: Any) -> Any:
    """Whether two truth values both hold, of which one may not be known."""
    known = [each for each in (one, other) if each is not NEVER_WRITTEN]
    if not all(known):
        return False
    return True if len(known) == 2 else NEVER_WRITTEN


def por(one: Any, other: Any) -> Any:
    """Whether one of two truth values holds, of which one may not be known."""
    return _not(pand(_not(one), _not(other)))


def pnand(one: Any, other: Any) -> Any:
    """Whether not both of two truth values hold, of which one may not be known."""
    return _not(pand(one, other))


def pnor(one: Any, other: Any) -> Any:
    """Whether neither of two truth values holds, of which one may not be known."""
    return _not(por(one, other))


def _not(value: Any) -> Any:
    return value if value is NEVER_WRITTEN else not value
