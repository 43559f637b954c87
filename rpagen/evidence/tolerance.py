"""How far the output of a correct kernel may be from the float64 reference, and why.

Numerics `exact` promise the following, and every term below follows from it.  Scores, maximum,
exponentials, sums and the accumulator are float32.  Products of queries and keys enter the matrix
unit exactly (8-bit keys are exact in bfloat16) and are summed in float32.  For bfloat16 queries
the probabilities p, not their sum, are rounded to bfloat16 for the product with V; for float32
queries they are not.  The output is rounded once, to the dtype of the queries, and once more where
another one is asked for.

Write w_k for the softmax weights of one query, v_k for one lane of the values, o = sum_k w_k v_k
for the exact output, n for the number of keys the query sees, d for the head dim, s_k for the
scores, m for their maximum, and u(T) for the unit roundoff of dtype T, 2**-8 for bfloat16 and
2**-24 for float32, say.  To first order the error of an element of the output is the sum of:

1. Rounding of the output: at most u(out) |o|, or half of the smallest number of a dtype that ends
   near 0, such as float8_e4m3fn.  Where it is coarser than the dtype of the queries, the rounding
   to that one comes first, and adds its own.  A hard bound.

2. Rounding of p to bfloat16: sum_k w_k v_k r_k with |r_k| <= u(bfloat16).  Hard bound:
   u sum_k w_k |v_k|.  The roundings of different keys are independent, so this is far from
   reached when there are many; a rounding uniform in +-u has variance u**2 / 3, and the sum has a
   standard deviation of at most u sqrt(sum_k w_k**2 v_k**2 / 3).  We allow the smaller one of the
   hard bound and SIGMAS standard deviations.  The hard bound is the smaller one for up to about
   SIGMAS**2 / 3 = 12 keys of equal weight.

3. Float32 arithmetic.  An error e_k relative to p_k counts in numerator and denominator alike and
   moves the output by sum_k w_k (v_k - o) e_k.  In units of u(float32)**2 / 3, the variance of
   e_k is the sum of

   - d / 3 (z**2 + c**2 sum_j (q_j k_j)**2) for the dot product, z = c q.k being the scaled score
     before the soft cap and c the scale: every addition rounds a partial sum, and that is the
     expected sum of the squares of all partial sums in random order, up to a factor that we do
     not use of 1/2 in the second term.  A soft cap shrinks it by the square of its slope;
   - 4 s_k**2 for up to four roundings of the score: scale, soft cap, tanh, log2(e);
   - 2 (s_k - m)**2 for the subtraction of the maximum and a product with log(2), which is how
     XLA makes exp2 from exp;
   - EXP_ROUNDINGS**2 for the exponential itself.

   The sums over keys add n / 3 (o**2 + sum_k w_k**2 v_k**2) for the numerator and n / 3 o**2 for
   the denominator, again by their partial sums.  Rescaling for a new maximum uses the same factor
   in both, so it adds nothing but one rounding per block, which the unused factors cover.  Of all
   this we allow SIGMAS standard deviations.

4. Rounding of the constants that scores are multiplied with (scale, log2(e), their product,
   log(2)) acts on all scores alike, so it does not average out: at most CONSTANT_ROUNDINGS
   u(float32) times the covariance |sum_k w_k (v_k - o) s_k|.

SIGMAS = 6 leaves a chance of 2e-9 that a correct element is refused if errors were normal; they
are bounded, and tail off faster.  Among five million elements of simulated kernels the largest
error is 0.6 of the bound for float32 queries; for bfloat16 ones it is 0.6 where roundings of p
average out and 0.9 where the hard bounds hold, with the matmul and the exponential of NumPy and
with those of XLA on a CPU.  For a TPU, EXP_ROUNDINGS, and term 3 where a float32 product is made
of bfloat16 passes, are still to be confirmed.

The independence in term 2 fails for keys that are copies of each other with a score below the
maximum: their probabilities have one rounding in common.  A case built of such keys has to be
judged by the hard bound.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rpagen.evidence import reference

Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

SIGMAS = 6
# Two units in the last place, which is four times the unit roundoff.
EXP_ROUNDINGS = 4
CONSTANT_ROUNDINGS = 4

# Below this, probabilities that are flushed to zero may show: up to 2**20 of them, each less than
# 2**-126, times values of up to 2**16.
_FLUSHED = 2.0**-90


@dataclasses.dataclass(frozen=True)
class Noise:
    """What the bound of every element of an output is made of, float64 [..., head dim] each.

    probability: sqrt(sum_k w_k**2 v_k**2), for independent roundings of p.
    magnitude: sum_k w_k |v_k|, for roundings of p that conspire.
    float32: the square root of the variance in term 3, in units of u(float32)**2 / 3.
    covariance: |sum_k w_k (v_k - o) s_k|.
    """

    probability: Float64Array
    magnitude: Float64Array
    float32: Float64Array
    covariance: Float64Array

    @classmethod
    def unspecified(cls, shape: tuple[int, ...]) -> Noise:
        """Noise of an output of this shape, not known anywhere yet."""
        return cls(*(np.full(shape, np.nan) for _ in dataclasses.fields(cls)))

    def __setitem__(self, index: Any, part: Noise) -> None:
        """Sets the noise of part of an output."""
        for field in dataclasses.fields(self):
            getattr(self, field.name)[index] = getattr(part, field.name)


def propagate(
    queries: Float64Array,
    keys: Float64Array,
    values: Float64Array,
    visible: BoolArray,
    weights: Float64Array,
    out: Float64Array,
    *,
    sm_scale: float,
    soft_cap: float | None,
) -> Noise:
    """The noise of the output of one kv head, by the terms of the module's docstring.

    Args:
      queries: [queries, group, head dim], as they enter the dot product.
      keys: [kv_len, head dim], as they enter the dot product up to `sm_scale`.
      values: [kv_len, head dim], finite.
      visible: [queries, 1, kv_len], the keys that a query sees.
      weights: [queries, group, kv_len], the softmax of the scores.
      out: [queries, group, head dim], `weights` times `values`.
      sm_scale: multiplies the scores.
      soft_cap: bounds the scores, if given.
    """
    head_dim = queries.shape[-1]
    scores = np.where(visible, queries @ keys.T * sm_scale, 0.0)
    products = np.where(visible, queries**2 @ keys.T**2 * sm_scale**2, 0.0)
    dot_variance = head_dim / 3 * (scores**2 + products)
    if soft_cap is not None:
        scores = soft_cap * np.tanh(scores / soft_cap)
        slope = 1 - (scores / soft_cap) ** 2
        dot_variance *= slope**2
    maximum = np.where(visible, scores, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    distance = np.where(visible, scores - maximum, 0.0)
    variance = dot_variance + 4 * scores**2 + 2 * distance**2 + EXP_ROUNDINGS**2

    weighted = weights**2 * variance
    # The sum over keys of `weighted` * (values - out)**2; it may come out just below zero.
    score_part = (
        weighted @ values**2
        - 2 * out * (weighted @ values)
        + out**2 * weighted.sum(axis=-1, keepdims=True)
    ).clip(min=0.0)
    squares = weights**2 @ values**2
    num_keys = visible.sum(axis=-1, keepdims=True)
    sum_part = num_keys / 3 * (2 * out**2 + squares)
    moment = weights * scores
    return Noise(
        probability=np.sqrt(squares),
        magnitude=weights @ np.abs(values),
        float32=np.sqrt(score_part + sum_part),
        covariance=np.abs(moment @ values - out * moment.sum(axis=-1, keepdims=True)),
    )


def bound(result: reference.Result, *, query_dtype: str, out_dtype: str) -> Float64Array:
    """The largest error that is tolerated, for every element of the output.

    Both dtypes are floating ones, of any width.
    """
    noise = result.noise
    u_out = _unit_roundoff(out_dtype)
    u_query = _unit_roundoff(query_dtype)
    if u_query < u_out:  # rounded to both, to that of the queries first
        u_out += u_query * (1 + u_out)
    u_float32 = _unit_roundoff("float32")
    deviations = SIGMAS / math.sqrt(3)
    error = u_float32 * (deviations * noise.float32 + CONSTANT_ROUNDINGS * noise.covariance)
    if query_dtype != "float32":
        u_probability = _unit_roundoff("bfloat16")
        error += u_probability * np.minimum(deviations * noise.probability, noise.magnitude)
    smallest = float(ml_dtypes.finfo(out_dtype).smallest_subnormal)  # type: ignore[no-untyped-call]
    return (1 + u_out) * error + u_out * np.abs(result.out) + smallest / 2 + _FLUSHED


def _unit_roundoff(dtype: str) -> float:
    return float(ml_dtypes.finfo(dtype).eps) / 2  # type: ignore[no-untyped-call]


def assert_close(
    out: npt.NDArray[Any], result: reference.Result, *, query_dtype: str, label: str = "out"
) -> float:
    """Asserts that a kernel's output is within the tolerance of the reference.

    Args:
      out: [tokens, q heads, head dim], what the kernel returned.
      result: what the reference returned.
      query_dtype: of the queries that the kernel was given.
      label: what to call the output in an error.

    Returns:
      The largest error, as a fraction of what is tolerated.

    Raises:
      AssertionError: if an error is larger, naming the element where it is the largest compared
        with what is tolerated there.
    """
    assert out.shape == result.out.shape, f"{label}: shape {out.shape}, not {result.out.shape}"
    tolerated = bound(result, query_dtype=query_dtype, out_dtype=out.dtype.name)
    actual, expected = out.astype(np.float64), result.out
    with np.errstate(invalid="ignore"):
        ratio = np.abs(actual - expected) / tolerated
    # NaN has no distance from anything: it must be exactly where the reference has it.
    ratio[np.isnan(ratio)] = np.inf
    ratio[np.isnan(actual) & np.isnan(expected)] = 0.0
    ratio[~result.written] = 0.0
    if not ratio.size:
        return 0.0
    worst = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    if ratio[worst] > 1.0:
        token, head, lane = (int(i) for i in worst)
        raise AssertionError(
            f"{label}: {np.count_nonzero(ratio > 1.0)} of"
            f" {np.count_nonzero(result.written) * ratio[0].size} elements are out of tolerance;"
            f" the worst is token {token}, head {head}, lane {lane}: {actual[worst]:.9g} instead"
            f" of {expected[worst]:.9g}, off by {np.abs(actual - expected)[worst]:.3g} where"
            f" {tolerated[worst]:.3g} is tolerated ({ratio[worst]:.3g} times)"
        )
    return float(ratio[worst])


def assert_same_bits(
    actual: npt.NDArray[Any], expected: npt.NDArray[Any], *, label: str = "kv_cache"
) -> None:
    """Asserts that two arrays are the same bit for bit, NaNs and the sign of zero included."""
    assert actual.dtype == expected.dtype, f"{label}: {actual.dtype}, not {expected.dtype}"
    assert actual.shape == expected.shape, f"{label}: shape {actual.shape}, not {expected.shape}"
    bits = np.dtype(f"u{expected.dtype.itemsize}")
    differs = actual.view(bits) != expected.view(bits)
    if differs.any():
        places = np.argwhere(differs)
        first = tuple(int(i) for i in places[0])
        extent = ", ".join(f"{axis.min()}..{axis.max()}" for axis in places.T)
        raise AssertionError(
            f"{label}: {len(places)} elements differ, all of them within [{extent}]; the first is"
            f" {list(first)}: {actual[first]!s} instead of {expected[first]!s}"
        )
