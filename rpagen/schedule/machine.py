"""The memories, semaphores and copies of a core, and when each copy is done.

A clock in cycles runs with the bundles that are executed. A copy waits its turn in one queue to
HBM, takes its bytes' time there, and is done a latency later. A wait for what is not done yet
stalls the core until it is.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence

from rpagen.schedule.faults import NEVER_WRITTEN, ScheduleError
from rpagen.schedule.generations import GRANULE, Generation

WORDS = GRANULE // 4
"""32-bit words of a granule."""

ALLOCATION_SPACING = 1 << 18
"""Between the addresses of two allocations in a core's memories: words of the largest SMEM, and
more than the rows of any VMEM."""

ROW = 16
"""Granules of a row of VMEM."""

OPERAND_SPACING = 1 << 40
"""Granules between the HBM addresses of two operands: none is larger. The first begins here, so
that smaller addresses are none of HBM."""


def address_of(operand: int) -> int:
    """Of an operand in HBM, in granules."""
    return (operand + 1) * OPERAND_SPACING


def operand_at(address: int) -> tuple[int, int]:
    """Which operand lies at an address in HBM, and the granule of it."""
    number, offset = divmod(address, OPERAND_SPACING)
    return number - 1, offset


def is_of_operand(address: int) -> bool:
    """Whether an address is one in HBM, of an operand."""
    return address >= OPERAND_SPACING


def kind_of(source: int, target: int) -> str:
    """Of a copy whose operation does not tell."""
    ends = ("hbm" if is_of_operand(address) else "vmem" for address in (source, target))
    return "_to_".join(ends)


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """A copy between HBM and the memories of a core, or within these.

    kind: such as "hbm_to_vmem". granules: of 32 bytes. site: the bundle that started it.
    issued, done: cycles.
    """

    kind: str
    granules: int
    site: int
    issued: float
    done: float

    @property
    def read(self) -> int:
        """Bytes from HBM: none of a scalar register that was spilled."""
        return self._bytes if self.kind.startswith("hbm_") else 0

    @property
    def written(self) -> int:
        """Bytes to HBM, likewise."""
        return self._bytes if self.kind.endswith("_to_hbm") else 0

    @property
    def _bytes(self) -> int:
        return self.granules * GRANULE if self.done > self.issued else 0


@dataclasses.dataclass(frozen=True, slots=True)
class Stall:
    """Cycles in which the core waited for copies, at a bundle."""

    site: int
    begun: float
    ended: float


class Machine:
    """What the scalar core of a schedule acts on.

    now: the clock, in cycles. hbm: words of the operands in HBM that the scalar core needs, by the
    number of an operand; the others have none. in_vmem: see `scalar.Translation`. smem: words by
    address; where there is none, nothing wrote it.
    """

    def __init__(
        self,
        generation: Generation,
        hbm: dict[int, list[int]],
        in_vmem: Mapping[int, int],
        in_smem: Mapping[int, int],
        now: float = 0.0,
    ) -> None:
        self.generation = generation
        self._in_vmem = in_vmem
        self.now = now
        self.hbm = hbm
        self.unknown: set[int] = set()
        """Operands whose words the scalar core read without there being any."""
        self.smem: dict[int, int] = {
            address + index: word
            for address, number in in_smem.items()
            for index, word in enumerate(self._operand(number))
        }
        self.copies: list[Copy] = []
        self.stalls: list[Stall] = []
        self.free_at = now
        """When the queue to HBM has done what was issued until now."""
        self._spilled: dict[int, list[int]] = {}
        self._counts: dict[int, int] = {}
        self._coming: dict[int, list[tuple[float, int]]] = {}

    def copy(
        self, kind: str, site: int, at: float, source: int, granules: int, target: int, flag: int
    ) -> None:
        """Starts a copy at a cycle; when done, it adds its granules to a flag.

        Raises:
            ScheduleError: its size or a place is not known.
        """
        if source is NEVER_WRITTEN or target is NEVER_WRITTEN or flag is NEVER_WRITTEN:
            raise ScheduleError(
                f"bundle {site:#x} copies from or to where nothing wrote that it is", site=site
            )
        if kind in ("smem_to_hbm", "smem_to_vmem"):
            words = [
                self.smem.get(source + index, NEVER_WRITTEN) for index in range(granules * WORDS)
            ]
            self._write(kind, target, words)
        elif kind in ("hbm_to_smem", "vmem_to_smem"):
            count = granules * WORDS
            found = self._words(kind, source, count)
            end = target + len(found)
            self.smem.update(zip(range(target, end), found, strict=True))
            for address in range(end, target + count):
                self.smem.pop(address, None)  # it lies behind an operand, or nothing wrote it
        if granules:
            done = self._done(kind, at, granules, source, target)
            self.copies.append(Copy(kind, granules, site, at, done))
            heapq.heappush(self._coming.setdefault(flag, []), (done, granules))

    def _done(self, kind: str, at: float, granules: int, source: int, target: int) -> float:
        """When a copy is done."""
        generation = self.generation
        if "hbm" not in kind:  # within the core: its time is assumed
            return at + generation.cycles(generation.write_latency)
        if "smem" in kind and not (is_of_operand(source) or is_of_operand(target)):
            return at  # a scalar register that libtpu spilled: on hardware it costs no more
        latency = generation.write_latency if kind.endswith("_hbm") else generation.read_latency
        size = granules * GRANULE * kind.count("hbm")  # from HBM to HBM it goes both ways
        self.free_at = max(self.free_at, at) + size / generation.bytes_per_cycle
        return self.free_at + generation.cycles(latency)

    def _write(self, kind: str, target: int, words: list[int]) -> None:
        place = self._place(kind.endswith("_vmem"), target)
        if place is None:
            self._spilled[target] = words
            return
        operand, start = place
        held = self.hbm.setdefault(operand, [])
        end = start + len(words)
        held.extend([NEVER_WRITTEN] * (end - len(held)))
        held[start:end] = words

    def _words(self, kind: str, source: int, count: int) -> Sequence[int]:
        place = self._place(kind.startswith("vmem_"), source)
        if place is None:
            return self._spilled.get(source, ())
        operand, start = place
        return self._operand(operand)[start : start + count]

    def _operand(self, number: int) -> Sequence[int]:
        if number not in self.hbm:
            self.unknown.add(number)
        return self.hbm.get(number, ())

    def _place(self, is_in_vmem: bool, address: int) -> tuple[int, int] | None:
        """The operand at an address, and the word of it; None where there is none."""
        if is_in_vmem:
            offsets = ((number, address - row) for row, number in self._in_vmem.items())
            span = ALLOCATION_SPACING * ROW
            found = (each for each in offsets if 0 <= each[1] < span)
            operand, granule = next(found, (None, 0))
            return None if operand is None else (operand, granule * WORDS)
        if not is_of_operand(address):
            return None
        number, granule = operand_at(address)
        return number, granule * WORDS

    def wait(self, flag: int, least: int, site: int, at: float) -> float:
        """Waits, from a cycle on, until a flag is at least so much; returns when that is.

        Raises:
            ScheduleError: it never will be.
        """
        coming = self._coming.get(flag, [])
        count, ended = self._counts.get(flag, 0), at
        while coming and (count < least or coming[0][0] <= at):
            done, granules = heapq.heappop(coming)
            count += granules
            ended = max(ended, done)
        self._counts[flag] = count
        if count < least:
            raise ScheduleError(
                f"bundle {site:#x} waits for {least} granules at a semaphore that gets {count}",
                site=site,
            )
        if ended > at:
            self.stalls.append(Stall(site, at, ended))
        return ended

    def add(self, flag: int, amount: int) -> None:
        """Adds to a flag."""
        self._counts[flag] = self._counts.get(flag, 0) + amount

    def count(self, flag: int) -> int:
        """What a flag has when all that was started is done."""
        return self._counts.get(flag, 0) + sum(each[1] for each in self._coming.get(flag, ()))
