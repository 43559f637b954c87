"""Every core variant against the reference: the output within its tolerance, the cache exactly."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import rpa_kernels
from kernel_checks import check, shared_compilation

from rpagen.evidence import cases, reference, tolerance
from rpagen.spec import expand
from rpagen.spec.model import Variant

VARIANTS = expand.load_variants(Path(__file__).parent.parent / "specs")


def _cases() -> list[pytest.param]:
    return [
        pytest.param(
            variant,
            case,
            mode,
            id=f"{variant.name}-{case.name}" + (f"-{mode}" if mode != "on_wait" else ""),
            marks=shared_compilation(variant, case),
        )
        for variant in VARIANTS
        for case in cases.cases_for(variant.key)
        # Copies run as late as can be; in one case at any other time too.
        for mode in ("on_wait", "eager", "random")
        if mode == "on_wait" or case.name == "gqa3_no_mixed"
    ]


@pytest.mark.parametrize(("variant", "case", "mode"), _cases())
def test_kernel_computes_what_the_reference_does(
    variant: Variant, case: cases.Case, mode: str, kernel_mode
):
    check(variant, cases.build(case, variant.key), kernel_mode, dma_execution_mode=mode)


def test_a_million_tokens_of_context(kernel_mode):
    page_size, window, tokens, ahead = 16, 20, np.array([1, 5]), 1 << 16
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((6, 2, 128)).astype(jnp.bfloat16)
    keys, values = rng.standard_normal((2, 6, 1, 128)).astype(jnp.bfloat16)
    kv_cache = rng.standard_normal((12, page_size, 1, 2, 128)).astype(jnp.bfloat16)
    table = rng.permutation(12)[:10].reshape(2, 5).astype(np.int32)
    kv_lens = np.array([70, 77], np.int32)
    starts = np.concatenate([[0], tokens.cumsum()]).astype(np.int32)
    distribution = np.array([1, 1, 2], np.int32)
    options = {"sm_scale": 0.1, "sliding_window": window}
    expected = reference.reference(
        *(queries, keys, values, kv_cache, kv_lens, table.ravel(), starts, distribution),
        layout="head_interleaved",
        **options,
    )
    # The same sequences behind 65,536 pages that no window reaches, and that are not there.
    far = np.concatenate([np.full((2, ahead), -1, np.int32), table], axis=1)
    far_lens = (kv_lens + ahead * page_size).astype(np.int32)
    assert far_lens.min() > 1_048_576
    with kernel_mode():
        out, new_cache = rpa_kernels.ragged_paged_attention(
            *map(jnp.asarray, (queries, keys, values, kv_cache, far_lens, far.ravel(), starts)),
            jnp.asarray(distribution),
            d_block_sizes=(1, 48, 1, 16),
            m_block_sizes=(4, 48, 4, 16),
            **options,
        )
        out, new_cache = np.asarray(out), np.asarray(new_cache)
    tolerance.assert_same_bits(new_cache, expected.kv_cache)
    tolerance.assert_close(out, expected, query_dtype="bfloat16")


def test_more_sequences_than_8_bits_count(kernel_mode):
    """In every launch; the interpreter takes too long for this to be a case of all variants."""
    (variant,) = (each for each in VARIANTS if each.name == "rpa")
    geometry = dataclasses.replace(
        cases.MANY_PAGES,
        max_seqs=264,
        pages_per_seq=20,
        chunk_prefill_size=4,
        prefill_blocks=(4, 16, 4, 16),
        mixed_blocks=(4, 16, 4, 16),
    )
    case = dataclasses.replace(
        named("many_pages", variant),
        geometry=geometry,
        decode=((1, 1),) * 257 + ((1, 20), (1, 3)),
        prefill=((2, 18),),
        mixed=((5, 12), (1, 1)),
    )
    check(variant, cases.build(case, variant.key), kernel_mode)


def test_wider_keys_and_values_are_rounded_once(kernel_mode):
    (variant,) = (each for each in VARIANTS if each.name == "rpa")
    inputs = cases.build(named("gqa4_decode_only", variant), variant.key)
    # Off the bfloat16 numbers, and some of them above the largest.
    keys = inputs.keys.astype(np.float32) * np.float32(1.001)
    values = inputs.values.astype(np.float32) * np.float32(0.999)
    values[0, 0, :4] = [3.4e38, -3.4e38, 1e-30, -0.0]
    check(variant, dataclasses.replace(inputs, keys=keys, values=values), kernel_mode)


def named(name: str, variant: Variant) -> cases.Case:
    return next(case for case in cases.cases_for(variant.key) if case.name == name)
