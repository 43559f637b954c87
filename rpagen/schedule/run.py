"""Running a schedule: which bundles are executed how often, what is copied, how long it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rpagen.schedule import matrix_unit
from rpagen.schedule.blocks import END, Block, split
from rpagen.schedule.faults import NEVER_WRITTEN, ScheduleError
from rpagen.schedule.generations import Generation
from rpagen.schedule.machine import Copy, Machine, Stall
from rpagen.schedule.read import Schedule
from rpagen.schedule.scalar import Translation

MOST_BLOCKS = 50_000_000
"""Of a run: a loop that has executed so many does not end."""


@dataclasses.dataclass(frozen=True)
class Operands:
    """What a kernel is given, as far as its scalar core needs it.

    hbm: 32-bit words of arrays, by the number of the operand. scalars: operands given by value.
    """

    hbm: Mapping[int, Sequence[int]] = dataclasses.field(default_factory=dict)
    scalars: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Run:
    """One execution of a kernel.

    counts: how often each block was executed, in the order of `Program.blocks`.
    begun, ended: cycles; it ends when the last bundle is executed and the last copy is done, those
    that no one waited for among them.
    copies, stalls: in the order of their beginning. matrix_stalls: cycles for which the matrix unit
    held back the core, where the schedule is denser than it, by block.
    hbm: what the kernel left in the arrays that its scalar core wrote. unknown: operands that its
    scalar core read and was not given; nothing followed from them.
    path: blocks and the cycle at which each was entered, if it was asked for.
    """

    program: Program
    counts: tuple[int, ...]
    begun: float
    ended: float
    copies: tuple[Copy, ...]
    stalls: tuple[Stall, ...]
    matrix_stalls: tuple[float, ...]
    hbm: Mapping[int, Sequence[int]]
    unknown: frozenset[int]
    path: tuple[tuple[int, float], ...]

    @property
    def cycles(self) -> float:
        """From its first bundle to the end."""
        return self.ended - self.begun

    @property
    def bundles(self) -> int:
        """Executed bundles."""
        blocks = self.program.blocks
        return sum(n * block.length for n, block in zip(self.counts, blocks, strict=True))

    def executions(self) -> list[int]:
        """How often each bundle was executed, by address."""
        found = [0] * len(self.program.schedule.bundles)
        for count, block in zip(self.counts, self.program.blocks, strict=True):
            for address in range(block.first, block.last + 1):
                found[address] += count
        return found

    @property
    def transfers(self) -> list[Copy]:
        """The copies that move something through HBM.

        Those within the core are none, nor are scalar registers that are spilled.
        """
        return [copy for copy in self.copies if copy.read or copy.written]

    @property
    def read(self) -> int:
        """Bytes that it moves from HBM."""
        return sum(copy.read for copy in self.copies)

    @property
    def written(self) -> int:
        """Bytes that it moves to HBM."""
        return sum(copy.written for copy in self.copies)


class _Scalars(dict[int, int]):
    """Operands by value. numbers: of those that were asked for and are not there."""

    def __init__(self, given: Mapping[int, int]) -> None:
        super().__init__(given)
        self.numbers: set[int] = set()

    def __missing__(self, number: int) -> int:
        self.numbers.add(number)
        return NEVER_WRITTEN  # type: ignore[no-any-return]


class Program:
    """A schedule that can be run, any number of times."""

    def __init__(self, schedule: Schedule, generation: Generation) -> None:
        """Translates a schedule.

        Raises:
            InputError: it holds what is not known.
        """
        self.schedule = schedule
        self.generation = generation
        self.blocks: tuple[Block, ...] = tuple(split(schedule, generation))
        self._translation = Translation(schedule, self.blocks, generation)
        self._matrix_units = [
            matrix_unit.Stalls(schedule, block, generation) for block in self.blocks
        ]

    def run(
        self,
        operands: Operands,
        *,
        begin: float = 0.0,
        queue_free_at: float = 0.0,
        with_path: bool = False,
    ) -> Run:
        """Runs it once, from a cycle on.

        queue_free_at: when the queue to HBM has done what others asked of it before.

        Raises:
            ScheduleError: it waits for what never comes, does not end, or what is executed follows
                from what is not known.
        """
        hbm = {number: list(words) for number, words in operands.hbm.items()}
        translation = self._translation
        machine = Machine(self.generation, hbm, translation.in_vmem, translation.in_smem, begin)
        machine.free_at = max(machine.free_at, queue_free_at)
        missing = _Scalars(operands.scalars)
        functions = self._translation.functions(self.blocks, missing)
        index_of = {block.first: index for index, block in enumerate(self.blocks)}
        steps = [
            (index_of[block.first], functions[block.first], unit if unit.matters else None)
            for block, unit in zip(self.blocks, self._matrix_units, strict=True)
        ]
        by_address = {block.first: step for block, step in zip(self.blocks, steps, strict=True)}
        counts = [0] * len(self.blocks)
        held = [0.0] * len(self.blocks)
        backlog: matrix_unit.Backlog = matrix_unit.IDLE
        path: list[tuple[int, float]] = []
        address, executed = 0, 0

        def failed(error: ScheduleError, block: int) -> ScheduleError:
            return self._placed(error, block, frozenset(machine.unknown | missing.numbers))

        while address != END:
            index, function, unit = by_address[address]
            counts[index] += 1
            if with_path:
                path.append((index, machine.now))
            entered = machine.now
            try:
                address = function(machine)
            except ScheduleError as error:
                raise failed(error, address) from None
            if unit is not None:
                stall, backlog = unit.after(backlog)
                machine.now += stall
                held[index] += stall
            elif backlog is not matrix_unit.IDLE:
                backlog = matrix_unit.later(backlog, machine.now - entered)
            executed += 1
            if executed == MOST_BLOCKS:
                endless = ScheduleError(f"the kernel has not ended after {MOST_BLOCKS} blocks")
                raise failed(endless, address)
        if NEVER_WRITTEN in machine.smem:
            stray = ScheduleError("a word is stored where nothing wrote that it is to be")
            raise failed(stray, 0)
        last = max((copy.done for copy in machine.copies), default=machine.now)
        return Run(
            self,
            tuple(counts),
            begin,
            max(machine.now, last),
            tuple(machine.copies),
            tuple(machine.stalls),
            tuple(held),
            machine.hbm,
            frozenset(machine.unknown | missing.numbers),
            tuple(path),
        )

    def _placed(self, error: ScheduleError, block: int, unknown: frozenset[int]) -> ScheduleError:
        """An error with its kernel and bundle, that at which the block begins where no other is."""
        bundles = self.schedule.bundles
        site = error.site if error.site is not None else block
        line = bundles[site].line if 0 <= site < len(bundles) else bundles[-1].line
        return ScheduleError(
            f"{self.schedule.name}: {error.problem}",
            site=error.site,
            place=f"{self.schedule.place}:{line}",
            unknown=unknown,
        )
