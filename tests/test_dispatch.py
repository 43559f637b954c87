"""Which variant a call runs: arguments of both upstream forms, defaults, and every kind of miss."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rpa_kernels
import yaml
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from rpa_kernels import registry
from spec_fixtures import SPECS, write

from rpagen.evidence import reference
from rpagen.spec import axes, expand, load, model, option, rules

# The keyword arguments of upstream, and their defaults.
OLD_FORM = {
    "sm_scale": 1.0,
    "sliding_window": None,
    "soft_cap": None,
    "mask_value": None,
    "q_scale": None,
    "k_scale": None,
    "v_scale": None,
    "chunk_prefill_size": None,
    "num_kv_pages_per_block": None,
    "num_queries_per_block": None,
    "vmem_limit_bytes": None,
    "debug_mode": False,
}
NEW_FORM = {
    "use_causal_mask": True,
    "update_kv_cache": True,
    "skip_kv_mask": False,
    "sm_scale": 1.0,
    "sliding_window": None,
    "soft_cap": None,
    "out_dtype": None,
    "mask_value": None,
    "q_scale": None,
    "k_scale": None,
    "v_scale": None,
    "chunk_prefill_size": None,
    "d_block_sizes": None,
    "p_block_sizes": None,
    "m_block_sizes": None,
    "vmem_limit_bytes": None,
    "debug_mode": False,
    "disable_bounds_checks": True,
    "disable_semaphore_checks": True,
}
OURS = {"variant": None, "attention_sink": None, "return_lse": False}
OPERANDS = (
    "queries",
    "keys",
    "values",
    "kv_cache",
    "kv_lens",
    "page_indices",
    "cu_q_lens",
    "distribution",
)

V6E = "TPU v6 lite"


def tpu_mesh(device_kind: str = V6E) -> Any:
    """The context of a trace for that device."""
    device = AbstractDevice(device_kind=device_kind, num_cores=1, platform="tpu")
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def operands(
    query_dtype: str = "bfloat16", kv_dtype: str = "bfloat16", layout: str = "head_interleaved"
) -> list[np.ndarray]:
    """Operands of 6 tokens, 4 query and 2 kv heads, 2 sequences of 3 pages."""
    cache = rpa_kernels.get_kv_cache_shape(8, 16, 2, 64, kv_dtype, layout)
    return [
        np.zeros((6, 4, 64), query_dtype),
        np.zeros((6, 2, 64), query_dtype),
        np.zeros((6, 2, 64), query_dtype),
        np.zeros(cache, kv_dtype),
        np.array([6, 0], np.int32),
        np.arange(6, dtype=np.int32),
        np.array([0, 6, 6], np.int32),
        np.array([0, 0, 1], np.int32),
    ]


@pytest.fixture
def dispatched(monkeypatch):
    """Calls the entry point, and returns the variant it chose and what it handed on to it."""
    real = registry.load
    seen: list[tuple[str, dict[str, Any]]] = []

    def fake(name: str) -> types.SimpleNamespace:
        def record(*arrays: Any, **options: Any) -> tuple[Any, Any]:
            assert len(arrays) == len(OPERANDS)
            seen.append((name, options))
            return arrays[0], arrays[3]

        return types.SimpleNamespace(VARIANT=real(name).VARIANT, ragged_paged_attention=record)

    def call(*arrays: Any, **options: Any) -> tuple[str, dict[str, Any]]:
        with tpu_mesh():
            rpa_kernels.ragged_paged_attention(*arrays, **options)
        return seen.pop()

    monkeypatch.setattr(registry, "load", fake)
    return call


def text_of(error: type[Exception], function: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    return str(caught.value)


def traced(*arrays: Any, **options: Any) -> Any:
    """The shapes that a call returns."""
    with tpu_mesh():
        return jax.eval_shape(lambda: rpa_kernels.ragged_paged_attention(*arrays, **options))


def refused(*arrays: Any, **options: Any) -> str:
    return text_of(rpa_kernels.UnsupportedVariantError, traced, *arrays, **options)


# --- arguments -----------------------------------------------------------------------------------


def test_the_arguments_are_those_of_both_upstream_forms_and_ours():
    parameters = inspect.signature(rpa_kernels.ragged_paged_attention).parameters
    by_position = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    keywords = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert tuple(by_position) == OPERANDS
    assert keywords == {**OLD_FORM, **NEW_FORM, **OURS}


def test_either_form_with_its_defaults_is_the_plain_call(dispatched):
    plain = dispatched(*operands())
    assert plain[0] == "rpa"
    assert dispatched(*operands(), **OLD_FORM) == plain
    assert dispatched(*operands(), **NEW_FORM) == plain
    assert dispatched(**dict(zip(OPERANDS, operands(), strict=True))) == plain


def test_hints_and_the_mask_value_change_nothing(dispatched):
    plain = dispatched(*operands())
    for name, value in {
        "mask_value": -1e9,
        "debug_mode": True,
        "skip_kv_mask": True,
        "disable_bounds_checks": False,
        "disable_semaphore_checks": False,
    }.items():
        assert dispatched(*operands(), **{name: value}) == plain


def test_options_are_handed_on(dispatched):
    _, options = dispatched(
        *operands(),
        sm_scale=0.5,
        chunk_prefill_size=4,
        out_dtype="float32",
        vmem_limit_bytes=1 << 20,
        d_block_sizes=(1, 16, 1, 16),
        p_block_sizes=(4, 32, 4, 32),
        m_block_sizes=(8, 64, 8, 64),
    )
    assert options == {
        "sm_scale": 0.5,
        "chunk_prefill_size": 4,
        "out_dtype": "float32",
        "vmem_limit_bytes": 1 << 20,
        "d_block_sizes": (1, 16, 1, 16),
        "p_block_sizes": (4, 32, 4, 32),
        "m_block_sizes": (8, 64, 8, 64),
    }


@pytest.mark.parametrize(
    ("old_form", "decode", "others"),
    [
        (
            {"num_kv_pages_per_block": 4, "num_queries_per_block": 32},
            (None, 64, None, None),
            (32, 64, None, None),
        ),
        ({"num_kv_pages_per_block": 4}, (None, 64, None, None), (None, 64, None, None)),
        ({"num_queries_per_block": 32}, (None, None, None, None), (32, None, None, None)),
    ],
)
def test_the_old_form_of_block_sizes(dispatched, old_form, decode, others):
    """One of the two may be given alone: the other is chosen, as all that has no old form."""
    _, options = dispatched(*operands(), **old_form)
    assert options["d_block_sizes"] == decode
    assert options["p_block_sizes"] == options["m_block_sizes"] == others


def test_the_old_form_counts_pages_of_either_layout(dispatched):
    for layout in ("head_interleaved", "head_major"):
        _, options = dispatched(*operands(layout=layout), num_kv_pages_per_block=2)
        assert options["m_block_sizes"] == (None, 32, None, None)


@pytest.mark.parametrize("old", ["num_kv_pages_per_block", "num_queries_per_block"])
@pytest.mark.parametrize("new", ["d_block_sizes", "p_block_sizes", "m_block_sizes"])
def test_block_sizes_in_both_forms(dispatched, old, new):
    both = {old: 4, new: (1, 16, 1, 16)}
    assert text_of(TypeError, dispatched, *operands(), **both) == (
        "block sizes are given in both forms; expected num_kv_pages_per_block and"
        " num_queries_per_block, or d_block_sizes, p_block_sizes and m_block_sizes: leave out the"
        " ones or the others"
    )


@pytest.mark.parametrize("name", ["num_kv_pages_per_block", "num_queries_per_block"])
@pytest.mark.parametrize("value", [0, -1, True, 2.0])
def test_old_block_sizes_that_are_none(dispatched, name, value):
    assert text_of(ValueError, dispatched, *operands(), **{name: value}) == (
        f"{name} is {value!r}; expected a whole number above zero"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sliding_window": 0}, "sliding_window is 0; expected a whole number above zero"),
        ({"sliding_window": -1}, "sliding_window is -1; expected a whole number above zero"),
        ({"sliding_window": 8.0}, "sliding_window is 8.0; expected a whole number above zero"),
        ({"soft_cap": 0}, "soft_cap is 0; expected a number above zero"),
        ({"soft_cap": -2.0}, "soft_cap is -2.0; expected a number above zero"),
        (
            {"sm_scale": None},
            "sm_scale is None; expected one finite number, or an array of shape ()",
        ),
        (
            {"out_dtype": "float33"},
            "out_dtype is 'float33'; expected a floating dtype of at most 32 bits, such as"
            " jnp.bfloat16, or None for that of queries",
        ),
    ],
)
def test_options_that_are_not_right(options, text):
    assert text_of(ValueError, traced, *operands(), **options) == text


@pytest.mark.parametrize("name", ["q_scale", "k_scale", "v_scale"])
def test_scales_that_are_not_positive(name):
    arrays = operands(kv_dtype="float8_e4m3fn")
    assert text_of(ValueError, traced, *arrays, **{name: 0.0}) == (
        f"{name} is 0.0; expected a number above zero"
    )


@pytest.mark.parametrize(
    ("kv_dtype", "options", "text"),
    [
        ("bfloat16", {"sm_scale": 1e39}, "sm_scale is 1e+39; expected at most 3.4e+38"),
        ("bfloat16", {"soft_cap": 1e-46}, "soft_cap is 1e-46; expected at least 1.18e-38"),
        ("float8_e4m3fn", {"k_scale": 1e39}, "k_scale is 1e+39; expected at most 3.4e+38"),
        ("float8_e4m3fn", {"v_scale": 1e-50}, "v_scale is 1e-50; expected at least 1.18e-38"),
        (
            "float8_e4m3fn",
            {"sm_scale": 1e20, "k_scale": 1e20, "v_scale": 1.0},
            "what sm_scale, soft_cap and the scales make together is 1.4",
        ),
        ("bfloat16", {"soft_cap": 1e38, "sm_scale": 0.1}, "what sm_scale, soft_cap and the"),
    ],
)
def test_numbers_that_are_none_in_float32(kv_dtype, options, text):
    assert text_of(ValueError, traced, *operands(kv_dtype=kv_dtype), **options).startswith(text)


FLAGS = ("use_causal_mask", "update_kv_cache", "return_lse")


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(name):
    assert text_of(ValueError, traced, *operands(), **{name: None}) == (
        f"{name} is None; expected True or False"
    )
    call = jax.jit(lambda flag: traced(*operands(), **{name: flag}))
    assert text_of(ValueError, call, True) == (
        f"{name} is traced; expected True or False: make it a static argument of the function that"
        " is traced"
    )


def test_scalars_may_be_traced_and_are_multiplied_in_float32():
    """All but the window, which decides how many blocks there are."""
    arrays = operands(kv_dtype="float8_e4m3fn")

    def call(scale: jax.Array) -> Any:
        options = dict.fromkeys(("sm_scale", "soft_cap", "k_scale", "v_scale"), scale)
        return rpa_kernels.ragged_paged_attention(*arrays, **options)

    with tpu_mesh():
        jaxpr = jax.make_jaxpr(call)(jnp.asarray(2.0, jnp.bfloat16)).jaxpr
    products = [each for each in jaxpr.eqns if each.primitive.name in ("mul", "div")]
    assert products and {each.outvars[0].aval.dtype for each in products} == {jnp.dtype("float32")}

    window = jax.jit(lambda size: traced(*operands(), sliding_window=size))
    assert text_of(ValueError, window, 3).startswith("sliding_window is traced; expected a whole")


# --- which variant -------------------------------------------------------------------------------

FEATURE_OPTIONS = {
    "sliding_window": {"sliding_window": 9},
    "soft_cap": {"soft_cap": 20.0},
    "bidirectional": {"use_causal_mask": False},
    "kv_share": {"update_kv_cache": False},
    "attention_sink": {"attention_sink": 1.0},
    "lse": {"return_lse": True},
}
SCALES = {
    "none": {},
    "per_tensor": {"k_scale": 0.5, "v_scale": 0.25},
    "per_tensor_with_query": {"q_scale": 0.1, "k_scale": 0.5},
}


def arguments(variant: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Operands and options that ask for what a variant, or a key, has."""
    options: dict[str, Any] = dict(SCALES[variant.quantization])
    for feature in variant.features:
        options |= FEATURE_OPTIONS[feature]
    return operands(variant.query_dtype, variant.kv_dtype, variant.layout), options


def test_every_key_has_one_default_on_every_generation():
    found: dict[tuple[Any, str], list[str]] = {}
    for variant in rpa_kernels.variants():
        for generation in variant.generations:
            key = registry.Key.of(variant, generation)
            found.setdefault(key, []).extend([variant.name] if variant.is_default else [])
    assert all(len(defaults) == 1 for defaults in found.values())
    assert {generation for key in found for generation in [key.generation]} == {"v5e", "v6e", "v7x"}


@pytest.mark.parametrize("variant", rpa_kernels.variants(), ids=lambda variant: variant.name)
def test_a_call_finds_the_default_of_its_key_and_any_by_name(dispatched, variant):
    arrays, options = arguments(variant)
    chosen, _ = dispatched(*arrays, **options)
    (default,) = [
        other.name
        for other in rpa_kernels.variants()
        if other.is_default and registry.Key.of(other, "v6e") == registry.Key.of(variant, "v6e")
    ]
    assert chosen == default
    assert dispatched(*arrays, **options, variant=variant.name)[0] == variant.name


def test_what_the_scales_ask_for(dispatched):
    float8 = operands(kv_dtype="float8_e4m3fn")
    # Upstream's float8 cache without scales is one with scales of 1.
    name, options = dispatched(*float8)
    assert name == "rpa_float8_e4m3fn"
    assert (options["k_scale"], options["v_scale"]) == (1.0, 1.0)
    name, options = dispatched(*float8, k_scale=0.5)
    assert (options["k_scale"], options["v_scale"]) == (0.5, 1.0)
    name, options = dispatched(*float8, q_scale=0.1, v_scale=2)
    assert name == "rpa_float8_e4m3fn_query_scale"
    assert [options[scale] for scale in ("q_scale", "k_scale", "v_scale")] == [0.1, 1.0, 2.0]
    # Scales of 1 on a cache that has none are no scales.
    for one in (1, 1.0, np.float32(1)):
        name, options = dispatched(*operands(), k_scale=one, v_scale=one)
        assert name == "rpa" and "k_scale" not in options


def test_features_are_asked_in_the_order_of_the_records():
    """A key is found by its features as a tuple, so that order counts."""
    asked = list(FEATURE_OPTIONS)
    assert asked[: len(model.FEATURES)] == list(model.FEATURES) == list(registry.FEATURES)
    options: dict[str, Any] = {}
    for each in FEATURE_OPTIONS.values():
        options |= each
    assert f"features: [{', '.join(asked)}]" in refused(*operands(), **options)


@pytest.mark.parametrize(
    ("device_kind", "generation"),
    [("TPU v5 lite", "v5e"), ("TPU v6 lite", "v6e"), ("TPU7x", "v7x")],
)
def test_the_generation_is_part_of_the_key(monkeypatch, device_kind, generation):
    """Which it is in a trace is support's to say; here there are no defaults for any."""
    monkeypatch.setattr(registry, "_DEFAULTS", {})
    with tpu_mesh(device_kind):
        text = text_of(
            rpa_kernels.UnsupportedVariantError, rpa_kernels.ragged_paged_attention, *operands()
        )
    assert f"\n  generation: {generation}\n" in text


def test_records_are_frozen_and_loaded_by_name():
    records = rpa_kernels.variants()
    assert isinstance(records, tuple) and len({hash(record) for record in records}) == len(records)
    with pytest.raises(dataclasses.FrozenInstanceError):
        records[0].name = "another"
    for record in records:
        module = rpa_kernels.load(record.name)
        assert record == module.VARIANT
        assert module.__name__ == f"rpa_kernels.{record.name}"
        assert callable(module.ragged_paged_attention)


def test_records_say_what_the_specs_do():
    for record, variant in zip(rpa_kernels.variants(), expand.load_variants(SPECS), strict=True):
        said = dataclasses.asdict(record)
        said["launches"] = {name: model.Pipelining(**plan) for name, plan in said["launches"]}
        assert said == {name: getattr(variant, name) for name in said}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rpa_sof_cap", "there is no variant 'rpa_sof_cap': did you mean rpa_soft_cap,"),
        ("nothing", "there is no variant 'nothing': variants() has them all"),
        (3, "there is no variant 3: variants() has them all"),
        ([], "there is no variant []: variants() has them all"),
    ],
)
def test_a_name_that_is_none(name, text):
    assert text_of(rpa_kernels.UnsupportedVariantError, rpa_kernels.load, name).startswith(text)
    assert refused(*operands(), variant=name).startswith(text)


# --- cache shapes --------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", model.LAYOUTS)
@pytest.mark.parametrize("kv_dtype", sorted(model.BIT_WIDTHS))
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 64), (2, 128), (3, 80), (8, 256)])
def test_cache_shapes(layout, kv_dtype, kv_heads, head_dim):
    shape = rpa_kernels.get_kv_cache_shape(5, 16, kv_heads, head_dim, kv_dtype, layout)
    assert shape == reference.kv_cache_shape(5, 16, kv_heads, head_dim, kv_dtype, layout)
    assert shape == rpa_kernels.get_kv_cache_shape(
        *map(np.int64, (5, 16, kv_heads, head_dim)), jnp.dtype(kv_dtype), layout=layout
    )


def test_cache_shapes_by_example():
    shape = rpa_kernels.get_kv_cache_shape
    assert shape(7, 16, 3, 80, jnp.bfloat16) == (7, 16, 3, 2, 128)
    assert shape(7, 16, 3, 80, jnp.float32) == (7, 16, 6, 1, 128)
    assert shape(7, 16, 3, 80, jnp.int8) == (7, 16, 2, 4, 128)
    assert shape(7, 16, 3, 200, jnp.bfloat16, "head_major") == (7, 6, 16, 256)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"layout": "rows"}, "layout is 'rows'; expected one of head_interleaved, head_major"),
        (
            {"kv_dtype": "float64"},
            "kv_dtype is 'float64'; expected one of bfloat16, float32, float8_e4m3fn, float8_e5m2,"
            " int8",
        ),
        ({"page_size": 0}, "page_size is 0; expected a whole number above zero"),
        ({"head_dim": 64.0}, "head_dim is 64.0; expected a whole number above zero"),
    ],
)
def test_no_cache_shape(changed, text):
    right = {
        "total_num_pages": 5,
        "page_size": 16,
        "num_kv_heads": 2,
        "head_dim": 64,
        "kv_dtype": "bfloat16",
        **changed,
    }
    assert text_of(ValueError, rpa_kernels.get_kv_cache_shape, **right) == text


# --- misses --------------------------------------------------------------------------------------

FROM = (
    "from sliding_window, soft_cap, use_causal_mask, update_kv_cache, attention_sink and return_lse"
)


def test_a_miss_that_can_be_added():
    assert refused(*operands(), soft_cap=1.0, use_causal_mask=False, update_kv_cache=False) == (
        "no emitted variant computes this call:\n"
        "  layout: head_interleaved, from the rank of kv_cache\n"
        "  query.dtype: bfloat16, from the dtype of queries\n"
        "  kv.dtype: bfloat16, from the dtype of kv_cache\n"
        "  quantization: none, from q_scale, k_scale and v_scale\n"
        f"  features: [soft_cap, bidirectional, kv_share], {FROM}\n"
        "  generation: v6e\n"
        "the nearest variants, and where they differ:\n"
        "  rpa_soft_cap: features [soft_cap]\n"
        "  rpa_kv_share: features [kv_share]\n"
        "  rpa_bidirectional: features [bidirectional]\n"
        "to have it in a folder of your own, type:\n"
        "  rpagen emit --set layout=head_interleaved --set query.dtype=bfloat16 --set"
        " kv.dtype=bfloat16 --set quantization=none --set features=soft_cap,bidirectional,kv_share"
        " -o DIR\n"
        "to add it here, put this below `combos:` in the spec of family rpa, and run `rpagen"
        " generate`:\n"
        "  - {layout: head_interleaved, query.dtype: bfloat16, kv.dtype: bfloat16,"
        " quantization: none, features: [soft_cap, bidirectional, kv_share]}"
    )


def test_a_miss_that_is_excluded():
    """A scale for a cache of 16 bits is legal upstream; here it can only be 1."""
    assert refused(*operands(), k_scale=2.0) == (
        "no emitted variant computes this call:\n"
        "  layout: head_interleaved, from the rank of kv_cache\n"
        "  query.dtype: bfloat16, from the dtype of queries\n"
        "  kv.dtype: bfloat16, from the dtype of kv_cache\n"
        "  quantization: per_tensor, from q_scale, k_scale and v_scale\n"
        f"  features: [], {FROM}\n"
        "  generation: v6e\n"
        "the nearest variants, and where they differ:\n"
        "  rpa: quantization none\n"
        "  rpa_float8_e4m3fn: kv.dtype float8_e4m3fn\n"
        "  rpa_int8: kv.dtype int8\n"
        "it is not offered:\n"
        "  a cache of 16 bits or more stores values as they are, so there is no scale to apply"
    )


def test_a_miss_of_what_is_not_emitted_yet():
    text = refused(*operands(), attention_sink=1.0, return_lse=True)
    assert text.endswith(
        "it is not offered:\n  attention_sink is not emitted yet\n  lse is not emitted yet"
    )


def test_a_miss_of_a_dtype_that_no_variant_has():
    assert refused(*[each.astype(np.float16) for each in operands()[:3]], *operands()[3:]).endswith(
        "it is not offered:\n  query.dtype is one of bfloat16, float32"
    )


def test_a_miss_on_one_generation_only(monkeypatch):
    """Adding the combo again would make the same variant twice."""
    for_v6e = tuple(
        dataclasses.replace(variant, generations=("v6e",)) for variant in rpa_kernels.variants()
    )
    key = registry.Key.of(for_v6e[0], "v7x")
    monkeypatch.setattr(registry, "VARIANTS", for_v6e)
    assert registry._miss(key).endswith(
        "  rpa: generation [v6e]\n"
        "  rpa_sliding_window: features [sliding_window], generation [v6e]\n"
        "  rpa_soft_cap: features [soft_cap], generation [v6e]\n"
        "to add it, add v7x to the generations that rpa has in the spec of family rpa, and run"
        " `rpagen generate`"
    )


def test_exclusions_are_those_of_the_rules_and_of_all_families(monkeypatch):
    assert (
        tuple((dict(each.when), each.reason) for each in expand.load_catalogue(SPECS).exclusions)
        == registry.EXCLUSIONS
    )
    # One that names an axis that no call decides says nothing of a call.
    of_families = (
        ({"features": (("soft_cap", "kv_share"),)}, "together they are of no use"),
        ({"features": (("soft_cap",),), "pipelining.kv_slots": (3,)}, "three slots are slow"),
    )
    monkeypatch.setattr(registry, "EXCLUSIONS", registry.EXCLUSIONS + of_families)
    text = refused(*operands(), soft_cap=1.0, use_causal_mask=False, update_kv_cache=False)
    assert text.endswith("it is not offered:\n  together they are of no use")


def test_a_named_variant_that_computes_something_else():
    assert refused(*operands(), variant="rpa_int8_soft_cap") == (
        "variant rpa_int8_soft_cap does not compute this call:\n"
        "  layout: head_interleaved, from the rank of kv_cache\n"
        "  query.dtype: bfloat16, from the dtype of queries\n"
        "  kv.dtype: bfloat16, from the dtype of kv_cache\n"
        "  quantization: none, from q_scale, k_scale and v_scale\n"
        f"  features: [], {FROM}\n"
        "  generation: v6e\n"
        "  it has kv.dtype int8, quantization per_tensor, features [soft_cap]\n"
        "leave variant out for the one that does, or change the arguments"
    )


def all_keys() -> list[model.DispatchKey]:
    """Every dispatch key that the axes span."""
    in_key = [axis for axis in axes.AXES if axis.in_key]
    values = [
        [
            tuple(name for name, is_in in zip(axis.names, chosen, strict=True) if is_in)
            for chosen in itertools.product([False, True], repeat=len(axis.names))
        ]
        if axis.is_set
        else axis.names
        for axis in in_key
    ]
    fields = [model.field_name(axis.path) for axis in in_key]
    return [
        model.DispatchKey(**dict(zip(fields, each, strict=True)))
        for each in itertools.product(*values)
    ]


def test_every_miss_gives_the_reasons_of_the_rules_or_a_line_that_adds_the_variant(tmp_path):
    """The line is taken from the error, put into the family's spec, and makes that variant."""
    emitted = {variant.key for variant in expand.load_variants(SPECS)}
    lines = {}
    families = load.load_families(SPECS)
    for key in all_keys():
        fields = dataclasses.asdict(key)
        asked = registry.Key(**fields, generation="v6e")
        reasons = rules.reasons(**fields)
        if key in emitted:
            assert registry._choose(asked, None) and not reasons
            continue
        text = registry._miss(asked)
        if reasons:
            assert text.split("it is not offered:\n")[1].split("\n") == [
                f"  {reason}" for reason in reasons
            ]
            continue
        family, line = re.search(r"spec of family (\w+), .*:\n(  - .*)$", text).groups()
        assert family == "rpa"
        lines[key] = line
        (command,) = re.findall(r"^  rpagen emit (.*) -o DIR$", text, re.MULTILINE)
        chosen = option.settings([each.strip() for each in command.split("--set ") if each])
        (made,) = option.variants(option.family_for(chosen, families), chosen, command)
        assert made.key == key
    assert len(lines) > 50

    # All lines at once leave the extended tier nothing to add, which is an error of its own.
    spec, extended, _ = (SPECS / "families" / "rpa.yaml").read_text().partition("# The extended")
    assert extended
    added = "\n".join(lines.values())
    text = spec.replace("combos:\n", f"combos:\n{added}\n")
    family = load.load_family(write(tmp_path, text, "rpa.yaml"))
    made = {variant.key: variant for variant in expand.expand(family) if variant.is_default}
    for key, line in lines.items():
        variant = made[key]
        assert variant.tier == "core"
        (combo,) = yaml.safe_load(line)
        assert {model.field_name(path) for path in combo} == set(dataclasses.asdict(key))


def test_a_line_adds_its_variant_alone(tmp_path):
    before = expand.load_variants(SPECS)
    emitted = {variant.key for variant in before}
    key = next(
        key
        for key in all_keys()
        if key not in emitted and not rules.reasons(**dataclasses.asdict(key))
    )
    text = registry._miss(registry.Key(**dataclasses.asdict(key), generation="v6e"))
    spec = (SPECS / "families" / "rpa.yaml").read_text()
    line = text.rsplit("\n", 1)[1]
    added = spec.replace("combos:\n", f"combos:\n{line}\n")
    family = load.load_family(write(tmp_path, added, "rpa.yaml"))
    after = [variant for variant in expand.expand(family) if variant.tier == "core"]
    names = {variant.name for variant in before}
    assert [variant.key for variant in after if variant.name not in names] == [key]
