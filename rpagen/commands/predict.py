"""`rpagen predict`: the time of kernels on TPUs that are not here."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rpagen import errors
from rpagen.commands import shared, targets
from rpagen.console import ProgressBar, first_line, table
from rpagen.errors import RpagenError
from rpagen.evidence import libtpu
from rpagen.spec.model import GENERATIONS, Variant

if TYPE_CHECKING:
    import numpy as np

    from rpagen.schedule.call import Call, Timed
    from rpagen.schedule.floor import Floor
    from rpagen.schedule.loops import Part
    from rpagen.schedule.predict import Prediction, Request
    from rpagen.schedule.workloads import Configuration, Known, Workload

DOES = "predict the time of kernels on TPUs that are not here, from the compiler's own schedule"
EXAMPLE = "rpagen predict rpa --device v6e --workload decode-1k"

ALL = "all"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    shared.add_variants(verb)
    verb.add_argument(
        "--device",
        type=targets.devices(GENERATIONS),
        metavar="LIST",
        help=f"TPU generations, of {','.join(GENERATIONS)} (default: v6e; of a --dump, the one that"
        " it is for, where that can be told)",
    )
    verb.add_argument(
        "--workload",
        type=_words,
        metavar="LIST",
        help="what is called, by its name in specs/workloads.yaml (default: decode-1k; of a --dump,"
        " no integers at all)",
    )
    verb.add_argument(
        "--config",
        metavar="NAME",
        help="heads, dtypes and window, by their name there; only variants for these are taken",
    )
    verb.add_argument(
        "--shape",
        type=targets.heads,
        metavar="QxKxD",
        help="query heads, kv heads and head dim, instead of --config (default: 32x8x128)",
    )
    verb.add_argument(
        "--page", type=shared.size, default=64, metavar="N", help="tokens of a page (default: 64)"
    )
    verb.add_argument(
        "--blocks",
        type=targets.blocks,
        action="append",
        default=[],
        metavar="LAUNCH=Q,KV,T,C",
        help="query block, KV block, query tile and compute block of a launch, in tokens, such as"
        " mixed=128,512,128,512; once for each launch that does not get its default ones",
    )
    verb.add_argument(
        "--workloads",
        type=shared.path,
        metavar="FILE",
        help="more workloads and configurations, in the form of specs/workloads.yaml; one with the"
        " name of a usual one takes its place",
    )
    verb.add_argument(
        "--compare", action="store_true", help="two variants side by side, region by region"
    )
    verb.add_argument(
        "--dump",
        type=shared.path,
        metavar="DIR",
        help="instead of variants, any Pallas call: the folder into which libtpu wrote it;"
        " docs/prediction.md shows how to make one with no TPU at hand",
    )
    verb.add_argument(
        "--flags",
        type=shared.path,
        metavar="DIR",
        help="print the LIBTPU_INIT_ARGS with which libtpu writes what it compiles into DIR, for"
        " --dump, and do no more",
    )
    verb.add_argument(
        "--operand",
        type=_operand,
        action="append",
        default=[],
        metavar="N=INTEGERS",
        help="with --dump, instead of a workload: the integers of parameter N of the call, as"
        " 3,1,4 or a file.npy; once for each that steers a kernel, such as a page table",
    )
    verb.add_argument(
        "--loops", action="store_true", help="one call: what each loop takes of its bundles' slots"
    )
    verb.add_argument(
        "--trace",
        type=shared.path,
        metavar="FILE",
        help="one call: write its timeline there, for ui.perfetto.dev or chrome://tracing",
    )
    verb.add_argument(
        "--html",
        type=shared.path,
        metavar="FILE",
        help="one call: write a page there: timeline, slots of every loop, roofline",
    )
    verb.add_argument(
        "--jobs", type=shared.size, metavar="N", help="processes (default: one for each processor)"
    )
    shared.add_json(verb)


def run(options: argparse.Namespace) -> int:
    """Predict every variant on every device with every workload, and print a table."""
    from rpagen.schedule import accuracy, workloads

    if options.flags is not None:
        if any(character.isspace() for character in str(options.flags)):
            raise RpagenError(
                f"--flags: libtpu takes what follows a space for another flag, and there is one in"
                f" {errors.quoted(str(options.flags))}: name a folder without"
            )
        print(libtpu.dump_flags(options.flags))
        return shared.ALL_WELL
    _refuse_ignored(options)
    shared.check_places(options, "trace", "html")
    known = workloads.load(*([options.workloads] if options.workloads else []))
    usual = () if options.dump else ("decode-1k",)
    calls = [known.workload(name) for name in options.workload or usual]
    if not options.dump:
        options.device = options.device or ("v6e",)
    found = _of_dump(options, calls) if options.dump else _of_variants(options, calls, known)
    if options.compare:
        half = len(found) // 2
        pairs = list(zip(found[:half], found[half:], strict=True))
        if options.json:
            shared.print_json([_compared_record(*pair) for pair in pairs])
        else:
            print("\n\n".join(_compared(*pair) for pair in pairs))
    elif options.json:
        shared.print_json([_record(each) for each in found])
    else:
        print(_table([each.prediction for each in found]))
    if not options.json:
        print(f"\n{accuracy.trust(options.device)}")
        if options.dump:
            print("those were kernels of attention: of others, no time was compared")
    is_well = not any(each.prediction.problem for each in found)
    return shared.ALL_WELL if is_well else shared.FELL_SHORT


@dataclasses.dataclass(frozen=True)
class _Found:
    """A prediction, and the loops of its kernels if they were asked for."""

    prediction: Prediction
    loops: Sequence[tuple[str, Part]] = ()


def _refuse_ignored(options: argparse.Namespace) -> None:
    """Refuse options that others make void.

    Raises:
        RpagenError: names them.
    """
    given = {
        "names of variants": options.names,
        "--config": options.config,
        "--shape": options.shape,
        "--compare": options.compare,
        "--blocks": options.blocks,
        "--jobs": options.jobs,
        "--operand": options.operand,
        "--workload": options.workload,
    }
    for option, is_given, void in (
        ("--dump", options.dump, ("names of variants", *list(given)[1:6])),
        ("a variant", not options.dump, ("--operand",)),
        ("--config", options.config, ("--shape",)),
        ("--operand", options.operand, ("--workload",)),
    ):
        for other in void:
            if is_given and given[other]:
                raise RpagenError(f"{other} and {option} do not go together: leave out one")
    launches = [launch for launch, _ in options.blocks]
    if len(set(launches)) < len(launches):
        raise RpagenError("--blocks: a launch is there twice: give each its blocks once")
    if options.trace and options.html and options.trace.resolve() == options.html.resolve():
        raise RpagenError(f"--trace and --html would both write {options.html}: name two files")


def _refuse_several(calls: int) -> None:
    if calls != 1:
        raise RpagenError(
            f"--loops, --trace and --html are about one call, and these are {calls}: name one"
            " variant, one --device and one --workload"
        )


def _of_variants(
    options: argparse.Namespace, calls: Sequence[Workload], known: Known
) -> list[_Found]:
    from rpagen.evidence import workers
    from rpagen.schedule import predict

    targets.require_compiler()
    variants = _variants(options, known)
    if options.compare and len(variants) != 2:
        raise RpagenError(f"--compare takes two variants, and these are {len(variants)}")
    if _is_of_one(options):
        _refuse_several(len(variants) * len(options.device) * len(calls))
    with predict.requests(
        variants, options.device, calls, _heads(options, known), options.page, options.blocks
    ) as requests:
        if _is_of_one(options):
            return [_shown(options, requests[0])]
        with ProgressBar("predicting") as bar:
            jobs = options.jobs or workers.usual_count()
            return [_Found(each) for each in predict.predictions(requests, jobs, bar)]


def _is_of_one(options: argparse.Namespace) -> bool:
    return bool(options.loops or options.trace or options.html)


def _variants(options: argparse.Namespace, known: Known) -> Sequence[Variant]:
    from rpagen.schedule import predict

    is_all = not options.names or options.names == [ALL]
    if is_all:
        options.names = []
    variants = shared.variants(options)
    if options.config is None:
        return variants
    configuration = known.configuration(options.config)
    reasons = {each.name: predict.fits(each, configuration) for each in variants}
    fitting = [each for each in variants if not reasons[each.name]]
    if not fitting or not (is_all or len(fitting) == len(variants)):
        name, reason = next((name, why) for name, why in reasons.items() if why)
        raise RpagenError(f"{name} is not for configuration {options.config}: that has {reason}")
    return fitting


def _shown(options: argparse.Namespace, request: Request) -> _Found:
    """The prediction of one call, of which more is printed or written."""
    from rpagen.schedule import predict

    try:
        call = predict.call_of(request)
    except Exception as error:  # whatever the compiler or the module has against the call
        return _Found(predict.failed(request, error))
    timed = call.time(
        predict.operands_of(call, request.workload, request.page_size), with_path=True
    )
    least = predict.floor_of(request)
    title = f"{request.variant}, {request.device}, {request.workload.doc}"
    made = predict.of_timed(request.variant, request.workload.name, timed, least)
    return _Found(made, _show(options, call, timed, title, least))


def _heads(options: argparse.Namespace, known: Known) -> Configuration:
    from rpagen.schedule.workloads import Configuration

    if options.config is not None:
        return known.configuration(options.config)
    query_heads, kv_heads, head_dim = options.shape or (32, 8, 128)
    return Configuration("", "", query_heads, kv_heads, head_dim)


def _of_dump(options: argparse.Namespace, calls: Sequence[Workload]) -> list[_Found]:
    from rpagen.schedule import predict
    from rpagen.schedule.call import Call
    from rpagen.schedule.generations import GENERATIONS as DEVICES

    options.device = options.device or _devices_of(options.dump)
    if _is_of_one(options):
        _refuse_several(len(options.device) * (len(calls) or 1))
    found = []
    for device in options.device:
        call = Call(options.dump, DEVICES[device])
        given = {each.name: predict.operands_of(call, each, options.page) for each in calls}
        given = given or {"": dict(options.operand)}
        for name, parameters in given.items():
            timed = predict.of_dump(call, parameters, with_path=_is_of_one(options))
            made = predict.of_timed(_kernel_names(timed), name, timed, None)
            title = f"{made.name}, {device}"
            more = _show(options, call, timed, title, None) if _is_of_one(options) else ()
            found.append(_Found(made, more))
    return found


def _devices_of(dump: Path) -> tuple[str, ...]:
    """The TPU generation that a dump is for.

    Raises:
        RpagenError: it may be more than one.
    """
    from rpagen.schedule.call import Call
    from rpagen.schedule.generations import GENERATIONS as DEVICES

    possible = Call(dump, next(iter(DEVICES.values()))).generations()
    if len(possible) != 1:
        said = " or ".join(possible) or "no generation that is known"
        raise RpagenError(
            f"the call in {dump} is for {said}: give the --device that it was compiled for"
        )
    return possible


def _show(
    options: argparse.Namespace, call: Call, timed: Timed, title: str, least: Floor | None
) -> list[tuple[str, Part]]:
    """Print and write what is asked for besides the table of predictions; returns the loops."""
    from rpagen.emit import write
    from rpagen.schedule import page, trace

    parts = list(_parts(call, timed)) if options.loops else []
    if parts and not options.json:
        print(_loops(parts, timed), end="\n\n")
    if options.trace:
        text = trace.text(trace.events(timed))
        write.write_changed(options.trace.parent, {options.trace.name: text})
    if options.html:
        text = page.html(call, timed, title=title, floor=least)
        write.write_changed(options.html.parent, {options.html.name: text})
    return parts


def _parts(call: Call, timed: Timed) -> Iterator[tuple[str, Part]]:
    """The loops of the kernels, those that were executed, and what is outside of them."""
    from rpagen.schedule import loops

    for step in timed.kernels:
        assert step.run is not None
        schedule = step.run.program.schedule
        for part in loops.of(schedule, call.slots(step.name), timed.generation, step.run):
            if part.executed is not None and part.executed.iterations:
                yield step.name, part


def _loops(parts: Sequence[tuple[str, Part]], timed: Timed) -> str:
    """A table of loops."""
    kinds = [kind for kind in parts[0][1].own.kinds if ":" not in kind]
    headings = (
        *("KERNEL", "LOOP", "BUNDLES", "SPILLS", "FILLS", "TIMES", "us", "WAITS", "COPIES"),
        "BINDS",
        *(*kinds, "OF PEAK"),
    )
    rows = []
    for kernel, part in parts:
        done = part.executed
        assert done is not None
        name, _ = done.binding or ("", 0.0)
        rows.append(
            (
                kernel,
                f"{'  ' * part.depth}{part.name}",
                *(str(each) for each in (part.own.bundles, part.own.spills, part.own.fills)),
                str(done.iterations),
                f"{timed.generation.microseconds(done.cycles):.1f}",
                f"{done.waited / (done.cycles or 1):.0%}",
                str(done.copies),
                name,
                *(f"{done.figures.shares[kind]:.0%}" for kind in kinds),
                f"{done.figures.share_of_peak:.0%}",
            )
        )
    return (
        f"{table(headings, rows)}\nbundles, spills and fills are those of an iteration, the rest is"
        " of all; waits are for copies, and a share of the time; a slot's share is of the executed"
        " bundles; what is nearest to its limit binds, copies if waits take half of the time"
    )


def _kernel_names(timed: Timed) -> str:
    return ",".join(step.name for step in timed.kernels)


def _table(found: Sequence[Prediction]) -> str:
    from rpagen.schedule.regions import REGIONS

    headings = ("NAME", "DEVICE", "WORKLOAD", "KERNELS us", "CALL us", "FLOOR us", "SHARE", "BOUND")
    rows = table(
        (*headings, "START", *(region.upper() for region in REGIONS)),
        [_row(each) for each in found],
    )
    failures = (
        f"{each.name}, {each.device}, {each.workload}: FAILED: {first_line(each.problem)}"
        for each in found
        if each.problem
    )
    return "\n".join((rows, *failures))


def _row(each: Prediction) -> tuple[str, ...]:
    begins = (each.name, each.device, each.workload)
    if each.problem:
        return (*begins, "FAILED", *[""] * 14)  # why is said below the table
    least = each.floor
    return (
        *begins,
        f"{each.microseconds(each.kernels):.1f}",
        f"{each.microseconds(each.call):.1f}",
        f"{each.microseconds(least.cycles):.1f}" if least else "",
        f"{each.share:.0%}" if least else "",
        least.bound if least else "",
        *(f"{cycles / (each.kernels or 1):.0%}" for cycles in each.regions.values()),
    )


def _compared(one: _Found, other: _Found) -> str:
    """Two predictions of the same workload on the same device, region by region."""
    first, second = one.prediction, other.prediction
    title = f"{first.device}, {first.workload}, us"
    for each in (first, second):
        if each.problem:
            return f"{title}\n{each.name} FAILED: {first_line(each.problem)}"
    before, after = _cycles_by_part(first), _cycles_by_part(second)
    rows = [
        (
            f"  {part}" if part in first.regions else part,
            f"{first.microseconds(before[part]):.1f}",
            f"{second.microseconds(after[part]):.1f}",
            f"{after[part] / before[part]:.2f}" if before[part] else "",
        )
        for part in before
    ]
    return f"{title}\n{table(('', first.name, second.name, 'RATIO'), rows)}"


def _compared_record(one: _Found, other: _Found) -> dict[str, object]:
    """Two predictions and the ratios of the second's times to the first's, by part.

    A ratio is None where the first takes no time.
    """
    first, second = one.prediction, other.prediction
    records: dict[str, object] = {"first": _record(one), "second": _record(other)}
    if first.problem or second.problem:
        return records
    before, after = _cycles_by_part(first), _cycles_by_part(second)
    ratios = {
        part: round(after[part] / before[part], 4) if before[part] else None for part in before
    }
    return {**records, "ratios": ratios}


def _cycles_by_part(each: Prediction) -> dict[str, float]:
    """The cycles of a call's kernels, of their regions, of what is around them, and of it all."""
    around = each.call - each.kernels
    return {"kernels": each.kernels, **each.regions, "around": around, "call": each.call}


def _record(found: _Found) -> dict[str, object]:
    from rpagen.schedule import accuracy

    each = found.prediction
    named = {"name": each.name, "device": each.device, "workload": each.workload}
    if each.problem:
        return {**named, "problem": each.problem}

    def microseconds(cycles: float) -> float:
        return round(each.microseconds(cycles), 3)

    least = each.floor
    return {
        **named,
        "kernels_us": microseconds(each.kernels),
        "kernels_error_bar": round(accuracy.error_bar(each.device).share, 4),
        "call_us": microseconds(each.call),
        "bundles": each.bundles,
        "bytes": each.bytes,
        "copies": each.copies,
        "floor": {
            "us": microseconds(least.cycles),
            "bytes": least.bytes,
            "operations": least.operations,
            "bound": least.bound,
            "share": round(each.share, 4),
        }
        if least
        else None,
        "regions_us": {name: microseconds(cycles) for name, cycles in each.regions.items()},
        "around_us": {name: microseconds(cycles) for name, cycles in each.around.items()},
        **({"loops": [_loop(*each) for each in found.loops]} if found.loops else {}),
    }


def _loop(kernel: str, part: Part) -> dict[str, object]:
    done = part.executed
    assert done is not None
    name, share = done.binding or ("", 0.0)
    return {
        "kernel": kernel,
        "loop": part.name,
        "depth": part.depth,
        "bundles": part.own.bundles,
        "spills": part.own.spills,
        "fills": part.own.fills,
        "iterations": done.iterations,
        "cycles": round(done.cycles, 1),
        "waited_cycles": round(done.waited, 1),
        "copies": done.copies,
        "binds": name,
        "binds_share": round(share, 4),
        "slots": {kind: round(each, 4) for kind, each in done.figures.shares.items()},
        "share_of_peak": round(done.figures.share_of_peak, 4),
    }


def _words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise argparse.ArgumentTypeError(f"{errors.quoted(text)} lacks a word at a comma")
    return words


def _operand(text: str) -> tuple[int, np.ndarray]:
    import numpy as np

    number, _, values = text.partition("=")
    if not (number.isascii() and number.isdecimal() and values):
        raise argparse.ArgumentTypeError(f"{errors.quoted(text)} is not like 5=3,1,4")
    try:
        if values.endswith(".npy"):
            found = np.load(values, allow_pickle=False)
        else:
            found = np.array([int(each) for each in values.split(",")])
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{errors.quoted(values)}: {error}") from None
    if not np.issubdtype(found.dtype, np.integer):
        raise argparse.ArgumentTypeError(f"{errors.quoted(values)} has {found.dtype}, no integers")
    return int(number), found
