"""`rpagen list`: the variants that the specs make."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from rpagen.commands import shared
from rpagen.console import table
from rpagen.emit import plan
from rpagen.spec import axes, expand
from rpagen.spec.model import GENERATIONS, Variant, field_name

DOES = "show the variants that the specs make"
EXAMPLE = "rpagen list --kv-dtype float8_e4m3fn --feature sliding_window"

PLAIN = "none"
"""What `--feature` calls a variant that has no features."""

_EQUAL_FILTERS = {
    path: field_name(path) for path in ("layout", "query.dtype", "kv.dtype", "quantization")
}
"""The axes to filter by, with the field of a variant that an option must equal."""


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    shared.add_specs(verb)
    shared.add_tier(verb)
    for path, name in _EQUAL_FILTERS.items():
        verb.add_argument(
            f"--{name.replace('_', '-')}",
            choices=axes.words(path),
            help=axes.BY_PATH[path].doc,
        )
    verb.add_argument(
        "--feature",
        action="append",
        default=[],
        choices=(PLAIN, *axes.words("features")),
        help=f"may be repeated, then all of them; {PLAIN} is no feature at all",
    )
    verb.add_argument("--generation", choices=GENERATIONS, help="the TPU generation it serves")
    shared.add_json(verb)


def run(options: argparse.Namespace) -> int:
    """Print a table of the variants chosen."""
    variants = expand.load_variants(options.specs, plan.TIER_CHOICES[options.tier])
    chosen = [variant for variant in variants if _is_chosen(variant, options)]
    if options.json:
        shared.print_json([_record(variant) for variant in chosen])
        return shared.ALL_WELL
    if not chosen:
        everywhere = "" if options.tier == "all" else f" in the tier {options.tier}; try --tier all"
        print(f"no variant is like that{everywhere}", file=sys.stderr)
        return shared.ALL_WELL
    headings = ("NAME", "LAYOUT", "QUERY", "KV", "QUANTIZATION", "FEATURES", "TIER", "DEFAULT")
    rows = [
        (
            variant.name,
            variant.layout,
            variant.query_dtype,
            variant.kv_dtype,
            variant.quantization,
            ",".join(variant.features) or PLAIN,
            variant.tier,
            "yes" if variant.is_default else "",
        )
        for variant in chosen
    ]
    print(table(headings, rows))
    return shared.ALL_WELL


def _is_chosen(variant: Variant, options: argparse.Namespace) -> bool:
    is_equal = all(
        value is None or getattr(variant, name) == value
        for name, value in ((name, getattr(options, name)) for name in _EQUAL_FILTERS.values())
    )
    has_features = all(
        not variant.features if feature == PLAIN else variant.has(feature)
        for feature in options.feature
    )
    has_generation = options.generation is None or options.generation in variant.generations
    return is_equal and has_features and has_generation


def _record(variant: Variant) -> dict[str, object]:
    """A variant as `--json` prints it."""
    return {
        "name": variant.name,
        "family": variant.family,
        "layout": variant.layout,
        "query_dtype": variant.query_dtype,
        "kv_dtype": variant.kv_dtype,
        "quantization": variant.quantization,
        "features": list(variant.features),
        "launches": {launch: dataclasses.asdict(plan) for launch, plan in variant.launches.items()},
        "numerics": variant.numerics,
        "tier": variant.tier,
        "generations": list(variant.generations),
        "is_default": variant.is_default,
        "spec": f"{variant.mark.file}:{variant.mark.line}",
    }
