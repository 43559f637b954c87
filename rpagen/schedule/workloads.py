"""The calls that are timed: which sequences, and the heads and dtypes of which model.

The usual ones are in `specs/workloads.yaml`; a file of the same form adds others.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from rpagen import errors
from rpagen.emit import resources
from rpagen.errors import SpecError
from rpagen.evidence.shapes import CallShape
from rpagen.spec import nodes
from rpagen.spec.model import BIT_WIDTHS
from rpagen.spec.nodes import Node

PAGE_SEED = 0
"""Of the permutation of pages: which page is where makes no difference to what is modelled."""

Named = TypeVar("Named", "Workload", "Configuration")


@dataclasses.dataclass(frozen=True)
class Workload:
    """The sequences of a call, those that decode first.

    short: another name. kv_lens: with the new tokens. padded_*: what the call is compiled for.
    """

    name: str
    short: str
    doc: str
    kv_lens: tuple[int, ...]
    new_tokens: tuple[int, ...]
    padded_tokens: int
    padded_sequences: int
    padded_context: int

    @property
    def distribution(self) -> tuple[int, int, int]:
        """(end of decode, end of prefill, end of mixed): what is not decoded runs as mixed."""
        decodes = sum(count == 1 for count in self.new_tokens)
        return decodes, decodes, len(self.kv_lens)

    def operands(self, page_size: int) -> dict[int, np.ndarray]:
        """The integer operands of `ragged_paged_attention`, by their place among all operands.

        kv_lens i32[sequences], page_indices i32[sequences * pages per sequence],
        cu_q_lens i32[sequences + 1], distribution i32[3]. The pages in use are permuted.
        """
        pages_per_sequence = -(-self.padded_context // page_size)
        empty = self.padded_sequences - len(self.kv_lens)
        table = np.zeros((self.padded_sequences, pages_per_sequence), np.int64)
        counts = [-(-length // page_size) for length in self.kv_lens]
        pages = list(range(sum(counts)))
        random.Random(PAGE_SEED).shuffle(pages)
        start = 0
        for row, count in zip(table, counts, strict=False):
            row[:count] = pages[start : start + count]
            start += count
        ends = np.cumsum([0, *self.new_tokens])
        return {
            4: np.array([*self.kv_lens, *[0] * empty]),
            5: table.reshape(-1),
            6: np.concatenate([ends, np.full(empty, ends[-1])]),
            7: np.array(self.distribution),
        }


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The heads and dtypes of a model. sliding_window: None for none."""

    name: str
    doc: str
    query_heads: int
    kv_heads: int
    head_dim: int
    query_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    sliding_window: int | None = None

    @property
    def quantization(self) -> str:
        """What a variant calls it: an 8-bit cache has a scale for each of keys and values."""
        return "per_tensor" if BIT_WIDTHS[self.kv_dtype] == 8 else "none"

    def shape(self, workload: Workload, page_size: int) -> CallShape:
        """Of the call that is compiled for a workload."""
        return CallShape(
            query_heads=self.query_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            page_size=page_size,
            tokens=workload.padded_tokens,
            sequences=workload.padded_sequences,
            pages_per_sequence=-(-workload.padded_context // page_size),
        )


@dataclasses.dataclass(frozen=True)
class Known:
    """The workloads and configurations of one or more files, in their order."""

    workloads: tuple[Workload, ...]
    configurations: tuple[Configuration, ...]

    def workload(self, name: str) -> Workload:
        """By name or short name.

        Raises:
            RpagenError: there is none.
        """
        by_short = {each.short: each for each in self.workloads if each.short}
        return by_short.get(name) or _named(self.workloads, name, "workload")

    def configuration(self, name: str) -> Configuration:
        """By name.

        Raises:
            RpagenError: there is none.
        """
        return _named(self.configurations, name, "configuration")


def load(*more: Path) -> Known:
    """The usual ones, and those of other files, which come in the place of the same name.

    Raises:
        SpecError: a file is wrong.
    """
    workloads: dict[str, Workload] = {}
    configurations: dict[str, Configuration] = {}
    for path in (resources.specs_dir() / "workloads.yaml", *more):
        root = nodes.read(path, str(path))
        parts = root.entries(("workloads", "configurations"))
        if node := parts.get("workloads"):
            workloads |= {name: _workload(name, each) for name, each in _entries(node).items()}
        if node := parts.get("configurations"):
            configurations |= {
                name: _configuration(name, each) for name, each in _entries(node).items()
            }
    return Known(tuple(workloads.values()), tuple(configurations.values()))


def _named(known: tuple[Named, ...], name: str, what: str) -> Named:
    for each in known:
        if each.name == name:
            return each
    names = [each.name for each in known]
    question = nodes.did_you_mean(name, names) or f"write one of {errors.listed(names)}"
    raise errors.RpagenError(f"there is no {what} {errors.quoted(name)}: {question}")


def _entries(node: Node) -> Mapping[str, Node]:
    """Of a mapping with names of the user's own."""
    return node.entries(node.content if isinstance(node.content, Mapping) else ())


def _workload(name: str, node: Node) -> Workload:
    fields = node.entries(
        ("doc", "short", "sequences", "padded"), required=("doc", "sequences", "padded")
    )
    padded = fields["padded"].entries(
        ("tokens", "sequences", "context"), required=("tokens", "sequences", "context")
    )
    kv_lens: list[int] = []
    new_tokens: list[int] = []
    for each in fields["sequences"].items("sequences"):
        parts = each.entries(
            ("count", "kv_len", "new_tokens"), required=("count", "kv_len", "new_tokens")
        )
        count, new = parts["count"].size(), parts["new_tokens"].size()
        lengths = _lengths(parts["kv_len"], count)
        if min(lengths) < new:
            raise _too_small(parts["kv_len"], min(lengths), f"its {new} new tokens")
        kv_lens += lengths
        new_tokens += [new] * count
    first = sorted(range(len(kv_lens)), key=lambda index: new_tokens[index] != 1)
    for what, needed in (
        ("tokens", sum(new_tokens)),
        ("sequences", len(kv_lens)),
        ("context", max(kv_lens)),
    ):
        if padded[what].size() < needed:
            raise _too_small(padded[what], padded[what].size(), f"{needed}, which are in use")
    return Workload(
        name=name,
        short=fields["short"].text() if "short" in fields else "",
        doc=fields["doc"].text(),
        kv_lens=tuple(kv_lens[index] for index in first),
        new_tokens=tuple(new_tokens[index] for index in first),
        padded_tokens=padded["tokens"].size(),
        padded_sequences=padded["sequences"].size(),
        padded_context=padded["context"].size(),
    )


def _configuration(name: str, node: Node) -> Configuration:
    sizes = ("query_heads", "kv_heads", "head_dim")
    dtypes = ("query_dtype", "kv_dtype")
    fields = node.entries(("doc", *sizes, *dtypes, "sliding_window"), required=("doc", *sizes))
    window = fields.get("sliding_window")
    return Configuration(
        name=name,
        doc=fields["doc"].text(),
        query_heads=fields["query_heads"].size(),
        kv_heads=fields["kv_heads"].size(),
        head_dim=fields["head_dim"].size(),
        sliding_window=window.size() if window else None,
        **{each: str(fields[each].one_of(list(BIT_WIDTHS))) for each in dtypes if each in fields},
    )


def _lengths(node: Node, count: int) -> list[int]:
    if isinstance(node.content, tuple) and len(node.content) == 2:
        low, high = (each.size() for each in node.content)
        return [round(each) for each in np.linspace(low, high, count)]
    return [node.size()] * count


def _too_small(node: Node, value: int, least: str) -> SpecError:
    return SpecError(
        f"{value} is too small",
        mark=node.mark,
        field=node.field,
        expected=f"no less than {least}",
        next_step="make it larger",
    )
