"""A recommendation in words, and the call to write."""

from __future__ import annotations

import itertools
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rpagen.console import counted, table
from rpagen.models.known import CHUNKED, SLIDING
from rpagen.models.recommend import Kind, Pages, Recommendation, Serving
from rpagen.spec import budget, launches
from rpagen.spec.model import TIERS

MOST_RANGES = 6
"""Ranges of layers that a heading lists."""

LINE = 100
"""Columns after which a sentence goes on in the next line."""


def report(answer: Recommendation, specs: Sequence[str] = ()) -> str:
    """The whole answer; `specs` are the options of other commands for the same specs."""
    parts = ["\n".join(_summary(answer))]
    parts += ["\n".join(_of_kind(answer, kind, specs)) for kind in answer.kinds]
    if answer.notes:
        parts.append("\n".join(["notes:", *(_sentence("  - ", note) for note in answer.notes)]))
    return "\n\n".join(parts)


def title(kind: Kind) -> str:
    """Which layers, and what attention they have: `10 layers (5, 11, 17, ..., 59): full ...`."""
    count = len(kind.layers)
    if not count:
        return "all layers"
    attention = {
        SLIDING: f"sliding window {kind.layer.size}",
        CHUNKED: f"chunks of {kind.layer.size}",
    }.get(kind.layer.attention, kind.layer.attention.replace("_", " "))
    if kind.layer.kv_from is not None:
        attention += f", over the keys and values of layer {kind.layer.kv_from}"
    return f"{counted(count, 'layer')} ({_ranges(kind.layers)}): {attention}"


def call(answer: Recommendation, kind: Kind) -> str:
    """The Python that makes a cache and calls the kernel for a layer of one kind."""
    heads, serving, pages, share = answer.model.heads, kind.serving, answer.pages, answer.share
    assert heads is not None and serving is not None and pages is not None and share is not None
    cache_dtype = f"jnp.{answer.kv_dtype}"
    shape = f"pages, {pages.page_size}, {share.kv_heads}, {heads.head_dim}, {cache_dtype}"
    cache = [
        f"shape = rpa_kernels.get_kv_cache_shape({shape})",
        f"kv_cache = jnp.zeros(shape, {cache_dtype})",
    ]
    if kind.layer.kv_from is not None:
        cache = [f"# kv_cache is the one that layer {kind.layer.kv_from} returned"]
    options = [f"    {name}={value}," for name, value in _options(answer, kind)]
    return "\n".join(
        [
            *cache,
            "out, kv_cache = rpa_kernels.ragged_paged_attention(",
            "    queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution,",
            *options,
            ")",
        ]
    )


def _options(answer: Recommendation, kind: Kind) -> Iterator[tuple[str, object]]:
    """The keyword arguments of a call."""
    heads, serving = answer.model.heads, kind.serving
    assert heads is not None and serving is not None
    yield "sm_scale", heads.scale
    if "sliding_window" in kind.features:
        yield "sliding_window", kind.layer.size
    if "soft_cap" in kind.features:
        yield "soft_cap", heads.soft_cap
    if "bidirectional" in kind.features:
        yield "use_causal_mask", False
    if "kv_share" in kind.features:
        yield "update_kv_cache", False
    if serving.variant.quantization != "none":
        yield "k_scale", "k_scale"
        yield "v_scale", "v_scale"
    if answer.request.chunk_prefill_size is not None:
        yield "chunk_prefill_size", answer.request.chunk_prefill_size
    for launch, found in serving.better.items():
        yield launches.blocks_argument(launch), found.blocks.argument


def _summary(answer: Recommendation) -> Iterator[str]:
    model, request, share, pages = answer.model, answer.request, answer.share, answer.pages
    model_type = model.model_type or "no model_type"
    if model.heads is None or share is None:
        yield f"{model.file}: {model_type}"
        return
    heads = model.heads
    yield (
        f"{model.file}: {model_type}, {counted(len(model.layers), 'layer')},"
        f" {counted(heads.query_heads, 'query head')}, {counted(heads.kv_heads, 'kv head')},"
        f" head dim {heads.head_dim}, {answer.query_dtype}"
    )
    yield (
        f"{request.generation} x {request.devices}, on each device"
        f" {counted(share.query_heads, 'query head')} and {counted(share.kv_heads, 'kv head')};"
        f" up to {counted(request.sequences, 'sequence')} a call, {answer.max_tokens} tokens each,"
        f" {request.tokens} new ones in all"
    )
    if pages is not None:
        yield from _of_pages(answer, pages)


def _of_pages(answer: Recommendation, pages: Pages) -> Iterator[str]:
    smem, most = pages.smem_bytes / 2**10, budget.SMEM_BYTES / 2**10
    yield (
        f"pages of {pages.page_size} tokens, {pages.pages_per_sequence} for each sequence:"
        f" {pages.reason}; SMEM {smem:.0f} of {most:.0f} KiB"
    )
    with_cache = [
        kind for kind in answer.kinds if kind.serving is not None and kind.layer.kv_from is None
    ]
    if with_cache:
        layers = counted(sum(len(kind.layers) for kind in with_cache), "layer")
        yield f"KV cache on each device: {answer.cache_bytes} bytes a token in {layers}"
        count = answer.request.sequences * pages.pages_per_sequence
        longest = count * pages.page_size * answer.cache_bytes / 2**30
        yield (
            f"  {longest:.1f} GiB, {count} pages a layer, with all sequences at their longest; with"
            " fewer pages, some wait: make as many as fit the HBM that weights leave free"
        )


def _of_kind(answer: Recommendation, kind: Kind, specs: Sequence[str]) -> Iterator[str]:
    yield title(kind)
    if kind.serving is None:
        yield from (_sentence("  not served: ", reason) for reason in kind.missing)
        return
    serving = kind.serving
    yield f"  variant: {serving.variant.name} ({_why(answer, kind)})"
    if serving.variant.tier != TIERS[0]:
        alone = ("rpagen", "emit", serving.variant.name, *specs)
        every = ("rpagen", "generate", "--tier", "all", *specs)
        yield "    it is not among the checked-in kernels; to have it alone, or in a package of all"
        yield "    variants, whose dispatch the call below needs:"
        yield from (f"      {shlex.join(words)} -o DIR" for words in (alone, every))
    yield from _of_cache(answer, kind, serving)
    yield "  default blocks, in tokens:"
    yield from _indented(_blocks(answer, serving))
    yield from _of_tuning(answer, serving, specs)
    yield "  call:"
    yield from _indented(call(answer, kind))


def _why(answer: Recommendation, kind: Kind) -> str:
    features = ", ".join(feature.replace("_", " ") for feature in kind.features)
    return f"{answer.query_dtype} queries, {answer.kv_dtype} cache, {features or 'no features'}"


def _of_cache(answer: Recommendation, kind: Kind, serving: Serving) -> Iterator[str]:
    if kind.layer.kv_from is not None:
        yield f"  cache: that of layer {kind.layer.kv_from}"
        return
    shape = ", ".join(str(size) for size in serving.page_shape)
    padding = ""
    if serving.padding_bytes:
        padding = f", {serving.padding_bytes} of them padding"
    yield (
        f"  cache: [pages, {shape}] {answer.kv_dtype}; {serving.token_bytes} bytes a token and"
        f" layer{padding}"
    )


def _blocks(answer: Recommendation, serving: Serving) -> str:
    vmem = budget.VMEM_BYTES[answer.request.generation] >> 20
    rows = [
        (
            each.launch,
            *map(str, each.blocks),
            f"{each.vmem_bytes / 2**20:.1f} of {vmem} MiB",
        )
        for each in serving.launches
    ]
    return table((*_HEADINGS, "VMEM"), rows)


def _of_tuning(answer: Recommendation, serving: Serving, specs: Sequence[str]) -> Iterator[str]:
    """What is known of better blocks, and what to do where nothing is."""
    if not serving.tuned:
        yield "  they were not tuned for these heads; to search for better ones, for some minutes:"
        yield f"    {shlex.join(_tune(answer, serving, specs))}"
        return
    if serving.better:
        yield "  tuned blocks, which the call below takes:"
        rows = [
            (launch, *map(str, found.blocks.argument), f"{found.gain:.2f} times as fast")
            for launch, found in serving.better.items()
        ]
        yield from _indented(table((*_HEADINGS, "predicted"), rows))
    names_of_launches = [plan.launch for plan in serving.launches]
    for said, names in (
        ("a search found none that are better", serving.comparable.keys() - serving.better.keys()),
        ("tuned where other blocks are the default", serving.tuned.keys() - serving.comparable),
        ("not tuned", names_of_launches - serving.tuned.keys()),
    ):
        some = [launch for launch in names_of_launches if launch in names]
        if some:
            yield f"  {', '.join(some)}: {said}"


def _tune(answer: Recommendation, serving: Serving, specs: Sequence[str]) -> tuple[str, ...]:
    """The command that tunes for what a layer of the answer calls."""
    has_windows = any(layer.attention == SLIDING for layer in answer.model.layers)
    heads = answer.model.heads
    own_dtype = heads is not None and heads.dtype == answer.query_dtype
    return (
        *("rpagen", "tune", answer.model.file, "--tp", str(answer.request.devices)),
        *("--device", answer.request.generation, "--page-size", str(serving.problem.page_size)),
        *(() if own_dtype else ("--dtype", answer.query_dtype)),
        *(() if answer.kv_dtype == answer.query_dtype else ("--kv-dtype", answer.kv_dtype)),
        *(("--max-model-len", str(answer.max_tokens)) if has_windows else ()),
        *specs,
    )


_HEADINGS = ("launch", "query block", "KV block", "query tile", "compute block")


def _indented(text: str) -> Iterable[str]:
    return (f"    {line}" for line in text.splitlines())


def _sentence(label: str, text: str) -> str:
    """A sentence behind its label, in lines that are not too long."""
    return textwrap.fill(
        text,
        LINE,
        initial_indent=label,
        subsequent_indent=" " * (len(label) - len(label.lstrip()) + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _ranges(numbers: tuple[int, ...]) -> str:
    """Ascending numbers in short: `0-4, 6-10`; of many ranges the first ones and the last."""
    ranges = []
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        first, *rest = [number for _, number in run]
        ranges.append(f"{first}-{rest[-1]}" if rest else str(first))
    if len(ranges) > MOST_RANGES:
        ranges = [*ranges[: MOST_RANGES // 2], "...", ranges[-1]]
    return ", ".join(ranges)
