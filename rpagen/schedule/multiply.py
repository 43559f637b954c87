"""The operations of the matrix units, told by their names.

A unit holds weights, which are pushed to it, and multiplies rows that are streamed through them.
How many rows one `vmatmul` streams follows from the results that libtpu takes of it: 16 of
bfloat16, 8 of float32, 32 of 8 bits.
"""

from __future__ import annotations

import dataclasses
import functools
import re

from rpagen.schedule.read import Bundle, Operation, Schedule

_ROW_BITS = 256
"""Of the values that one `vmatmul` streams through each row of weights."""

_NAME = re.compile(
    r"vmatmul\.(?:mubr\.)?(?:msk\.)?(?P<kind>bf|f|s|u)(?P<bits>\d+)\w*\..*mxu(?P<unit>\d)"
)
_PUSH = re.compile(r"vmatpush\d?\..*mxu(?P<unit>\d)")


@dataclasses.dataclass(frozen=True, slots=True)
class Multiply:
    """A `vmatmul`. bits: of a streamed value. rows: that it streams."""

    unit: int
    bits: int
    rows: int


def of(schedule: Schedule, bundle: Bundle, operation: Operation) -> Multiply | None:
    """What an operation multiplies; None for any other operation.

    Raises:
        InputError: it multiplies, and its name is not known.
    """
    if not operation.name.startswith("vmatmul"):
        return None
    found = _parsed(operation.name)
    if found is None:
        raise schedule.error(
            bundle,
            f"{operation.name!r} streams values of no known dtype",
            expected="`vmatmul.mubr.bf16.gmra.mxu0`",
        )
    return found


def pushed_to(operation: Operation) -> int | None:
    """The unit to which an operation pushes weights; None for any other operation."""
    match = _PUSH.fullmatch(operation.name) if operation.name.startswith("vmatpush") else None
    return int(match["unit"]) if match else None


@functools.lru_cache(maxsize=4096)
def _parsed(name: str) -> Multiply | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    bits = int(match["bits"])
    return Multiply(int(match["unit"]), bits, _ROW_BITS // bits)
