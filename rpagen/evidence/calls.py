"""Which calls a variant is judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from rpagen.evidence import cases, named_bugs, workloads
from rpagen.evidence.records import ON_TPU
from rpagen.spec.model import DispatchKey

FIRST = ("gqa4_three_ranges", "gqa3_three_ranges", "gqa4_large_logits", "gqa4_empty_sequences")
"""The named cases that find most."""

AT_ANY_TIME = ("gqa3_no_mixed",)
"""Those in which copies run as early as can be, too."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A case, and when copies run in it.

    mode: of the interpreter, `on_wait`, `eager` or `random`; or `tpu`, where they run on one.
    seed: of the times in mode `random`, and of the case's numbers.
    """

    case: cases.Case
    mode: str = "on_wait"
    seed: int = 0

    @property
    def name(self) -> str:
        """What tells a call of a variant from others."""
        return "-".join([self.case.name, self.mode, *([str(self.seed)] if self.seed else [])])

    @property
    def timing(self) -> str:
        """When copies run, in words."""
        return f"{self.mode} {self.seed}" if self.mode == "random" else self.mode

    @property
    def interpreter_options(self) -> dict[str, Any]:
        """Of `interpreter.tpu_interpret_mode`."""
        return {"detect_races": True, "dma_execution_mode": self.mode, "seed": self.seed}


def named(key: DispatchKey) -> Iterator[Call]:
    """The named cases, those that find most first, and then the faults of public kernels."""
    by_name = {case.name: case for case in cases.cases_for(key)}
    for name in [*FIRST, *(name for name in by_name if name not in FIRST)]:
        yield Call(by_name[name])
    for bug in named_bugs.BUGS:
        if bug.touches(key):
            yield Call(cases.adapt(bug.case, key))


def shapes(key: DispatchKey) -> Iterator[Call]:
    """Every shape of heads for plain variants, and every window for those that have one.

    Features change which keys count, and not how heads are laid out.
    """
    heads = () if key.features else cases.HEAD_CASES
    windows = cases.WINDOW_CASES if "sliding_window" in key.features else ()
    for case in (*heads, *windows):
        yield Call(cases.adapt(case, key))


def at_other_times(key: DispatchKey) -> Iterator[Call]:
    """Cases in which copies run at once."""
    for case in cases.cases_for(key):
        if case.name in AT_ANY_TIME:
            yield Call(case, "eager")


def random_workloads(key: DispatchKey, seed: int, is_on_tpu: bool = False) -> Iterator[Call]:
    """Workloads in one geometry, at random times."""
    for case in workloads.workloads(key, seed):
        yield Call(case, ON_TPU if is_on_tpu else "random", seed)


def by_seed(key: DispatchKey, seeds: Iterable[int]) -> Iterator[Call]:
    """Random workloads, and the cases that find most with other numbers, at random times."""
    by_name = {case.name: case for case in cases.cases_for(key)}
    for seed in seeds:
        yield from random_workloads(key, seed)
        for name in FIRST:
            yield Call(by_name[name], "random", seed)


def every(key: DispatchKey, seeds: Iterable[int]) -> Iterator[Call]:
    """All of the above."""
    yield from named(key)
    yield from shapes(key)
    yield from at_other_times(key)
    yield from by_seed(key, seeds)


def on_tpu(key: DispatchKey, seeds: Iterable[int]) -> Iterator[Call]:
    """The same for hardware, where copies run when they run."""
    yield from dict.fromkeys(
        dataclasses.replace(call, mode=ON_TPU) for call in every(key, seeds) if call.mode != "eager"
    )
