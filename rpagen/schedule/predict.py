"""What a call of a kernel takes on a TPU, predicted from what the compiler made of it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from rpagen import errors
from rpagen.emit import single
from rpagen.errors import InputError, RpagenError
from rpagen.evidence import emitted, options, workers
from rpagen.evidence.shapes import CallShape
from rpagen.schedule import dump, floor, kept, regions
from rpagen.schedule.call import Call, Timed
from rpagen.schedule.floor import Floor
from rpagen.schedule.generations import GENERATIONS
from rpagen.schedule.workloads import Configuration, Workload
from rpagen.spec import launches
from rpagen.spec.model import Variant

USUAL_WINDOW = 1024
"""Of a variant with a sliding window, where the configuration has none."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A call of an emitted module to predict.

    emitted: the folder of the module. dumps: that of what was compiled, see `dump.of_module`.
    blocks: the block sizes of launches, of those that do not have their default ones.
    """

    variant: str
    device: str
    workload: Workload
    configuration: Configuration
    page_size: int
    emitted: Path
    dumps: Path
    blocks: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def shape(self) -> CallShape:
        """What is compiled for the workload; others may be padded to the same."""
        return self.configuration.shape(self.workload, self.page_size)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The time of a call, in cycles.

    kernels: of its kernels alone, what each costs to start among them. call: with what XLA does
    around them. bundles: that its kernels execute. bytes, copies: what they move through HBM.
    regions: where the cycles of the kernels go, see `regions.REGIONS`; "start" is what kernels cost
    to start. around: the operations around the kernels, by name.
    problem: why there is none of all this; else empty.
    """

    name: str
    device: str
    workload: str
    kernels: float = 0.0
    call: float = 0.0
    bundles: int = 0
    bytes: int = 0
    copies: int = 0
    floor: Floor | None = None
    regions: Mapping[str, float] = dataclasses.field(default_factory=dict)
    around: Mapping[str, float] = dataclasses.field(default_factory=dict)
    problem: str = ""

    @property
    def share(self) -> float:
        """Of the time of the kernels that the floor takes: 1 is as fast as can be."""
        return self.floor.cycles / self.kernels if self.floor and self.kernels else 0.0

    def microseconds(self, cycles: float) -> float:
        """Cycles of its device as a time."""
        return GENERATIONS[self.device].microseconds(cycles)


def configuration_of(variant: Variant, heads: Configuration) -> Configuration:
    """A configuration with the dtypes and the window of a variant."""
    has_window = "sliding_window" in variant.features
    return dataclasses.replace(
        heads,
        query_dtype=variant.query_dtype,
        kv_dtype=variant.kv_dtype,
        sliding_window=(heads.sliding_window or USUAL_WINDOW) if has_window else None,
    )


def options_of(variant: Variant, configuration: Configuration) -> dict[str, object]:
    """The keyword arguments of a call: those that the variant asks for, with usual values."""
    return options.usual(
        features=variant.features,
        quantization=variant.quantization,
        sliding_window=configuration.sliding_window,
        head_dim=configuration.head_dim,
    )


@contextlib.contextmanager
def requests(
    variants: Sequence[Variant],
    devices: Sequence[str],
    workloads: Sequence[Workload],
    heads: Configuration,
    page_size: int,
    blocks: Sequence[tuple[str, tuple[int, ...]]] = (),
) -> Iterator[list[Request]]:
    """Emits variants into a folder that lasts as long as the context, and asks for all calls.

    heads: see `configuration_of`. blocks: see `Request`.
    """
    # No program is run: jax need not look for a TPU, which another process may have locked.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory(prefix="rpagen-") as name:
        folder = Path(name)
        single.emit(folder, variants, "rpagen predict")
        dumps = dump.default_folder()
        kept.remove_left(dumps)
        yield [
            Request(
                variant.name,
                device,
                workload,
                configuration_of(variant, heads),
                page_size,
                folder,
                dumps,
                tuple(blocks),
            )
            for variant in variants
            for device in devices
            for workload in workloads
        ]


def predictions(
    asked: Sequence[Request], jobs: int, progress: Callable[[int, int], None]
) -> list[Prediction]:
    """The predictions of calls, in their order, made in so many processes.

    Workloads that are padded to the same call are one piece of work, so that nothing is compiled
    twice.

    progress: is told how many of how many are done.
    """
    found: list[Prediction] = []
    progress(0, len(asked))
    for some in workers.results(predict, _died, grouped(asked), jobs):
        found += some
        progress(len(found), len(asked))
    order = {
        (each.variant, each.device, each.workload.name): index for index, each in enumerate(asked)
    }
    return sorted(found, key=lambda each: order[each.name, each.device, each.workload])


def grouped(asked: Sequence[Request]) -> list[tuple[Request, ...]]:
    """Requests of the same compiled call together, in their order."""
    groups: dict[object, list[Request]] = {}
    for each in asked:
        compiled = (
            *(each.variant, each.device, each.configuration, each.page_size, each.shape),
            *(each.emitted, each.dumps, each.blocks),
        )
        groups.setdefault(compiled, []).append(each)
    return [tuple(group) for group in groups.values()]


def predict(group: Sequence[Request]) -> list[Prediction]:
    """Predicts requests of one compiled call; what stands in the way becomes their `problem`."""
    try:
        call = call_of(group[0])
    except Exception as error:  # whatever the compiler or the module has against the call
        return [failed(each, error) for each in group]
    return [_predicted(each, call) for each in group]


def _predicted(request: Request, call: Call) -> Prediction:
    try:
        timed = call.time(request.workload.operands(request.page_size))
    except RpagenError as error:
        return failed(request, error)
    return of_timed(request.variant, request.workload.name, timed, floor_of(request))


def _died(group: Sequence[Request], reason: str) -> list[Prediction]:
    return [_failed(each, reason) for each in group]


def failed(request: Request, error: Exception) -> Prediction:
    """The prediction of a call that cannot be compiled or timed."""
    return _failed(request, errors.reason(error))


def _failed(request: Request, problem: str) -> Prediction:
    return Prediction(request.variant, request.device, request.workload.name, problem=problem)


def floor_of(request: Request) -> Floor:
    """The floor of the call of a request."""
    return floor.of(request.workload, request.configuration, GENERATIONS[request.device])


def call_of(request: Request) -> Call:
    """The compiled call of a request.

    Raises:
        Exception: whatever the compiler, or a check of the module, has against the call.
    """
    module = emitted.module(request.emitted, request.variant)
    blocks = {launches.blocks_argument(launch): sizes for launch, sizes in request.blocks}
    folder = dump.of_module(
        request.dumps,
        request.emitted,
        module,
        request.device,
        request.shape,
        options_of(module.VARIANT, request.configuration) | blocks,
    )
    return Call(folder, GENERATIONS[request.device])


def of_timed(name: str, workload: str, timed: Timed, least: Floor | None) -> Prediction:
    """A prediction from a timed call."""
    kernels = [step for step in timed.steps if step.is_kernel]
    spent: dict[str, float] = dict.fromkeys(("start", *regions.REGIONS), 0.0)
    around: dict[str, float] = {}
    for step in timed.steps:
        if not step.is_kernel:  # one in a loop is taken again
            around[step.name] = around.get(step.name, 0.0) + step.cycles
    moved = copies = bundles = 0
    for step in kernels:
        run = step.run
        assert run is not None
        spent["start"] += run.begun - step.begun
        for region, cycles in regions.of_run(run).items():
            spent[region] += max(cycles, 0.0)  # what is left of differences may be less than none
        moved += run.read + run.written
        copies += len(run.transfers)
        bundles += run.bundles
    return Prediction(
        name,
        timed.generation.name,
        workload,
        kernels=sum(step.cycles for step in kernels),
        call=timed.cycles,
        bundles=bundles,
        bytes=moved,
        copies=copies,
        floor=least,
        regions=spent,
        around=around,
    )


def operands_of(call: Call, workload: Workload, page_size: int) -> dict[int, np.ndarray]:
    """The integer operands of a workload for a compiled call; `Call.time` compares their sizes.

    Raises:
        InputError: it has more tokens than the call was compiled for.
    """
    queries = call.parameter(0)
    shape, tokens = queries.arrays[0].shape, sum(workload.new_tokens)
    if shape and tokens > shape[0]:
        raise InputError(
            f"the workload {workload.name} has {tokens:,} tokens, and parameter 0, %{queries.name},"
            f" {shape[0]:,} rows",
            place=f"{call.module.place}:{queries.line}",
            expected=f"a workload of no more than {shape[0]:,} tokens",
            next_step="choose another --workload, or dump a call that is compiled for this one",
        )
    return workload.operands(page_size)


def of_dump(call: Call, parameters: Mapping[int, np.ndarray], *, with_path: bool = False) -> Timed:
    """The timed call of any Pallas kernel.

    parameters: integer arrays of the call, by their place among its parameters.

    Raises:
        RpagenError: there is no kernel, or one that cannot be run with these parameters.
    """
    if not call.kernels:
        raise RpagenError(f"there is no kernel in the call that {call.folder} holds")
    return call.time(parameters, with_path=with_path)


def fits(variant: Variant, configuration: Configuration) -> str:
    """Why a variant is not for the dtypes and the window of a configuration; empty if it is."""
    wrong = [
        f"{what} {wanted}, and the variant has {has}"
        for what, wanted, has in (
            ("queries of", configuration.query_dtype, variant.query_dtype),
            ("a cache of", configuration.kv_dtype, variant.kv_dtype),
        )
        if wanted != has
    ]
    has_window = "sliding_window" in variant.features
    if has_window != (configuration.sliding_window is not None):
        wrong.append(
            f"{'no' if has_window else 'a'} sliding window, and the variant is for the other"
        )
    return "; ".join(wrong)
