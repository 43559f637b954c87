"""Random workloads: every one is a valid call, and together they reach all that kernels meet."""

from __future__ import annotations

import collections
import random
from pathlib import Path

import jax
import pytest
import rpa_kernels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_checks import check

from rpagen.evidence import cases, workloads
from rpagen.spec import expand
from rpagen.spec.model import DispatchKey, Variant

VARIANTS = {
    each.name: each for each in expand.load_variants(Path(__file__).parent.parent / "specs")
}
KEYS = sorted({variant.key for variant in VARIANTS.values()}, key=repr)
# One for each packing and layout, one with all that masks, one that only reads the cache.
CHOSEN = ("rpa", "rpa_sliding_window_soft_cap", "rpa_int8", "rpa_head_major", "rpa_kv_share")


def geometries(key: DispatchKey) -> st.SearchStrategy[cases.Geometry]:
    """What kernels are compiled for. The chance is hypothesis's own, so that it can shrink it."""
    return st.randoms(use_true_random=False).map(
        lambda rng: workloads.geometry(rng, key, "hypothesis")
    )


def ragged(shape: cases.Geometry, key: DispatchKey) -> st.SearchStrategy[cases.Case]:
    """Workloads in a geometry."""
    return st.randoms(use_true_random=False).map(
        lambda rng: workloads.case(rng, shape, key, "hypothesis")
    )


def validate(inputs: cases.Inputs) -> None:
    """Raises a ValueError if it is no valid call."""
    case = inputs.case
    rpa_kernels.validate_inputs(
        *(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in inputs.arrays[:4]),
        *inputs.arrays[4:],
        chunk_prefill_size=case.geometry.chunk_prefill_size,
        sliding_window=case.sliding_window,
        update_kv_cache=case.update_kv_cache,
    )


@settings(max_examples=100)
@given(st.data())
def test_every_workload_is_a_valid_call(data: st.DataObject):
    key = data.draw(st.sampled_from(KEYS))
    shape = data.draw(geometries(key))
    validate(cases.build(data.draw(ragged(shape, key)), key))


def test_the_same_seed_makes_the_same_workloads():
    key = VARIANTS["rpa"].key
    assert list(workloads.workloads(key, 7)) == list(workloads.workloads(key, 7))
    assert list(workloads.workloads(key, 7)) != list(workloads.workloads(key, 8))


def test_workloads_reach_what_kernels_meet():
    seen: collections.Counter[str] = collections.Counter()
    geometry_of: dict[str, set[object]] = collections.defaultdict(set)
    key = VARIANTS["rpa_sliding_window"].key
    total = 0
    for seed in range(150):
        for case in workloads.workloads(key, seed):
            total += 1
            shape = case.geometry
            group = shape.num_q_heads // shape.num_kv_heads
            page, kv_block = shape.page_size, shape.decode_blocks[1]
            geometry_of["head dim"].add(shape.head_dim)
            geometry_of["group"].add(group)
            geometry_of["kv heads"].add(shape.num_kv_heads)
            geometry_of["poison"].add(case.poison)
            geometry_of["data"].add(case.data)
            kinds = [kind for kind in ("decode", "prefill", "mixed") if getattr(case, kind)]
            seen.update([" and ".join(kinds) or "nothing"])
            seen["full array"] += case.num_tokens == shape.max_tokens
            seen["partial last block of a table"] += shape.pages_per_seq * page % kv_block != 0
            seen["no chunk size"] += shape.chunk_prefill_size is None
            for edge, size in (
                ("page", page),
                ("KV block", kv_block),
                ("compute block", shape.decode_blocks[3]),
            ):
                for offset in (-1, 0, 1):
                    seen[f"{edge} {offset:+}"] += any(
                        kv_len > 1 and (kv_len - offset) % size == 0 for _, kv_len in case.lengths
                    )
                    seen[f"window {edge} {offset:+}"] += (shape.sliding_window - offset) % size == 0
            for new, keys in case.prefill + case.mixed:
                seen["no new tokens"] += new == 0 < keys
                seen["no keys"] += keys == 0 < new
                seen["neither"] += new == 0 == keys
                seen["one key"] += keys == 1
                seen["all keys are new"] += new == keys > 1
    assert geometry_of["head dim"] == {64, 80, 96, 112, 128, 192, 256}
    assert geometry_of["kv heads"] == set(range(1, 9))
    assert geometry_of["group"] >= set(range(1, 9)) and max(geometry_of["group"]) == 16
    assert geometry_of["poison"] == set(cases.POISON)
    assert geometry_of["data"] == set(cases.DATA)
    assert {
        *("nothing", "decode", "prefill", "mixed", "decode and prefill", "decode and mixed"),
        *("prefill and mixed", "decode and prefill and mixed"),
    } <= set(seen)
    assert {kind: count for kind, count in seen.items() if count < total / 100} == {}


@pytest.mark.parametrize("name", CHOSEN)
def test_kernels_compute_what_the_reference_does(name: str, kernel_mode):
    """In one geometry each, which is compiled once: `rpagen validate --seeds` draws others."""
    variant: Variant = VARIANTS[name]
    shape = workloads.geometry(random.Random(name), variant.key, "hypothesis")

    @settings(
        max_examples=5,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    @given(ragged(shape, variant.key), st.integers(0, 1 << 16))
    def compare(case: cases.Case, seed: int) -> None:
        inputs = cases.build(case, variant.key, seed)
        check(variant, inputs, kernel_mode, dma_execution_mode="random", seed=seed)

    compare()
