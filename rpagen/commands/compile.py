"""`rpagen compile`: variants through the real TPU compiler, with no TPU at hand."""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpagen.commands import shared, targets
from rpagen.console import ProgressBar, counted, first_line, table
from rpagen.evidence import records
from rpagen.spec import budget
from rpagen.spec.model import GENERATIONS, Variant

if TYPE_CHECKING:
    from rpagen.evidence.budgets import Compared
    from rpagen.evidence.survey import Outcome

DOES = "compile variants for TPUs that are not here, and hold the budget against the compiler's"
EXAMPLE = "rpagen compile rpa_sliding_window --device v6e"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    shared.add_variants(verb)
    verb.add_argument(
        "--device",
        type=targets.devices(tuple(budget.VMEM_BYTES)),
        default=GENERATIONS,
        metavar="LIST",
        help=f"TPU generations, such as v4,v5p (default: {','.join(GENERATIONS)})",
    )
    verb.add_argument(
        "--shape",
        type=targets.heads,
        default=(8, 2, 128),
        metavar="QxKxD",
        help="query heads, kv heads and head dim (default: 8x2x128)",
    )
    for name, default, of_what in (
        ("--page-size", 16, "tokens of a page"),
        ("--tokens", 64, "new tokens of the call"),
        ("--sequences", 4, "sequences of the call"),
        ("--context", 256, "tokens that a sequence can have"),
        ("--chunk-prefill-size", 32, "new tokens of a prefill sequence"),
    ):
        verb.add_argument(
            name,
            type=shared.size,
            default=default,
            metavar="N",
            help=f"{of_what} (default: {default})",
        )
    verb.add_argument(
        "--again", action="store_true", help="compile also what is known to have compiled"
    )
    verb.add_argument(
        "--stamps",
        type=shared.path,
        metavar="DIR",
        help="what is known to have compiled (default: .stamps/ of the source checkout)",
    )
    verb.add_argument(
        "--record", type=shared.path, metavar="FILE", help="write there what `report` reads"
    )
    shared.add_json(verb)


def run(options: argparse.Namespace) -> int:
    """Compile every variant for every device, and print a table."""
    variants = shared.variants(options)
    targets.require_compiler()
    shared.check_places(options, "record")
    outcomes, record = _outcomes(options, variants)
    if options.json:
        shared.print_json([_record(outcome) for outcome in outcomes])
    else:
        print(_table(outcomes))
        print()
        print("\n".join(_summary(outcomes)))
    if options.record is not None:
        records.write(options.record, record)
    return shared.ALL_WELL if all(each.is_well for each in outcomes) else shared.FELL_SHORT


def _outcomes(
    options: argparse.Namespace, variants: Sequence[Variant]
) -> tuple[list[Outcome], dict[str, Any]]:
    """What became of every variant on every device, and the record of it."""
    # No program is run: jax need not look for a TPU, which another process may have locked.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from rpagen.emit import single
    from rpagen.evidence import stamps, survey
    from rpagen.evidence.shapes import CallShape

    query_heads, kv_heads, head_dim = options.shape
    shape = CallShape(
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        page_size=options.page_size,
        tokens=options.tokens,
        sequences=options.sequences,
        pages_per_sequence=-(-options.context // options.page_size),
    )
    with tempfile.TemporaryDirectory(prefix="rpagen-") as name, ProgressBar("compiling") as bar:
        folder = Path(name)
        single.emit(folder, variants, "rpagen compile")
        emitted = survey.Survey(
            folder,
            shape,
            options.chunk_prefill_size,
            options.stamps or stamps.default_folder(),
            options.again,
        )
        outcomes: list[Outcome] = []
        total = len(variants) * len(options.device)
        bar(0, total)
        for outcome in emitted.outcomes(variants, options.device):
            outcomes.append(outcome)
            bar(len(outcomes), total)
        record = {
            "made_with": records.made_with(),
            "command": _command(options),
            "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
            "digests": {each.name: records.digest(folder, each.name) for each in variants},
            "outcomes": [_record(outcome) for outcome in outcomes],
        }
    return outcomes, record


def _command(options: argparse.Namespace) -> str:
    """What finds the same again."""
    return shared.command(
        "compile",
        add_arguments,
        options,
        apart=("again", "stamps", "record", "json"),
        device=",".join(options.device),
        shape="x".join(map(str, options.shape)),
    )


def _table(outcomes: Sequence[Outcome]) -> str:
    headings = ("NAME", "DEVICE", "SECONDS", "VMEM MiB", "SPILLS MiB", "SMEM KiB", "")
    return table(headings, [_row(outcome) for outcome in outcomes])


def _row(outcome: Outcome) -> tuple[str, ...]:
    if not outcome.launches:
        verdict = "excluded" if outcome.is_excluded else "FAILED"
        reason = first_line(outcome.reason)
        return outcome.variant, outcome.device, "", "", "", "", f"{verdict}: {reason}"
    largest = max(outcome.launches, key=lambda launch: launch.vmem.total)
    vmem, smem = largest.vmem, largest.smem
    return (
        outcome.variant,
        outcome.device,
        "known" if outcome.is_from_stamp else f"{outcome.seconds:.1f}",
        f"{vmem.taken.of_kernel / 2**20:.2f} of {vmem.model / 2**20:.2f}",
        f"{vmem.taken.of_compiler / 2**20:.2f} of {vmem.margin / 2**20:.2f}",
        f"{smem.total / 2**10:.1f} of {(smem.model + smem.margin) / 2**10:.1f}",
        _notes(outcome),
    )


def _notes(outcome: Outcome) -> str:
    notes = [
        f"BUDGET: {launch.name} {memory} takes {compared.taken.of_kernel} + "
        f"{compared.taken.of_compiler} bytes, budget {compared.model} + {compared.margin}"
        for launch in outcome.launches
        for memory, compared in (("VMEM", launch.vmem), ("SMEM", launch.smem))
        if not compared.is_held
    ]
    in_hbm = max(launch.hbm_spills for launch in outcome.launches)
    if in_hbm:
        notes.append(f"{in_hbm} scalar registers in HBM, since SMEM is too full")
    return "; ".join(notes)


def _summary(outcomes: Sequence[Outcome]) -> list[str]:
    compiled = [outcome for outcome in outcomes if outcome.launches]
    excluded = sum(outcome.is_excluded for outcome in outcomes)
    known = sum(outcome.is_from_stamp for outcome in compiled)
    lines = [
        f"{len(compiled)} of {counted(len(outcomes), 'pair')} compiled, {known} of them known from"
        f" before; {excluded} excluded, {len(outcomes) - len(compiled) - excluded} failed"
    ]
    launches = [launch for outcome in compiled for launch in outcome.launches]
    if launches:
        vmem = _furthest(launch.vmem for launch in launches)
        smem = _furthest(launch.smem for launch in launches)
        fullest = max(launch.vmem.taken.of_compiler / launch.vmem.margin for launch in launches)
        lines.append(
            f"the budget is off by up to {vmem:.1%} of VMEM and {smem:.1%} of SMEM; spills take up"
            f" to {fullest:.0%} of what it leaves to them"
        )
    return lines


def _furthest(compared: Iterable[Compared]) -> float:
    return max(abs(each.off) for each in compared)


def _record(outcome: Outcome) -> dict[str, object]:
    """An outcome as `--json` prints it."""
    return {**dataclasses.asdict(outcome), "is_well": outcome.is_well}
