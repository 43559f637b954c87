"""The operations of a compiled call, in the order in which they run, from libtpu's `*TLP-hlo.txt`.

A call is more than its kernels: XLA puts copies, pads and transposes around them, and may put all
of these into the branches of a conditional.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from rpagen.errors import InputError

NAME = "-TLP-hlo.txt"

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%(?P<name>[\w.\-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^  (?P<root>ROOT )?%(?P<name>[\w.\-\[\]]+) = (?P<rest>.*)$")
_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<sizes>[\d,]*)\](?:\{(?P<layout>[^{}]*)\})?")
_BITS = {"pred": 8, "bf16": 16, "f16": 16, "u4": 4, "s4": 4}
# What an operation does not depend on: where it comes from, and what the compiler noted of it.
_NOTES = re.compile(r",? (?:metadata|backend_config|sharding|frontend_attributes|origin)=.*")


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of an array.

    is_in_hbm: XLA may put it in VMEM instead. minor_to_major, tiles: its layout: dimensions, that
    with the closest values first, and the sizes of tiles of the last dimensions in memory.
    """

    dtype: str
    shape: tuple[int, ...]
    is_in_hbm: bool
    minor_to_major: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()

    @property
    def size(self) -> int:
        """Values in it."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Without what its layout adds."""
        digits = re.search(r"\d+", self.dtype)
        bits = _BITS.get(self.dtype) or int(digits[0] if digits else 32)
        return self.size * bits // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One operation.

    arrays: of its result; several where it is a tuple. operand_arrays: the same of each operand.
    attributes: what follows the operands.
    """

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str
    line: int
    operand_arrays: tuple[tuple[Array, ...], ...] = ()

    def attribute(self, name: str) -> str | None:
        """The value of an attribute, as it is written."""
        match = re.search(rf"\b{name}=(\{{[^{{}}]*\}}|[^,\s]+)", self.attributes)
        return match[1] if match else None

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """The value of an attribute that is a list of numbers, or a number."""
        value = self.attribute(name)
        return None if value is None else tuple(map(int, re.findall(r"\d+", value)))

    @property
    def calls(self) -> tuple[str, ...]:
        """The computations that it runs, in the order of its attributes."""
        return tuple(
            name
            for attribute in (
                *("calls", "to_apply", "condition", "body"),
                *("branch_computations", "true_computation", "false_computation"),
            )
            for name in re.findall(r"%([\w.\-]+)", self.attribute(attribute) or "")
        )


@dataclasses.dataclass(frozen=True)
class Computation:
    """Operations, in the order in which they run. root: the name of that with the result."""

    name: str
    instructions: tuple[Instruction, ...]
    root: str


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled call. place: the file, for errors."""

    place: str
    entry: Computation
    computations: Mapping[str, Computation]

    def called(self, instruction: Instruction) -> tuple[Computation, ...]:
        """The computations that an operation runs.

        Raises:
            InputError: one is not there.
        """
        for name in instruction.calls:
            if name not in self.computations:
                raise self.error(
                    instruction, f"%{name} is not there", f"a computation `%{name} (...) -> ...`"
                )
        return tuple(self.computations[name] for name in instruction.calls)

    def signature(self, instruction: Instruction) -> object:
        """Equal for operations that do the same with arrays of the same types and layouts."""
        types = instruction.arrays, instruction.operand_arrays
        return instruction.opcode, types, self._what(instruction)

    def _what(self, instruction: Instruction) -> object:
        attributes = _NOTES.sub("", re.sub(r"\b\w+=%[\w.\-]+", "", instruction.attributes))
        return attributes, tuple(self._form(each) for each in self.called(instruction))

    def _form(self, computation: Computation) -> object:
        places = {each.name: index for index, each in enumerate(computation.instructions)}
        return tuple(
            (
                each.opcode,
                each.arrays,
                tuple(places.get(name) for name in each.operands) or each.literal,
                self._what(each),
            )
            for each in computation.instructions
        )

    def error(self, instruction: Instruction, problem: str, expected: str) -> InputError:
        """An error about an operation."""
        return _error(self.place, instruction.line, problem, expected)


def read(folder: Path) -> Module:
    """The one call whose dump a folder holds.

    Raises:
        InputError: there is none or more than one, or a line is of no known form.
    """
    if not folder.is_dir():
        raise InputError(
            "there is no such folder",
            place=str(folder),
            expected="the folder into which libtpu wrote a call",
            next_step="make one with the flags that `rpagen predict --flags FOLDER` prints",
        )
    paths = sorted(folder.glob(f"*{NAME}"))
    if len(paths) != 1:
        raise InputError(
            f"{len(paths)} compiled calls are dumped here",
            place=str(folder),
            expected=f"one file *{NAME}",
            next_step="dump each call into an empty folder of its own",
        )
    return parse(paths[0].read_text(encoding="utf-8", errors="replace"), str(paths[0]))


def parse(text: str, place: str) -> Module:
    """The call that a text describes.

    Raises:
        InputError: a line is of no known form.
    """
    entry = None
    computations = {}
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if match := _COMPUTATION.match(line):
            computation = _computation(match["name"], number, lines, place)
            computations[computation.name] = computation
            if match["entry"]:
                entry = computation
    if entry is None:
        raise _error(place, 1, "there is no computation to enter", "a line `ENTRY ...`")
    return Module(place, entry, computations)


def _computation(
    name: str, first: int, lines: Iterator[tuple[int, str]], place: str
) -> Computation:
    instructions: dict[str, Instruction] = {}
    root = so_far = ""
    for number, line in lines:
        if line == "}":
            break
        match = _INSTRUCTION.match(line)
        if match is None:
            if not _is_open(so_far):
                problem = f"{line[:60]!r} is no operation"
                raise _error(place, number, problem, "`  %name = type operation(...)`")
            so_far += f"\n{line}"  # an attribute may hold line breaks
            continue
        so_far = line
        each = _instruction(match["name"], match["rest"], place, number)
        missing = next((name for name in each.operands if name not in instructions), None)
        if missing:
            raise _error(place, number, f"%{missing} is not there", "operands that come before")
        types = tuple(instructions[name].arrays for name in each.operands)
        instructions[each.name] = dataclasses.replace(each, operand_arrays=types)
        if match["root"]:
            root = match["name"]
    if not root:
        raise _error(place, first, f"%{name} has no result", "a line `  ROOT %name = ...`")
    return Computation(name, tuple(instructions.values()), root)


def _is_open(text: str) -> bool:
    """Whether an attribute goes on behind the end of an operation's text."""
    quotes = len(re.findall(r'(?<!\\)"', text))
    return quotes % 2 == 1 or any(text.count(a) > text.count(b) for a, b in ("{}", "()"))


def _instruction(name: str, rest: str, place: str, line: int) -> Instruction:
    kind, rest = _type(rest)
    match = re.match(r" ?(?P<opcode>[a-z][\w-]*)\(", rest)
    if match is None:
        raise _error(place, line, f"%{name} has no operation", "`%name = type operation(...)`")
    end = _closing(rest, match.end() - 1)
    inside = rest[match.end() : end]
    return Instruction(
        name,
        match["opcode"],
        tuple(_arrays(kind)),
        tuple(re.findall(r"%([\w.\-\[\]]+)", inside)),
        inside,
        rest[end + 1 :],
        line,
    )


def _type(text: str) -> tuple[str, str]:
    """A type, and what follows it."""
    if text.startswith("("):
        end = _closing(text, 0)
        return text[: end + 1], text[end + 1 :]
    match = _ARRAY.match(text)
    return (match[0], text[match.end() :]) if match else ("", text)


def _closing(text: str, start: int) -> int:
    """Where the parenthesis closes that opens at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return len(text)


def _arrays(kind: str) -> Iterator[Array]:
    for match in _ARRAY.finditer(re.sub(r"/\*.*?\*/", "", kind)):
        order, _, rest = (match["layout"] or "").partition(":")
        tiles = re.match(r"T((?:\([\d,]+\))+)", rest)
        yield Array(
            match["dtype"],
            _sizes(match["sizes"]),
            "S(1)" not in rest,
            _sizes(order),
            tuple(map(_sizes, re.findall(r"\(([\d,]+)\)", tiles[1]))) if tiles else (),
        )


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def _error(place: str, line: int, problem: str, expected: str) -> InputError:
    return InputError(
        problem,
        place=f"{place}:{line}",
        expected=expected,
        next_step="check that libtpu wrote the whole file; if it did, it writes another form:"
        " mend rpagen/schedule/hlo.py",
    )
