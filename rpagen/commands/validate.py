"""`rpagen validate`: runs kernels against the reference, on this CPU or on a TPU."""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rpagen import errors
from rpagen.commands import shared
from rpagen.console import ProgressBar, counted, table
from rpagen.errors import RpagenError
from rpagen.evidence import records
from rpagen.spec.model import Variant

if TYPE_CHECKING:
    from rpagen.evidence.calls import Call
    from rpagen.evidence.validate import Outcome

DOES = "run kernels against the reference, in interpret mode on this CPU or on a TPU"
EXAMPLE = "rpagen validate rpa --only gqa3_three_ranges --json"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    shared.add_variants(verb)
    verb.add_argument(
        "--seeds",
        type=shared.count,
        default=0,
        metavar="N",
        help="besides the fixed cases, random workloads and times of copies by N seeds",
    )
    verb.add_argument(
        "--first-seed",
        type=shared.count,
        default=0,
        metavar="S",
        help="the first of these seeds, to see again what one found (default: %(default)s)",
    )
    verb.add_argument(
        "--minutes",
        type=shared.size,
        metavar="M",
        help="instead of all that, random workloads by one seed after the other, for that long",
    )
    verb.add_argument(
        "--only", default="", metavar="TEXT", help="calls with this in their name, as in the report"
    )
    verb.add_argument("--tpu", action="store_true", help="run the kernels on the TPU at hand")
    verb.add_argument(
        "--jobs", type=shared.size, metavar="N", help="processes (default: one for each processor)"
    )
    verb.add_argument("--junit", type=shared.path, metavar="FILE", help="write JUnit XML there")
    verb.add_argument(
        "--record", type=shared.path, metavar="FILE", help="write there what `report` reads"
    )
    shared.add_json(verb)


def run(options: argparse.Namespace) -> int:
    """Run every call of every variant, and say which went wrong."""
    variants = shared.variants(options)
    shared.check_places(options, "record", "junit")
    start = time.monotonic()
    from rpagen.emit import single
    from rpagen.evidence import validate, workers

    if options.tpu:
        where = validate.tpu()
    else:
        where = "interpret mode on a CPU"
        workers.set_environment()
    with tempfile.TemporaryDirectory(prefix="rpagen-") as name:
        folder = Path(name)
        single.emit(folder, variants, "rpagen validate")
        found = _outcomes(options, folder, variants)
        record = validate.record(
            folder,
            variants,
            found,
            command=shared.command(
                "validate", add_arguments, options, apart=("jobs", "junit", "json", "record")
            ),
            where=where,
            seconds=time.monotonic() - start,
        )
    # What was found is said before anything may go wrong with the files.
    if options.json:
        shared.print_json(record)
    else:
        print("\n".join(_report(variants, found)))
    if options.record is not None:
        records.write(options.record, record)
    if options.junit is not None:
        records.write_text(options.junit, validate.junit(found))
    is_well = not any(outcome.problem for outcome in found) and not _too_loose(variants, found)
    return shared.ALL_WELL if is_well else shared.FELL_SHORT


def _outcomes(
    options: argparse.Namespace, folder: Path, variants: Sequence[Variant]
) -> list[Outcome]:
    """The outcome of every call that is asked for."""
    from rpagen.evidence import validate, workers

    jobs = options.jobs or workers.usual_count()
    found: list[Outcome] = []
    with ProgressBar("validating") as bar:
        for chosen, progress in _rounds(options, variants):
            pieces = [
                piece
                for variant, calls in zip(variants, chosen, strict=True)
                for piece in validate.work(folder, variant, calls)
            ]
            progress(bar, 0)
            running = (
                validate.outcomes_on_tpu(pieces) if options.tpu else validate.outcomes(pieces, jobs)
            )
            of_round = []
            for outcome in running:
                of_round.append(outcome)
                if outcome.problem:
                    bar.say(f"{outcome.variant} {outcome.call.name}:")
                    for line in outcome.problem.splitlines():
                        bar.say(f"  {line}")
                progress(bar, len(of_round))
            order = {(p.variant.name, c): i for i, p in enumerate(pieces) for c in p.calls}
            found += sorted(of_round, key=lambda each: order[each.variant, each.call])
    return found


def _rounds(
    options: argparse.Namespace, variants: Sequence[Variant]
) -> Iterator[tuple[list[list[Call]], Callable[[ProgressBar, int], None]]]:
    """The calls of each variant, one round after the other, and what shows how far a round is."""
    from rpagen.evidence import calls

    if options.minutes is not None and (options.only or options.seeds):
        raise RpagenError(
            "--minutes draws seeds by itself, and all calls of each: leave --only and --seeds away,"
            " or --minutes"
        )
    if options.minutes is None:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        of_variant = calls.on_tpu if options.tpu else calls.every
        chosen = [
            [call for call in of_variant(variant.key, seeds) if options.only in call.name]
            for variant in variants
        ]
        total = sum(map(len, chosen))
        if not total:
            raise RpagenError(
                f"no call has {errors.quoted(options.only)} in its name: give --only less of it;"
                " `--json` shows the names"
            )
        yield chosen, lambda bar, done: bar(done, total)
        return
    start, seconds = time.monotonic(), 60 * options.minutes
    for seed in itertools.count(options.first_seed):
        yield (
            [list(calls.random_workloads(variant.key, seed, options.tpu)) for variant in variants],
            lambda bar, _: bar(min(int(time.monotonic() - start), seconds), seconds),
        )
        if time.monotonic() - start > seconds:
            return


def _report(variants: Sequence[Variant], found: Sequence[Outcome]) -> list[str]:
    rows = []
    for variant in variants:
        own = [outcome for outcome in found if outcome.variant == variant.name]
        if not own:
            continue
        count = sum(bool(outcome.problem) for outcome in own)
        rows.append(
            (
                variant.name,
                str(len(own)),
                str(count) if count else "-",
                _largest(own),
                f"{sum(outcome.seconds for outcome in own):.0f}",
            )
        )
    lines = [table(("NAME", "CALLS", "WRONG", "ERROR/TOLERANCE", "SECONDS"), rows), ""]
    wrong = [outcome for outcome in found if outcome.problem]
    for dtypes, own in _by_dtypes(variants, found).items():
        lines.append(f"{dtypes}: the largest error is {_largest(own)} of what is tolerated")
    for dtypes in _too_loose(variants, found):
        lines.append(
            f"{dtypes}: more than {records.TOO_LOOSE} times the largest error is tolerated, in"
            f" {records.ENOUGH_CALLS} calls or more: see rpagen/evidence/tolerance.py"
        )
    lines.append(
        f"{len(found) - len(wrong)} of {counted(len(found), 'call')} right, of"
        f" {counted(len({outcome.variant for outcome in found}), 'variant')}"
    )
    return lines


def _by_dtypes(variants: Sequence[Variant], found: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    by_name = {variant.name: variant for variant in variants}
    groups: dict[str, list[Outcome]] = {}
    for outcome in found:
        variant = by_name[outcome.variant]
        groups.setdefault(f"{variant.query_dtype} over {variant.kv_dtype}", []).append(outcome)
    return groups


def _too_loose(variants: Sequence[Variant], found: Sequence[Outcome]) -> list[str]:
    """The dtypes with so large a tolerance that a fault could hide in it."""
    return [
        dtypes
        for dtypes, own in _by_dtypes(variants, found).items()
        if len(own) >= records.ENOUGH_CALLS
        and max(each.fraction or 0 for each in own) < 1 / records.TOO_LOOSE
    ]


def _largest(found: Sequence[Outcome]) -> str:
    fractions = [outcome.fraction for outcome in found if outcome.fraction is not None]
    return f"{max(fractions):.2f}" if fractions else "-"
