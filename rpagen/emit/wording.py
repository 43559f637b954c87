"""What emitted modules say in words: docstrings, shapes in comments, records of variants."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rpagen.spec import axes, budget, launches
from rpagen.spec.budget import Problem
from rpagen.spec.model import BIT_WIDTHS, Variant

RECORD_FIELDS = (
    "name",
    "family",
    "layout",
    "query_dtype",
    "kv_dtype",
    "quantization",
    "features",
    "numerics",
    "generations",
    "is_default",
)
"""The fields of a variant that its record in the emitted package has, besides its launches."""

_EXAMPLE_CHUNK = 512
_EXAMPLE_GENERATION = "v6e"


def summary(variant: Variant) -> str:
    """What a variant computes, in one line."""
    features = ", ".join(feature.replace("_", " ") for feature in variant.features)
    kind = f" ({features})" if features else ""
    return f"Ragged paged attention{kind} over a cache of {variant.kv_dtype}."


def docstring(variant: Variant) -> str:
    """The docstring of a kernel module: its axes, its operands and what its scratch takes."""
    return "\n".join(
        [
            summary(variant),
            "",
            "Axes:",
            *_columns([(path, said(value)) for path, value in axes_in_short(variant).items()]),
            "",
            "Operands and results:",
            *_columns(_operands(variant)),
            "",
            *_budget(variant),
            "",
        ]
    )


def shapes(variant: Variant) -> dict[str, str]:
    """The shapes that comments in a module say, by what has them."""
    kv_words = {1: "2 * kv heads", 2: "kv heads", 4: "ceil(kv heads / 2)"}[variant.kv_packing]
    kv_row = f"{kv_words}, {variant.kv_packing}, head dim"
    query_words = {1: "query heads", 2: "query heads / 2"}[variant.query_packing]
    query_row = f"{query_words}, {variant.query_packing}, head dim"
    if variant.layout == "head_major":
        cache = "[pages, 2 * kv heads, page size, head dim]"
        slots = "[kv slots, 2 * kv heads, kv rows, head dim]"
    else:
        cache = f"[pages, page size, {kv_row}]"
        slots = f"[kv slots, kv rows, spread({kv_words}), {variant.kv_packing}, head dim]"
    return {
        "cache": cache,
        "kv_slots": slots,
        "new_kv": f"[tokens, {kv_row}]",
        "new_kv_words": f"u32[tokens, {kv_words}, 1, head dim]",
        "queries": f"[tokens, {query_row}]",
        "query_slots": (
            f"[query slots, query block, spread({query_words}), {variant.query_packing}, head dim]"
        ),
    }


def key_dtypes(variant: Variant) -> str:
    """The dtypes in which a variant takes keys and values."""
    return variant.kv_dtype + (", or wider" if variant.kv_dtype != "float32" else "")


def record(variant: Variant, module: str = "") -> str:
    """The record of a variant in the emitted package, as an expression.

    `module` goes before the names of the record's classes.
    """
    launches = ", ".join(f"({name!r}, {module}{plan!r})" for name, plan in variant.launches.items())
    own = ", ".join(f"{field}={getattr(variant, field)!r}" for field in RECORD_FIELDS)
    return f"{module}Variant({own}, launches=({launches},))"


def axes_in_short(variant: Variant) -> dict[str, axes.AxisValue]:
    """The value of every axis; one that all launches agree on is said once."""
    facts = variant.facts
    short = {path: value for path, value in facts.items() if not path.startswith("launches.")}
    for axis in axes.PIPELINING_AXES:
        paths = [axes.launch_path(launch, axis.path) for launch in variant.launches]
        by_launch = {path: facts[path] for path in paths}
        agreed = len(set(by_launch.values())) == 1
        short |= {axis.path: by_launch[paths[0]]} if agreed else by_launch
    return short


def _operands(variant: Variant) -> list[tuple[str, str]]:
    """The operands and results of a module's `ragged_paged_attention`, and their shapes."""
    cache = shapes(variant)["cache"].replace("head dim", "align(head dim, 128)")
    return [
        ("queries, out", f"[tokens, query heads, head dim] {variant.query_dtype}"),
        ("keys, values", f"[tokens, kv heads, head dim] {key_dtypes(variant)}"),
        ("kv_cache", f"{cache} {variant.kv_dtype}"),
        ("kv_lens", "[sequences] int32"),
        ("page_indices", "[sequences * pages per sequence] int32"),
        ("cu_q_lens", "[sequences + 1] int32"),
        ("distribution", "[3] int32"),
    ]


def _budget(variant: Variant) -> list[str]:
    """The default blocks and the scratch of each launch, for one usual call."""
    problem = _example(variant)
    rows: list[tuple[str, ...]] = [
        ("launch", "query block", "KV block", "query tile", "compute block", "VMEM")
    ]
    for each in launches.plan(variant, problem, _EXAMPLE_GENERATION, _EXAMPLE_CHUNK):
        vmem = f"{each.vmem_bytes / 2**20:.1f} MiB"
        rows.append((each.launch, *map(str, each.blocks), vmem))
    smem = budget.smem_bytes(problem.sequences, problem.pages_per_sequence)
    return [
        f"Default blocks (tokens) and scratch on {_EXAMPLE_GENERATION} with"
        f" {problem.query_heads} query heads, {problem.kv_heads} kv heads,",
        f"head dim {problem.head_dim}, {problem.sequences} sequences, and"
        f" {problem.pages_per_sequence} pages of {problem.page_size} for each, which take"
        f" {smem / 2**10:.0f} KiB of SMEM:",
        *_columns(rows),
    ]


def _example(variant: Variant) -> Problem:
    """The call that a docstring speaks of: one layer of an 8B model."""
    page_size, kv_heads, head_dim = 64, 8, 128
    value_bytes = BIT_WIDTHS[variant.kv_dtype] // 8
    page = budget.page_shape(page_size, kv_heads, head_dim, value_bytes, layout=variant.layout)
    return Problem(
        tokens=2048,
        query_heads=32,
        kv_heads=kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        sequences=64,
        pages_per_sequence=128,
        query_bytes=BIT_WIDTHS[variant.query_dtype] // 8,
        kv_row_bytes=math.prod(page) // page_size * value_bytes,
        layout=variant.layout,
    )


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as indented lines, their cells one below the other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "    "
        + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def said(value: axes.AxisValue) -> str:
    """An axis value as docstrings and tables show it."""
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value)
