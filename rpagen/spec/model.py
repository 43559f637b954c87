"""The frozen facts of a variant, and what follows from them.

A variant is one emitted module with one kernel per launch. Everything here is a value a spec
decides or a fact derived from such values; how spec files are read is `load`, how values are
combined is `expand`, and what may be combined is `rules`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from rpagen.spec import axes
from rpagen.spec.axes import AxisValue

LAUNCHES = axes.LAUNCHES
GENERATIONS = ("v5e", "v6e", "v7x")
BIT_WIDTHS = {
    "float32": 32,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "int8": 8,
}
LAYOUTS = axes.words("layout")
QUANTIZATIONS = axes.words("quantization")
FEATURES = axes.words("features")
DMA_WAITS = axes.words("pipelining.dma_wait")
NEW_KV_FETCHES = axes.words("pipelining.new_kv_fetch")
NUMERICS = axes.words("numerics")
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
class Setting:
    """The value of one axis, the field of a spec that says so (dotted), and its place."""

    value: AxisValue
    field: str
    mark: Mark


Settings = Mapping[str, Setting]
"""Settings by dotted axis path."""

Choices = Mapping[str, tuple[Setting, ...]]
"""By dotted axis path, the settings to make variants of, each crossed with all others."""

Facts = Mapping[str, AxisValue]
"""Values by dotted axis path; pipelining by launch: `launches.decode.pipelining.kv_slots`."""


@dataclasses.dataclass(frozen=True)
class Combo:
    """Values that go together; the family's axes that it does not name cross with it.

    The mark is where the spec says it. A combo that names nothing is the product of the axes.
    """

    choices: Choices
    tier: str
    generations: tuple[str, ...]  # in the order of GENERATIONS
    mark: Mark


@dataclasses.dataclass(frozen=True)
class Exclusion:
    """Variants that are not offered, and why.

    It applies where every axis in `when` has one of the values listed for it; for `features`,
    where the variant has all of the features listed. A built-in rule has no mark.
    """

    when: Mapping[str, tuple[AxisValue, ...]]
    reason: str
    mark: Mark | None = None


@dataclasses.dataclass(frozen=True)
class Family:
    """One spec file, read and checked but not yet expanded."""

    name: str
    doc: str
    generations: tuple[str, ...]  # in the order of GENERATIONS
    defaults: Settings
    axes: Choices
    combos: tuple[Combo, ...]  # the first is the product of the axes
    exclusions: tuple[Exclusion, ...]
    targets: Mapping[str, Settings]  # by TPU generation
    mark: Mark


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

    `launches` holds every launch's own pipelining plan; `origins` has, for each dotted axis
    path, the setting that decided its value.
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
    origins: Settings = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def key(self) -> DispatchKey:
        """The dispatch key: variants that share it differ in how, not in what, they compute."""
        return DispatchKey(
            self.layout, self.query_dtype, self.kv_dtype, self.quantization, self.features
        )

    @property
    def facts(self) -> Facts:
        """Every axis value by its dotted path: what tells one variant from another."""
        own: dict[str, AxisValue] = {
            axis.path: getattr(self, field_name(axis.path)) for axis in axes.WHOLE_AXES
        }
        return own | {
            axes.launch_path(launch, axis.path): getattr(plan, field_name(axis.path))
            for launch, plan in self.launches.items()
            for axis in axes.PIPELINING_AXES
        }

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


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """All that the specs ask for: the variants to emit, and why others are not offered."""

    variants: tuple[Variant, ...]
    exclusions: tuple[Exclusion, ...]


def packing(dtype: str) -> int:
    """Values of `dtype` per 32-bit word."""
    return 32 // BIT_WIDTHS[dtype]


def field_name(path: str) -> str:
    """The field of `Variant`, or of `Pipelining`, that holds the axis `path`."""
    return path.removeprefix(axes.PIPELINING).replace(".", "_")
