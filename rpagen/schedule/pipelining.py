"""`make pipelining`: what each axis of it is worth, from modules that differ in that axis alone.

The first two ideas are those of the change that the project began from: two-step attention, and one
wait for all pages of a block with no branch around the fetch of new keys and values.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rpagen.console import ProgressBar
from rpagen.emit import resources
from rpagen.errors import RpagenError
from rpagen.evidence import records, workers
from rpagen.schedule import predict, workloads
from rpagen.schedule.predict import Prediction
from rpagen.spec import expand
from rpagen.spec.model import GENERATIONS

BASE = "rpa"
CHANGES = {
    "rpa_depth0": "fused (depth 0)",
    "rpa_depth2": "two-step, depth 2",
    "rpa_kv_slots2": "2 KV slots",
    "rpa_wait_per_page": "a wait for each page",
    "rpa_new_kv_predicated": "new KV fetched under a branch",
}
"""Variants that differ from the base in one axis, and what that is."""

WORKLOADS = ("decode-1k", "decode-8k", "prefill-2k", "mixed")
CONFIGURATIONS = ("A", "B")
PAGE_SIZE = 64
NOTHING = 0.01
"""A smaller change of a time is none."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict all, and write the table; 0 if all could be predicted."""
    parser = argparse.ArgumentParser(
        prog="make pipelining", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--output", type=Path, default=Path("docs/pipelining.md"), metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        records.write_text(options.output, document(_predicted()))
    except RpagenError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _predicted() -> dict[str, list[Prediction]]:
    """By configuration."""
    known = workloads.load()
    by_name = {each.name: each for each in expand.load_variants(resources.specs_dir())}
    variants = [by_name[name] for name in (BASE, *CHANGES)]
    calls = [known.workload(name) for name in WORKLOADS]
    found: dict[str, list[Prediction]] = {}
    for name in CONFIGURATIONS:
        heads = known.configuration(name)
        with (
            predict.requests(variants, GENERATIONS, calls, heads, PAGE_SIZE) as asked,
            ProgressBar(f"predicting {name}") as bar,
        ):
            found[name] = predict.predictions(asked, workers.usual_count(), bar)
    return found


@dataclasses.dataclass(frozen=True)
class Change:
    """What a variant does to the time of a call. share: of the time of the base; less is faster."""

    variant: str
    configuration: str
    device: str
    workload: str
    share: float


def document(found: Mapping[str, Sequence[Prediction]]) -> str:
    """The tables as Markdown, by configuration, and sentences that follow from them.

    Raises:
        RpagenError: there is no prediction of a call.
    """
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))
    parts = [
        "# What each axis of the pipelining is worth",
        "",
        f"Written by `make pipelining` with {versions}. Kernels only, predicted"
        " ([how](prediction.md)): the microseconds of `rpa` (two-step attention of depth 1, 6 KV"
        " slots, one wait for all pages of a block, new KV fetched without a branch), then the"
        " change of the time by an axis that is changed alone. Configurations and workloads are"
        " those of `specs/workloads.yaml`; pages have 64 tokens.",
    ]
    changes: list[Change] = []
    for configuration, predictions in found.items():
        parts += ["", f"## Configuration {configuration}", ""]
        headings = ["", "", "`rpa`, us", *CHANGES.values()]
        parts += [_row(headings), _row(["---"] * len(headings))]
        by_call = {(each.name, each.device, each.workload): each for each in predictions}
        for device in GENERATIONS:
            for workload in WORKLOADS:
                base = _of(by_call, BASE, device, workload)
                row = [
                    Change(
                        name,
                        configuration,
                        device,
                        workload,
                        _of(by_call, name, device, workload).kernels / base.kernels - 1,
                    )
                    for name in CHANGES
                ]
                changes += row
                time = f"{base.microseconds(base.kernels):.1f}"
                texts = (f"{each.share:+.1%}" for each in row)
                parts.append(_row([device, workload, time, *texts]))
    parts += [
        "",
        "## What follows from the tables",
        "",
        f"A change of less than {NOTHING:.0%} is none. By workload: the largest gain and the"
        " largest loss, or the two ends where all are gains or losses.",
        "",
        *(
            sentence(title, [each for each in changes if each.variant == name])
            for name, title in CHANGES.items()
        ),
    ]
    return "\n".join(parts) + "\n"


def sentence(title: str, changes: Sequence[Change]) -> str:
    """What the changes by one axis come to, as an item of a list."""
    faster = sum(each.share <= -NOTHING for each in changes)
    slower = sum(each.share >= NOTHING for each in changes)
    verdict = {
        (True, True): f"faster in {faster} of {len(changes)} calls, slower in {slower}",
        (True, False): f"faster in {faster} of {len(changes)} calls, never slower",
        (False, True): f"slower in {slower} of {len(changes)} calls, never faster",
        (False, False): f"no difference in any of {len(changes)} calls",
    }[bool(faster), bool(slower)]
    ends = []
    for workload in dict.fromkeys(each.workload for each in changes):
        some = sorted(
            (each for each in changes if each.workload == workload), key=lambda each: each.share
        )
        ends.append(f"{workload} {_end(some[0])} to {_end(some[-1])}")
    return f"- **{title[:1].upper()}{title[1:]}**: {verdict}. {'; '.join(ends)}."


def _end(change: Change) -> str:
    return f"{change.share:+.1%} ({change.device}, {change.configuration})"


def _of(
    by_call: Mapping[tuple[str, str, str], Prediction], name: str, device: str, workload: str
) -> Prediction:
    found = by_call[name, device, workload]
    if found.problem:
        raise RpagenError(f"{name}, {device}, {workload}: {found.problem}")
    return found


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
