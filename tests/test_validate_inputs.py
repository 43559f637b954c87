"""`validate_inputs` names the sequence that breaks a rule, and passes everything a kernel takes."""

from __future__ import annotations

import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rpa_kernels
from hypothesis import given, settings
from hypothesis import strategies as st

from rpagen.evidence import cases, reference, tolerance
from rpagen.spec import model

PAGE_SIZE = 4
PAGES = 20


def call(
    lengths: list[tuple[int, int]],
    distribution: tuple[int, int, int],
    tables: list[list[int]] | None = None,
) -> list[np.ndarray]:
    """Operands of 12 tokens for sequences of (new tokens, keys), with 3 pages of 4 tokens each.

    One more sequence than there are has lengths and pages far out of range.
    """
    count = len(lengths)
    if tables is None:
        tables = [[3 * at, 3 * at + 1, 3 * at + 2] for at in range(count)]
    pages = [page for table in [*tables, [-(1 << 30)] * 3] for page in table]
    starts = np.cumsum([0, *(tokens for tokens, _ in lengths)])
    return [
        np.zeros((12, 2, 16), jnp.bfloat16),
        np.zeros((12, 1, 16), jnp.bfloat16),
        np.zeros((12, 1, 16), jnp.bfloat16),
        np.zeros((PAGES, PAGE_SIZE, 1, 2, 128), jnp.bfloat16),
        np.array([*(keys for _, keys in lengths), 1 << 30], np.int32),
        np.array(pages, np.int32),
        np.array([*starts, 1 << 30], np.int32),
        np.array(distribution, np.int32),
    ]


# A decode, a prefill of at most 4 tokens, and two mixed sequences; 11 of the 12 tokens.
LENGTHS = [(1, 5), (4, 8), (5, 12), (1, 2)]
DISTRIBUTION = (1, 2, 4)


def fault(operands: list[Any], **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        rpa_kernels.validate_inputs(*operands, **options)
    return str(caught.value)


def changed(at: int, length: tuple[int, int]) -> list[np.ndarray]:
    """The call above with another length of one sequence."""
    return call([*LENGTHS[:at], length, *LENGTHS[at + 1 :]], DISTRIBUTION)


def with_pages(*pages: tuple[int, int, int]) -> list[np.ndarray]:
    """The call above with other pages: (sequence, which of its own, page)."""
    operands = call(LENGTHS, DISTRIBUTION)
    for sequence, at, page in pages:
        operands[5][3 * sequence + at] = page
    return operands


# --- what is legal -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operands",
    [
        call(LENGTHS, DISTRIBUTION),
        call(LENGTHS, (0, 0, 4)),
        call(LENGTHS, (0, 0, 0)),
        # Without new tokens, without keys, and without both, but for the decode sequence.
        call([(1, 1), (0, 12), (3, 0), (0, 0)], DISTRIBUTION),
        # Up to the last key of the table.
        call([(1, 12), (4, 12), (5, 12), (1, 12)], DISTRIBUTION),
        # Pages that are not used: past the keys, and of sequences without new tokens.
        with_pages((0, 2, -1), (1, 2, PAGES), (3, 1, 1 << 30), (3, 2, 0)),
        call([(1, 1), (0, 12), (3, 0), (0, 0)], DISTRIBUTION, [[0, -1, -1], *[[-1] * 3] * 3]),
        # A prefix that sequences share and none of them writes to.
        with_pages((2, 0, 3), (1, 0, 3)),
    ],
)
def test_legal_calls(operands):
    rpa_kernels.validate_inputs(*operands, chunk_prefill_size=4)
    rpa_kernels.validate_inputs(*map(jnp.asarray, operands), chunk_prefill_size=4)


KEYS = [
    model.DispatchKey("head_interleaved", "bfloat16", "bfloat16", "none", ()),
    model.DispatchKey("head_interleaved", "bfloat16", "int8", "per_tensor", ("sliding_window",)),
    model.DispatchKey("head_interleaved", "bfloat16", "bfloat16", "none", ("kv_share",)),
    model.DispatchKey("head_major", "bfloat16", "bfloat16", "none", ()),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_the_cases_that_kernels_are_tested_with_are_legal(key):
    for case in cases.cases_for(key):
        rpa_kernels.validate_inputs(
            *cases.build(case, key).arrays,
            chunk_prefill_size=case.geometry.chunk_prefill_size,
            sliding_window=case.sliding_window,
            update_kv_cache=case.update_kv_cache,
        )


def test_of_operands_that_are_not_there_yet_the_form_is_enough():
    """As an engine has them, whose queries, keys and values exist within a jitted step alone."""
    operands = call(LENGTHS, DISTRIBUTION)
    forms = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in operands[:4]]
    rpa_kernels.validate_inputs(*forms, *operands[4:])
    forms[1] = jax.ShapeDtypeStruct((11, 1, 16), jnp.bfloat16)
    assert fault([*forms, *operands[4:]]) == fault(
        [operands[0], operands[1][:11], operands[2], *operands[3:]]
    )


def test_pages_before_the_window_are_not_used():
    """Decode of key 11 with a window of 3 reads keys 9 to 11, in the last page."""
    operands = call([(1, 12), (4, 12)], (1, 1, 2), [[-1, 99, 0], [-1, 2, 3]])
    rpa_kernels.validate_inputs(*operands, sliding_window=3)
    assert "sequence 0 has the page 99" in fault(operands, sliding_window=5)
    assert "sequence 0 has the page -1" in fault(operands, sliding_window=9)
    assert "sequence 0 has the page -1" in fault(operands)


def test_pages_may_be_shared_where_nothing_is_written():
    tables = [[0, 1, 2]] * 4
    operands = call(LENGTHS, DISTRIBUTION, tables)
    assert "sequence 0 reads page 0, to which sequence 3 writes" in fault(operands)
    rpa_kernels.validate_inputs(*operands, update_kv_cache=False)


# --- what is not ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operands", "text"),
    [
        (
            changed(3, (3, 3)),
            "sequence 3 has the rows from 10 to 13 of queries in cu_q_lens; expected ascending ones"
            " up to 12",
        ),
        (
            changed(1, (-1, 8)),
            "sequence 1 has the rows from 1 to 0 of queries in cu_q_lens; expected ascending ones"
            " up to 12",
        ),
        (
            changed(0, (2, 5)),
            "sequence 0 is a decode sequence with 2 new tokens; expected 1: let distribution count"
            " it as a mixed one",
        ),
        (
            changed(0, (0, 5)),
            "sequence 0 is a decode sequence with 0 new tokens; expected 1: let distribution count"
            " it as a mixed one",
        ),
        (
            changed(1, (5, 8)),
            "sequence 1 is a prefill sequence with 5 new tokens; expected at most"
            " chunk_prefill_size, 4: let distribution count it as a mixed one",
        ),
        (
            changed(2, (5, 13)),
            "sequence 2 has 13 keys in kv_lens; expected 0 to 12, what its pages in page_indices"
            " hold",
        ),
        (
            changed(2, (5, -1)),
            "sequence 2 has -1 keys in kv_lens; expected 0 to 12, what its pages in page_indices"
            " hold",
        ),
        (
            changed(0, (1, 0)),
            "sequence 0 has 0 keys in kv_lens and 1 new tokens; expected the new tokens to count as"
            " keys too",
        ),
        (
            changed(2, (5, 4)),
            "sequence 2 has 4 keys in kv_lens and 5 new tokens; expected the new tokens to count as"
            " keys too",
        ),
        (
            with_pages((1, 1, -1)),
            "sequence 1 has the page -1 in page_indices, at 1 of its own; expected 0 to 19, the"
            " pages of kv_cache",
        ),
        (
            with_pages((2, 2, PAGES)),
            "sequence 2 has the page 20 in page_indices, at 2 of its own; expected 0 to 19, the"
            " pages of kv_cache",
        ),
        (
            with_pages((3, 0, 1)),
            "sequences 0 and 3 both write to page 1; expected it to belong to one sequence: give"
            " each its own copy of the page",
        ),
        (
            # What is written is the second page of sequence 0, and read the first of sequence 1.
            with_pages((1, 0, 1)),
            "sequence 1 reads page 1, to which sequence 0 writes; expected it to belong to one"
            " sequence: give each its own copy of the page",
        ),
        (
            with_pages((2, 0, 8)),
            "sequence 2 has page 8 twice in page_indices, and writes to it; expected it to belong"
            " to one sequence: give each its own copy of the page",
        ),
        (
            [*call(LENGTHS, (2, 1, 4))],
            "distribution is [2, 1, 4]; expected ends in ascending order, from 0 to 5: give where"
            " the decode, the prefill and the mixed sequences of kv_lens end",
        ),
        (
            [*call(LENGTHS, (1, 2, 6))],
            "distribution is [1, 2, 6]; expected ends in ascending order, from 0 to 5: give where"
            " the decode, the prefill and the mixed sequences of kv_lens end",
        ),
        (
            [each + (at == 6) for at, each in enumerate(call(LENGTHS, DISTRIBUTION))],
            "cu_q_lens begins with 1; expected 0: the new tokens of sequence 0 are the first rows"
            " of queries",
        ),
    ],
)
def test_a_rule_that_is_broken(operands, text):
    assert fault(operands, chunk_prefill_size=4) == text
    assert fault([*map(jnp.asarray, operands)], chunk_prefill_size=4) == text


def test_the_prefill_range_without_a_chunk_size_takes_any_number_of_tokens():
    operands = call([(1, 5), (9, 9)], (1, 2, 2))
    rpa_kernels.validate_inputs(*operands)
    assert "sequence 1 is a prefill" in fault(operands, chunk_prefill_size=8)


def test_operands_and_options_are_checked_too():
    operands = call(LENGTHS, DISTRIBUTION)
    assert fault([*operands[:4], [1, 2], *operands[5:]]) == (
        "kv_lens is a list; expected an array: give jnp.asarray(...) of it"
    )
    assert fault([*operands[:4], operands[4].astype(np.float32), *operands[5:]]) == (
        "kv_lens is float32; expected int32: convert it with .astype(jnp.int32)"
    )
    assert fault([operands[0][:-1], *operands[1:]]).startswith("keys has shape [12, 1, 16]")
    for name in ("chunk_prefill_size", "sliding_window"):
        assert fault(operands, **{name: 0}) == (f"{name} is 0; expected a whole number above zero")


@pytest.mark.parametrize(
    ("at", "name"),
    [(4, "kv_lens"), (5, "page_indices"), (6, "cu_q_lens"), (7, "distribution")],
)
def test_traced_operands_are_refused(at, name):
    operands = call(LENGTHS, DISTRIBUTION)

    def validate(traced: jax.Array) -> None:
        rpa_kernels.validate_inputs(*operands[:at], traced, *operands[at + 1 :])

    with pytest.raises(ValueError, match=re.escape(f"{name} is traced; expected its values")):
        jax.jit(validate)(operands[at])


def test_a_large_batch_is_fast():
    """256 sequences of 8192 pages: a loop over two million pages would take seconds."""
    sequences, width, page_size = 256, 8192, 16
    rng = np.random.default_rng(0)
    lens = rng.integers(1, width * page_size, sequences)
    operands = [
        np.zeros((sequences, 8, 128), jnp.bfloat16),
        np.zeros((sequences, 1, 128), jnp.bfloat16),
        np.zeros((sequences, 1, 128), jnp.bfloat16),
        # Of the cache only the shape counts.
        np.broadcast_to(jnp.bfloat16(0), (sequences * width, page_size, 1, 2, 128)),
        lens.astype(np.int32),
        rng.permutation(sequences * width).astype(np.int32),
        np.arange(sequences + 1, dtype=np.int32),
        np.full(3, sequences, np.int32),
    ]
    start = time.monotonic()
    rpa_kernels.validate_inputs(*operands)
    last_page = (lens[200] - 1) // page_size
    operands[5][200 * width + last_page] = operands[5][100 * width]
    assert fault(operands).startswith("sequence 100 reads page")
    assert time.monotonic() - start < 2


# --- against the reference, and in a kernel ------------------------------------------------------


@st.composite
def calls(draw: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Calls that may or may not be legal, mostly by a little."""
    count = draw(st.integers(1, 4))
    lengths = draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 13)), min_size=count, max_size=count)
    )
    ends = sorted(draw(st.lists(st.integers(0, count), min_size=3, max_size=3)))
    page = st.integers(-1, PAGES)
    some_pages = st.lists(page, min_size=3, max_size=3)
    tables = draw(st.none() | st.lists(some_pages, min_size=count, max_size=count))
    options = {
        "chunk_prefill_size": draw(st.none() | st.integers(1, 5)),
        "sliding_window": draw(st.none() | st.integers(1, 9)),
        "update_kv_cache": draw(st.booleans()),
    }
    return call(lengths, tuple(ends), tables), options


@settings(max_examples=300)
@given(calls())
def test_it_agrees_with_a_plain_reading_of_the_rules(drawn):
    operands, options = drawn
    try:
        rpa_kernels.validate_inputs(*operands, **options)
        is_legal = True
    except ValueError:
        is_legal = False
    assert is_legal == is_legal_plainly(*operands, **options)


def is_legal_plainly(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    kv_cache: np.ndarray,
    kv_lens: np.ndarray,
    page_indices: np.ndarray,
    cu_q_lens: np.ndarray,
    distribution: np.ndarray,
    *,
    chunk_prefill_size: int | None,
    sliding_window: int | None,
    update_kv_cache: bool,
) -> bool:
    """The same rules as `validate_inputs`, token by token."""
    decode_end, prefill_end, count = distribution
    reads, writes = [], []  # (page, sequence and which of its own), each once
    for sequence in range(count):
        first, past = cu_q_lens[sequence : sequence + 2]
        kv_len, tokens = kv_lens[sequence], past - first
        table = page_indices[3 * sequence : 3 * sequence + 3]
        if past > len(queries) or kv_len > 3 * PAGE_SIZE:
            return False
        if sequence < decode_end and (tokens != 1 or kv_len == 0):
            return False
        if decode_end <= sequence < prefill_end and tokens > (chunk_prefill_size or tokens):
            return False
        if 0 < kv_len < tokens:
            return False
        read, written = set(), set()
        for position in range(kv_len - tokens, kv_len) if kv_len else ():
            written.add(position // PAGE_SIZE)
            start = max(position - sliding_window + 1, 0) if sliding_window else 0
            read |= {key // PAGE_SIZE for key in range(start, position + 1)}
        reads += [(table[at], (sequence, at)) for at in read]
        writes += [(table[at], (sequence, at)) for at in written if update_kv_cache]
    if not all(0 <= page < len(kv_cache) for page, _ in reads):
        return False
    return not any(
        page == other and user != writer for page, writer in writes for other, user in reads
    )


def test_a_kernel_touches_no_page_that_may_be_anything(kernel_mode):
    """The interpreter refuses an access out of bounds, as a page number of -1 or 99 would be."""
    lengths = [(1, 12), (0, 9), (3, 0), (5, 11)]
    tables = [[-1, 99, 0], [-1, 99, -1], [99] * 3, [-1, 4, 5]]
    operands = call(lengths, (1, 2, 4), tables)
    operands[5][-3:] = -1
    options = {"chunk_prefill_size": 2, "sliding_window": 2}
    rpa_kernels.validate_inputs(*operands, **options)
    rng = np.random.default_rng(0)
    for at in range(4):
        operands[at] = rng.standard_normal(operands[at].shape).astype(jnp.bfloat16)
    with kernel_mode():
        out, kv_cache = rpa_kernels.ragged_paged_attention(*map(jnp.asarray, operands), **options)
        out, kv_cache = np.asarray(out), np.asarray(kv_cache)
    # The reference looks up every page before it masks keys, so it needs some that exist.
    operands[5] = np.clip(operands[5], 0, PAGES - 1)
    expected = reference.reference(*operands, **options)
    assert np.array_equal(kv_cache.view(np.uint16), expected.kv_cache.view(np.uint16))
    tolerance.assert_close(out, expected, query_dtype="bfloat16")
