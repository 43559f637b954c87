"""The table of axes: every choice a variant can make, said once.

The loader's checks, the JSON Schema, the names of variants and the docs all derive from this
table, so a new value of an axis is one line here (a new dtype also needs its width in
`model.BIT_WIDTHS`). What may be combined with what is not said here but in `rules`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

LAUNCHES = ("decode", "prefill", "mixed")

PIPELINING = "pipelining."
"""Axes below this path are chosen for a whole variant, and may be overridden per launch."""

AxisValue = str | int | tuple[str, ...]
"""What an axis can be set to: a word, a number, or (features) a set of words in table order."""


@dataclasses.dataclass(frozen=True)
class Argument:
    """The argument by which a call gives a feature its number; it has the feature's name.

    is_static: whether it is known when the call is traced. If not, it may be a traced scalar, and
        kernels find `factor` (an expression) among their scales, under its name in capitals.
    score_unit: what the score scale is multiplied or divided with, in place of log2(e).
    """

    type: str
    doc: str
    is_static: bool = True
    factor: str = ""
    score_unit: str = ""

    @property
    def check(self) -> str:
        """The function of the emitted `support` that checks it."""
        return "check_size" if self.is_static else "check_positive"


@dataclasses.dataclass(frozen=True)
class Value:
    """One value an axis offers: how specs write it, how names say it, and what it means.

    For features: asked_by is the condition on a call's arguments that asks for it, and argument
    the one that it adds to a variant's own entry point.
    """

    name: str | int
    label: str
    doc: str
    asked_by: str = ""
    argument: Argument | None = None


@dataclasses.dataclass(frozen=True)
class Axis:
    """One choice.

    path: dotted, as specs write it.
    in_key: whether the arguments of a call decide it, so that it is part of the dispatch key.
    is_set: whether a variant has any number of the values, rather than exactly one of them.
    """

    path: str
    doc: str
    values: tuple[Value, ...]
    in_key: bool = False
    is_set: bool = False

    @property
    def names(self) -> tuple[str | int, ...]:
        """The values as specs write them."""
        return tuple(value.name for value in self.values)

    def label(self, value: AxisValue) -> str:
        """How the name of a variant says `value`."""
        if isinstance(value, tuple):
            return "_".join(each.label for each in self.values if each.name in value) or "plain"
        return next(each.label for each in self.values if each.name == value)


AXES = (
    Axis(
        "layout",
        "How the KV cache lies in memory.",
        (
            Value("head_interleaved", "head_interleaved", "K and V of a head next to each other"),
            Value("head_major", "head_major", "K and V apart, each head contiguous"),
        ),
        in_key=True,
    ),
    Axis(
        "query.dtype",
        "The dtype of the queries, and of the output.",
        (
            Value("float32", "query_float32", "single precision"),
            Value("bfloat16", "query_bfloat16", "what models run in"),
        ),
        in_key=True,
    ),
    Axis(
        "kv.dtype",
        "The dtype of the KV cache; packing follows from it.",
        (
            Value("float32", "float32", "4 bytes a value"),
            Value("bfloat16", "bfloat16", "2 bytes a value"),
            Value("float8_e4m3fn", "float8_e4m3fn", "1 byte a value, up to 448"),
            Value("float8_e5m2", "float8_e5m2", "1 byte a value, wider range, coarser"),
            Value("int8", "int8", "1 byte a value, evenly spaced"),
        ),
        in_key=True,
    ),
    Axis(
        "quantization",
        "Which scales the kernel applies.",
        (
            Value("none", "unscaled", "values are stored as they are"),
            Value("per_tensor", "per_tensor", "one scale for keys and one for values"),
            Value("per_tensor_with_query", "query_scale", "those, and queries are quantized too"),
        ),
        in_key=True,
    ),
    Axis(
        "features",
        "What the attention computes beyond causal attention over a growing cache.",
        (
            Value(
                "sliding_window",
                "sliding_window",
                "a query sees the last keys only",
                "sliding_window is not None",
                Argument("int", "a query at position q sees keys after q - sliding_window"),
            ),
            Value(
                "soft_cap",
                "soft_cap",
                "scores pass through cap * tanh(score / cap)",
                "soft_cap is not None",
                Argument(
                    "Any",
                    "bound of the scores; a number or a traced scalar",
                    is_static=False,
                    factor="soft_cap * support.LOG2_E",
                    score_unit="/ soft_cap",
                ),
            ),
            Value("bidirectional", "bidirectional", "no causal mask", "not use_causal_mask"),
            Value(
                "kv_share",
                "kv_share",
                "all KV is in the cache already: nothing is written",
                "not update_kv_cache",
            ),
        ),
        in_key=True,
        is_set=True,
    ),
    Axis(
        "numerics",
        "How precise the arithmetic is.",
        (Value("exact", "exact", "scores, maximum, exponent argument and sums in float32"),),
    ),
    Axis(
        "pipelining.kv_slots",
        "Buffers of KV blocks in flight.",
        (
            Value(2, "kv_slots2", "one block is computed while the next is fetched"),
            Value(3, "kv_slots3", "two blocks are fetched ahead"),
            Value(4, "kv_slots4", "three blocks are fetched ahead"),
            Value(6, "kv_slots6", "five blocks are fetched ahead"),
        ),
    ),
    Axis(
        "pipelining.attention.depth",
        "How many step-1 results wait before their step 2 runs.",
        (
            Value(0, "depth0", "fused: step 2 follows its own step 1"),
            Value(1, "depth1", "two-step: the next step 1 is issued before the last step 2"),
            Value(2, "depth2", "two-step, two results waiting"),
        ),
    ),
    Axis(
        "pipelining.dma_wait",
        "How a launch waits for the pages of a block.",
        (
            Value("per_page", "wait_per_page", "page by page"),
            Value("aggregate", "wait_aggregate", "once, for the summed bytes"),
        ),
    ),
    Axis(
        "pipelining.new_kv_fetch",
        "How a launch fetches the new KV of a block that may have none.",
        (
            Value("predicated", "new_kv_predicated", "under a branch"),
            Value("select", "new_kv_select", "always, with a size of zero where there is none"),
        ),
    ),
)


def launch_path(launch: str, path: str) -> str:
    """The path that overrides the pipelining axis `path` for one launch."""
    return f"launches.{launch}.{path}"


WHOLE_AXES = tuple(axis for axis in AXES if not axis.path.startswith(PIPELINING))
"""What is chosen once for a whole variant."""

PIPELINING_AXES = tuple(axis for axis in AXES if axis.path.startswith(PIPELINING))
"""What every launch may choose for itself."""

LAUNCH_AXES = tuple(
    Axis(
        launch_path(launch, axis.path),
        f"{axis.doc} For the {launch} launch only.",
        tuple(Value(value.name, f"{launch}_{value.label}", value.doc) for value in axis.values),
    )
    for launch in LAUNCHES
    for axis in PIPELINING_AXES
)

BY_PATH = {axis.path: axis for axis in (*AXES, *LAUNCH_AXES)}

FACTS = tuple(axis.path for axis in (*WHOLE_AXES, *LAUNCH_AXES))
"""The paths whose values tell one variant from another."""


def by_head(table: Mapping[str, Axis]) -> dict[str, dict[str, Axis]]:
    """Splits a table by the first part of its paths: the way from dotted paths to nested keys.

    An axis whose path is at its end is below the empty path.
    """
    below: dict[str, dict[str, Axis]] = {}
    for path, axis in table.items():
        head, _, rest = path.partition(".")
        below.setdefault(head, {})[rest] = axis
    return below


def words(path: str) -> tuple[str, ...]:
    """The values of the axis `path`, for an axis whose values are words."""
    return tuple(str(name) for name in BY_PATH[path].names)
