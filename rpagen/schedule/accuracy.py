"""How far predicted times can be trusted: measured and predicted ones of the same kernels.

`make predictor-accuracy` fetches public kernels whose times on hardware somebody published,
compiles and predicts them, and writes what came of it: `docs/predictor-accuracy.md` for people,
and a file of JSON beside the specs, from which `error_bar` tells what other predictions are worth.
With `ARGS=--document` it writes the document anew from that file, and compiles nothing.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rpagen import __version__
from rpagen.console import table
from rpagen.emit import resources
from rpagen.errors import InputError, RpagenError
from rpagen.evidence import records, upstream
from rpagen.schedule import environment, peers, workloads
from rpagen.schedule.call import Call, Timed
from rpagen.schedule.environment import FOLDER, Environment
from rpagen.schedule.generations import GENERATIONS
from rpagen.schedule.workloads import Configuration, Workload

DATA = "predictor-accuracy.json"
DOCUMENT = environment.ROOT / "docs" / "predictor-accuracy.md"
PROMISED = 0.15
"""The share of the measured time by which a predicted one is off at most. No error bar is less: the
parameters were fitted to the points, which are too few and too much alike to say more."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A published time of a kernel that can be had. measured: microseconds. source: where it is."""

    name: str
    device: str
    measured: float
    source: str


@dataclasses.dataclass(frozen=True)
class Flash(Point):
    """Of jax's own flash_attention. length: of each of its 32 sequences, with 8 heads of 64."""

    length: int


@dataclasses.dataclass(frozen=True)
class Batched(Point):
    """Of the kernel `batched`, in its only configuration with published times.

    sequences: that decode. padded: tokens that the call is compiled for.
    bkv_sz, batch_size: of its block sizes; the others are 1 and three buffers.
    """

    sequences: int
    padded: int
    bkv_sz: int
    batch_size: int


_JAX = "jax issue 24633"
_TUNING = "tpu-inference PR 3290"


def _flash(length: int, milliseconds: float) -> Flash:
    name = f"jax's flash_attention, 32 x 8 heads x {length:,} x 64"
    return Flash(name, "v5e", milliseconds * 1e3, _JAX, length)


def _batched(sequences: int, padded: int, kind: str, measured: float, sizes: str) -> Batched:
    bkv_sz, batch_size = (int(each) for each in sizes.split("x"))
    name = f"batched, {sequences} decodes at 1,523, window 1,024, {kind} blocks"
    return Batched(name, "v7x", measured, _TUNING, sequences, padded, bkv_sz, batch_size)


POINTS: tuple[Flash | Batched, ...] = (
    _flash(512, 2.36),
    _flash(1024, 9.49),
    _flash(2048, 37.61),
    _flash(4096, 144.97),
    _batched(818, 1024, "usual", 762, "512x8"),
    _batched(818, 1024, "tuned", 715, "256x16"),
    _batched(128, 128, "usual", 125, "512x8"),
    _batched(128, 128, "tuned", 117, "256x16"),
    _batched(16, 16, "usual", 23, "512x8"),
    _batched(16, 16, "tuned", 20, "256x8"),
)

_OF_BATCHED = "F"
"""The configuration that the published times of batched are of."""
_PAGE_SIZE = 256


@dataclasses.dataclass(frozen=True)
class Compared:
    """A point and its prediction: microseconds of the kernels alone, those that plan not."""

    name: str
    device: str
    measured: float
    predicted: float
    source: str

    @property
    def kernel(self) -> str:
        """What its name begins with."""
        return self.name.partition(",")[0]

    @property
    def error(self) -> float:
        """By which share of the measured time the predicted one is too long."""
        return self.predicted / self.measured - 1


@dataclasses.dataclass(frozen=True)
class Record:
    """What `make predictor-accuracy` left.

    compiler: what compiled the kernels. parameters: see `parameters`, of when they were predicted.
    """

    compiler: str
    parameters: str
    points: tuple[Compared, ...]


@dataclasses.dataclass(frozen=True)
class ErrorBar:
    """By which share of the measured time a predicted one may be off.

    points: measured times that this is from. is_own: they are of the generation asked for; if not,
    nothing is published of it, and they are of all others. text: all of this in one clause.
    """

    share: float
    points: int
    is_own: bool
    text: str


def error_bar(device: str, compared: Sequence[Compared] | None = None) -> ErrorBar:
    """What is known of a generation's predicted times: the largest error of a point, or `PROMISED`.

    Raises:
        InputError: the file of points is not there, or is none.
    """
    known = read().points if compared is None else compared
    own = [each for each in known if each.device == device]
    chosen = own or known
    largest = max(abs(each.error) for each in chosen)
    share = max(PROMISED, largest)
    counts = collections.Counter(
        each.kernel if own else f"{each.kernel} on {each.device}" for each in chosen
    )
    kernels = " and ".join(
        f"{count} {'time' if count == 1 else 'times'} of {name}" for name, count in counts.items()
    )
    begins = f"within {share:.0%} ({'' if own else 'nothing is published of it; '}"
    text = f"{begins}{kernels}, fitted to within {largest:.0%})"
    return ErrorBar(share, len(chosen), bool(own), text)


def trust(devices: Iterable[str]) -> str:
    """How far the predicted times of some generations can be trusted, in one line.

    Raises:
        InputError: see `error_bar`.
    """
    said = "; ".join(f"{each}: {error_bar(each).text}" for each in devices)
    return (
        f"times of kernels, {said}; what XLA does around them was never compared: see"
        f" docs/{DOCUMENT.name}"
    )


def parameters() -> str:
    """A digest of what predicted times follow from besides schedules: of every generation."""
    fields = [dataclasses.asdict(each) for each in GENERATIONS.values()]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def read(file: Path | None = None) -> Record:
    """The points that `make predictor-accuracy` left.

    Raises:
        InputError: the file is not there, or is none of these.
    """
    file = file or resources.specs_dir() / DATA
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        made_with = record["made_with"]
        points = tuple(Compared(**each) for each in record["points"])
        found = Record(made_with["compiler"], made_with["parameters"], points)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"the accuracy of predictions cannot be read: {error}",
            place=str(file),
            expected="what `make predictor-accuracy` writes",
            next_step="run `make predictor-accuracy`",
        ) from None
    if not found.points:
        raise InputError(
            "there is no point",
            place=str(file),
            expected="what `make predictor-accuracy` writes",
            next_step="run `make predictor-accuracy`",
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles, predicts and writes all points; 0 if all are as near as promised."""
    parser = argparse.ArgumentParser(
        prog="make predictor-accuracy ARGS=", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument(
        "--document",
        action="store_true",
        help=f"write {DOCUMENT.name} from the points that are kept; nothing is compiled",
    )
    options = parser.parse_args(arguments)
    try:
        record = read() if options.document else _predicted()
        records.write_text(DOCUMENT, document(record))
    except RpagenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    print(table(("point", "device", "measured us", "predicted us", "error"), _rows(record.points)))
    far = [each for each in record.points if abs(each.error) > PROMISED]
    for each in far:
        print(f"error: {each.name} is off by {each.error:+.0%}; promised are {PROMISED:.0%}")
    return 1 if far else 0


def _predicted() -> Record:
    """All points, compiled and predicted, and written to the file of them."""
    compiler = environment.environment()
    record = Record(environment.versions(), parameters(), tuple(_compared(compiler)))
    records.write(
        resources.specs_dir() / DATA,
        {
            "made_with": {
                "rpagen": __version__,
                "compiler": record.compiler,
                "parameters": record.parameters,
            },
            "points": [dataclasses.asdict(each) for each in record.points],
        },
    )
    return record


def document(record: Record) -> str:
    """What people read of the points."""
    compared = record.points
    lines = [
        "# How accurate predicted times are",
        "",
        "Written by `make predictor-accuracy`; do not edit. Times that others measured on hardware",
        "and published, and what is predicted from the same public kernel, compiled with",
        f"{record.compiler}.",
        "Kernels only, those that plan the work of others not; v7x: one core of two.",
        "",
        "| kernel | TPU | measured (us) | predicted (us) | error | published in |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.name} | {each.device} | {each.measured:,.6g} | {_short(each.predicted)} |"
        f" {each.error:+.1%} | {each.source} |"
        for each in compared
    ]
    lines += [
        "",
        f"What a predicted time is worth: the largest of these errors, and no less than the"
        f" {PROMISED:.0%} that are promised.",
        "",
    ]
    lines += [f"- {device}: {error_bar(device, compared).text}" for device in GENERATIONS]
    lines += [
        "",
        "The latencies, the efficiency of HBM and the cost of a kernel"
        " (`rpagen/schedule/generations.py`)",
        "were fitted to these and to other published times: these errors are of what the fit saw,",
        "and of few kernels (on v5e a single one, of dense attention), so the next kernel may be",
        "further off.",
        "batched fills SMEM with its plan, so that libtpu puts scalars into HBM. The published",
        "times show nothing of that, and it is compiled with a plan of half of SMEM.",
        "",
    ]
    return "\n".join(lines)


def _rows(compared: Iterable[Compared]) -> list[tuple[str, ...]]:
    return [
        (
            each.name,
            each.device,
            f"{each.measured:,.6g}",
            _short(each.predicted),
            f"{each.error:+.1%}",
        )
        for each in compared
    ]


def _short(microseconds: float) -> str:
    return f"{microseconds:,.1f}" if microseconds < 1000 else f"{microseconds:,.0f}"


def _compared(compiler: Environment) -> Iterator[Compared]:
    wheel = upstream.fetch(peers.named("batched").wheel, FOLDER)
    for point in POINTS:
        print(f"{point.device}: {point.name}", flush=True)
        timed = (
            _time_flash(compiler, point)
            if isinstance(point, Flash)
            else (_time_batched(compiler, point, wheel))
        )
        cycles = sum(
            step.cycles for step in timed.kernels if not step.name.startswith(peers.SCHEDULE_KERNEL)
        )
        predicted = round(GENERATIONS[point.device].microseconds(cycles), 2)
        yield Compared(point.name, point.device, point.measured, predicted, point.source)


def _time_flash(compiler: Environment, point: Flash) -> Timed:
    configuration = Configuration("", "", query_heads=8, kv_heads=8, head_dim=64)
    workload = Workload("", "", "", (), (), point.length, 32, point.length)
    request = {
        **peers.sizes(point.device, configuration, workload, point.length),
        "kernel": "flash",
    }
    return Call(compiler.compile(request), GENERATIONS[point.device]).time({})


def _time_batched(compiler: Environment, point: Batched, wheel: Path) -> Timed:
    count = point.sequences
    workload = Workload("", "", "", (1523,) * count, (1,) * count, point.padded, point.padded, 1536)
    configuration = workloads.load().configuration(_OF_BATCHED)
    peer = dataclasses.replace(
        peers.named("batched"),
        page_size=_PAGE_SIZE,
        options={
            (point.device, _OF_BATCHED): {
                "decode_block_sizes": {
                    "bq_sz": 1,
                    "bq_c_sz": 1,
                    "bkv_sz": point.bkv_sz,
                    "batch_size": point.batch_size,
                    "n_buffer": 3,
                }
            }
        },
    )
    folder = compiler.compile(peer.request(wheel, point.device, configuration, workload))
    return Call(folder, GENERATIONS[point.device]).time(workload.operands(_PAGE_SIZE))


if __name__ == "__main__":
    sys.exit(main())
