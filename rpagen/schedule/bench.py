"""`make bench-peers`: our kernels beside public ones, all by one compiler and one model of the TPU.

Public wheels are fetched, their kernels and ours are compiled ahead of time in an environment of
its own, and each is predicted on the same workloads. What was compiled is kept below `.peers/`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rpagen import __version__, errors
from rpagen.commands import shared
from rpagen.console import first_line, table
from rpagen.emit import resources, single
from rpagen.errors import RpagenError
from rpagen.evidence import records, upstream
from rpagen.schedule import accuracy, environment, floor, peers, predict, workloads
from rpagen.schedule.call import Call, Timed
from rpagen.schedule.environment import FOLDER, OURS, Environment
from rpagen.schedule.generations import GENERATIONS
from rpagen.schedule.peers import PEERS, Peer
from rpagen.schedule.workloads import Configuration, Workload
from rpagen.spec import expand
from rpagen.spec.model import Variant

DOCUMENT = environment.ROOT / "docs" / "performance.md"
PAGE_SIZE = 64
"""Of ours, and of all peers but those that say otherwise."""

CONFIGURATIONS = {"v5e": ("A", "B"), "v6e": ("A", "B", "C", "E"), "v7x": ("A", "B", "C", "E")}
"""What is compared on each generation.

Not D: our kernels pad a head dim of 64 to 128 lanes, so that what would be compared is the padding;
it takes the packed layout of issue 7. Nor F, which only `rpagen.schedule.accuracy` is about.
"""

_FAMILY = ("rpa", "head_interleaved")


@dataclasses.dataclass(frozen=True)
class Cell:
    """The times of one kernel on one workload, in microseconds.

    floor: the least that any kernel could take. kernels: those that attend. plan: kernels that say
    what the others do. call: all of it, with what XLA does around them.
    problem: why there are none of these: one line.
    """

    device: str
    configuration: str
    workload: str
    kernel: str
    floor: float
    kernels: float = 0.0
    plan: float = 0.0
    call: float = 0.0
    problem: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles, predicts and prints; 0 if ours could all be predicted."""
    known = workloads.load()
    options = _options(arguments, known)
    try:
        cells = list(_cells(options, known))
    except RpagenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    print(
        table(
            _HEADINGS,
            [row for group in grouped(cells) for row in rows(group)],
        )
    )
    print(f"\n{accuracy.trust(options.device)}")
    document = options.document
    if document is None and _is_whole(options, known):
        document = DOCUMENT
    if document is not None:
        records.write_text(document, performance(cells))
        print(f"wrote {document}")
    else:
        print(f"{DOCUMENT.name} is written by a run without limits, or with --document FILE")
    return 1 if any(each.kernel == OURS and each.problem for each in cells) else 0


# "floor / kernels" is a share of the time of the kernels that attend, without those that plan.
_HEADINGS = (
    *("device", "configuration", "workload", "kernel", "kernels us", "plan us", "call us"),
    *("floor / kernels", "kernels ratio", "call ratio"),
)


def _options(arguments: Sequence[str] | None, known: workloads.Known) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-peers ARGS=", description=__doc__)
    everywhere = sorted({name for names in CONFIGURATIONS.values() for name in names})
    for name, values in (
        ("--device", tuple(CONFIGURATIONS)),
        ("--config", tuple(everywhere)),
        ("--workload", tuple(each.short for each in known.workloads if each.short)),
        ("--peers", tuple(map(_word, PEERS))),
    ):
        parser.add_argument(
            name,
            type=_list_of(values),
            default=values,
            metavar="LIST",
            help=f"some of {','.join(values)} (default: all of them)",
        )
    parser.add_argument(
        "--jobs",
        type=shared.size,
        default=1,
        metavar="N",
        help="compilations at a time (default: 1)",
    )
    parser.add_argument(
        "--document", type=Path, metavar="FILE", help="write there what a run without limits does"
    )
    return parser.parse_args(arguments)


def _list_of(values: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        for name in text.split(","):
            if name not in values:
                raise argparse.ArgumentTypeError(
                    f"{errors.quoted(name)} is none of {', '.join(values)}"
                )
        return tuple(each for each in values if each in text.split(","))

    return read


def _is_whole(options: argparse.Namespace, known: workloads.Known) -> bool:
    defaults = _options((), known)
    return all(
        getattr(options, name) == getattr(defaults, name)
        for name in ("device", "config", "workload", "peers")
    )


@dataclasses.dataclass(frozen=True)
class _Task:
    """A cell to fill. sources: what its kernel is compiled from, besides a public wheel."""

    cell: Cell
    workload: Workload
    page_size: int
    request: Mapping[str, object]
    sources: tuple[Path, ...] = ()


def _cells(options: argparse.Namespace, known: workloads.Known) -> Iterator[Cell]:
    compiler = environment.environment()
    tasks = [(compiler.name(each.request, each.sources), each) for each in _tasks(options, known)]
    # Each call is compiled once, also where several workloads are padded to it.
    calls = dict(tasks)
    compiled: dict[str, Path | RpagenError] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        found = pool.map(lambda each: _compiled(compiler, each), calls.values())
        for number, (name, each) in enumerate(zip(calls, found, strict=True), 1):
            compiled[name] = each
            place = f"{number} of {len(calls)}: {_place(calls[name].cell)}"
            failed = isinstance(each, RpagenError)
            said = f"not compiled {place}\n{each}" if failed else f"compiled {place}"
            print(said, file=sys.stderr, flush=True)
    for name, task in tasks:
        yield _filled(compiled[name], task)


def _tasks(options: argparse.Namespace, known: workloads.Known) -> Iterator[_Task]:
    chosen = [each for each in PEERS if _word(each) in options.peers]
    folders = {each.name: upstream.fetch(each.wheel, FOLDER) for each in chosen}
    variants = expand.load_variants(resources.specs_dir(), ("core",))
    emitted = FOLDER / "emitted"
    single.emit(emitted, variants, "make bench-peers", force=True)
    for device in options.device:
        generation = GENERATIONS[device]
        for name in CONFIGURATIONS[device]:
            if name not in options.config:
                continue
            configuration = known.configuration(name)
            ours = variant_of(configuration, device, variants)
            sources = (emitted / f"{ours.name}.py", emitted / "support.py")
            for short in options.workload:
                workload = known.workload(short)
                least = generation.microseconds(
                    floor.of(workload, configuration, generation).cycles
                )
                cell = Cell(device, name, short, OURS, least)
                request = _request(emitted, device, configuration, workload, ours)
                yield _Task(cell, workload, PAGE_SIZE, request, sources)
                for peer in chosen:
                    yield _Task(
                        dataclasses.replace(cell, kernel=peer.name),
                        workload,
                        peer.page_size,
                        peer.request(folders[peer.name], device, configuration, workload),
                    )


def _word(peer: Peer) -> str:
    """Its name, as an option takes it."""
    return peer.name.replace(" ", "-")


def _compiled(compiler: Environment, task: _Task) -> Path | RpagenError:
    """The folder of a compiled call, or what stands in the way of it: a run of hours goes on."""
    try:
        return compiler.compile(task.request, task.sources)
    except RpagenError as error:
        return error


def _place(cell: Cell) -> str:
    return f"{cell.kernel}, {cell.device} {cell.configuration} {cell.workload}"


def _request(
    emitted: Path, device: str, configuration: Configuration, workload: Workload, ours: Variant
) -> dict[str, object]:
    return {
        **peers.sizes(device, configuration, workload, PAGE_SIZE),
        "kernel": OURS,
        "source": str(emitted),
        "module": ours.name,
        "options": peers.usual_options(configuration),
    }


def variant_of(configuration: Configuration, device: str, variants: Sequence[Variant]) -> Variant:
    """The variant of ours that a call of a configuration would run.

    Raises:
        RpagenError: there is none.
    """
    c = configuration
    features = () if c.sliding_window is None else ("sliding_window",)
    for each in variants:
        if (
            each.is_default
            and (each.family, each.layout) == _FAMILY
            and (each.query_dtype, each.kv_dtype) == (c.query_dtype, c.kv_dtype)
            and (each.quantization, each.features) == (c.quantization, features)
            and device in each.generations
        ):
            return each
    raise RpagenError(f"no variant of the core is for configuration {c.name} on {device}")


def _filled(compiled: Path | RpagenError, task: _Task) -> Cell:
    """The cell of a task. compiled: its call, or why there is none."""
    try:
        if isinstance(compiled, RpagenError):
            raise compiled
        call = Call(compiled, GENERATIONS[task.cell.device])
        timed = call.time(predict.operands_of(call, task.workload, task.page_size))
    except RpagenError as error:
        return dataclasses.replace(task.cell, problem=first_line(str(error)))
    return timed_cell(task.cell, timed)


def timed_cell(cell: Cell, timed: Timed) -> Cell:
    """A cell with the times of a call."""
    plan = sum(step.cycles for step in timed.kernels if step.name.startswith(peers.SCHEDULE_KERNEL))
    kernels = sum(step.cycles for step in timed.kernels) - plan
    microseconds = timed.generation.microseconds
    return dataclasses.replace(
        cell,
        kernels=microseconds(kernels),
        plan=microseconds(plan),
        call=microseconds(timed.cycles),
    )


def grouped(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells of all kernels on each workload, in their order."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.device, cell.configuration, cell.workload), []).append(cell)
    return list(groups.values())


def rows(group: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Of the table, for one workload.

    Ratios are of theirs to ours: above 1 ours is faster.
    """
    ours = next((each for each in group if each.kernel == OURS and not each.problem), None)
    found: list[tuple[str, ...]] = []
    for cell in group:
        place = (cell.device, cell.configuration, cell.workload, cell.kernel)
        if cell.problem:
            found.append((*place, cell.problem))
            continue
        times = [_short(each) for each in (cell.kernels, cell.plan, cell.call)]
        share = f"{cell.floor / cell.kernels:.0%}"
        ratios = ("", "")
        if ours is not None and cell is not ours:
            ratios = _ratio(cell.kernels, ours.kernels), _ratio(cell.call, ours.call)
        found.append((*place, *times, share, *ratios))
    return [(*row, *[""] * (len(_HEADINGS) - len(row))) for row in found]


def performance(cells: Sequence[Cell]) -> str:
    """What `docs/performance.md` holds."""
    names = list(dict.fromkeys(cell.kernel for cell in cells))
    lines = [
        "# Our kernels beside public ones",
        "",
        "Written by `make bench-peers`; do not edit. Predicted microseconds of one call, on one",
        "core: of the kernels alone, + of kernels that plan others' work, / of the whole call,",
        "with what XLA does around the kernels. `docs/predictor-accuracy.md` says how far to trust",
        "them: differences of less than a tenth are none. Ratios are of the best peer to ours,",
        "kernels alone and whole calls: above 1 ours is faster. Floor: bytes over bandwidth, or",
        f"operations over peak. rpagen {__version__}; all compiled with",
        f"{environment.versions()}. Workloads and configurations:",
        "`specs/workloads.yaml`, but not D, which our kernels pad to twice its head dim. Pages of",
        "64 tokens, of stacked 128.",
    ]
    problems: dict[str, None] = {}
    heading = None
    for group in grouped(cells):
        first = group[0]
        if (first.device, first.configuration) != heading:
            heading = (first.device, first.configuration)
            lines += ["", f"## {first.device}, configuration {first.configuration}", ""]
            lines.append(f"| | floor | {' | '.join(names)} | ratio, kernels | ratio, call |")
            lines.append("|---" * (len(names) + 4) + "|")
        by_name = {cell.kernel: cell for cell in group}
        texts = [_times(by_name.get(name)) for name in names]
        ratios = best_ratios(group)
        lines.append(
            f"| {first.workload} | {_short(first.floor)} | {' | '.join(texts)} | "
            f"{' | '.join(ratios)} |"
        )
        for cell in group:
            if cell.problem:
                problems[f"- {_place(cell)}: {cell.problem}"] = None
    if problems:
        lines += ["", "## What could not be predicted", "", *problems]
    return "\n".join([*lines, ""])


def best_ratios(group: Sequence[Cell]) -> tuple[str, str]:
    """Of the best peer to ours, kernels alone and whole calls; empty where there is not both."""
    good = [cell for cell in group if not cell.problem]
    ours = [cell for cell in good if cell.kernel == OURS]
    others = [cell for cell in good if cell.kernel != OURS]
    if not ours or not others:
        return "", ""
    return (
        _ratio(min(cell.kernels for cell in others), ours[0].kernels),
        _ratio(min(cell.call for cell in others), ours[0].call),
    )


def _times(cell: Cell | None) -> str:
    if cell is None or cell.problem:
        return "-"
    plan = f" + {_short(cell.plan)}" if cell.plan else ""
    return f"{_short(cell.kernels)}{plan} / {_short(cell.call)}"


def _ratio(theirs: float, ours: float) -> str:
    return f"{theirs / ours:.2f}"


def _short(microseconds: float) -> str:
    return f"{microseconds:.1f}" if microseconds < 100 else f"{microseconds:.0f}"


if __name__ == "__main__":
    sys.exit(main())
