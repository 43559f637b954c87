"""Workloads, configurations and floors."""

from __future__ import annotations

import numpy as np
import pytest

from rpagen.errors import RpagenError, SpecError
from rpagen.schedule import floor, workloads
from rpagen.schedule.generations import GENERATIONS

KNOWN = workloads.load()


def written(tmp_path, text: str):
    path = tmp_path / "more.yaml"
    path.write_text(text)
    return path


def test_the_usual_ones():
    assert [each.short for each in KNOWN.workloads] == ["w1", "w2", "w3", "w4", "w5"]
    assert [each.name for each in KNOWN.configurations] == ["A", "B", "C", "D", "E", "F"]
    assert KNOWN.workload("w1") is KNOWN.workload("decode-1k")


@pytest.mark.parametrize("workload", KNOWN.workloads, ids=lambda each: each.name)
def test_operands_are_those_of_a_valid_call(workload):
    import rpa_kernels

    page_size = 64
    operands = workload.operands(page_size)
    kv_lens, table, ends, distribution = (operands[number] for number in (4, 5, 6, 7))
    configuration = KNOWN.configuration("B")
    shape = configuration.shape(workload, page_size)
    queries = np.broadcast_to(np.zeros((), np.float16), (shape.tokens, 8, 128))
    new = queries[:, :1]
    pages = int(sum(-(-length // page_size) for length in workload.kv_lens))
    cache = np.broadcast_to(np.zeros((), np.float16), (pages, page_size, 1, 2, 128))
    rpa_kernels.validate_inputs(
        queries,
        new,
        new,
        cache,
        *(each.astype(np.int32) for each in (kv_lens, table, ends, distribution)),
    )
    used = [
        page
        for row, length in zip(table.reshape(shape.sequences, -1), workload.kv_lens, strict=False)
        for page in row[: -(-length // page_size)]
    ]
    assert sorted(used) == list(range(pages))


def test_lengths_are_spread_evenly(tmp_path):
    path = written(
        tmp_path,
        "workloads:\n  mine:\n    doc: mine\n"
        "    sequences: [{count: 2, kv_len: 7, new_tokens: 3}, {count: 3, kv_len: [10, 20],"
        " new_tokens: 1}]\n    padded: {tokens: 16, sequences: 8, context: 32}\n",
    )
    mine = workloads.load(path).workload("mine")
    assert mine.kv_lens == (10, 15, 20, 7, 7)  # those that decode come first
    assert mine.new_tokens == (1, 1, 1, 3, 3)
    assert mine.distribution == (3, 3, 5)
    assert list(mine.operands(8)[6]) == [0, 1, 2, 3, 6, 9, 9, 9, 9]


@pytest.mark.parametrize(
    ("text", "problem", "place"),
    [
        ("workloads: {w: {doc: d}}", "the key sequences is missing", ":1:16"),
        (
            "workloads: {w: {doc: d, sequences: [{count: 1, kv_len: 2, new_tokens: 3}],"
            " padded: {tokens: 8, sequences: 1, context: 8}}}",
            "2 is too small",
            ":1:56",
        ),
        (
            "workloads: {w: {doc: d, sequences: [{count: 4, kv_len: 2, new_tokens: 2}],"
            " padded: {tokens: 7, sequences: 4, context: 8}}}",
            "7 is too small",
            ":1:93",
        ),
        ("configurations: {A: {doc: d, query_heads: 0}}", "the key kv_heads is missing", ":1:21"),
        (
            "configurations: {A: {doc: d, query_heads: 0, kv_heads: 1, head_dim: 1}}",
            "found the number 0",
            ":1:43",
        ),
    ],
)
def test_wrong_files(tmp_path, text, problem, place):
    path = written(tmp_path, text)
    with pytest.raises(SpecError) as raised:
        workloads.load(path)
    assert raised.value.problem == problem
    assert raised.value.place.endswith(place)


def test_a_name_that_is_not_there():
    with pytest.raises(RpagenError, match=r'no workload "decode-2k": did you mean decode-'):
        KNOWN.workload("decode-2k")
    with pytest.raises(RpagenError, match='no configuration "Z": write one of A, B, C, D, E, F'):
        KNOWN.configuration("Z")


def test_the_floor_of_decoding():
    """64 sequences of 1,024 tokens: what has to be moved, counted by hand."""
    w1, a = KNOWN.workload("w1"), KNOWN.configuration("A")
    kv_row, query_row = 2 * 8 * 128 * 2, 32 * 128 * 2
    least = floor.of(w1, a, GENERATIONS["v6e"])
    assert least.bytes == 64 * (1023 * kv_row + 2 * kv_row + 2 * query_row)
    assert least.operations == 64 * 4 * 32 * 128 * 1024
    assert least.bound == "HBM"
    assert GENERATIONS["v6e"].microseconds(least.cycles) == pytest.approx(least.bytes / 1.64e6)


def test_the_floor_of_a_head_dim_of_64():
    """What our kernels pad it to is theirs to pay: 64 lanes count, for bytes and operations."""
    w1, d = KNOWN.workload("w1"), KNOWN.configuration("D")
    kv_row, query_row = 2 * 8 * 64 * 2, 64 * 64 * 2
    least = floor.of(w1, d, GENERATIONS["v6e"])
    assert least.bytes == 64 * (1023 * kv_row + 2 * kv_row + 2 * query_row)
    assert least.operations == 64 * 4 * 64 * 64 * 1024


def test_the_floor_of_a_window():
    """A token sees 1,024 keys, and no more than 1,023 of them are read from the cache."""
    w2, e = KNOWN.workload("w2"), KNOWN.configuration("E")
    kv_row, query_row = 2 * 8 * 128 * 2, 32 * 128 * 2
    least = floor.of(w2, e, GENERATIONS["v6e"])
    assert least.bytes == 64 * (1023 * kv_row + 2 * kv_row + 2 * query_row)
    assert least.operations == 64 * 4 * 32 * 128 * 1024


def test_the_floor_of_a_prompt():
    """2,048 tokens see 1 + 2 + ... + 2,048 keys; a head dim of 128 fills half of v6e's array."""
    w3, a = KNOWN.workload("w3"), KNOWN.configuration("A")
    least = floor.of(w3, a, GENERATIONS["v6e"])
    assert least.operations == 4 * 32 * 128 * (2048 * 2049 // 2)
    assert least.bound == "matrix unit"
    assert GENERATIONS["v6e"].microseconds(least.compute) == pytest.approx(
        least.operations / (9.2e14 / 2) * 1e6
    )
    on_v5e = floor.of(w3, a, GENERATIONS["v5e"])  # an array of 128 is filled
    assert GENERATIONS["v5e"].microseconds(on_v5e.compute) == pytest.approx(
        least.operations / 1.97e14 * 1e6
    )
