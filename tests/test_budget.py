"""VMEM, SMEM and default blocks: what fits, and that generator and emitted package agree."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rpa_kernels import support

from rpagen.spec import budget, model

# Query heads, kv heads and head dim of real models.
LLAMA_8B = (32, 8, 128)
LLAMA_8B_EIGHTH = (8, 1, 128)
GPT_OSS = (64, 8, 64)
GEMMA_QUARTER = (16, 1, 256)
QWEN_7B = (28, 4, 128)
LLAMA_7B = (32, 32, 128)

LAUNCHES = {"decode": 1, "prefill": 256, "mixed": None}


def sizes(heads: tuple[int, int, int], query_dtype: str, kv_dtype: str) -> dict[str, int]:
    """The padded sizes of a call, by the names of the arguments they are for."""
    query_heads, kv_heads, head_dim = heads
    head_dim = budget.align_to(head_dim, budget.LANES)
    kv_rows = budget.align_to(2 * kv_heads, model.packing(kv_dtype))
    return {
        "kv_heads": kv_heads,
        "group": budget.align_to(query_heads // kv_heads, model.packing(query_dtype)),
        "head_dim": head_dim,
        "query_bytes": model.BIT_WIDTHS[query_dtype] // 8,
        "kv_row_bytes": kv_rows * head_dim * model.BIT_WIDTHS[kv_dtype] // 8,
    }


DTYPES = [("float32", "float32"), *(("bfloat16", kv) for kv in model.BIT_WIDTHS if kv != "float32")]

CALLS = st.fixed_dictionaries(
    {
        "launch": st.sampled_from(sorted(LAUNCHES)),
        "generation": st.sampled_from(model.GENERATIONS),
        "heads": st.sampled_from(
            [LLAMA_8B, LLAMA_8B_EIGHTH, GPT_OSS, GEMMA_QUARTER, QWEN_7B, LLAMA_7B]
        ),
        "dtypes": st.sampled_from(DTYPES),
        "page_size": st.sampled_from([1, 4, 16, 64, 128, 256]),
        "max_keys": st.integers(64, 131072),
        "tokens": st.integers(1, 16384),
        "kv_slots": st.sampled_from([2, 3, 6]),
    }
)


def spills(query_block: int, compute_block: int, of: dict) -> int:
    """What is left to the compiler, said alike by generator and emitted package."""
    given = {name: of[name] for name in ("kv_heads", "group", "head_dim", "query_bytes")}
    given |= {"query_block": query_block, "compute_block": compute_block}
    left = budget.spill_bytes(**given)
    assert support.spill_bytes(**given) == left
    return left


def arguments(call: dict) -> tuple[str, dict[str, int | None]]:
    """The arguments of `default_blocks` for a call."""
    return call["launch"], {
        "vmem_limit_bytes": budget.VMEM_BYTES[call["generation"]],
        "static_tokens": LAUNCHES[call["launch"]],
        **{name: call[name] for name in ("page_size", "max_keys", "tokens", "kv_slots")},
        **sizes(call["heads"], *call["dtypes"]),
    }


@settings(max_examples=500)
@given(CALLS)
def test_default_blocks_of_real_shapes(call):
    launch, given_sizes = arguments(call)
    query_block, kv_block, query_tile, compute_block = budget.default_blocks(launch, **given_sizes)

    # They fit VMEM with room for the compiler's spills.
    padded = sizes(call["heads"], *call["dtypes"])
    blocks = {"query_block": query_block, "kv_block": kv_block, "compute_block": compute_block}
    blocks["query_slots"] = budget.QUERY_SLOTS[launch]
    limit = given_sizes["vmem_limit_bytes"]
    kv_slots = budget.fit_kv_slots(call["kv_slots"], vmem_limit_bytes=limit, **blocks, **padded)
    assert 2 <= kv_slots <= call["kv_slots"]
    needed = budget.vmem_bytes(kv_slots=kv_slots, **blocks, **padded)
    assert needed <= budget.SCRATCH_SHARE * given_sizes["vmem_limit_bytes"]
    assert needed + spills(query_block, compute_block, padded) <= given_sizes["vmem_limit_bytes"]

    # A launch takes them as they are.
    fitted = support.fit_blocks(
        launch,
        (query_block, kv_block, query_tile, compute_block),
        (1, 1, 1, 1),
        given_sizes["static_tokens"],
        call["page_size"],
    )
    assert fitted == (query_block, kv_block, query_tile, compute_block)

    # No larger than what there is of tokens and keys.
    most_tokens = min(call["tokens"], given_sizes["static_tokens"] or call["tokens"])
    assert query_tile.bit_count() == 1 and query_tile < 2 * most_tokens
    tile_rows = query_tile * padded["group"]
    least, most = budget.ROWS_PER_TILE
    assert query_tile <= budget.MOST_TOKENS_PER_TILE and tile_rows <= max(most, padded["group"])
    if tile_rows > max(least, padded["group"]):
        values = tile_rows * padded["kv_heads"] * padded["head_dim"]
        assert values <= budget.QUERY_VALUES_PER_STEP
    assert kv_block <= budget.align_to(call["max_keys"], call["page_size"])

    # Steps work on whole lanes of keys where the block allows it.
    assert compute_block % 16 == 0 and compute_block <= budget.KEYS_PER_STEP
    if kv_block % budget.LANES == 0:
        assert compute_block % budget.LANES == 0


ANY_SIZE = st.integers(1, 5000)


@settings(max_examples=500)
@given(
    launch=st.sampled_from(sorted(LAUNCHES)),
    given_sizes=st.fixed_dictionaries(
        {
            "vmem_limit_bytes": st.integers(1, 1 << 28),
            "static_tokens": st.none() | ANY_SIZE,
            "tokens": ANY_SIZE,
            "max_keys": st.integers(1, 1 << 20),
            "page_size": ANY_SIZE,
            "kv_slots": st.integers(2, 6),
            "kv_heads": st.integers(1, 128),
            "group": st.integers(1, 1024),
            "head_dim": st.sampled_from([128, 256]),
            "query_bytes": st.sampled_from([2, 4]),
            "kv_row_bytes": st.integers(128, 1 << 20),
        }
    ),
)
def test_default_blocks_end_and_agree_for_any_sizes(launch, given_sizes):
    """Generator and emitted package choose the same, and where nothing fits, the smallest."""
    chosen = budget.default_blocks(launch, **given_sizes)
    assert support.default_blocks(launch, **given_sizes) == chosen

    query_block, kv_block, query_tile, compute_block = chosen
    page_size = given_sizes["page_size"]
    assert query_block == query_tile >= 1
    assert kv_block >= page_size and kv_block % page_size == 0 and compute_block % 16 == 0
    block_sizes = {
        "query_block": query_block,
        "kv_block": kv_block,
        "compute_block": compute_block,
        "query_slots": budget.QUERY_SLOTS[launch],
        **{
            name: given_sizes[name]
            for name in inspect.signature(budget.vmem_bytes).parameters
            if name in given_sizes
        },
    }
    limit = given_sizes["vmem_limit_bytes"]
    most = block_sizes.pop("kv_slots")
    kv_slots = budget.fit_kv_slots(most, vmem_limit_bytes=limit, **block_sizes)
    assert support.fit_kv_slots(most, vmem_limit_bytes=limit, **block_sizes) == kv_slots
    needed = budget.vmem_bytes(kv_slots=kv_slots, **block_sizes)
    assert support.vmem_bytes(kv_slots=kv_slots, **block_sizes) == needed
    for_compiler = spills(query_block, compute_block, given_sizes)
    fits = needed <= budget.SCRATCH_SHARE * limit and needed + for_compiler <= limit
    assert fits or (query_tile, kv_block) == (1, page_size)


@pytest.mark.parametrize(
    ("heads", "dtypes", "page_size", "max_keys", "generation", "decode", "mixed"),
    [
        # The KV block is a fixed number of bytes, so a smaller cache row makes it longer.
        (LLAMA_8B, (2, 2), 16, 4096, "v6e", (1, 512, 1, 512), (256, 512, 256, 512)),
        (LLAMA_8B, (2, 1), 16, 4096, "v6e", (1, 1024, 1, 512), (256, 1024, 256, 512)),
        (LLAMA_8B_EIGHTH, (2, 2), 64, 131072, "v5e", (1, 4096, 1, 512), (256, 4096, 256, 512)),
        # A group of 7 is padded to 8.
        (QWEN_7B, (2, 2), 16, 131072, "v7x", (1, 1024, 1, 512), (256, 1024, 256, 512)),
        # No longer than a sequence can be.
        (LLAMA_8B, (2, 2), 16, 200, "v6e", (1, 208, 1, 208), (256, 208, 256, 208)),
        (LLAMA_8B, (2, 2), 16, 640, "v6e", (1, 512, 1, 512), (256, 512, 256, 512)),
        # Pages of which few make whole lanes, and pages larger than a step.
        (LLAMA_8B, (2, 2), 48, 131072, "v6e", (1, 384, 1, 384), (256, 384, 256, 384)),
        (LLAMA_8B, (2, 2), 2048, 131072, "v6e", (1, 2048, 1, 512), (256, 2048, 256, 512)),
        # Where VMEM is short, whatever takes more of it is halved.
        (LLAMA_7B, (2, 2), 16, 4096, "v7x", (1, 512, 1, 512), (64, 512, 64, 512)),
        ((32, 32, 256), (4, 4), 16, 4096, "v6e", (1, 256, 1, 256), (128, 256, 128, 256)),
    ],
)
def test_default_blocks_by_example(heads, dtypes, page_size, max_keys, generation, decode, mixed):
    names = {2: "bfloat16", 4: "float32", 1: "int8"}
    chosen = [
        budget.default_blocks(
            launch,
            vmem_limit_bytes=budget.VMEM_BYTES[generation],
            static_tokens=LAUNCHES[launch],
            tokens=2048,
            max_keys=max_keys,
            page_size=page_size,
            kv_slots=2,
            **sizes(heads, names[dtypes[0]], names[dtypes[1]]),
        )
        for launch in ("decode", "mixed")
    ]
    assert chosen == [decode, mixed]


@given(st.integers(1, 1 << 14))
@example(512)
@example(513)
@example(640)
def test_compute_block_divides_the_kv_block_where_large_ones_do(kv_block):
    keys = budget.compute_block_for(kv_block)
    assert support.compute_block_for(kv_block) == keys
    assert keys % 16 == 0 and keys <= budget.KEYS_PER_STEP
    if kv_block <= budget.KEYS_PER_STEP:
        assert 0 <= keys - kv_block < 16  # one step
    elif kv_block % budget.LANES == 0:
        assert keys % budget.LANES == 0 and keys > budget.KEYS_PER_STEP // 2
        assert kv_block % keys == 0 or keys == budget.KEYS_PER_STEP
    else:
        assert keys == budget.KEYS_PER_STEP


@given(st.integers(1, 4096), st.integers(1, 1 << 16))
def test_smem_grows_with_the_page_table(sequences, pages_per_sequence):
    needed = budget.smem_bytes(sequences, pages_per_sequence)
    assert support.smem_bytes(sequences, pages_per_sequence) == needed
    assert needed > 4 * (sequences * (pages_per_sequence + 2) + 1)
    assert needed < 4 * sequences * (pages_per_sequence + 2) + (16 << 10)


def test_smem_by_example():
    # A million tokens of context in pages of 16, for three sequences but not for four.
    assert (
        budget.smem_bytes(3, (1 << 20) // 16)
        < budget.SMEM_BYTES
        < budget.smem_bytes(4, (1 << 20) // 16)
    )
    # Found with the compiler: this many pages fit, 56 more for each of 16 sequences do not.
    assert budget.smem_bytes(16, 16176) <= budget.SMEM_BYTES < budget.smem_bytes(16, 16240 + 56)


def test_the_emitted_constants_are_those_of_the_generator():
    constants = {name: value for name, value in vars(budget).items() if name.isupper()}
    assert {name: getattr(support, name) for name in constants} == constants
    assert set(budget.VMEM_BYTES) >= set(model.GENERATIONS) == set(support.DEVICE_KINDS.values())
    assert set(budget.QUERY_SLOTS) == set(model.LAUNCHES)
