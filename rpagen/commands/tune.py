"""`rpagen tune`: the best block sizes for a model's heads, searched with the predictor."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rpagen.commands import shared, targets
from rpagen.console import counted, first_line, table
from rpagen.errors import RpagenError

if TYPE_CHECKING:
    from rpagen.models.recommend import Recommendation
    from rpagen.tune.blocks import Blocks
    from rpagen.tune.measure import Times
    from rpagen.tune.row import Request
    from rpagen.tune.rows import Key, Row

_CONTEXT = 8192
"""Tokens of a sequence at most, as the standard workloads have it."""

DOES = "search the best block sizes for a model's heads, with predicted times"
EXAMPLE = "rpagen tune tests/data/hf_configs/llama-3.1-8b.json --tp 8"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    shared.add_model(verb)
    verb.add_argument(
        "--page-size",
        type=shared.size,
        default=64,
        metavar="N",
        help="tokens of a page (default: %(default)s)",
    )
    verb.add_argument(
        "--max-model-len",
        type=shared.size,
        default=_CONTEXT,
        metavar="N",
        help="tokens of a sequence at most: a window that holds them all is none (default:"
        " %(default)s)",
    )
    verb.add_argument(
        "--rows",
        type=shared.path,
        metavar="DIR",
        help="where rows are kept, GENERATION.yaml (default: tuning in the folder of specs)",
    )
    shared.add_specs(verb)
    verb.add_argument(
        "--check",
        action="store_true",
        help="write nothing, and tell whether the rows that are there come out again",
    )
    verb.add_argument(
        "--jobs", type=shared.size, metavar="N", help="processes (default: one for each processor)"
    )


def run(options: argparse.Namespace) -> int:
    """Tune every kind of layer; 1 where some are not served, or --check finds another row."""
    from rpagen.emit import write
    from rpagen.evidence import workers
    from rpagen.models import config, recommend
    from rpagen.tune import row, rows

    targets.require_compiler()
    folder = options.rows or options.specs / rows.FOLDER
    known = rows.read(folder, options.device)
    if not options.check:
        write.check_place(folder / f"{options.device}.yaml")
    asked = recommend.Request(
        generation=options.device,
        devices=options.tp,
        max_tokens=options.max_model_len,
        page_size=options.page_size,
        query_dtype=options.dtype,
        kv_dtype=options.kv_dtype,
    )
    answer = recommend.recommend(config.load(options.config), asked, options.specs)
    jobs = options.jobs or workers.usual_count()
    status = shared.ALL_WELL if answer.is_served else shared.FELL_SHORT
    for number, request in enumerate(_requests(answer, options.device)):
        if number:
            print()
        print(_title(request), flush=True)
        found = row.tuned(request, jobs, _tell)
        print(_table(found))
        if not options.check:
            known = rows.merged(known, found)
            print(f"wrote {shared.shown(rows.write_rows(folder, options.device, known))}")
        elif not _is_there(found, known):
            print(f"another row is in {shared.shown(folder / f'{options.device}.yaml')}, or none")
            status = shared.FELL_SHORT
    return status


def _requests(answer: Recommendation, device: str) -> Iterator[Request]:
    """A request for every kind of layer that is served, those with the same key once."""
    from rpagen.emit import single
    from rpagen.schedule import dump, kept, predict, workloads
    from rpagen.schedule.workloads import Configuration
    from rpagen.tune.row import Request

    served = [(kind.layer, kind.serving) for kind in answer.kinds if kind.serving is not None]
    if not served:
        raise RpagenError("no layer of the model is served: `rpagen recommend` tells why")
    standard = tuple(each for each in workloads.load().workloads if each.short)
    dumps = dump.default_folder()
    kept.remove_left(dumps)
    requests: dict[Key, Request] = {}
    with tempfile.TemporaryDirectory(prefix="rpagen-") as name:
        variants = {serving.variant.name: serving.variant for _, serving in served}
        single.emit(Path(name), list(variants.values()), "rpagen tune")
        for layer, serving in served:
            variant, problem = serving.variant, serving.problem
            heads = Configuration(
                *(answer.model.model_type, ""),
                *(problem.query_heads, problem.kv_heads, problem.head_dim),
                sliding_window=layer.size,
            )
            configuration = predict.configuration_of(variant, heads)
            request = Request(
                variant, device, configuration, problem.page_size, standard, Path(name), dumps
            )
            requests.setdefault(request.key, request)
        yield from requests.values()


def _title(request: Request) -> str:
    key = request.key
    window = f", window {key.sliding_window}" if key.sliding_window else ""
    return (
        f"{request.variant.name} on {request.device}: {counted(key.query_heads, 'query head')},"
        f" {counted(key.kv_heads, 'kv head')}, head dim {key.head_dim}, pages of {key.page_size}"
        f"{window}"
    )


def _tell(launch: str, times: Times) -> None:
    """Say on standard error what a trial came to."""
    blocks = ", ".join(map(str, times.blocks.argument))
    found = ", ".join(f"{each:.1f}" for each in times.microseconds)
    said = f"{found} us" if found else first_line(times.problem)
    print(f"  {launch} ({blocks}): {said}", file=sys.stderr, flush=True)


def _table(row: Row) -> str:
    """A line for every launch and workload."""
    return table(
        ("LAUNCH", "BLOCKS", "WORKLOAD", "us", "DEFAULT us", "DEFAULT TAKES"),
        [
            (
                launch,
                ", ".join(map(str, tuned.blocks.argument)),
                workload,
                f"{each:.1f}",
                f"{tuned.default[workload]:.1f}",
                f"{tuned.default[workload] / each:.2f} times as long",
            )
            for launch, tuned in row.launches.items()
            for workload, each in tuned.microseconds.items()
        ],
    )


def _is_there(found: Row, known: Sequence[Row]) -> bool:
    """Whether the rows have the same blocks for the same key, the default ones among them."""
    return any(row.key == found.key and _blocks(row) == _blocks(found) for row in known)


def _blocks(row: Row) -> dict[str, tuple[Blocks, Blocks]]:
    return {launch: (tuned.blocks, tuned.default_blocks) for launch, tuned in row.launches.items()}
