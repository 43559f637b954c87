"""A row: the best blocks of every launch for a variant, heads and pages, and what they gain."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rpagen.schedule.workloads import Configuration, Workload
from rpagen.spec import launches
from rpagen.spec.budget import Problem
from rpagen.spec.launches import LaunchPlan
from rpagen.spec.model import Variant
from rpagen.tune import search
from rpagen.tune.blocks import Blocks, Space
from rpagen.tune.measure import Bench, Measure, Times
from rpagen.tune.rows import Key, Row, Tuned

VERSIONS = ("jax", "libtpu")

LAUNCHES = launches.WITHOUT_PREFILL
"""That are tuned. Prefill is mixed with a fixed number of tokens, and has its default blocks."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What to tune. emitted, dumps: see `measure.Bench`."""

    variant: Variant
    device: str
    configuration: Configuration
    page_size: int
    workloads: tuple[Workload, ...]
    emitted: Path
    dumps: Path

    @property
    def key(self) -> Key:
        """Of the row."""
        problem = self.problem(self.workloads[0])
        return Key.of(self.variant, problem, self.configuration.sliding_window)

    def problem(self, workload: Workload) -> Problem:
        """The sizes of a call."""
        return self.configuration.shape(workload, self.page_size).problem(self.variant)


def tuned(request: Request, jobs: int, told: Callable[[str, Times], None]) -> Row:
    """The row of a request, found in so many processes.

    told: is called with the launch and the times of every trial, as they come.

    Raises:
        RpagenError: the default blocks do not compile.
    """
    found = {launch: _tuned(request, launch, jobs, told) for launch in LAUNCHES}
    return Row(request.key, found, {name: importlib.metadata.version(name) for name in VERSIONS})


def workloads_of(launch: str, known: Sequence[Workload]) -> tuple[Workload, ...]:
    """The workloads by which a launch is tuned: those of decodes alone, or those with more."""
    are_decodes = launch == "decode"
    return tuple(
        each for each in known if all(count == 1 for count in each.new_tokens) == are_decodes
    )


def space_of(request: Request, launch: str, workloads: Sequence[Workload]) -> tuple[Space, Blocks]:
    """What the blocks of a launch may be, and those that it has by default.

    They are those of the workload with most tokens, whose blocks are the largest.
    """
    largest = max(workloads, key=lambda each: each.padded_tokens)
    problem = request.problem(largest)
    plans: Mapping[str, LaunchPlan] = {
        plan.launch: plan for plan in launches.plan(request.variant, problem, request.device, None)
    }
    kv_slots = request.variant.launches[launch].kv_slots
    space = Space(launch, problem, kv_slots, request.device)
    return space, Blocks.of(plans[launch])


def _tuned(request: Request, launch: str, jobs: int, told: Callable[[str, Times], None]) -> Tuned:
    workloads = workloads_of(launch, request.workloads)
    space, start = space_of(request, launch, workloads)
    bench = Bench(
        request.variant.name,
        request.device,
        request.configuration,
        request.page_size,
        launch,
        workloads,
        request.emitted,
        request.dumps,
    )
    measure = Measure(bench, jobs, lambda times: told(launch, times))
    found = search.downhill(space, start, measure)
    best, default = (
        {
            workload.name: round(each, 1)
            for workload, each in zip(workloads, measure.times[blocks].microseconds, strict=True)
        }
        for blocks in (found.best, found.start)
    )
    return Tuned(found.best, best, found.start, default)
