"""Kernels with one fault each, put in on purpose: what the tests of kernels must not let pass.

A `Mutation` changes one thing in one function of an emitted module. It is named by what the
function promises, not by the file that it came from, and applies to every variant that has the
text. A `TemplateMutation` changes a template: which statements exist, or which value one gets.

A mutation that survives is a hole in the tests, and one that no variant has is an error: the text
it looks for was changed, and it has to follow.
"""

from __future__ import annotations

import abc
import ast
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import itertools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import jinja2

from rpagen.emit import render, resources
from rpagen.spec import axes
from rpagen.spec.model import LAUNCHES, Catalogue, Variant


@dataclasses.dataclass(frozen=True)
class Fault(abc.ABC):
    """One fault.

    place: where it is. old, new: text there, and what stands in its place. harmless: `properties`
    of variants in which it cannot matter, each with the reason.
    dies_of: the error by which a kernel with it cannot even be traced; without that, such a kernel
    is no fault but a slip of the table.
    """

    name: str
    place: str
    old: str
    new: str
    harmless: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    dies_of: str = ""

    @property
    def digest(self) -> str:
        """Of what the fault changes: another one has another."""
        text = "\0".join((type(self).__name__, self.place, self.old, self.new))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def harmless_in(self, variant: Variant) -> str:
        """Why the fault cannot matter in a variant; empty if it can."""
        known = properties(variant)
        return next((why for each, why in self.harmless.items() if each in known), "")

    @abc.abstractmethod
    def apply(self, variant: Variant, source: str) -> str | None:
        """The source of a variant's module with the fault, or None where it cannot have it."""

    @abc.abstractmethod
    def changes(self, variant: Variant, source: str) -> tuple[str, ...]:
        """What the fault changes in a variant; empty where it cannot have it."""


@dataclasses.dataclass(frozen=True)
class Mutation(Fault):
    """A fault in a function of an emitted module.

    place: the function's name, which may end with the launches that it is for. The text is replaced
    every time it occurs.
    """

    def apply(self, variant: Variant, source: str) -> str | None:
        """The source with the fault, or None where the function has nothing of it."""
        if not self.changes(variant, source):
            return None
        for start, end in reversed(list(_functions(source, self.place))):
            mutated = source[start:end].replace(self.old, self.new)
            source = source[:start] + mutated + source[end:]
        ast.parse(source)
        return source

    def changes(self, variant: Variant, source: str) -> tuple[str, ...]:
        """The text of the functions."""
        texts = tuple(source[start:end] for start, end in _functions(source, self.place))
        return texts if any(self.old in text for text in texts) else ()


@dataclasses.dataclass(frozen=True)
class TemplateMutation(Fault):
    """A fault in a template, in what decides of a statement or a value.

    place: the template, below templates/. The text is there once.
    """

    def apply(self, variant: Variant, source: str) -> str | None:
        """The module with the fault, not formatted, or None where it has nothing of it."""
        return self._render(variant) if self.changes(variant, source) else None

    def changes(self, variant: Variant, source: str) -> tuple[str, ...]:
        """The lines that differ.

        Raises:
            ValueError: the text is not in the template, or more than once.
        """
        lines = difflib.unified_diff(
            _right(variant).splitlines(), self._render(variant).splitlines(), n=0
        )
        return tuple(line for line in lines if line.startswith(("+", "-")))

    def _render(self, variant: Variant) -> str:
        return _rendered(variant, self._environment())

    @functools.cache  # noqa: B019  # of the few that there are
    def _environment(self) -> jinja2.Environment:
        text = (resources.templates_dir() / self.place).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.place} has {text.count(self.old)} times what the mutation"
                f" {self.name!r} changes: {self.old!r}"
            )
        return render.make_environment(instead={self.place: text.replace(self.old, self.new)})


def _right(variant: Variant) -> str:
    """The module of a variant as it should be, not formatted."""
    key = repr(variant)
    if key not in _RIGHT:
        _RIGHT[key] = _rendered(variant)
    return _RIGHT[key]


_RIGHT: dict[str, str] = {}  # since a Variant has no hash


def _rendered(variant: Variant, environment: jinja2.Environment | None = None) -> str:
    catalogue = Catalogue((variant,), ())
    (module,) = (each for each in render.modules(catalogue) if each.variant)
    return render.render(module, catalogue, environment)


def _in_each(
    launches: Sequence[str], name: str, place: str, old: str, new: str
) -> tuple[Mutation, ...]:
    """A fault in one launch at a time: LAUNCH in the new text is its name."""
    return tuple(
        Mutation(f"{name} ({launch})", place, old, new.replace("LAUNCH", repr(launch)))
        for launch in launches
    )


MUTATIONS: tuple[Mutation, ...] = (
    # Which rows a block has, and where they come from.
    Mutation(
        "the last key is left out",
        "kv_block_rows",
        "jnp.clip(span.end - start, 0",
        "jnp.clip(span.end - start - 1, 0",
    ),
    Mutation(
        "a partial KV block is left out",
        "kv_block_count",
        "pl.cdiv(span.end - span.start,",
        "lax.div(span.end - span.start,",
    ),
    Mutation(
        "the first new token is read from the cache",
        "split_rows",
        "span.new_start - start",
        "span.new_start + 1 - start",
    ),
    Mutation(
        "the new token is taken for a cached one",
        "span_of_token",
        "start=kv_len - 1",
        "start=kv_len",
    ),
    Mutation(
        "a token's window begins a page late",
        "span_of_token",
        "kv_len - launch.sliding_window",
        "kv_len - launch.sliding_window + launch.page_size",
    ),
    Mutation(
        "a query block's window begins a page late",
        "span_of_query_block",
        "first_query - launch.sliding_window + 1",
        "first_query - launch.sliding_window + 1 + launch.page_size",
    ),
    Mutation(
        "a token's window is fetched from a page early",
        "span_of_token",
        "jnp.maximum(kv_len - launch.sliding_window, 0)",
        "jnp.maximum(kv_len - (launch.sliding_window + launch.page_size), 0)",
    ),
    Mutation(
        "a query block's window is fetched from a page early",
        "span_of_query_block",
        "jnp.maximum(first_query - launch.sliding_window + 1, 0)",
        "jnp.maximum(first_query - (launch.sliding_window + launch.page_size) + 1, 0)",
    ),
    Mutation(
        "keys of a sequence without new tokens are fetched",
        "span_of_query_block",
        "end=jnp.where(rows > 0, ",
        "end=jnp.where((rows > 0) | (query_block == 0), ",
    ),
    Mutation(
        "later query blocks have the positions of the first",
        "span_of_query_block",
        "kv_len - new_tokens + offset",
        "kv_len - new_tokens",
    ),
    Mutation(
        "the last query block has rows of the next sequence",
        "span_of_query_block",
        "jnp.clip(new_tokens - offset, 0,",
        "jnp.clip(new_tokens, 0,",
    ),
    Mutation(
        "the last query does not see itself",
        "span_of_query_block",
        "first_query + rows)  # causal",
        "first_query + rows - 1)  # causal",
    ),
    Mutation(
        "a query block has the tokens of a whole one",
        "span_of_query_block",
        "jnp.clip(new_tokens - offset, 0, launch.query_block)",
        "launch.query_block",
    ),
    Mutation(
        "a span without keys takes no turn",
        "kv_block_count",
        "jnp.maximum(pl.cdiv(span.end - span.start, launch.kv_block), 1)",
        "pl.cdiv(span.end - span.start, launch.kv_block)",
    ),
    Mutation(
        "whole blocks of queries are fetched",
        "start_query_fetch",
        "span.rows",
        "queries.slots_ref.shape[1]",
    ),
    Mutation(
        "all pages of a block are fetched",
        "start_page_fetches",
        "pl.cdiv(keys, launch.page_size)",
        "launch.kv_block // launch.page_size",
    ),
    # Copies into VMEM, and the waits for them.
    Mutation(
        "the last page is not fetched", "start_page_fetches", "pl.cdiv(keys,", "lax.div(keys,"
    ),
    Mutation(
        "the last whole page is not fetched", "start_kv_fetch", "pl.cdiv(keys,", "lax.div(keys,"
    ),
    Mutation("pages of a group are all the first", "start_page_fetches", " + number", ""),
    Mutation(
        "pages of groups are fetched twice",
        "start_page_fetches",
        "@pl.loop(groups * support.PAGES_AT_ONCE, ",
        "@pl.loop(0, ",
    ),
    Mutation(
        "pages are those of the sequence's beginning",
        "start_kv_fetch",
        " + lax.div(start, launch.page_size)",
        "",
    ),
    Mutation(
        "pages are those of the first sequence",
        "start_kv_fetch",
        "span.sequence * launch.pages_per_sequence + ",
        "",
    ),
    Mutation(
        "new tokens are those of the sequence's beginning",
        "start_kv_fetch",
        "span.new_token + start + cached - span.new_start",
        "span.new_token",
    ),
    Mutation(
        "new tokens are fetched one too late",
        "start_kv_fetch",
        "span.new_token + start + cached - span.new_start",
        "span.new_token + start + cached - span.new_start + 1",
    ),
    Mutation(
        "copies signal the first slot", "start_kv_fetch", "semaphores.at[slot]", "semaphores.at[0]"
    ),
    Mutation(
        "pages signal the first slot", "start_page_fetch", "semaphores.at[slot]", "semaphores.at[0]"
    ),
    Mutation("a KV block is not waited for", "wait_kv_fetch", ".wait()", ""),
    Mutation(
        "one row of a KV block is not waited for",
        "wait_kv_fetch",
        "pl.ds(0, rows)",
        "pl.ds(0, jnp.maximum(rows - 1, 0))",
    ),
    Mutation(
        "one row too many is waited for", "wait_kv_fetch", "pl.ds(0, rows)", "pl.ds(0, rows + 1)"
    ),
    Mutation(
        "the last page is not waited for", "wait_kv_fetch", "pl.cdiv(cached,", "lax.div(cached,"
    ),
    Mutation(
        "waits are for the first slot", "wait_kv_fetch", "semaphores.at[slot]", "semaphores.at[0]"
    ),
    Mutation("a query block is not waited for", "wait_query_fetch", ".wait()", ""),
    Mutation("a query token is not waited for", "wait_token_queries", ".wait()", ""),
    Mutation(
        "the next queries are those of this block",
        "fetch_queries_ahead",
        "jnp.where(is_last, 0, span.query_block + 1)",
        "span.query_block",
    ),
    Mutation(
        "the next token's queries are this token's",
        "fetch_token_queries",
        "operands.cu_q_lens_ref[sequence]",
        "operands.cu_q_lens_ref[sequence - 1]",
    ),
    # Turns and cursors.
    Mutation("a slot is used twice in a row", "next_slot", "0, slot + 1)", "0, slot)"),
    Mutation(
        "the queries of a later token are fetched into the slot of this one",
        "previous_slot",
        "jnp.where(slot == 0, slots, slot) - 1",
        "slot",
    ),
    Mutation("slots are used past the last", "next_slot", "slot + 1 == slots", "slot == slots"),
    Mutation(
        "the cursor stays at the last KV block",
        "fetch_kv_ahead",
        "jnp.where(span_ends, 0, kv_block + 1)",
        "jnp.where(span_ends, kv_block, kv_block + 1)",
    ),
    Mutation(
        "the cursor of tokens stays at a sequence",
        "fetch_token_kv_ahead",
        "jnp.where(span_ends, sequence + 1, sequence)",
        "sequence",
    ),
    Mutation(
        "the cursor leaves a sequence after one query block",
        "fetch_kv_ahead",
        "jnp.logical_and(span_ends, query_ends)",
        "span_ends",
    ),
    Mutation("a launch begins at the first sequence", "start_turns", "= first_sequence", "= 0"),
    # Numbers that are cut.
    *(
        Mutation(
            f"{pages} are fetched by {bits} bits of their numbers",
            place,
            index,
            f"({index} & {(1 << bits) - 1})",
        )
        for pages, place, index in (
            ("pages", "start_page_fetch", "operands.page_indices_ref[page]"),
            ("whole pages", "start_kv_fetch", "operands.page_indices_ref[first_page + page]"),
        )
        for bits in (10, 16)
    ),
    Mutation(
        "tokens are written by 10 bits of a page's number",
        "start_cache_update",
        "operands.page_indices_ref[span.sequence * launch.pages_per_sequence + page]",
        "(operands.page_indices_ref[span.sequence * launch.pages_per_sequence + page] & 1023)",
    ),
    Mutation(
        "a token is written by a signed page number of 16 bits",
        "start_token_cache_update",
        "operands.page_indices_ref[span.sequence * launch.pages_per_sequence + page]",
        "operands.page_indices_ref[span.sequence * launch.pages_per_sequence + page]"
        ".astype(jnp.int16).astype(jnp.int32)",
    ),
    Mutation(
        "new tokens are scattered by 16 bits of a page's number",
        "write_new_tokens",
        "page = page_indices[",
        "page = 65535 & page_indices[",
    ),
    Mutation(
        "a query block has 8 bits of its token's number",
        "span_of_query_block",
        "sequence_token = operands.cu_q_lens_ref[sequence]",
        "sequence_token = operands.cu_q_lens_ref[sequence] & 255",
    ),
    # The cache update.
    Mutation(
        "the first token of a block is not written",
        "start_cache_update",
        "jnp.maximum(span.first_query, 0)",
        "jnp.maximum(span.first_query + 1, 0)",
    ),
    Mutation(
        "a sequence of no keys writes its new tokens",
        "start_cache_update",
        "jnp.maximum(span.first_query, 0)",
        "span.first_query",
    ),
    Mutation(
        "the last token of a block is not written",
        "start_cache_update",
        "span.first_query + span.rows\n",
        "span.first_query + span.rows - 1\n",
    ),
    *_in_each(
        ("prefill", "mixed"),
        "tokens are not written",
        "start_cache_update",
        "pl.when(past > first)",
        "pl.when(jnp.logical_and(past > first, launch.name != LAUNCH))",
    ),
    Mutation(
        "only the last query block writes",
        "start_cache_update",
        "pl.when(past > first)",
        "pl.when(jnp.logical_and(past > first, span.query_block + 1 == launch.query_blocks("
        "operands.cu_q_lens_ref, span.sequence)))",
    ),
    Mutation(
        "tokens are written to the page of the first",
        "start_cache_update",
        "launch.pages_per_sequence + page]",
        "launch.pages_per_sequence + lax.div(first, launch.page_size)]",
    ),
    Mutation(
        "tokens are written to the next page",
        "start_cache_update",
        "launch.pages_per_sequence + page]",
        "launch.pages_per_sequence + page + 1]",
    ),
    Mutation(
        "every page is written from the query block's first token on",
        "start_cache_update",
        "span.first_token + row - span.first_query",
        "span.first_token",
    ),
    Mutation(
        "tokens are written to the beginning of the page",
        "start_cache_update",
        "pl.ds(row - page * launch.page_size, rows)",
        "pl.ds(0, rows)",
    ),
    Mutation(
        "tokens are never written",
        "start_cache_update",
        "pl.when(past > first)",
        "pl.when(past < first)",
    ),
    Mutation(
        "the token is written to the slot before its own",
        "start_token_cache_update",
        "span.new_start - page * launch.page_size]",
        "jnp.maximum(span.new_start - page * launch.page_size - 1, 0)]",
    ),
    Mutation(
        "the first token of all is written for every sequence",
        "start_token_cache_update",
        "new_kv_ref.at[span.new_token]",
        "new_kv_ref.at[0]",
    ),
    Mutation("writes of the cache are not waited for", "wait_cache_update", ".wait()", ""),
    Mutation(
        "one write of the cache is not waited for",
        "wait_cache_update",
        "kv.updated_ref[0]",
        "jnp.maximum(kv.updated_ref[0] - 1, 0)",
    ),
    Mutation(
        "more writes of the cache are waited for than there are",
        "start_token_cache_update",
        "kv.updated_ref[0] += 1",
        "kv.updated_ref[0] += 2",
    ),
    Mutation(
        "only the last query block's writes are waited for",
        "start_cache_update",
        "kv.updated_ref[0] += past - first",
        "kv.updated_ref[0] = past - first",
    ),
    Mutation(
        "writes of the cache are counted from what was there before",
        "start_turns",
        "kv.updated_ref[0] = 0",
        "pass",
    ),
    Mutation(
        "new tokens are scattered to the first page",
        "write_new_tokens",
        " + position // page_size",
        "",
    ),
    Mutation(
        "new tokens are scattered to the slot after their own",
        "write_new_tokens",
        ":, position % page_size",
        ":, (position + 1) % page_size",
    ),
    # What is in a slot, and which of it counts.
    Mutation(
        "the tail of a slot is not cleared",
        "clear_tail",
        "past - keys",
        "0 * (past - keys)",
        harmless={"int8": "no integer survives a product with zero"},
    ),
    Mutation(
        "a tile has the queries of the first head",
        "order_queries",
        " + head * words_per_head",
        "",
    ),
    Mutation(
        "a tile has the queries of the first tile",
        "order_queries",
        "tile * launch.query_tile * stride + ",
        "",
    ),
    Mutation(
        "a token has the queries of the first head",
        "order_token_queries",
        "head * words_per_head",
        "0",
    ),
    Mutation("every head has the keys of the first", "load_keys_and_values", " + head", ""),
    Mutation("a head has the keys of its neighbour", "load_keys_and_values", "head % 2", "0"),
    Mutation("8-bit values are the keys", "load_keys_and_values", "(halves >> 8)", "halves"),
    Mutation(
        "keys and values are exchanged",
        "load_keys_and_values",
        "return keys, values",
        "return values, keys",
    ),
    Mutation(
        "every compute block is the first",
        "load_keys_and_values",
        "block.first_row",
        "0",
    ),
    Mutation(
        "a token sees a key past its own",
        "keys_visible_to_token",
        "key < block.end_key",
        "key <= block.end_key",
    ),
    Mutation(
        "a token's window is a key too long", "keys_visible_to_token", "key > span", "key >= span"
    ),
    Mutation("a query does not see itself", "visible_keys", "launch) + 1", "launch)"),
    Mutation(
        "a query in a window does not see itself", "visible_keys", "positions + 1", "positions"
    ),
    *_in_each(
        ("prefill", "mixed"),
        "a query sees the key after it",
        "visible_keys",
        "launch) + 1",
        "launch) + (2 if launch.name == LAUNCH else 1)",
    ),
    *_in_each(
        ("prefill", "mixed"),
        "a query in a window sees the key after it",
        "visible_keys",
        "positions + 1",
        "positions + (2 if launch.name == LAUNCH else 1)",
    ),
    Mutation(
        "keys past the last are seen", "visible_keys", "key < block.end_key", "key <= block.end_key"
    ),
    *_in_each(
        ("prefill", "mixed"),
        "a window is a key too long",
        "visible_keys",
        "positions - launch.sliding_window",
        "positions - launch.sliding_window - (launch.name == LAUNCH)",
    ),
    Mutation(
        "only a window's end is masked",
        "visible_keys",
        "jnp.logical_and(before, key > support.across_lanes(window_start, block.keys))",
        "before",
    ),
    Mutation(
        "a window hides what comes after a query",
        "visible_keys",
        "jnp.logical_and(key < block.end_key, inside)",
        "jnp.logical_and(key < block.end_key, jnp.logical_and(inside, key <= support.across_lanes("
        "window_start + launch.sliding_window, block.keys)))",
    ),
    Mutation(
        "positions are 16-bit",
        "keys_visible_to_token",
        "key < block.end_key",
        "key.astype(jnp.int16) < jnp.asarray(block.end_key, jnp.int32).astype(jnp.int16)",
    ),
    Mutation(
        "a window is a key too short",
        "visible_keys",
        "positions - launch.sliding_window",
        "positions - launch.sliding_window + 1",
    ),
    Mutation(
        "heads in a word have positions of their own",
        "query_positions",
        "row // launch.query_packing",
        "row",
        harmless={"float32": "a word holds one head"},
    ),
    Mutation(
        "tiles have the positions of the first", "query_positions", "tile * launch.query_tile", "0"
    ),
    # Scores to output.
    *_in_each(
        LAUNCHES,
        "the scale is ignored",
        "attend",
        "                rows,\n                scales_ref,\n",
        "                rows,\n                ([support.LOG2_E, *(scales_ref[i] for i in"
        " range(1, scales_ref.shape[0]))] if launch.name == LAUNCH else scales_ref),\n",
    ),
    Mutation(
        "the soft cap is ignored",
        "scale_scores",
        "jnp.tanh(scores * scales_ref[SCORE_SCALE])",
        "(scores * scales_ref[SCORE_SCALE])",
    ),
    Mutation(
        "scores are rounded before they are scaled",
        "score_and_softmax",
        "scale_scores(scores,",
        "scale_scores(scores.astype(jnp.bfloat16).astype(jnp.float32),",
    ),
    Mutation(
        "the maximum is left out of the exponent",
        "score_and_softmax",
        "jnp.max(scores, axis=1, keepdims=True)",
        "0.0 * old_maximum",
        harmless={"soft_cap": "scores are at most the cap, so that no exponential overflows"},
    ),
    Mutation(
        "the maximum is that of the last block",
        "score_and_softmax",
        "jnp.maximum(old_maximum, jnp.max(scores, axis=1, keepdims=True))",
        "jnp.max(scores, axis=1, keepdims=True) + 0.0 * old_maximum",
    ),
    Mutation(
        "scores are products of bfloat16 passes",
        "score_and_softmax",
        "precision=lax.Precision.HIGHEST,",
        "",
    ),
    Mutation(
        "weighted values are products of bfloat16 passes",
        "accumulate",
        "lax.Precision.HIGHEST",
        "lax.Precision.HIGH",
    ),
    Mutation(
        "the sum is not rescaled",
        "score_and_softmax",
        "rescale * softmax.sum_ref",
        "softmax.sum_ref",
    ),
    Mutation(
        "the sum begins where the last one ended",
        "reset_softmax",
        "softmax.sum_ref[...] = jnp.zeros(softmax.sum_ref.shape, jnp.float32)",
        "pass",
    ),
    Mutation(
        "the maximum begins at zero",
        "reset_softmax",
        "LOWEST_MAXIMUM",
        "0.0",
        harmless={"soft_cap": "scores are at least minus the cap, so that no sum underflows"},
    ),
    Mutation(
        "the accumulator begins where the last one ended",
        "reset_softmax",
        "softmax.accumulator_ref[...] = jnp.zeros(softmax.accumulator_ref.shape, jnp.float32)",
        "pass",
    ),
    Mutation(
        "the maximum begins where the last one ended",
        "reset_softmax",
        "softmax.maximum_ref[...] = jnp.full(softmax.maximum_ref.shape, LOWEST_MAXIMUM,"
        " jnp.float32)",
        "pass",
    ),
    Mutation(
        "blocks before the last do not count",
        "accumulate",
        "kept + weighted",
        "weighted + 0.0 * kept",
    ),
    Mutation(
        "the accumulator is not rescaled",
        "accumulate",
        "support.across_lanes(rescale, launch.head_dim) * ",
        "",
    ),
    Mutation(
        "what is new is rescaled too",
        "accumulate",
        "kept + weighted",
        "kept + support.across_lanes(rescale, launch.head_dim) * weighted",
    ),
    Mutation(
        "the accumulator is rescaled as that of another item",
        "attend",
        "waiting.append((weights, rescale,",
        "waiting.append((weights, waiting[-1][1] if waiting else rescale,",
    ),
    Mutation(
        "the last item is not accumulated",
        "attend",
        "for item in waiting:",
        "for item in waiting[1:]:",
    ),
    Mutation(
        "every head is accumulated in the first", "attend", "values, head, rows", "values, 0, rows"
    ),
    Mutation(
        "weights are those of another item",
        "attend",
        "waiting.append((weights,",
        "waiting.append((waiting[-1][0] if waiting else weights,",
    ),
    Mutation(
        "queries are quantized without their scale",
        "order_queries",
        "scales_ref[QUERY_SCALE]",
        "1.0",
    ),
    Mutation(
        "queries of a token are quantized without their scale",
        "order_token_queries",
        "scales_ref[QUERY_SCALE]",
        "1.0",
    ),
    Mutation(
        "queries are cut at half of what fits",
        "quantize_queries",
        "-limit, limit",
        "-limit / 2, limit / 2",
    ),
    Mutation("the normaliser is off by a tenth", "normalise", "/ total", "/ (1.1 * total)"),
    Mutation("the normaliser is off by a hundredth", "normalise", "/ total", "/ (1.01 * total)"),
    Mutation(
        "the value scale is ignored (decode)",
        "store_token_output",
        "rows, scales_ref)",
        "rows, [1.0] * 2)",
    ),
    *_in_each(
        ("prefill", "mixed"),
        "the value scale is ignored",
        "store_output",
        "rows, scales_ref)",
        "rows, [1.0] * 2 if launch.name == LAUNCH else scales_ref)",
    ),
    Mutation("a row without keys is not 0", "normalise", ", 0.0)", ", jnp.nan)"),
    # Copies out of VMEM.
    Mutation("output is stored while it is still sent", "wait_output", ".wait()", ""),
    Mutation(
        "the last outputs are not waited for",
        "decode_kernel",
        "for slot in range(launch.query_slots):",
        "for slot in range(1, launch.query_slots):",
    ),
    Mutation(
        "the last outputs of query blocks are not waited for",
        "prefill_and_mixed_kernel",
        "for slot in range(launch.query_slots):",
        "for slot in range(1, launch.query_slots):",
    ),
    Mutation(
        "every head is stored as the first", "store_token_output", "head * words_per_head", "0"
    ),
    Mutation("heads of a word are stored as the first", "store_output", "first + word", "first"),
    Mutation(
        "every tile is stored as the first",
        "store_output",
        "tile * launch.query_tile * stride + ",
        "",
    ),
    Mutation(
        "output goes to the first rows", "start_output", "pl.ds(span.first_token,", "pl.ds(0,"
    ),
    Mutation(
        "output of queries without keys is not written",
        "start_output",
        "    outputs.rows_ref[slot] = span.rows\n",
        "    span = span._replace(rows=jnp.where(span.end > span.start, span.rows, 0))\n"
        "    outputs.rows_ref[slot] = span.rows\n",
    ),
    Mutation(
        "a token's output goes to the next row",
        "start_token_output",
        "span.first_token",
        "span.first_token + 1",
    ),
    Mutation(
        "the softmax begins anew only where a sequence does",
        "prefill_and_mixed_kernel",
        "            reset_softmax(softmax)",
        "            pl.when(span.start == 0)(lambda: reset_softmax(softmax))",
        harmless={"no sliding_window": "every query block starts with the sequence's first key"},
    ),
    Mutation(
        "the softmax begins anew only after the first query block",
        "prefill_and_mixed_kernel",
        "            reset_softmax(softmax)",
        "            pl.when(span.query_block == 0)(lambda: reset_softmax(softmax))",
    ),
    Mutation(
        "the mixed launch begins after the prefill sequences",
        "prefill_and_mixed_kernel",
        "bounds_ref[launch.first_bound]",
        "bounds_ref[2 if launch.name == 'mixed' else launch.first_bound]",
    ),
    Mutation(
        "a launch without sequences fetches queries",
        "prefill_and_mixed_kernel",
        "@pl.when(first_sequence < end_sequence)\n    def begin",
        "@pl.when(first_sequence <= end_sequence)\n    def begin",
    ),
    # The walk over blocks, and what happens around the launches.
    Mutation(
        "the last compute block of tokens is left out",
        "attend_to_token_block",
        "pl.cdiv(keys,",
        "lax.div(keys,",
    ),
    Mutation(
        "the last edge block is left out",
        "edge_blocks",
        "pl.cdiv(",
        "lax.div(",
    ),
    Mutation(
        "every compute block of tokens has the positions of the first",
        "attend_to_token_block",
        "start + row,",
        "start,",
    ),
    Mutation(
        "every compute block has the positions of the first",
        "attend_to_kv_block",
        "start + row,",
        "start,",
    ),
    Mutation(
        "a whole block holds the key after the first query",
        "whole_blocks",
        "span.first_query + 1 - start",
        "span.first_query + 2 - start",
    ),
    Mutation(
        "a whole block holds the key before the last query's window",
        "whole_blocks",
        "launch.sliding_window + 1 - start",
        "launch.sliding_window - start",
    ),
    Mutation(
        "a whole block holds keys past the last",
        "whole_blocks",
        "lax.div(keys,",
        "pl.cdiv(keys,",
    ),
    Mutation(
        "the last whole block is masked too, and so counts twice",
        "edge_block_row",
        "past * launch.compute_block + index",
        "jnp.maximum(past - 1, 0) * launch.compute_block + index",
    ),
    Mutation(
        "edge blocks of a window go on where whole blocks begin",
        "edge_block_row",
        "row < first * launch.compute_block",
        "row <= first * launch.compute_block",
    ),
    Mutation(
        "edge blocks come twice",
        "edge_blocks",
        "(past - first) * launch.compute_block",
        "0",
    ),
    Mutation(
        "one lane's part is taken for the sum",
        "normalise",
        "jnp.sum(softmax.sum_ref[head, rows], axis=1, keepdims=True)",
        "softmax.sum_ref[head, rows][:, :1]",
    ),
    Mutation(
        "the output keeps the dtype of the queries",
        "run_launches",
        "return out.astype(out_dtype), kv_cache",
        "return out, kv_cache",
    ),
    Mutation("the key scale is ignored", "ragged_paged_attention", " * k_scale", ""),
    Mutation(
        "new keys are stored with the value scale",
        "run_launches",
        "KV_DTYPE, k_scale",
        "KV_DTYPE, v_scale",
    ),
    Mutation(
        "new values are stored without their scale", "run_launches", "KV_DTYPE, v_scale", "KV_DTYPE"
    ),
)

TEMPLATE_MUTATIONS = (
    TemplateMutation(
        "the cache is not updated by the decode launch",
        "stages/kernel/one_token.py.j2",
        "{% if updates_cache %}\n        start_token_cache_update",
        "{% if updates_cache and false %}\n        start_token_cache_update",
    ),
    TemplateMutation(
        "the cache is not updated by the other launches",
        "stages/kernel/several_tokens.py.j2",
        "{% if updates_cache %}\n            start_cache_update",
        "{% if updates_cache and false %}\n            start_cache_update",
    ),
    TemplateMutation(
        "the cache is updated twice by the decode launch",
        "stages/kernel/one_token.py.j2",
        "        start_token_cache_update(operands, kv, span, launch)\n",
        2 * "        start_token_cache_update(operands, kv, span, launch)\n",
    ),
    TemplateMutation(
        "the cache is updated twice by the other launches",
        "stages/kernel/several_tokens.py.j2",
        "            start_cache_update(operands, kv, span, launch)\n",
        2 * "            start_cache_update(operands, kv, span, launch)\n",
    ),
    TemplateMutation(
        "writes of tokens are not waited for at the end",
        "stages/kernel/one_token.py.j2",
        "{% if updates_cache %}\n    wait_cache_update",
        "{% if updates_cache and false %}\n    wait_cache_update",
    ),
    TemplateMutation(
        "writes of query blocks are not waited for at the end",
        "stages/kernel/several_tokens.py.j2",
        "{% if updates_cache %}\n    wait_cache_update",
        "{% if updates_cache and false %}\n    wait_cache_update",
    ),
    TemplateMutation(
        "one KV block too many is fetched ahead of a query block",
        "stages/kernel/several_tokens.py.j2",
        "@pl.loop(0, launch.kv_slots - 1)",
        "@pl.loop(0, launch.kv_slots)",
    ),
    TemplateMutation(
        "the softmax begins anew with every KV block of a token",
        "stages/kernel/one_token.py.j2",
        "            slot = take_turn(kv.turn_ref",
        "            reset_softmax(softmax)\n            slot = take_turn(kv.turn_ref",
    ),
    TemplateMutation(
        "the softmax begins anew with every KV block",
        "stages/kernel/several_tokens.py.j2",
        "                slot = take_turn(kv.turn_ref",
        "                reset_softmax(softmax)\n                slot = take_turn(kv.turn_ref",
    ),
    TemplateMutation(
        "a token's output is stored before its slot is free",
        "stages/kernel/one_token.py.j2",
        "        wait_output(outputs, query_slot, launch)\n"
        "        store_token_output(softmax, outputs, query_slot, {{ scales }}launch)\n",
        "        store_token_output(softmax, outputs, query_slot, {{ scales }}launch)\n"
        "        wait_output(outputs, query_slot, launch)\n",
    ),
    TemplateMutation(
        "output is stored before its slot is free",
        "stages/kernel/several_tokens.py.j2",
        "            wait_output(outputs, query_slot, launch)\n"
        "            store_output(softmax, outputs, query_slot, {{ scales }}launch)\n",
        "            store_output(softmax, outputs, query_slot, {{ scales }}launch)\n"
        "            wait_output(outputs, query_slot, launch)\n",
    ),
    TemplateMutation(
        "the tail of a token's slot is cleared before its keys are there",
        "stages/kernel/one_token.py.j2",
        "            wait_kv_fetch{{",
        "            clear_tail(kv, slot, keys, launch)\n            wait_kv_fetch{{",
        harmless={"head_interleaved": "copies bring keys alone, and nothing behind the last"},
    ),
    TemplateMutation(
        "the tail of a slot is cleared before its keys are there",
        "stages/kernel/several_tokens.py.j2",
        "                wait_kv_fetch{{",
        "                clear_tail(kv, slot, keys, launch)\n                wait_kv_fetch{{",
        harmless={"head_interleaved": "copies bring keys alone, and nothing behind the last"},
    ),
    TemplateMutation(
        "an item of work is passed on as a tuple",
        "stages/pipeline/two_step.py.j2",
        "accumulate(*waiting.pop(0), softmax, launch)",
        "accumulate(waiting.pop(0), softmax, launch)",
        dies_of="TypeError",
    ),
)
"""More faults of templates: those of `MUTATIONS` are in what a template prints as it stands."""


@contextlib.contextmanager
def loaded(source: str, name: str, package: ModuleType) -> Iterator[ModuleType]:
    """A module of a package from its source, for a while in place of what is in its file."""
    module = types.ModuleType(f"{package.__name__}.{name}")
    module.__package__ = package.__name__
    usual = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module  # dataclasses look for their module there
    try:
        exec(compile(source, f"<{name} with a fault>", "exec"), module.__dict__)
        yield module
    finally:
        del sys.modules[module.__name__]
        if usual is not None:
            sys.modules[module.__name__] = usual


def every() -> tuple[Fault, ...]:
    """All faults of the tables."""
    return (*MUTATIONS, *TEMPLATE_MUTATIONS)


def source_of(name: str, package: ModuleType) -> str:
    """The source of a variant's module."""
    assert package.__file__ is not None
    return Path(package.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Host:
    """A variant in which a mutation has to be found, for all that have the same text.

    stands_for: their names, its own among them.
    """

    variant: str
    stands_for: tuple[str, ...]


def hosts(mutation: Fault, modules: Iterable[tuple[Variant, str]]) -> list[Host]:
    """The variants in which a mutation has to be found.

    Variants in which it changes the same text alike are a group. Of a group there is a host for
    every kind of cache and every feature, since what else a kernel does may hide a fault.

    modules: variants and their modules' sources.
    """
    groups: dict[tuple[str, ...], list[Variant]] = {}
    for variant, source in modules:
        changed = mutation.changes(variant, source)
        if changed and not mutation.harmless_in(variant):
            groups.setdefault(changed, []).append(variant)
    return [host for group in groups.values() for host in _hosts_of(group)]


def _hosts_of(group: Sequence[Variant]) -> list[Host]:
    chosen: list[Variant] = []
    left = {trait for variant in group for trait in traits(variant)}
    while left:
        best = max(group, key=lambda variant: len(left & traits(variant)))  # the first of the best
        chosen.append(best)
        left -= traits(best)
    stand_for: dict[str, list[str]] = {variant.name: [variant.name] for variant in chosen}
    for variant in group:
        if variant not in chosen:
            nearest = max(chosen, key=lambda host: len(traits(host) & traits(variant)))
            stand_for[nearest.name].append(variant.name)
    return [Host(name, tuple(names)) for name, names in stand_for.items()]


def traits(variant: Variant) -> frozenset[str]:
    """What a variant is, besides the text of a function, that may hide a fault in it.

    The kind of its cache's numbers, and every feature.
    """
    kind = "float8" if variant.kv_dtype.startswith("float8") else variant.kv_dtype
    return frozenset({kind, *(variant.features or ("no feature",))})


def properties(variant: Variant) -> frozenset[str]:
    """What a variant is, for what is harmless in it: its traits, its layout and what it lacks."""
    lacks = {f"no {each}" for each in axes.words("features") if not variant.has(each)}
    return traits(variant) | lacks | {variant.layout}


def _functions(source: str, name: str) -> Iterator[tuple[int, int]]:
    """Where the functions of that name, or for some launches, begin and end in a source."""
    return ((start, end) for own, start, end in _places(source) if _is_called(own, name))


@functools.lru_cache(maxsize=64)  # of all core variants
def _places(source: str) -> tuple[tuple[str, int, int], ...]:
    """Every function's name, and where it begins and ends."""
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    return tuple(
        (node.name, starts[node.lineno - 1], starts[node.end_lineno or node.lineno])
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    )


def _is_called(own: str, name: str) -> bool:
    suffix = own.removeprefix(name)
    return own.startswith(name) and all(
        word in ("", "decode", "prefill", "mixed") for word in suffix.split("_")
    )
