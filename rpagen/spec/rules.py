"""What may be combined, and why not: the one place that decides.

The expander leaves out what a rule refuses, and the dispatcher's error quotes its reason. A
family's own exclusions have the same shape, and `applies` serves both.
"""

from __future__ import annotations

import dataclasses

from rpagen.spec import axes
from rpagen.spec.axes import AxisValue
from rpagen.spec.model import Exclusion, Facts

_INTEGER = ("int8",)
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_WIDE = ("float32", "bfloat16")
_SCALED = ("per_tensor", "per_tensor_with_query")

RULES = (
    Exclusion(
        {"kv.dtype": _INTEGER, "quantization": ("none",)},
        "an integer cache needs a scale",
    ),
    Exclusion(
        {"kv.dtype": _FLOAT8, "quantization": ("none",)},
        "an 8-bit float cache is served by per_tensor, where a scale that is not given means 1.0",
    ),
    Exclusion(
        {"kv.dtype": _WIDE, "quantization": _SCALED},
        "a cache of 16 bits or more stores values as they are, so there is no scale to apply",
    ),
    Exclusion(
        {"kv.dtype": _INTEGER, "quantization": ("per_tensor_with_query",)},
        "queries quantized to integers would need int32 scores, which are not emitted yet",
    ),
    Exclusion(
        {"query.dtype": ("float32",), "kv.dtype": ("bfloat16", *_FLOAT8, *_INTEGER)},
        "float32 queries are offered with a float32 cache only",
    ),
    Exclusion(
        {"query.dtype": ("bfloat16",), "kv.dtype": ("float32",)},
        "a float32 cache is offered with float32 queries only, so far",
    ),
    Exclusion(
        {"layout": ("head_major",), "kv.dtype": ("float32", *_FLOAT8, *_INTEGER)},
        "the head_major layout is offered with a bfloat16 cache only, so far",
    ),
    Exclusion(
        {
            "layout": ("head_major",),
            "features": tuple((feature,) for feature in axes.words("features")),
        },
        "the head_major layout is offered without features, so far",
    ),
)
"""Always valid, whatever the family."""


@dataclasses.dataclass(frozen=True)
class Idle:
    """An axis that has nothing to choose in some variants, which must keep its default there."""

    axis: str
    where: Exclusion


IDLE = (
    Idle(
        "pipelining.new_kv_fetch",
        Exclusion(
            {"layout": ("head_major",)},
            "head_major updates the cache before the launch, so no launch fetches new KV",
        ),
    ),
    Idle(
        "pipelining.new_kv_fetch",
        Exclusion(
            {"features": (("kv_share",),)},
            "with kv_share all KV is in the cache, so no launch fetches new KV",
        ),
    ),
)


def applies(exclusion: Exclusion, facts: Facts) -> bool:
    """Whether every condition of `exclusion` holds; one on an axis not in `facts` does not."""
    return all(
        any(_holds(path, value, facts) for value in values)
        for path, values in exclusion.when.items()
    )


def refusals(facts: Facts, defaults: Facts) -> list[str]:
    """Why the built-in rules refuse a variant; `defaults` are those of its family."""
    idle = [
        rule.where.reason
        for rule in IDLE
        if applies(rule.where, facts)
        and any(
            facts[path] != defaults[path]
            for path in (axes.launch_path(launch, rule.axis) for launch in axes.LAUNCHES)
        )
    ]
    return [rule.reason for rule in RULES if applies(rule, facts)] + idle


def reasons(
    query_dtype: str, kv_dtype: str, quantization: str, features: tuple[str, ...], layout: str
) -> list[str]:
    """Why the built-in rules offer no variant of a dispatch key; empty if they allow one."""
    facts: Facts = {
        "layout": layout,
        "query.dtype": query_dtype,
        "kv.dtype": kv_dtype,
        "quantization": quantization,
        "features": features,
    }
    return [rule.reason for rule in RULES if applies(rule, facts)]


def _holds(path: str, wanted: AxisValue, facts: Facts) -> bool:
    if path.startswith(axes.PIPELINING):
        # Said for the whole variant, it speaks of every launch that is so.
        return any(facts.get(axes.launch_path(launch, path)) == wanted for launch in axes.LAUNCHES)
    found = facts.get(path)
    if isinstance(wanted, tuple):
        return isinstance(found, tuple) and set(wanted) <= set(found)
    return found == wanted
