"""The frozen facts of a variant, and what follows from them.

A variant is one emitted module with one kernel per launch. Everything here is a value a spec
decides or a fact derived from such values; how spec files are read is `load`, how values are
combined is `expand`, and what may be combined is `rules`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

LAUNCHES = ("decode", "prefill", "mixed")
GENERATIONS = ("v5e", "v6e", "v7x")
BIT_WIDTHS = {
    "float32": 32,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "int8": 8,
}
FEATURES = ("sliding_window", "soft_cap", "bidirectional", "kv_share")
QUANTIZATIONS = ("none", "per_tensor", "per_tensor_with_query")
LAYOUTS = ("head_interleaved", "head_major")
DMA_WAITS = ("per_page", "aggregate")
NEW_KV_FETCHES = ("predicated", "select")
NUMERICS = ("exact",)
TIERS = ("core", "extended")


@dataclasses.dataclass(frozen=True)
class Mark:
    """A place in a spec file: 1-based line and column."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclasses.dataclass(frozen=True)
class Pipelining:
    """How one launch overlaps its work.

    kv_slots: buffers of KV blocks in flight.
    attention_depth: step-1 results that wait before their step 2 runs; 0 is fused.
    dma_wait: wait for every page, or once for the summed bytes.
    new_kv_fetch: branch around the fetch of new KV, or always issue it with a selected size.
    """

    kv_slots: int
    attention_depth: int
    dma_wait: str
    new_kv_fetch: str


@dataclasses.dataclass(frozen=True)
class DispatchKey:
    """What the arguments of a call decide, apart from the TPU generation."""

    layout: str
    query_dtype: str
    kv_dtype: str
    quantization: str
    features: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One emitted module: a point in the space its family spans.

    `launches` holds every launch's own pipelining plan; `origins` says, for each dotted axis
    path, which place of the spec decided its value.
    """

    name: str
    family: str
    layout: str
    query_dtype: str
    kv_dtype: str
    quantization: str
    features: tuple[str, ...]  # in the order of FEATURES
    launches: Mapping[str, Pipelining]  # in the order of LAUNCHES
    numerics: str
    tier: str
    generations: tuple[str, ...]  # in the order of GENERATIONS
    is_default: bool
    mark: Mark
    origins: Mapping[str, Mark] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def key(self) -> DispatchKey:
        """The dispatch key: variants that share it differ in how, not in what, they compute."""
        return DispatchKey(
            self.layout, self.query_dtype, self.kv_dtype, self.quantization, self.features
        )

    @property
    def query_packing(self) -> int:
        """Query values per 32-bit word."""
        return packing(self.query_dtype)

    @property
    def kv_packing(self) -> int:
        """Cache values per 32-bit word."""
        return packing(self.kv_dtype)

    def has(self, feature: str) -> bool:
        """Whether the variant computes `feature`."""
        return feature in self.features


def packing(dtype: str) -> int:
    """Values of `dtype` per 32-bit word."""
    return 32 // BIT_WIDTHS[dtype]
