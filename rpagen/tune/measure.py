"""What one launch takes with certain blocks, predicted from its schedule."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rpagen import errors
from rpagen.evidence import emitted, workers
from rpagen.schedule import dump, predict
from rpagen.schedule.call import Call
from rpagen.schedule.generations import GENERATIONS
from rpagen.schedule.workloads import Configuration, Workload
from rpagen.spec import launches
from rpagen.tune.blocks import Blocks


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all trials of a search have in common.

    workloads: those in which the launch has sequences. emitted: the folder of the variant's module.
    dumps: that of what was compiled, which is how a search that was stopped goes on.
    """

    variant: str
    device: str
    configuration: Configuration
    page_size: int
    launch: str
    workloads: tuple[Workload, ...]
    emitted: Path
    dumps: Path


@dataclasses.dataclass(frozen=True)
class Trial:
    """Blocks to try."""

    bench: Bench
    blocks: Blocks


@dataclasses.dataclass(frozen=True)
class Times:
    """Of a trial: microseconds of the launch in each workload, or what there is against it."""

    blocks: Blocks
    microseconds: tuple[float, ...] = ()
    problem: str = ""

    @property
    def cost(self) -> float:
        """The geometric mean, so that no workload counts more than another."""
        if self.problem:
            return math.inf
        return statistics.geometric_mean(self.microseconds)


class Measure:
    """The cost of blocks, for `search.downhill`: trials of a bench, in so many processes.

    told: is called with each trial's times as they come. times: of all that were tried.
    """

    def __init__(self, bench: Bench, jobs: int, told: Callable[[Times], None]) -> None:
        self._bench = bench
        self._jobs = jobs
        self._told = told
        self.times: dict[Blocks, Times] = {}

    def __call__(self, some: Sequence[Blocks]) -> list[float]:
        """The costs of some blocks, in their order."""
        trials = [Trial(self._bench, each) for each in some]
        for found in workers.results(measured, _died, trials, self._jobs):
            self.times[found.blocks] = found
            self._told(found)
        return [self.times[each].cost for each in some]


def measured(trial: Trial) -> Times:
    """The times of a trial; what stands in its way becomes their `problem`."""
    try:
        return Times(trial.blocks, tuple(_microseconds(trial)))
    except Exception as error:  # whatever the compiler or the module has against the call
        return Times(trial.blocks, problem=errors.reason(error))


def _died(trial: Trial, reason: str) -> Times:
    return Times(trial.blocks, problem=reason)


def _microseconds(trial: Trial) -> Iterator[float]:
    bench = trial.bench
    module = emitted.module(bench.emitted, bench.variant)
    generation = GENERATIONS[bench.device]
    calls: dict[object, Call] = {}
    for workload in bench.workloads:
        shape = bench.configuration.shape(workload, bench.page_size)
        if shape not in calls:
            options = {
                **predict.options_of(module.VARIANT, bench.configuration),
                launches.blocks_argument(bench.launch): trial.blocks.argument,
            }
            folder = dump.of_module(
                bench.dumps, bench.emitted, module, bench.device, shape, options, bench.launch
            )
            calls[shape] = Call(folder, generation)
        timed = calls[shape].time(workload.operands(bench.page_size))
        yield generation.microseconds(sum(step.cycles for step in timed.kernels))
