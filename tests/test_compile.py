"""Every core variant through the real TPU compiler at small blocks, one also at its defaults."""

from __future__ import annotations

import importlib.util

import pytest
import rpa_kernels

from rpagen.evidence import compile as aot

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is for x86-64 Linux only"
)

SMALL = aot.CallShape(
    query_heads=8,
    kv_heads=2,
    head_dim=128,
    page_size=16,
    tokens=64,
    sequences=4,
    pages_per_sequence=16,
)
LLAMA_8B = aot.CallShape(
    query_heads=32,
    kv_heads=8,
    head_dim=128,
    page_size=64,
    tokens=2048,
    sequences=64,
    pages_per_sequence=128,
)


@pytest.mark.parametrize("name", [variant.name for variant in rpa_kernels.variants()])
def test_every_variant_compiles_for_v6e(name: str):
    module = rpa_kernels.load(name)
    compiled = aot.compile_variant(
        module,
        "v6e",
        SMALL,
        chunk_prefill_size=32,
        d_block_sizes=(1, 64, 1, 32),
        p_block_sizes=(32, 64, 16, 32),
        m_block_sizes=(16, 64, 8, 64),
        **aot.options_of(module.VARIANT),
    )
    assert compiled.lowered.count("tpu_custom_call") == 3  # decode, prefill, mixed


@pytest.mark.parametrize("generation", aot.TOPOLOGIES)
def test_default_blocks_compile_for_every_generation(generation: str):
    module = rpa_kernels.load("rpa")
    aot.compile_variant(module, generation, LLAMA_8B, chunk_prefill_size=512)
