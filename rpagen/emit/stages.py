"""Which template files a variant is made of: for every stage of a kernel, the choice it takes.

A stage is a folder below `templates/stages/`, a choice is a file in it, and each file renders
whole top-level functions. A stage takes the choice named after one of the variant's features
where it has such a file, so that a feature is mostly one file; otherwise the table below says.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping

from rpagen.emit import resources
from rpagen.spec.model import LAUNCHES, Pipelining, Variant

ONE_TOKEN = ("decode",)  # launches whose sequences have one new token each
SEVERAL_TOKENS = ("prefill", "mixed")  # and those that take any number

Choose = Callable[[Variant, Pipelining], str]


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of a kernel, for the launches that use it.

    choose: the file of a variant with a launch's pipelining.
    reads: the fields of `Pipelining` that its functions depend on.
    calls: the stages whose functions its functions call, where those depend on `Pipelining`.
    is_used: whether a variant has the stage at all.
    """

    folder: str
    choose: Choose
    launches: tuple[str, ...] = LAUNCHES
    reads: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    is_used: Callable[[Variant], bool] = lambda variant: True


@dataclasses.dataclass(frozen=True)
class Use:
    """A stage file as a variant uses it, for the launches that agree on it.

    suffixes: by stage, what the names of its functions end with for these launches.
    """

    template: str
    launches: tuple[str, ...]
    pipelining: Pipelining
    suffixes: Mapping[str, str]


def updates_cache(variant: Variant) -> bool:
    """Whether the launches themselves write the new tokens to the cache."""
    return variant.layout == "head_interleaved" and not variant.has("kv_share")


def masks_by_position(variant: Variant) -> bool:
    """Whether the queries of a sequence with several tokens see different keys."""
    return not variant.has("bidirectional") or variant.has("sliding_window")


def is_quantized(variant: Variant) -> bool:
    """Whether the cache holds codes that stand for values times a scale."""
    return variant.quantization != "none"


def widens_codes(variant: Variant) -> bool:
    """Whether codes are made bfloat16: the matrix unit takes 8-bit floats beside it as they are."""
    return variant.kv_dtype == "int8"


def quantizes_queries(variant: Variant) -> bool:
    """Whether the queries are rounded to the cache's dtype too."""
    return variant.quantization == "per_tensor_with_query"


def uses(variant: Variant) -> Iterator[Use]:
    """The stage files of a variant, in the order of the emitted module.

    Where launches differ in the pipelining that a stage depends on, the stage is used once for
    each group of launches that agree.
    """
    suffixes = {launch: _suffixes(variant, launch) for launch in variant.launches}
    for stage in STAGES:
        if not stage.is_used(variant):
            continue
        for launches in _groups(stage, variant):
            plan = variant.launches[launches[0]]
            choice = _choice(stage, variant, plan)
            yield Use(
                template=f"stages/{stage.folder}/{choice}.py.j2",
                launches=launches,
                pipelining=plan,
                suffixes=suffixes[launches[0]],
            )


def _choice(stage: Stage, variant: Variant, plan: Pipelining) -> str:
    folder = resources.templates_dir() / "stages" / stage.folder
    named = [feature for feature in variant.features if (folder / f"{feature}.py.j2").exists()]
    assert len(named) < 2, f"{' and '.join(named)} want the stage {stage.folder} of {variant.name}"
    return named[0] if named else stage.choose(variant, plan)


def _groups(stage: Stage, variant: Variant) -> list[tuple[str, ...]]:
    """The launches that use a stage, grouped by the pipelining it and its callees depend on."""
    fields = _all_reads(stage)
    groups: dict[tuple[object, ...], list[str]] = {}
    for launch in stage.launches:
        plan = variant.launches[launch]
        groups.setdefault(tuple(getattr(plan, field) for field in fields), []).append(launch)
    return [tuple(launches) for launches in groups.values()]


@functools.cache
def _all_reads(stage: Stage) -> tuple[str, ...]:
    called = [each for each in STAGES if each.folder in stage.calls]
    fields = {*stage.reads, *(field for each in called for field in _all_reads(each))}
    return tuple(sorted(fields))


def _suffixes(variant: Variant, launch: str) -> dict[str, str]:
    """What the functions of each stage are called for `launch`: nothing where launches agree."""
    suffixes = {}
    for stage in STAGES:
        if not stage.is_used(variant):
            continue
        groups = _groups(stage, variant)
        own = [group for group in groups if launch in group]
        if own:
            suffixes[stage.folder] = f"_{'_'.join(own[0])}" if len(groups) > 1 else ""
    return suffixes


def _always(choice: str) -> Choose:
    return lambda variant, plan: choice


def _by_layout(variant: Variant, plan: Pipelining) -> str:
    return variant.layout


def _mask(variant: Variant, plan: Pipelining) -> str:
    if variant.has("bidirectional"):
        return "window" if variant.has("sliding_window") else "all_keys"
    return "causal_window" if variant.has("sliding_window") else "causal"


STAGES = (
    Stage("records", _always("paged")),
    Stage("turns", _always("slots")),
    Stage("span", _always("kv_blocks")),
    Stage("span", _always("cached_and_new"), is_used=updates_cache),
    Stage("span", _always("one_token"), ONE_TOKEN),
    Stage("span", _always("several_tokens"), SEVERAL_TOKENS),
    Stage("fetch_queries", _always("one_token"), ONE_TOKEN),
    Stage("fetch_queries", _always("several_tokens"), SEVERAL_TOKENS),
    Stage(
        "fetch_page",
        _always("rows"),
        is_used=lambda variant: variant.layout == "head_interleaved",
    ),
    Stage("fetch_kv", _by_layout, reads=("new_kv_fetch",)),
    Stage("fetch_ahead", _always("one_token"), ONE_TOKEN, calls=("fetch_kv",)),
    Stage("fetch_ahead", _always("several_tokens"), SEVERAL_TOKENS, calls=("fetch_kv",)),
    Stage(
        "wait_kv",
        lambda variant, plan: f"{variant.layout}_{plan.dma_wait}",
        reads=("dma_wait", "new_kv_fetch"),
    ),
    Stage("update_cache", _always("one_token"), ONE_TOKEN, is_used=updates_cache),
    Stage("update_cache", _always("several_tokens"), SEVERAL_TOKENS, is_used=updates_cache),
    Stage("update_cache", _always("wait"), is_used=updates_cache),
    Stage("clear_tail", _by_layout),
    Stage("quantize_queries", _always("saturate"), is_used=quantizes_queries),
    Stage("order_queries", _always("one_token"), ONE_TOKEN),
    Stage("order_queries", _always("several_tokens"), SEVERAL_TOKENS),
    Stage(
        "unpack",
        lambda variant, plan: (
            variant.layout
            if variant.layout == "head_major"
            else f"{variant.layout}_packing_{variant.kv_packing}"
        ),
    ),
    Stage("dequantize", _always("cast"), is_used=widens_codes),
    Stage("mask", _always("one_token"), ONE_TOKEN),
    Stage("mask", _always("positions"), SEVERAL_TOKENS, is_used=masks_by_position),
    Stage("mask", _mask, SEVERAL_TOKENS),
    Stage("edges", _mask, SEVERAL_TOKENS),
    Stage(
        "edges",
        lambda variant, plan: "around" if variant.has("sliding_window") else "after",
        SEVERAL_TOKENS,
    ),
    Stage("scores", _always("plain")),
    Stage("softmax", _always("online")),
    Stage("accumulate", _always("rescale")),
    Stage(
        "pipeline",
        lambda variant, plan: "two_step" if plan.attention_depth else "fused",
        reads=("attention_depth",),
    ),
    Stage("attend_block", _always("one_token"), ONE_TOKEN, calls=("pipeline",)),
    Stage("attend_block", _always("several_tokens"), SEVERAL_TOKENS, calls=("pipeline",)),
    Stage("store", _always("normalise")),
    Stage("store", _always("one_token"), ONE_TOKEN),
    Stage("store", _always("several_tokens"), SEVERAL_TOKENS),
    Stage(
        "kernel",
        _always("one_token"),
        ONE_TOKEN,
        calls=("fetch_ahead", "wait_kv", "attend_block"),
    ),
    Stage(
        "kernel",
        _always("several_tokens"),
        SEVERAL_TOKENS,
        calls=("fetch_ahead", "wait_kv", "attend_block"),
    ),
    Stage(
        "update_cache",
        _always("before_launches"),
        is_used=lambda variant: variant.layout == "head_major",
    ),
    Stage("wrapper", _always("run_launches")),
    Stage("wrapper", _always("entry")),
)
