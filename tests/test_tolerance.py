"""The tolerance: a simulated kernel that is right must pass, and one slightly wrong must not."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rpagen.evidence import cases, reference, tolerance
from rpagen.spec import model

INTERLEAVED = "head_interleaved"
KEYS = {
    "f32": model.DispatchKey(INTERLEAVED, "float32", "float32", "none", ()),
    "f32 cap": model.DispatchKey(INTERLEAVED, "float32", "float32", "none", ("soft_cap",)),
    "bf16": model.DispatchKey(INTERLEAVED, "bfloat16", "bfloat16", "none", ()),
    "bf16 window cap": model.DispatchKey(
        INTERLEAVED, "bfloat16", "bfloat16", "none", ("sliding_window", "soft_cap")
    ),
    "e4m3": model.DispatchKey(INTERLEAVED, "bfloat16", "float8_e4m3fn", "per_tensor", ()),
    "e4m3 query": model.DispatchKey(
        INTERLEAVED, "bfloat16", "float8_e4m3fn", "per_tensor_with_query", ()
    ),
    "e5m2": model.DispatchKey(INTERLEAVED, "bfloat16", "float8_e5m2", "none", ()),
    "int8 cap": model.DispatchKey(INTERLEAVED, "bfloat16", "int8", "per_tensor", ("soft_cap",)),
}
every_key = pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)

Matmul = Callable[[np.ndarray, np.ndarray], np.ndarray]
LOG2_E = math.log2(math.e)


def sequential_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A float32 matmul that adds its products one by one."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for column, row in zip(a.T, b, strict=True):
        total += np.outer(column, row)
    return total


@dataclasses.dataclass(frozen=True)
class Simulation:
    """The numerics of a kernel in NumPy: online softmax in float32 over blocks of keys.

    The fields after `base_two` are faults.
    """

    block: int = 32
    matmul: Matmul = np.matmul
    base_two: bool = True
    score_dtype: str = "float32"
    causal_shift: int = 0
    window_shift: int = 0
    dropped_key: int | None = None
    rescales_accumulator: bool = True
    rescales_sum: bool = True
    sum_factor: float = 1.0

    def run(self, inputs: cases.Inputs, kv_cache: np.ndarray) -> np.ndarray:
        """The output for `inputs`, with all keys and values read from `kv_cache`."""
        case, geometry = inputs.case, inputs.case.geometry
        group = geometry.num_q_heads // geometry.num_kv_heads
        tables = inputs.page_indices.reshape(geometry.max_seqs, -1)
        queries = inputs.queries
        if case.q_scale is not None:
            queries = reference.quantize(queries, kv_cache.dtype, case.q_scale)
        out = np.zeros(queries.shape, inputs.queries.dtype)
        for seq, (q_len, kv_len) in enumerate(case.lengths):
            tokens = slice(inputs.cu_q_lens[seq], inputs.cu_q_lens[seq] + q_len)
            pages = case.pages_in_use[seq]
            first_key = pages.start * geometry.page_size if pages else kv_len
            keys, values = reference.read_sequence(
                kv_cache,
                tables[seq],
                first_key,
                kv_len,
                geometry.num_kv_heads,
                geometry.head_dim,
                inputs.layout,
            )
            visible = reference.visible_keys(
                np.arange(q_len) + kv_len - q_len + self.causal_shift,
                kv_len,
                sliding_window=case.sliding_window and case.sliding_window + self.window_shift,
                causal=case.causal,
            )
            if self.dropped_key is not None:
                visible[:, self.dropped_key : self.dropped_key + 1] = False
            visible = visible[:, first_key:]
            for kv_head in range(geometry.num_kv_heads):
                heads = slice(kv_head * group, (kv_head + 1) * group)
                rows = queries[tokens, heads].astype(np.float32)
                result = self._attend(
                    rows.reshape(q_len * group, geometry.head_dim),
                    keys[:, kv_head].astype(np.float32),
                    values[:, kv_head].astype(np.float32),
                    np.repeat(visible, group, axis=0),
                    case,
                    out.dtype,
                )
                out[tokens, heads] = result.reshape(rows.shape)
        return out

    def _attend(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        visible: np.ndarray,
        case: cases.Case,
        dtype: np.dtype,
    ) -> np.ndarray:
        scale = case.geometry.sm_scale * (case.k_scale or 1.0) * (case.q_scale or 1.0)
        to_base = np.float32(LOG2_E if self.base_two else 1.0)
        exp = np.exp2 if self.base_two else np.exp
        maximum = np.full((len(queries), 1), -1e30, np.float32)
        total = np.zeros_like(maximum)
        accumulator = np.zeros(queries.shape, np.float32)
        for start in range(0, len(keys), self.block):
            block = slice(start, start + self.block)
            scores = self.matmul(queries, np.ascontiguousarray(keys[block].T))
            scores = scores.astype(self.score_dtype).astype(np.float32)
            if case.soft_cap is not None:
                scores = np.tanh(scores * np.float32(scale / case.soft_cap))
                scores *= np.float32(case.soft_cap) * to_base
            else:
                scores *= np.float32(scale) * to_base
            scores = np.where(visible[:, block], scores, np.float32(-1e30))
            new_maximum = np.maximum(maximum, scores.max(axis=1, keepdims=True))
            p = np.where(visible[:, block], exp(scores - new_maximum), np.float32(0))
            rescale = exp(maximum - new_maximum)
            total = total * (rescale if self.rescales_sum else 1) + p.sum(1, keepdims=True)
            accumulator *= rescale if self.rescales_accumulator else 1
            accumulator += self.matmul(p.astype(dtype).astype(np.float32), values[block])
            maximum = new_maximum
        total = np.where(total == 0, np.float32(1), total) * np.float32(self.sum_factor)
        return accumulator * (1 / total) * np.float32(case.v_scale or 1.0)


@functools.cache
def runs(key: model.DispatchKey, seed: int = 0) -> list[tuple[cases.Inputs, reference.Result]]:
    """Inputs of the named cases, and what the reference makes of them."""
    inputs = [cases.build(case, key, seed) for case in cases.cases_for(key)]
    return [(one, one.expected()) for one in inputs]


# Right kernels pass, and come near the bound.


@every_key
def test_an_honest_kernel_passes_and_the_bound_is_tight(key, record_property):
    ratios = []
    for inputs, result in runs(key):
        simulations = [Simulation()]
        if inputs.case.geometry is not cases.GQA8_PAGE64:  # The slowest to simulate.
            simulations.append(Simulation(block=16, matmul=sequential_matmul, base_two=False))
        for simulation in simulations:
            out = simulation.run(inputs, result.kv_cache)
            ratios.append(
                tolerance.assert_close(
                    out, result, query_dtype=key.query_dtype, label=inputs.case.name
                )
            )
    record_property("largest error over tolerance", max(ratios))
    assert max(ratios) > 1 / 3


@every_key
def test_the_bound_is_tight_where_roundings_average_out(key):
    """The rounding of the output is a hard bound and easy to reach: look at all the rest."""
    largest = 0.0
    for inputs, result in runs(key):
        out = Simulation().run(inputs, result.kv_cache).astype(np.float64)
        u_out = 0.0 if key.query_dtype == "float32" else 2.0**-8
        rounding = u_out * np.abs(result.out)
        tolerated = tolerance.bound(result, query_dtype=key.query_dtype, out_dtype=key.query_dtype)
        excess = (np.abs(out - result.out) - rounding) / (tolerated - rounding)
        largest = max(largest, excess[result.written].max())
    assert 1 / 4 < largest < 1


def scaled_queries(inputs: cases.Inputs, factor: float) -> cases.Inputs:
    queries = inputs.queries.astype(np.float32) * np.float32(factor)
    return dataclasses.replace(inputs, queries=queries.astype(inputs.queries.dtype))


STRESSES = {
    "logits near 200": lambda inputs: scaled_queries(inputs, 20),
    "flat": lambda inputs: scaled_queries(inputs, 0.01),
    "equal scores": lambda inputs: scaled_queries(inputs, 0),
    "all positive": lambda inputs: dataclasses.replace(
        inputs,
        queries=np.abs(inputs.queries),
        keys=np.abs(inputs.keys),
        values=np.abs(inputs.values),
        kv_cache=np.abs(inputs.kv_cache),
    ),
}


@pytest.mark.parametrize(
    "key", [KEYS["f32"], KEYS["f32 cap"], KEYS["bf16"], KEYS["bf16 window cap"]]
)
@pytest.mark.parametrize("stress", STRESSES.values(), ids=STRESSES)
def test_an_honest_kernel_passes_under_stress(stress, key):
    geometry = dataclasses.replace(cases.GQA4_PAGE16, pages_per_seq=50, num_pages=64)
    case = cases.Case(name="stress", geometry=geometry, mixed=((9, 800), (9, 100)))
    inputs = stress(cases.build(cases.adapt(case, key), key))
    result = inputs.expected()
    for matmul in (np.matmul, sequential_matmul):
        out = Simulation(matmul=matmul, block=128).run(inputs, result.kv_cache)
        ratio = tolerance.assert_close(out, result, query_dtype=key.query_dtype)
        assert ratio > 1 / 8 or stress is STRESSES["equal scores"]


# Wrong kernels do not.


def with_case(inputs: cases.Inputs, **changes: Any) -> cases.Inputs:
    return dataclasses.replace(inputs, case=dataclasses.replace(inputs.case, **changes))


def with_sm_scale(inputs: cases.Inputs, factor: float) -> cases.Inputs:
    geometry = inputs.case.geometry
    return with_case(
        inputs, geometry=dataclasses.replace(geometry, sm_scale=geometry.sm_scale * factor)
    )


Fault = Callable[[cases.Inputs, np.ndarray], np.ndarray]
# What is wrong, in which variants it can be, and the output then.
FAULTS: dict[str, tuple[str, Fault]] = {
    "output 1% too large": (
        "f32,bf16,e4m3,int8 cap",
        lambda inputs, cache: (
            Simulation().run(inputs, cache).astype(np.float32) * np.float32(1.01)
        ).astype(inputs.queries.dtype),
    ),
    "normaliser 1% off": (
        "f32,bf16,e4m3,int8 cap",
        lambda inputs, cache: Simulation(sum_factor=1.01).run(inputs, cache),
    ),
    "scale 1% off": (
        "f32,bf16,e4m3,e4m3 query",
        lambda inputs, cache: Simulation().run(with_sm_scale(inputs, 1.01), cache),
    ),
    "value scale 1% off": (
        "e4m3,e4m3 query,int8 cap",
        lambda inputs, cache: Simulation().run(
            with_case(inputs, v_scale=inputs.case.v_scale * 1.01), cache
        ),
    ),
    "soft cap 2% off": (
        "f32 cap,bf16 window cap,int8 cap",
        lambda inputs, cache: Simulation().run(
            with_case(inputs, soft_cap=inputs.case.soft_cap * 1.02), cache
        ),
    ),
    "window one too wide": (
        "bf16 window cap",
        lambda inputs, cache: Simulation(window_shift=1).run(inputs, cache),
    ),
    "window one too narrow": (
        "bf16 window cap",
        lambda inputs, cache: Simulation(window_shift=-1).run(inputs, cache),
    ),
    "a query sees the key after it": (
        "f32,bf16,e4m3,e5m2",
        lambda inputs, cache: Simulation(causal_shift=1).run(inputs, cache),
    ),
    "a query does not see itself": (
        "f32,bf16,e4m3,e5m2",
        lambda inputs, cache: Simulation(causal_shift=-1).run(inputs, cache),
    ),
    "first key dropped": (
        "f32,bf16,e4m3,int8 cap",
        lambda inputs, cache: Simulation(dropped_key=0).run(inputs, cache),
    ),
    "accumulator not rescaled": (
        "f32,bf16,e4m3,int8 cap",
        lambda inputs, cache: Simulation(rescales_accumulator=False).run(inputs, cache),
    ),
    "sum not rescaled": (
        "f32,bf16,e4m3,int8 cap",
        lambda inputs, cache: Simulation(rescales_sum=False).run(inputs, cache),
    ),
    "scores rounded to bfloat16": (
        "f32,bf16,e4m3",
        lambda inputs, cache: Simulation(score_dtype="bfloat16").run(inputs, cache),
    ),
}


@pytest.mark.parametrize(
    ("fault", "key"),
    [
        pytest.param(fault, KEYS[name], id=f"{what}-{name}")
        for what, (names, fault) in FAULTS.items()
        for name in names.split(",")
    ],
)
def test_a_fault_is_caught(fault, key):
    caught = []
    for inputs, result in runs(key):
        if inputs.case.geometry is cases.GQA8_PAGE64:
            continue  # The slowest to simulate.
        out = fault(inputs, result.kv_cache)
        try:
            tolerance.assert_close(out, result, query_dtype=key.query_dtype)
        except AssertionError:
            caught.append(inputs.case.name)
    # Not all of them: some sequences fit one block, and a new token sees all keys anyway.
    assert len(caught) >= 8, caught


# The bound in numbers, and the errors.


def two_keys() -> reference.Result:
    """Two queries that see two keys; for the first one they weigh 3/4 and 1/4."""
    log3 = np.float32(math.log(3))
    return reference.reference(
        np.array([[[log3]], [[7]]], np.float32),
        np.array([[[1]], [[0]]], np.float32),
        np.array([[[-8]], [[4]]], np.float32),
        np.zeros((1, 4, 2, 1, 128), np.float32),
        np.array([2]),
        np.array([0]),
        np.array([0, 2]),
        np.array([0, 0, 1]),
        causal=False,
    )


def test_noise_of_two_keys():
    result, log3 = two_keys(), math.log(3)
    noise = result.noise
    np.testing.assert_allclose(result.out[0, 0, 0], -5, rtol=1e-7)
    np.testing.assert_allclose(noise.magnitude[0, 0, 0], 7, rtol=1e-7)
    np.testing.assert_allclose(noise.probability[0, 0, 0], math.hypot(1, 6), rtol=1e-7)
    # Scores log 3 and 0, and values that are 3 below and 9 above the output.
    np.testing.assert_allclose(noise.covariance[0, 0, 0], 3 / 4 * 3 * log3, rtol=1e-7)
    of_exp = tolerance.EXP_ROUNDINGS**2
    larger = (3 / 4 * 3) ** 2 * (log3**2 * (1 / 3 + 1 / 3 + 4) + of_exp)
    smaller = (1 / 4 * 9) ** 2 * (2 * log3**2 + of_exp)
    sums = 2 / 3 * (2 * 5**2 + 1 + 6**2)
    np.testing.assert_allclose(
        noise.float32[0, 0, 0], math.sqrt(larger + smaller + sums), rtol=1e-7
    )


def test_a_soft_cap_shrinks_the_noise_of_the_dot_product():
    # Rows of zeros, but for scores of 20 and -20; the cap makes them all but 1 and -1.
    queries = np.array([[[4, 2]]], np.float64)
    keys, values = np.array([[5, 0], [-5, 0]], np.float64), np.array([[1, 0], [0, 1]], np.float64)
    noise = []
    for soft_cap in (None, 1.0):
        scores = np.array([20, -20]) if soft_cap is None else np.tanh([20, -20])
        weights = (np.exp(scores) / np.exp(scores).sum()).reshape(1, 1, 2)
        noise.append(
            tolerance.propagate(
                queries,
                keys,
                values,
                np.ones((1, 1, 2), np.bool_),
                weights,
                weights @ values,
                sm_scale=1.0,
                soft_cap=soft_cap,
            )
        )
    uncapped, capped = noise
    w = 1 / (1 + math.exp(-2))
    of_scores = tolerance.EXP_ROUNDINGS**2 + 4
    spread = 2 * (w * (1 - w)) ** 2 * of_scores + (w * (1 - w)) ** 2 * 2 * 2**2
    sums = 2 / 3 * 3 * w**2
    np.testing.assert_allclose(capped.float32[0, 0, 0], math.sqrt(spread + sums), rtol=1e-6)
    assert uncapped.float32[0, 0, 0] == pytest.approx(math.sqrt(2), rel=1e-6)


def test_hard_bound_for_bfloat16_with_few_keys():
    result = two_keys()
    bound = tolerance.bound(result, query_dtype="bfloat16", out_dtype="bfloat16")
    np.testing.assert_allclose(bound[0, 0, 0], 2**-8 * (5 + 7), rtol=0.01)
    bound = tolerance.bound(result, query_dtype="bfloat16", out_dtype="float32")
    np.testing.assert_allclose(bound[0, 0, 0], 2**-8 * 7, rtol=0.01)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"])
@pytest.mark.parametrize("query_dtype", ["bfloat16", "float32"])
def test_a_narrower_output_has_its_own_rounding(dtype, query_dtype):
    """It is tolerated, also where the dtype ends near 0; an output off by one more is not."""
    _, result = runs(KEYS["f32" if query_dtype == "float32" else "bf16"])[0]
    for factor in (1.0, 1e-3):
        noise = tolerance.Noise(*(factor * each for each in dataclasses.astuple(result.noise)))
        small = dataclasses.replace(result, out=factor * result.out, noise=noise)
        out = small.out.astype(query_dtype).astype(dtype)
        assert tolerance.assert_close(out, small, query_dtype=query_dtype) <= 1
        bits = f"u{out.dtype.itemsize}"
        out[small.written] = (out[small.written].view(bits) + 1).view(out.dtype)
        if out.dtype.itemsize == 1 or query_dtype == "float32":
            with pytest.raises(AssertionError, match="out of tolerance"):
                tolerance.assert_close(out, small, query_dtype=query_dtype)


def test_many_keys_average_out():
    zeros = np.zeros((400, 1, 1), np.float32)
    signs = np.resize(np.array([1, -1], np.float32), (400, 1, 1))
    result = reference.reference(
        zeros,
        zeros,
        signs,
        np.zeros((1, 400, 2, 1, 128), np.float32),
        np.array([400]),
        np.array([0]),
        np.array([0, 400]),
        np.array([0, 0, 1]),
        causal=False,
    )
    bound = tolerance.bound(result, query_dtype="bfloat16", out_dtype="bfloat16")
    np.testing.assert_allclose(bound, 2**-8 * 6 / math.sqrt(3 * 400), rtol=0.01)


def test_the_error_names_the_worst_element():
    inputs, result = runs(KEYS["bf16"])[0]
    out = result.out.astype("bfloat16")
    out[3, 2, 1] += np.asarray(0.5, out.dtype)
    out[4, 0, 0] += np.asarray(0.1, out.dtype)
    with pytest.raises(AssertionError) as caught:
        tolerance.assert_close(out, result, query_dtype="bfloat16", label=inputs.case.name)
    message = str(caught.value)
    assert message.startswith("gqa4_three_ranges: 2 of 55296 elements are out of tolerance; ")
    assert "the worst is token 3, head 2, lane 1: " in message
    assert f"{float(out[3, 2, 1]):.9g} instead of {result.out[3, 2, 1]:.9g}" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_out_of_tolerance(value):
    _, result = runs(KEYS["bf16"])[0]
    out = result.out.astype("bfloat16")
    out[5, 4, 3] = value
    with pytest.raises(AssertionError, match=r"1 of .* token 5, head 4, lane 3: .*\(inf times\)"):
        tolerance.assert_close(out, result, query_dtype="bfloat16")


def test_nan_is_expected_where_the_reference_has_it():
    result = two_keys()
    spoiled = dataclasses.replace(result, out=np.where([[[True]], [[False]]], np.nan, result.out))
    out = spoiled.out.astype(np.float32)
    tolerance.assert_close(out, spoiled, query_dtype="float32")
    with pytest.raises(AssertionError, match="token 0, head 0, lane 0"):
        tolerance.assert_close(result.out.astype(np.float32), spoiled, query_dtype="float32")


def test_rows_that_are_not_written_do_not_count():
    _, result = runs(KEYS["bf16"])[0]
    out = result.out.astype("bfloat16")
    assert not result.written.all()
    for value in (np.nan, 1e9):
        out[~result.written] = value
        assert tolerance.assert_close(out, result, query_dtype="bfloat16") <= 1


def test_a_query_that_sees_nothing_must_give_zero():
    _, result = next(run for run in runs(KEYS["bf16"]) if "empty" in run[0].case.name)
    token = int(np.argmax(np.isneginf(result.lse[:, 0])))
    out = result.out.astype("bfloat16")
    out[token, 0, 0] = 1e-20
    with pytest.raises(AssertionError, match=f"token {token}, head 0, lane 0"):
        tolerance.assert_close(out, result, query_dtype="bfloat16")


def test_shapes_must_agree():
    result = two_keys()
    with pytest.raises(AssertionError, match=r"out: shape \(1, 1, 1\), not \(2, 1, 1\)"):
        tolerance.assert_close(result.out[:1], result, query_dtype="float32")


def test_same_bits():
    array = np.array([[0.0, np.nan], [1.0, 2.0]], "bfloat16")
    tolerance.assert_same_bits(array.copy(), array)
    other = array.copy()
    other[0, 0] = -0.0
    other[1, 1] = 3.0
    with pytest.raises(AssertionError) as caught:
        tolerance.assert_same_bits(other, array)
    assert str(caught.value) == (
        "kv_cache: 2 elements differ, all of them within [0..1, 0..1]; the first is"
        " [0, 0]: -0 instead of 0"
    )
    with pytest.raises(AssertionError, match="kv_cache: float32, not bfloat16"):
        tolerance.assert_same_bits(array.astype(np.float32), array)
    with pytest.raises(AssertionError, match=r"kv_cache: shape \(1, 2\), not \(2, 2\)"):
        tolerance.assert_same_bits(array[:1], array)
