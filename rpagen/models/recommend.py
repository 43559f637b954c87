"""Which variant serves each kind of layer of a model, and what a call of it takes."""

from __future__ import annotations

import bisect
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence

from rpagen.console import counted
from rpagen.errors import InputError, listed, quoted
from rpagen.models.config import Heads, Layer, Model
from rpagen.models.known import CHUNKED, FULL, SLIDING
from rpagen.spec import axes, budget, expand, launches, nodes, rules
from rpagen.spec.budget import Problem
from rpagen.spec.launches import LaunchPlan
from rpagen.spec.model import BIT_WIDTHS, TIERS, Catalogue, DispatchKey, Facts, Variant, field_name
from rpagen.tune.blocks import Blocks
from rpagen.tune.rows import Key, Row, Tuned

LEAST_PAGE = 64
"""Tokens of the smallest page chosen: smaller ones take more copies for the same bytes."""

LAYOUT = "head_interleaved"

BOUNDS = {SLIDING: "window", CHUNKED: "chunk"}
"""What bounds the keys of a query, by the attention that has a bound."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What a user asks for; what is None is chosen.

    devices: that share every layer's heads. sequences: of one call. tokens: most new ones of a
    call. max_tokens: most of one sequence.
    """

    generation: str
    devices: int = 1
    sequences: int = 64
    tokens: int = 2048
    max_tokens: int | None = None
    page_size: int | None = None
    chunk_prefill_size: int | None = None
    query_dtype: str | None = None
    kv_dtype: str | None = None


@dataclasses.dataclass(frozen=True)
class Share:
    """What one device has of a layer's heads; each kv head is on `copies` devices."""

    query_heads: int
    kv_heads: int
    copies: int


@dataclasses.dataclass(frozen=True)
class Pages:
    """How the sequences of a call lie in pages. reason: why the pages have that size.

    smem_bytes: what the page table and the rest of a launch take of a core's SMEM.
    """

    page_size: int
    pages_per_sequence: int
    smem_bytes: int
    reason: str


@dataclasses.dataclass(frozen=True)
class Serving:
    """How a variant serves a kind of layer on one device.

    page_shape: of the cache. token_bytes: of one token of one layer in it, of which
    `padding_bytes` are padding. problem: the sizes of the call. launches: with the blocks that are
    chosen by default. tuned: what a search found, by launch, for those that were tuned.
    """

    variant: Variant
    problem: Problem
    page_shape: tuple[int, ...]
    token_bytes: int
    padding_bytes: int
    launches: tuple[LaunchPlan, ...]
    tuned: Mapping[str, Tuned]

    @property
    def better(self) -> Mapping[str, Tuned]:
        """Of what was tuned, the blocks that are better than the default ones of this call.

        They were compared with default ones of a call with other sizes: where this one has others,
        nothing is known.
        """
        return {
            launch: found
            for launch, found in self.comparable.items()
            if found.blocks != found.default_blocks
        }

    @property
    def comparable(self) -> Mapping[str, Tuned]:
        """Of what was tuned, the launches whose default blocks are those of this call."""
        defaults = {plan.launch: Blocks.of(plan) for plan in self.launches}
        return {
            launch: found
            for launch, found in self.tuned.items()
            if defaults.get(launch) == found.default_blocks
        }


@dataclasses.dataclass(frozen=True)
class Kind:
    """Layers that are served alike, or for the same reasons not.

    layers: their numbers; empty for all layers of a model of which nothing else is known.
    missing: why no variant serves them; empty where one does.
    """

    layers: tuple[int, ...]
    layer: Layer
    features: tuple[str, ...]
    serving: Serving | None
    missing: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """The answer for a model: how each kind of its layers is served.

    What is not known of a model that is all different, or not needed where no layer can be
    served, is None, or empty.
    """

    model: Model
    request: Request
    max_tokens: int | None
    query_dtype: str
    kv_dtype: str
    share: Share | None
    pages: Pages | None
    kinds: tuple[Kind, ...]
    notes: tuple[str, ...]

    @property
    def is_served(self) -> bool:
        """Whether all layers are."""
        return all(kind.serving is not None for kind in self.kinds)

    @property
    def cache_bytes(self) -> int:
        """Of one token in all layers that are served, on one device."""
        return sum(
            len(kind.layers) * kind.serving.token_bytes
            for kind in self.kinds
            if kind.serving is not None and kind.layer.kv_from is None
        )


def recommend(
    model: Model, request: Request, specs: str | os.PathLike[str], rows: Sequence[Row] = ()
) -> Recommendation:
    """The answer for a model, from the variants of the specs, of every tier.

    rows: tuned blocks for the generation.

    Raises:
        InputError: the devices cannot share the heads, the length of sequences is not known, or
            their pages do not fit SMEM or VMEM.
        SpecError: a spec is wrong.
    """
    if model.heads is None:
        kind = Kind((), Layer(FULL), (), None, model.missing)
        return Recommendation(model, request, None, "", "", None, None, (kind,), model.notes)
    heads = model.heads
    share = _share(heads, request.devices)
    max_tokens = _max_tokens(model, request)
    query_dtype = request.query_dtype or heads.dtype
    kv_dtype = request.kv_dtype or query_dtype
    layers, notes = _without_idle_bounds(model.layers, max_tokens)
    missing = {layer: model.missing + _missing(layer, heads) for layer in layers}
    pages = None if all(missing.values()) else _pages(request, max_tokens)
    catalogue = expand.load_catalogue(specs, TIERS)
    quantization = "per_tensor" if BIT_WIDTHS[kv_dtype] == 8 else "none"
    kinds = []
    for layer, reasons in missing.items():
        numbers = tuple(at for at, each in enumerate(layers) if each == layer)
        features = _features(layer, heads)
        key = DispatchKey(LAYOUT, query_dtype, kv_dtype, quantization, features)
        serving = None
        if pages is not None and not reasons:
            variant = _variant(catalogue, key, request.generation)
            if variant is None:
                reasons = _why_none(catalogue, key, request.generation)
            else:
                window = layer.size if layer.attention == SLIDING else None
                serving = _serving(variant, request, heads, share, pages, window, rows)
        kinds.append(Kind(numbers, layer, features, serving, reasons))
    if request.max_tokens and model.max_tokens and request.max_tokens > model.max_tokens:
        notes.append(
            f"{request.max_tokens} tokens are more than the model's max_position_embeddings,"
            f" {model.max_tokens}"
        )
    return Recommendation(
        model=model,
        request=request,
        max_tokens=max_tokens,
        query_dtype=query_dtype,
        kv_dtype=kv_dtype,
        share=share,
        pages=pages,
        kinds=tuple(kinds),
        notes=(*model.notes, *notes, *_costs(heads, share, query_dtype, kinds)),
    )


def _costs(heads: Heads, share: Share, query_dtype: str, kinds: Sequence[Kind]) -> Iterator[str]:
    """Notes of what the shape of the heads costs."""
    served = next((kind.serving for kind in kinds if kind.serving is not None), None)
    if served is None:
        return
    if share.copies > 1:
        yield (
            f"there are more devices than kv heads: each of the {heads.kv_heads}, with its cache,"
            f" is on {share.copies} devices"
        )
    lanes = served.problem.padded_sizes["head_dim"]
    if lanes != heads.head_dim:
        yield (
            f"head dim {heads.head_dim} is padded to {lanes}, whole registers of {budget.LANES}"
            f" lanes: {(lanes - heads.head_dim) / lanes:.0%} of the cache, and of what is read of"
            " it, is padding"
        )
    rows = math.prod(served.page_shape[1:-1])
    if rows != 2 * share.kv_heads:
        yield (
            f"K and V of {counted(share.kv_heads, 'kv head')} on a device are"
            f" {2 * share.kv_heads} rows of a token, padded to {rows} to fill words of 32 bits: an"
            " odd number of kv heads takes as much as the next even one, with 8 bits a value"
        )
    group, padded = share.query_heads // share.kv_heads, served.problem.padded_sizes["group"]
    if group != padded:
        yield (
            f"{counted(group, 'query head')} for each kv head padded to {padded}, to fill words of"
            f" 32 bits with {query_dtype}"
        )


# --- devices and lengths -------------------------------------------------------------------------


def _share(heads: Heads, devices: int) -> Share:
    if not _can_share(heads, devices):
        possible = [each for each in range(1, heads.query_heads + 1) if _can_share(heads, each)]
        raise InputError(
            f"{counted(devices, 'device')} cannot share {counted(heads.query_heads, 'query head')}"
            f" and {counted(heads.kv_heads, 'kv head')}",
            place="--tp",
            expected=f"one of {listed(possible)}",
            next_step="give one of these numbers of devices",
        )
    return Share(
        query_heads=heads.query_heads // devices,
        kv_heads=max(heads.kv_heads // devices, 1),
        copies=max(devices // heads.kv_heads, 1),
    )


def _can_share(heads: Heads, devices: int) -> bool:
    """Whether devices get whole query heads, and whole kv heads or one that others have too."""
    return heads.query_heads % devices == 0 and (
        heads.kv_heads % devices == 0 or devices % heads.kv_heads == 0
    )


def _max_tokens(model: Model, request: Request) -> int:
    max_tokens = request.max_tokens or model.max_tokens
    if max_tokens is None:
        raise InputError(
            "is missing",
            place=model.file,
            field="max_position_embeddings",
            expected="the most tokens of a sequence",
            next_step="say it with --max-model-len",
        )
    return max_tokens


def _without_idle_bounds(
    layers: Sequence[Layer], max_tokens: int
) -> tuple[tuple[Layer, ...], list[str]]:
    """The layers, full where a window or a chunk holds all tokens, and a note of each such size.

    A query at position q sees keys after q - window, so one of max_tokens tokens hides none.
    """
    idle = {
        layer: Layer(FULL, kv_from=layer.kv_from)
        for layer in layers
        if layer.size is not None and layer.size >= max_tokens
    }
    notes = [
        f"a {BOUNDS[attention]} of {size} tokens hides nothing in sequences of at most"
        f" {max_tokens}: its layers are full attention"
        for attention, size in dict.fromkeys((each.attention, each.size) for each in idle)
    ]
    return tuple(idle.get(layer, layer) for layer in layers), notes


# --- pages ---------------------------------------------------------------------------------------


def _pages(request: Request, max_tokens: int) -> Pages:
    """The pages asked for, or the smallest that are not tiny and whose table fits SMEM.

    Raises:
        InputError: their table does not fit SMEM.
    """
    sequences, page_size = request.sequences, request.page_size
    reason = "as asked for"
    if page_size is None:
        page_size = LEAST_PAGE
        while page_size < max_tokens and not _fits_smem(sequences, max_tokens, page_size):
            page_size *= 2
        reason = f"the smallest from {LEAST_PAGE} up whose page table fits SMEM"
    if not _fits_smem(sequences, max_tokens, page_size):
        raise _too_many_pages(request, max_tokens, page_size)
    count = _page_count(max_tokens, page_size)
    return Pages(page_size, count, budget.smem_bytes(sequences, count), reason)


def _page_count(max_tokens: int, page_size: int) -> int:
    return budget.align_to(max_tokens, page_size) // page_size


def _fits_smem(sequences: int, max_tokens: int, page_size: int) -> bool:
    count = _page_count(max_tokens, page_size)
    return budget.smem_bytes(sequences, count) <= budget.SMEM_BYTES


def _too_many_pages(request: Request, max_tokens: int, page_size: int) -> InputError:
    sequences, count = request.sequences, _page_count(max_tokens, page_size)
    needed = budget.smem_bytes(sequences, count)
    fewer = bisect.bisect_left(
        range(sequences), True, key=lambda each: not _fits_smem(each, max_tokens, page_size)
    )
    ways = [f"--max-sequences {fewer - 1} or fewer"] if fewer > 1 else []
    fitting = (
        1 << power for power in range(page_size.bit_length(), budget.MOST_TOKENS.bit_length())
    )
    larger = next((size for size in fitting if _fits_smem(sequences, max_tokens, size)), None)
    if larger is not None:
        ways.insert(0, f"--page-size {larger} or more")
    shorter = bisect.bisect_left(
        range(max_tokens), True, key=lambda each: not _fits_smem(sequences, each, page_size)
    )
    if shorter > 1:
        ways.append(f"--max-model-len {shorter - 1} or less")
    return InputError(
        f"{counted(sequences, 'sequence')} of up to {max_tokens} tokens in pages of {page_size}:"
        f" the table of {sequences} x {count} pages needs {needed} bytes of SMEM",
        place="--page-size" if request.page_size else "--max-sequences",
        expected=f"at most {budget.SMEM_BYTES} bytes, what a core has",
        next_step=f"give {', or '.join(ways)}",
    )


# --- variants ------------------------------------------------------------------------------------


def _features(layer: Layer, heads: Heads) -> tuple[str, ...]:
    """The features that a layer asks for, in the order of the axis."""
    asked = {
        "sliding_window": layer.attention == SLIDING,
        "soft_cap": heads.soft_cap is not None,
        "bidirectional": not heads.is_causal,
        "kv_share": layer.kv_from is not None,
    }
    return tuple(feature for feature in axes.words("features") if asked.get(feature))


def _missing(layer: Layer, heads: Heads) -> tuple[str, ...]:
    """What one kind of layer needs and no kernel computes."""
    if layer.attention == CHUNKED:
        return (
            f"chunked attention (attention_chunk_size {layer.size}): a query sees the keys of its"
            " own chunk only, which no kernel here does yet; sequences of up to"
            f" {layer.size} tokens have one chunk and are served: --max-model-len {layer.size}",
        )
    if layer.attention == SLIDING and not heads.is_causal:
        return (
            "a window in both directions: without the causal mask, kernels here bound the past"
            " only",
        )
    if layer.attention not in (FULL, *BOUNDS):
        return (f"layers of type {quoted(layer.attention)}: no kernel here computes them",)
    return ()


def _variant(catalogue: Catalogue, key: DispatchKey, generation: str) -> Variant | None:
    """The variant that a call with that key runs."""
    return next(
        (
            variant
            for variant in catalogue.variants
            if variant.is_default and variant.key == key and generation in variant.generations
        ),
        None,
    )


def _why_none(catalogue: Catalogue, key: DispatchKey, generation: str) -> tuple[str, ...]:
    """Why no variant has a key, or what to add to the specs."""
    facts: Facts = {
        axis.path: getattr(key, field_name(axis.path)) for axis in axes.AXES if axis.in_key
    }
    reasons = tuple(each.reason for each in catalogue.exclusions if rules.applies(each, facts))
    if reasons:
        return reasons
    elsewhere = next((each for each in catalogue.variants if each.key == key), None)
    if elsewhere is not None:
        return (
            f"{elsewhere.name} is not emitted for {generation}: add that to its generations, at"
            f" {elsewhere.mark.file}:{elsewhere.mark.line}",
        )
    values = ", ".join(f"{path}: {nodes.as_yaml(value)}" for path, value in facts.items())
    return (f"no spec makes this variant: add to the combos of its family: - {{{values}}}",)


def _serving(
    variant: Variant,
    request: Request,
    heads: Heads,
    share: Share,
    pages: Pages,
    window: int | None,
    rows: Sequence[Row],
) -> Serving:
    """What a call of the variant takes on one device.

    Raises:
        InputError: its smallest blocks do not fit VMEM.
    """
    value_bytes = BIT_WIDTHS[variant.kv_dtype] // 8
    page_shape = budget.page_shape(
        pages.page_size, share.kv_heads, heads.head_dim, value_bytes, layout=variant.layout
    )
    token_bytes = math.prod(page_shape) // pages.page_size * value_bytes
    problem = Problem(
        tokens=request.tokens,
        query_heads=share.query_heads,
        kv_heads=share.kv_heads,
        head_dim=heads.head_dim,
        page_size=pages.page_size,
        sequences=request.sequences,
        pages_per_sequence=pages.pages_per_sequence,
        query_bytes=BIT_WIDTHS[variant.query_dtype] // 8,
        kv_row_bytes=token_bytes,
        layout=variant.layout,
    )
    key = Key.of(variant, problem, window)
    plans = launches.plan(variant, problem, request.generation, request.chunk_prefill_size)
    limit = budget.VMEM_BYTES[request.generation]
    for each in plans:
        needed = each.vmem_bytes + each.spill_bytes
        if needed > limit:
            raise InputError(
                f"the {each.launch} launch of {variant.name} needs {needed} bytes of VMEM"
                f" even with blocks of one page, of {pages.page_size} tokens",
                place="--page-size" if request.page_size else "--max-sequences",
                expected=f"at most {limit} bytes, what a core of {request.generation} has",
                next_step="give a smaller --page-size"
                if request.page_size
                else "give fewer --max-sequences or a smaller --max-model-len, for smaller pages",
            )
    return Serving(
        variant=variant,
        problem=problem,
        page_shape=page_shape,
        token_bytes=token_bytes,
        padding_bytes=token_bytes - 2 * share.kv_heads * heads.head_dim * value_bytes,
        launches=plans,
        tuned=next((row.launches for row in rows if row.key == key), {}),
    )
