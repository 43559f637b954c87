"""Faults that public kernels of this kind have had, each as a small call that shows it.

Every one is a `Case`, so it runs in each variant that it could touch. `said` is what went wrong
elsewhere: in upstream's kernel, or in a fork in which it lived on after it was fixed there.
"""

from __future__ import annotations

import dataclasses

from rpagen.evidence.cases import GQA4_PAGE16, Case, Geometry
from rpagen.spec.model import DispatchKey


@dataclasses.dataclass(frozen=True)
class Bug:
    """One of them.

    mutation: the name of one of `mutants` that makes our kernels wrong in this way, so that the
    case alone has to find it. needs: features without which a variant cannot have the fault.
    is_of_scales: whether it is one of caches with scales alone.
    """

    case: Case
    said: str
    mutation: str
    needs: tuple[str, ...] = ()
    is_of_scales: bool = False

    def touches(self, key: DispatchKey) -> bool:
        """Whether variants with this key could have the fault."""
        has_scales = key.quantization != "none"
        return (has_scales or not self.is_of_scales) and set(self.needs) <= set(key.features)


# One kv head and one page for each KV block: every block edge is a page edge.
_PAGES_OF_16 = Geometry(
    name="bugs_page16",
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=128,
    page_size=16,
    pages_per_seq=4,
    num_pages=16,
    max_seqs=4,
    max_tokens=64,
    chunk_prefill_size=64,
    decode_blocks=(1, 16, 1, 16),
    prefill_blocks=(16, 16, 16, 16),
    mixed_blocks=(16, 16, 16, 16),
    sm_scale=128**-0.5,
    sliding_window=16,
    soft_cap=4.0,
)
_SHORT_CHUNK = dataclasses.replace(
    _PAGES_OF_16, name="bugs_chunk16", chunk_prefill_size=16, sliding_window=5
)
_PAGES_OF_4 = dataclasses.replace(
    _PAGES_OF_16,
    name="bugs_page4",
    page_size=4,
    pages_per_seq=6,
    chunk_prefill_size=None,
    max_tokens=16,
)
_FULL_ARRAY = dataclasses.replace(_SHORT_CHUNK, name="bugs_full_array", max_tokens=5)
# Eight kv heads, and blocks twice as large as the page table.
_NARROW_TABLE = dataclasses.replace(
    _PAGES_OF_16,
    name="bugs_narrow_table",
    num_q_heads=8,
    num_kv_heads=8,
    max_tokens=16,
    chunk_prefill_size=8,
    decode_blocks=(1, 128, 1, 64),
    prefill_blocks=(8, 128, 8, 64),
    mixed_blocks=(8, 128, 8, 64),
)
_LONG = Geometry(
    name="bugs_long",
    num_q_heads=1,
    num_kv_heads=1,
    head_dim=64,
    page_size=128,
    pages_per_seq=469,
    num_pages=740,
    max_seqs=9,
    max_tokens=14,
    chunk_prefill_size=4,
    decode_blocks=(1, 4096, 1, 1024),
    prefill_blocks=(4, 4096, 4, 1024),
    mixed_blocks=(4, 4096, 4, 1024),
    sm_scale=0.125,
    sliding_window=32_760,
    soft_cap=4.0,
)

BUGS = (
    Bug(
        Case("windowed_prefill_writes_all", _PAGES_OF_16, prefill=((64, 64),)),
        "the last query block wrote the cache, and lost the tokens outside its window",
        mutation="only the last query block writes",
    ),
    Bug(
        Case("windowed_mixed_writes_all", _PAGES_OF_16, mixed=((64, 64),)),
        "the same in the mixed launch",
        mutation="only the last query block writes",
    ),
    Bug(
        Case(
            "accumulator_starts_at_first_visited_block",
            _PAGES_OF_16,
            decode=((1, 64),),
            mixed=((16, 64), (5, 64)),
        ),
        "the accumulator was set to zero at block 0, which a window skips",
        mutation="the softmax begins anew only where a sequence does",
        needs=("sliding_window",),
    ),
    Bug(
        Case(
            "mask_in_partial_block_of_window",
            _SHORT_CHUNK,
            decode=((1, 40),),
            prefill=((16, 40),),
            mixed=((8, 40),),
        ),
        "the block in which a window begins was taken whole",
        mutation="only a window's end is masked",
        needs=("sliding_window",),
    ),
    Bug(
        Case("nan_behind_the_last_key", _SHORT_CHUNK, decode=((1, 17),), mixed=((2, 17),)),
        "NaN in slots 1 to 15 of the second page came through a weight of zero",
        mutation="the tail of a slot is not cleared",
    ),
    Bug(
        Case("tokens_across_a_page_edge", GQA4_PAGE16, mixed=((4, 18),)),
        "several new tokens of one sequence were written to one page",
        mutation="tokens are written to the page of the first",
    ),
    Bug(
        Case("last_chunk_is_shorter", _SHORT_CHUNK, prefill=((9, 9), (9, 40))),
        "a chunk shorter than the static length was taken to be as long",
        mutation="a query block has the tokens of a whole one",
    ),
    Bug(
        Case("no_new_tokens", _SHORT_CHUNK, prefill=((0, 0), (0, 7)), mixed=((0, 7), (3, 3))),
        "a sequence without new tokens, or without keys, put the copies of the next out of step",
        mutation="a span without keys takes no turn",
    ),
    Bug(
        Case("nan_behind_the_last_key_page4", _PAGES_OF_4, decode=((1, 13),), mixed=((3, 13),)),
        "the same with pages smaller than a block of lanes",
        mutation="the tail of a slot is not cleared",
    ),
    Bug(
        Case("prefill_without_a_chunk_size", _PAGES_OF_4, prefill=((9, 9),), mixed=((3, 20),)),
        "sequences in the prefill range got no output where no chunk size was given",
        mutation="the mixed launch begins after the prefill sequences",
    ),
    Bug(
        Case("tokens_fill_the_array", _FULL_ARRAY, mixed=((5, 5),)),
        "rows were copied in blocks past the end of queries and output",
        mutation="whole blocks of queries are fetched",
    ),
    Bug(
        Case(
            "window_without_a_causal_mask",
            _SHORT_CHUNK,
            decode=((1, 40),),
            prefill=((16, 40),),
            mixed=((24, 37), (7, 7)),
        ),
        "without the causal mask a window hid keys after the query too, or none at all",
        mutation="a window hides what comes after a query",
        needs=("sliding_window", "bidirectional"),
    ),
    Bug(
        Case(
            "table_narrower_than_a_block",
            _NARROW_TABLE,
            decode=((1, 64), (1, 3)),
            prefill=((8, 60),),
            mixed=((6, 33),),
        ),
        "entries past a row of the page table were read",
        mutation="all pages of a block are fetched",
    ),
    Bug(
        Case("eight_heads", _NARROW_TABLE, decode=((1, 33),), mixed=((6, 20),)),
        "heads and the packing of the cache did not fit each other: eight heads on packing 4,",
        mutation="every head has the keys of the first",
    ),
    Bug(
        Case("one_head", _SHORT_CHUNK, decode=((1, 33),), prefill=((9, 20),), mixed=((6, 20),)),
        "and a single head of two bytes",
        mutation="keys and values are exchanged",
    ),
    Bug(
        Case(
            "positions_past_16_bits",
            _LONG,
            decode=((1, 60_000), *[(1, 100)] * 5, (1, 32_768)),
            prefill=((4, 100),),
            mixed=((3, 100),),
        ),
        "positions and lengths were 16-bit, and so was a window plus a position",
        mutation="positions are 16-bit",
    ),
    Bug(
        Case(
            "rounded_before_scaled",
            GQA4_PAGE16,
            decode=((1, 200),),
            prefill=((16, 100),),
            mixed=((20, 140),),
            data="large",
        ),
        "scores were rounded to bfloat16 before they were scaled",
        mutation="scores are rounded before they are scaled",
    ),
    Bug(
        Case(
            "scales_on_every_launch",
            _NARROW_TABLE,
            decode=((1, 50),),
            prefill=((8, 48),),
            mixed=((7, 41),),
        ),
        "a scale of an 8-bit cache was not applied in one of the launches",
        mutation="the value scale is ignored (decode)",
        is_of_scales=True,
    ),
)
