"""Ragged workloads at random, near all the edges at which kernels go wrong.

`geometry` draws what a kernel is compiled for, and `case` lengths in it. Both take all chance from
a `random.Random`: from a seed, or from hypothesis, which then makes what fails smaller.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from rpagen.evidence import cases
from rpagen.spec import model

_MOST_QUERY_LANES = 2048
_MOST_KEYS = 256
"""What an interpreter takes long for: lanes of a query token, and keys of a sequence."""

CASES = 4
"""Workloads in each geometry, which share its compilation."""


def workloads(key: model.DispatchKey, seed: int) -> Iterator[cases.Case]:
    """Those of a seed, in one geometry, for the variants that have this dispatch key."""
    rng = random.Random(seed)
    shape = geometry(rng, key, f"random_{seed}")
    for index in range(CASES):
        yield case(rng, shape, key, f"random_{seed}_{index}")


def geometry(rng: random.Random, key: model.DispatchKey, name: str) -> cases.Geometry:
    """Shapes and block sizes that fit each other, and little else."""
    head_dim = rng.choice((64, 80, 96, 112, 128, 192, 256))
    num_kv_heads = rng.randint(1, 8)
    most_heads = max(1, _MOST_QUERY_LANES // (head_dim * num_kv_heads))
    group = rng.randint(1, min(16, most_heads))
    page_size = rng.choice((1, 2, 3, 4, 5, 8, 12, 16, 32, 64))
    if key.layout == "head_major":  # which packs the tokens of a page
        packing = model.packing(key.kv_dtype)
        page_size = -(-page_size // packing) * packing
    pages_per_seq = rng.randint(1, min(24, _MOST_KEYS // page_size))
    max_seqs = rng.randint(1, 9)
    pages_in_use = rng.randint(pages_per_seq, max(pages_per_seq, 512 // page_size))
    chunk = rng.choice((None, rng.randint(1, 20)))
    kv_block, *_ = decode = _blocks(rng, page_size)
    window = near(rng, _MOST_KEYS, (page_size, kv_block, _MOST_KEYS))
    return cases.Geometry(
        name=name,
        num_q_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        pages_per_seq=pages_per_seq,
        num_pages=pages_in_use + 1,  # one that is nobody's
        max_seqs=max_seqs,
        max_tokens=rng.randint(max_seqs, 48),
        chunk_prefill_size=chunk,
        decode_blocks=(1, decode[0], 1, decode[1]),
        prefill_blocks=_query_blocks(rng, page_size),
        mixed_blocks=_query_blocks(rng, page_size),
        sm_scale=rng.choice((head_dim**-0.5, 0.2)),
        sliding_window=max(1, window),
        soft_cap=rng.choice((1.5, 4.0, 50.0)),
    )


def case(
    rng: random.Random, shape: cases.Geometry, key: model.DispatchKey, name: str
) -> cases.Case:
    """Sequences in each of the three ranges, as many as there is room for or fewer."""
    room = _Room(rng, shape)
    sequences = 0 if rng.random() < 0.05 else rng.randint(1, shape.max_seqs)
    kinds = rng.choices(("decode", "prefill", "mixed"), k=sequences)
    # Often one kind alone, so that the other launches have nothing to do.
    if kinds and rng.random() < 0.3:
        kinds = [kinds[0]] * len(kinds)
    lengths: dict[str, list[tuple[int, int]]] = {"decode": [], "prefill": [], "mixed": []}
    for kind in kinds:
        found = getattr(room, kind)()
        if found is not None:
            lengths[kind].append(found)
    drawn = cases.Case(
        name=name,
        geometry=shape,
        decode=tuple(lengths["decode"]),
        prefill=tuple(lengths["prefill"]),
        mixed=tuple(lengths["mixed"]),
        new_kv_in_cache_dtype=rng.random() < 0.2,
        unused_pages_invalid=rng.random() < 0.5,
        data=rng.choice(tuple(cases.DATA)),
        poison=rng.choice(tuple(cases.POISON)),
    )
    return cases.adapt(drawn, key)


def near(rng: random.Random, most: int, edges: tuple[int, ...]) -> int:
    """A number from 0 to `most`: any, or next to a multiple of an edge."""
    if rng.random() < 0.3:
        return rng.randint(0, most)
    edge = rng.choice(edges)
    number = edge * rng.randint(0, max(1, most // edge)) + rng.choice((-1, 0, 1))
    return min(max(number, 0), most)


def _blocks(rng: random.Random, page_size: int) -> tuple[int, int]:
    """KV block and compute block; what divides what is left to chance, as far as it may be."""
    kv_block = page_size * rng.randint(1, max(1, 96 // page_size))
    return kv_block, rng.choice((16, 32, 48, 64))


def _query_blocks(rng: random.Random, page_size: int) -> cases.Blocks:
    query_tile = rng.randint(1, 8)
    kv_block, compute_block = _blocks(rng, page_size)
    return query_tile * rng.randint(1, 4), kv_block, query_tile, compute_block


@dataclasses.dataclass
class _Room:
    """The tokens and pages that are left, and sequences that take of them."""

    rng: random.Random
    shape: cases.Geometry
    tokens_taken: int = 0
    pages_taken: int = 0

    def decode(self) -> tuple[int, int] | None:
        """One new token and its keys; None where there is no room for it."""
        if not self._tokens_left() or not self._most_keys():
            return None
        return self._take(1, max(1, self._keys()))

    def prefill(self) -> tuple[int, int] | None:
        """At most a chunk of new tokens."""
        chunk = self.shape.chunk_prefill_size
        return self._several(self._tokens_left() if chunk is None else chunk)

    def mixed(self) -> tuple[int, int] | None:
        """Any number of new tokens."""
        return self._several(self._tokens_left())

    def _several(self, most: int) -> tuple[int, int]:
        blocks = (self.shape.prefill_blocks, self.shape.mixed_blocks)
        edges = (self.shape.page_size, *(size for b in blocks for size in (b[0], b[2])))
        most = min(most, self._tokens_left())
        new = near(self.rng, most // self.rng.choice((1, 2, 4)), edges)
        if self.rng.random() < 0.1:
            new = most  # often the last token that the arrays have
        if self.rng.random() < 0.1 or new > self._most_keys():
            return self._take(new, 0)  # a sequence without keys, whose output is zero
        keys = new if self.rng.random() < 0.2 else self._keys()
        return self._take(new, max(new, keys))

    def _keys(self) -> int:
        shape = self.shape
        blocks = (shape.decode_blocks, shape.prefill_blocks, shape.mixed_blocks)
        sizes = (size for block in blocks for size in (block[1], block[3]))
        return near(self.rng, self._most_keys(), (shape.page_size, shape.sliding_window, *sizes))

    def _tokens_left(self) -> int:
        return self.shape.max_tokens - self.tokens_taken

    def _most_keys(self) -> int:
        pages = min(self.shape.pages_per_seq, self.shape.num_pages - 1 - self.pages_taken)
        return pages * self.shape.page_size

    def _take(self, new: int, keys: int) -> tuple[int, int]:
        self.tokens_taken += new
        self.pages_taken += -(-keys // self.shape.page_size)
        return new, keys
