"""The judge of calls, with answers that are given to it."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rpagen.evidence import cases
from rpagen.evidence.judge import judge
from rpagen.spec import model

KEY = model.DispatchKey(
    "head_interleaved", "bfloat16", "int8", "per_tensor", ("sliding_window", "soft_cap")
)
CASES = {case.name: case for case in cases.cases_for(KEY)}


class Answer:
    """An attention that gives the right answer, and keeps what it was asked."""

    def __init__(self, inputs: cases.Inputs) -> None:
        expected = inputs.expected()
        self.out = expected.out.astype(inputs.case.out_dtype or inputs.queries.dtype)
        self.kv_cache = expected.kv_cache
        self.asked: list[tuple[Any, ...]] = []

    def __call__(self, *operands: Any, **options: Any) -> Any:
        self.asked.append((operands, options))
        return jnp.asarray(self.out), jnp.asarray(self.kv_cache)


def traced_of(asked: tuple[Any, ...]) -> set[Any]:
    """The places of the operands, and the names of the options, that were traced."""
    operands, options = asked
    return {
        place
        for place, value in (*enumerate(operands), *options.items())
        if isinstance(value, jax.core.Tracer)
    }


def test_a_traced_call_has_all_traced_that_an_engine_may_trace():
    traced = [case for case in CASES.values() if case.traced]
    inputs = cases.build(traced[0], KEY)
    answer = Answer(inputs)
    judge(answer, KEY.query_dtype, inputs, contextlib.nullcontext())
    (asked,) = answer.asked
    assert traced_of(asked) == {*range(8), "sm_scale", "soft_cap", "k_scale", "v_scale"}
    numbers = inputs.kernel_kwargs
    assert {name: numbers[name] for name in asked[1] if name not in traced_of(asked)} == {
        name: value for name, value in numbers.items() if name not in traced_of(asked)
    }


def test_traced_calls_that_differ_in_data_are_traced_once():
    case = next(case for case in CASES.values() if case.traced)
    inputs = cases.build(case, KEY)
    answer = Answer(inputs)
    for _ in range(2):
        judge(answer, KEY.query_dtype, inputs, contextlib.nullcontext())
    assert len(answer.asked) == 1


def test_any_other_call_knows_its_operands():
    inputs = cases.build(CASES["gqa4_three_ranges"], KEY)
    answer = Answer(inputs)
    judge(answer, KEY.query_dtype, inputs, contextlib.nullcontext())
    assert not traced_of(answer.asked[0])


@pytest.mark.parametrize("what", ["out", "kv_cache"])
def test_a_wrong_answer_is_refused(what: str):
    inputs = cases.build(CASES["gqa4_three_ranges"], KEY)
    answer = Answer(inputs)
    array = np.array(getattr(answer, what))
    array[0] += 1
    setattr(answer, what, array)
    with pytest.raises(AssertionError, match=f"^{what}: "):
        judge(answer, KEY.query_dtype, inputs, contextlib.nullcontext())


def test_an_output_of_another_dtype_is_refused():
    """Also one that holds the right numbers."""
    case = next(case for case in CASES.values() if case.out_dtype == "float8_e4m3fn")
    inputs = cases.build(case, KEY)
    answer = Answer(inputs)
    judge(answer, KEY.query_dtype, inputs, contextlib.nullcontext())
    answer.out = inputs.expected().out.astype("bfloat16")
    with pytest.raises(AssertionError, match="out: bfloat16, not float8_e4m3fn"):
        judge(answer, KEY.query_dtype, inputs, contextlib.nullcontext())
