"""The time of a whole call: its kernels, and what XLA does around them, one after the other."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from rpagen.errors import InputError
from rpagen.schedule import hlo, integers, origin, read
from rpagen.schedule.faults import NEVER_WRITTEN, ScheduleError, is_known
from rpagen.schedule.generations import GENERATIONS, Generation
from rpagen.schedule.hlo import Array, Computation, Instruction
from rpagen.schedule.integers import Unknown, Value
from rpagen.schedule.run import Operands, Program, Run

MOST_TURNS = 100_000
"""Of a loop of XLA's: one that has taken so many does not end."""

_ASYNCHRONOUS = {"copy-start", "slice-start"}
_WITHOUT_TIME = {
    "parameter",
    "constant",
    "bitcast",
    "tuple",
    "get-tuple-element",
    "copy-start",
    "slice-start",
}
_CALLS_WITHOUT_TIME = {"AllocateBuffer", "ConcatBitcast"}
_KERNEL = "tpu_custom_call"
_NUMBERS = (
    "check that the dump is of this call: --operand NUMBER=... counts its parameters from 0, and a"
    " workload and --page have to be those that it was compiled for"
)


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation of a call that takes time.

    run: of a kernel or fusion; None of a wait for a copy that XLA started before.
    begun, ended: cycles since the call began, its fixed cost among them.
    """

    name: str
    is_kernel: bool
    run: Run | None
    begun: float
    ended: float

    @property
    def cycles(self) -> float:
        """What it takes."""
        return self.ended - self.begun


@dataclasses.dataclass(frozen=True)
class Timed:
    """A call with its time."""

    generation: Generation
    steps: tuple[Step, ...]

    @property
    def kernels(self) -> list[Step]:
        """Those written by hand, or emitted."""
        return [step for step in self.steps if step.is_kernel]

    @property
    def cycles(self) -> float:
        """Of the whole call."""
        return sum(step.cycles for step in self.steps)


class Call:
    """A compiled call that can be timed, with any operands."""

    def __init__(self, folder: Path, generation: Generation) -> None:
        """Reads a dump.

        Raises:
            InputError: it is not complete, or of no known form.
        """
        self.generation = generation
        self.folder = folder
        self.module = hlo.read(folder)
        self.instructions: tuple[Instruction, ...] = tuple(self._all(self.module.entry))
        """In the order in which they run, those of every branch and loop among them."""
        self._texts = {_plain(name): text for name, text in read.texts(folder).items()}
        self._programs: dict[str, Program] = {}

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """The names of its kernels, in order, those of every branch among them."""
        return tuple(each.name for each in self.instructions if _is_kernel(each))

    def program(self, name: str) -> Program:
        """The schedule of a kernel or fusion.

        Raises:
            InputError: there is none, it holds what is not known, or it is for another TPU.
        """
        plain = self._known(name)
        if plain not in self._programs:
            schedule = self._texts[plain].schedule()
            origin.check(schedule, self.slots(name), self.generation)
            self._programs[plain] = Program(schedule, self.generation)
        return self._programs[plain]

    def generations(self) -> tuple[str, ...]:
        """Those that all of its kernels may be compiled for.

        Raises:
            InputError: see `slots`, or a schedule is of no known form.
        """
        found = [
            set(origin.fitting(self._texts[self._known(name)].schedule(), self.slots(name)))
            for name in self.kernels
        ]
        return tuple(each for each in GENERATIONS if all(each in some for some in found))

    def slots(self, name: str) -> read.Slots:
        """The slots that the bundles of a kernel or fusion take.

        Raises:
            InputError: there are none, or a line is of no known form.
        """
        return self._texts[self._known(name)].slots()

    def _known(self, name: str) -> str:
        """The name under which there is a schedule of a kernel or fusion."""
        plain = _plain(name)
        if plain not in self._texts:
            plain = self._twins.get(name, plain)
        if plain not in self._texts:
            raise InputError(
                f"there is no schedule of %{name}",
                place=str(self.folder),
                expected=f"a file *-{name}-*{read.BUNDLES}",
                next_step="dump the call anew, into an empty folder",
            )
        return plain

    def time(self, parameters: Mapping[int, np.ndarray], *, with_path: bool = False) -> Timed:
        """Runs all of it.

        parameters: integer arrays of the call, by number, in their shape or flat.

        Raises:
            InputError: see `program`; or one is no parameter of the call, or has another shape; or
                what steers a kernel does not follow from the parameters.
            ScheduleError: a kernel cannot be run.
        """
        timing = _Timing(self, with_path)
        timing.run(self.module.entry, dict(self._given(parameters)))
        return Timed(self.generation, tuple(timing.steps))

    def parameter(self, number: int) -> Instruction:
        """The parameter of the call with a number.

        Raises:
            InputError: there is none.
        """
        found = {
            int(each.literal): each
            for each in self.module.entry.instructions
            if each.opcode == "parameter"
        }
        if number in found:
            return found[number]
        integers_ = [n for n, each in sorted(found.items()) if _takes_integers(each)]
        raise InputError(
            f"the call has no parameter {number}",
            place=self.module.place,
            expected=f"one of its {len(found)} parameters"
            + (f"; those of integers are {', '.join(map(str, integers_))}" if integers_ else ""),
            next_step=_NUMBERS,
        )

    def _given(self, parameters: Mapping[int, np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
        """Parameters in the shapes that the call has them in."""
        for number, value in parameters.items():
            each = self.parameter(number)
            array = each.arrays[0]
            is_flat = value.ndim <= 1 and value.size == array.size
            if not _takes_integers(each) or not (is_flat or value.shape == array.shape):
                given = ",".join(map(str, value.shape))
                shape = ",".join(map(str, array.shape))
                raise InputError(
                    f"parameter {number}, %{each.name}, is {array.dtype}[{shape}], and integers"
                    f" [{given}] are given",
                    place=f"{self.module.place}:{each.line}",
                    expected=f"{array.size} integers"
                    if _takes_integers(each)
                    else "integers for a parameter of integers",
                    next_step=_NUMBERS,
                )
            yield number, value.reshape(array.shape)

    def takes_time(self, each: Instruction) -> bool:
        """Whether an operation has a schedule of its own.

        XLA computes single values in between, and libtpu writes no schedule of that.
        """
        if each.opcode in _WITHOUT_TIME or each.opcode.endswith("-done"):
            return False
        if _target(each) in _CALLS_WITHOUT_TIME:
            return False
        return _plain(each.name) in self._texts or any(array.size > 1 for array in each.arrays)

    @cached_property
    def _twins(self) -> dict[str, str]:
        """For operations that do what another does: its schedule, since libtpu writes but one."""
        known: dict[object, str] = {}
        others = []
        for each in self.instructions:
            if _plain(each.name) in self._texts:
                known.setdefault(self.module.signature(each), _plain(each.name))
            elif self.takes_time(each):
                others.append(each)
        signatures = {each.name: self.module.signature(each) for each in others}
        return {name: known[same] for name, same in signatures.items() if same in known}

    def _all(self, computation: Computation) -> Iterator[Instruction]:
        for each in computation.instructions:
            if each.opcode in _CONTROL:
                for called in self.module.called(each):
                    yield from self._all(called)
            else:
                yield each


class _Timing:
    """One run of a call, as far as it has come."""

    def __init__(self, call: Call, with_path: bool) -> None:
        self.steps: list[Step] = []
        self._call = call
        self._module = call.module
        self._generation = call.generation
        self._with_path = with_path
        self._now = 0.0
        self._free_at = 0.0
        self._arrivals: dict[str, float] = {}

    def run(self, computation: Computation, arguments: Mapping[int, Value]) -> Value:
        """Runs a computation; returns what is known of its result."""
        values: dict[str, Value] = {}
        for each in computation.instructions:
            operands = [values[name] for name in each.operands]
            values[each.name] = self._result(each, operands, arguments)
        return values[computation.root]

    def _result(
        self, each: Instruction, operands: Sequence[Value], arguments: Mapping[int, Value]
    ) -> Value:
        if control := _CONTROL.get(each.opcode):
            return control(self, each, operands)
        if each.opcode in _ASYNCHRONOUS:
            self._start(each)
        elif each.opcode.endswith("-done"):
            self._wait(each)
        elif self._call.takes_time(each):
            run = self._execute(each, operands)
            if _is_kernel(each):
                return _made(each, run)
        return integers.result(self._module, each, operands, arguments)

    def _start(self, each: Instruction) -> None:
        generation = self._generation
        self._free_at = max(self._free_at, self._now)
        self._free_at += _hbm_bytes(each) / generation.bytes_per_cycle
        self._arrivals[each.name] = self._free_at + generation.cycles(generation.read_latency)

    def _wait(self, each: Instruction) -> None:
        ended = self._arrivals.get(each.operands[0], self._now)
        if ended > self._now:
            self.steps.append(Step(each.name, False, None, self._now, ended))
            self._now = ended

    def _execute(self, each: Instruction, operands: Sequence[Value]) -> Run:
        generation = self._generation
        launch = generation.cycles(generation.launch) if _is_kernel(each) else 0.0
        arrays = {
            index: value for index, value in enumerate(operands) if isinstance(value, np.ndarray)
        }
        flat = {
            index: _words(value, each.operand_arrays[index][0]) for index, value in arrays.items()
        }
        single = {index: flat[index][0] for index, value in arrays.items() if value.size == 1}
        try:
            run = self._call.program(each.name).run(
                Operands(flat, single),
                begin=self._now + launch,
                queue_free_at=self._free_at,
                with_path=self._with_path,
            )
        except ScheduleError as error:
            self._check_known(each, operands, error.unknown)
            raise
        self._check_known(each, operands, run.unknown)
        self.steps.append(Step(each.name, _is_kernel(each), run, self._now, run.ended))
        self._now = run.ended
        self._free_at = max(self._free_at, max((copy.done for copy in run.copies), default=0.0))
        return run

    def _check_known(
        self, each: Instruction, operands: Sequence[Value], read: Collection[int]
    ) -> None:
        """Raises an error where an operand of integers that a kernel read is not known.

        Raises:
            InputError: one is not.
        """
        for index in sorted(read):
            arrays = each.operand_arrays[index] if index < len(operands) else ()
            if any(integers.is_integer(array.dtype) for array in arrays):
                self._known(operands[index], f"%{each.name} reads it as its operand {index}")

    def _known(self, value: Value, need: str) -> np.ndarray:
        """The value of an array that decides what is run.

        Raises:
            InputError: it is not known.
        """
        if isinstance(value, Unknown):
            origin = value.origin
            is_parameter = origin.opcode == "parameter"
            raise InputError(
                f"%{origin.name} is not known, and {need}: {value.reason}",
                place=f"{self._module.place}:{origin.line}",
                expected=f"the integers of parameter {origin.literal}"
                if is_parameter
                else "integers that follow from the parameters by operations that"
                " rpagen/schedule/integers.py knows",
                next_step=f"give them as --operand {origin.literal}=..., or name the --workload"
                " that the call was compiled for"
                if is_parameter
                else "have them made outside of the call, and give them as one of its parameters",
            )
        assert isinstance(value, np.ndarray)
        if (value == integers.UNWRITTEN).any():
            raise ScheduleError(
                f"{need.partition(' ')[0]} is decided by words that nothing wrote",
                place=self._module.place,
            )
        return value

    def _conditional(self, each: Instruction, operands: Sequence[Value]) -> Value:
        branches = self._module.called(each)
        index = self._known(operands[0], f"%{each.name} branches by it")
        chosen = int(index.reshape(-1)[0])
        if index.dtype == bool:
            chosen = 1 - chosen  # the computation for true comes first
        elif not 0 <= chosen < len(branches):
            chosen = len(branches) - 1
        return self.run(branches[chosen], {0: operands[1 + chosen]})

    def _while(self, each: Instruction, operands: Sequence[Value]) -> Value:
        condition, body = self._module.called(each)
        value = operands[0]
        for _ in range(MOST_TURNS):
            goes_on = self.run(condition, {0: value})
            if not self._known(goes_on, f"%{each.name} goes on by it").any():
                return value
            value = self.run(body, {0: value})
        raise ScheduleError(
            f"%{each.name} has not ended after {MOST_TURNS} turns",
            place=f"{self._module.place}:{each.line}",
        )

    def _called(self, each: Instruction, operands: Sequence[Value]) -> Value:
        return self.run(self._module.called(each)[0], dict(enumerate(operands)))


_CONTROL = {
    "conditional": _Timing._conditional,
    "while": _Timing._while,
    "call": _Timing._called,
}


def _takes_integers(each: Instruction) -> bool:
    return len(each.arrays) == 1 and integers.is_integer(each.arrays[0].dtype)


def _is_kernel(each: Instruction) -> bool:
    return _target(each) == _KERNEL


def _target(each: Instruction) -> str:
    """Of a custom call; else empty."""
    if each.opcode != "custom-call":
        return ""
    return (each.attribute("custom_call_target") or "").strip('"')


def _hbm_bytes(each: Instruction) -> int:
    """That an asynchronous copy moves through HBM: from there, or to there, or both."""
    ends = each.arrays[:2]
    return min(array.bytes for array in ends) * sum(array.is_in_hbm for array in ends)


def _made(each: Instruction, run: Run) -> Value:
    """What a kernel made, as far as its scalar core wrote it."""
    found: list[Value] = []
    for index, array in enumerate(each.arrays):
        words = run.hbm.get(len(each.operands) + index)
        value = None
        if words:
            memory = np.array([int(w) if is_known(w) else integers.UNWRITTEN for w in words])
            value = integers.of_words(memory, array)
        unknown = Unknown(each, "what a kernel computes in vectors")
        found.append(unknown if value is None else value)
    return tuple(found) if len(found) > 1 else found[0]


def _words(value: np.ndarray, array: Array) -> list[int]:
    """The words of an operand in memory, for its kernel."""
    words = integers.words(value, array).tolist()
    return [NEVER_WRITTEN if word == integers.UNWRITTEN else word for word in words]


def _plain(name: str) -> str:
    """As a file name has it."""
    return re.sub(r"\W", "_", name)
