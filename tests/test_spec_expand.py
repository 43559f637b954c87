"""From families to variants: names, defaults, origins, rules, and the pinned refusals."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from spec_fixtures import END, PLAIN, SPECS, changed, write

from rpagen.errors import SpecError
from rpagen.spec import axes, expand, load, model, rules

BOTH_TIERS = ("core", "extended")


def variants_of(folder: pathlib.Path, text: str) -> dict[str, model.Variant]:
    variants = expand.expand(load.load_family(write(folder, text)))
    return {variant.name: variant for variant in variants}


def refusal(folder: pathlib.Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        variants_of(folder, text)
    error = caught.value
    assert error.exit_status == 2
    assert error.notes == ["while expanding family plain"]
    error.notes.clear()
    return str(error).removeprefix("specs/families/plain.yaml:")


def test_core_of_the_first_families() -> None:
    """The names are public API: an engine may hold any of them."""
    assert {variant.name for variant in expand.load_variants(SPECS)} >= {
        "rpa",
        "rpa_sliding_window",
        "rpa_soft_cap",
        "rpa_sliding_window_soft_cap",
        "rpa_float8_e4m3fn",
        "rpa_float8_e4m3fn_sliding_window",
        "rpa_float8_e4m3fn_soft_cap",
        "rpa_float8_e4m3fn_sliding_window_soft_cap",
        "rpa_int8",
        "rpa_int8_sliding_window",
        "rpa_int8_soft_cap",
        "rpa_int8_sliding_window_soft_cap",
        "rpa_float8_e5m2",
        "rpa_float8_e4m3fn_query_scale",
        "rpa_float32",
        "rpa_kv_share",
        "rpa_bidirectional",
        "rpa_depth0",
        "rpa_depth2",
        "rpa_kv_slots2",
        "rpa_wait_per_page",
        "rpa_new_kv_predicated",
        "rpa_head_major",
    }


def test_extended_tier_of_the_first_families() -> None:
    variants = expand.load_variants(SPECS, BOTH_TIERS)
    assert len(variants) >= 100
    assert {variant.tier for variant in variants} == set(BOTH_TIERS)
    names = {variant.name for variant in variants}
    assert {
        "rpa_float8_e4m3fn_query_scale_sliding_window_soft_cap",
        "rpa_sliding_window_kv_share",
        "rpa_kv_slots2_depth0_wait_per_page_new_kv_predicated",
        "rpa_decode_kv_slots2_decode_depth0",
    } <= names


def test_the_facts_of_one_variant() -> None:
    (variant,) = [v for v in expand.load_variants(SPECS) if v.name == "rpa_int8_soft_cap"]
    plan = model.Pipelining(6, 1, "aggregate", "select")
    assert variant == model.Variant(
        name="rpa_int8_soft_cap",
        family="rpa",
        layout="head_interleaved",
        query_dtype="bfloat16",
        kv_dtype="int8",
        quantization="per_tensor",
        features=("soft_cap",),
        launches={"decode": plan, "prefill": plan, "mixed": plan},
        numerics="exact",
        tier="core",
        generations=("v5e", "v6e", "v7x"),
        is_default=True,
        mark=variant.mark,
    )
    assert variant.mark.file == "specs/families/rpa.yaml"


def test_the_dispatch_key_is_what_the_table_says() -> None:
    fields = {model.field_name(axis.path) for axis in axes.AXES if axis.in_key}
    assert fields == set(model.DispatchKey.__dataclass_fields__)


def test_every_dtype_has_a_width() -> None:
    dtypes = {*axes.words("query.dtype"), *axes.words("kv.dtype")}
    assert dtypes == set(model.BIT_WIDTHS)


def test_order_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from rpagen.spec import expand\n"
        f"for v in expand.load_variants({str(SPECS)!r}, {BOTH_TIERS!r}): print(repr(v), v.origins)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(SPECS.parent)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert str(SPECS.parent).encode() not in outputs.pop()


def test_generating_needs_no_jax() -> None:
    program = "import sys, rpagen.spec.expand, rpagen.spec.schema; assert 'jax' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SPECS.parent)}, check=True
    )


def test_combos_cross_with_the_axes_they_do_not_name(tmp_path: pathlib.Path) -> None:
    text = PLAIN + (
        "axes:\n"
        "  features: [[], [soft_cap]]\n"
        "  pipelining.kv_slots: [2, 3]\n"
        "combos:\n"
        "  - {kv.dtype: int8, quantization: per_tensor, pipelining.kv_slots: 2}\n"
        "  - features: []\n"
        "    pipelining.kv_slots: 2\n"
        "    each: {pipelining.attention.depth: [0, 2]}\n"
    )
    assert list(variants_of(tmp_path, text)) == [
        "plain",
        "plain_kv_slots3",
        "plain_soft_cap",
        "plain_soft_cap_kv_slots3",
        "plain_int8",
        "plain_int8_soft_cap",
        "plain_depth0",
        "plain_depth2",
    ]


def test_a_launch_of_its_own(tmp_path: pathlib.Path) -> None:
    text = PLAIN.replace("decode: {}", "decode: {pipelining: {kv_slots: 3}}") + (
        "combos:\n"
        "  - {pipelining.kv_slots: 3}\n"
        "  - {launches.decode.pipelining.kv_slots: 2}\n"
        "  - {launches.mixed.pipelining.attention.depth: 0, pipelining.dma_wait: per_page}\n"
    )
    variants = variants_of(tmp_path, text)
    slots = {
        name: [plan.kv_slots for plan in variant.launches.values()]
        for name, variant in variants.items()
    }
    assert slots == {
        "plain": [3, 2, 2],
        "plain_kv_slots3": [3, 3, 3],
        "plain_kv_slots2": [2, 2, 2],
        "plain_wait_per_page_mixed_depth0": [3, 2, 2],
    }
    assert variants["plain_wait_per_page_mixed_depth0"].launches["mixed"] == model.Pipelining(
        2, 0, "per_page", "select"
    )
    assert [variant.is_default for variant in variants.values()] == [True, False, False, False]


@pytest.mark.parametrize(
    ("defaults", "combo", "name"),
    [
        ("bfloat16 bfloat16 none", "float32 float32 none", "plain_float32"),
        ("bfloat16 bfloat16 none", "bfloat16 int8 per_tensor", "plain_int8"),
        (
            "bfloat16 bfloat16 none",
            "bfloat16 float8_e5m2 per_tensor_with_query",
            "plain_float8_e5m2_query_scale",
        ),
        ("float32 float32 none", "bfloat16 bfloat16 none", "plain_bfloat16"),
        (
            "float32 float32 none",
            "bfloat16 int8 per_tensor",
            "plain_query_bfloat16_int8",
        ),
        (
            "bfloat16 float8_e5m2 per_tensor_with_query",
            "bfloat16 float8_e5m2 per_tensor",
            "plain_per_tensor",
        ),
        (
            "bfloat16 float8_e5m2 per_tensor_with_query",
            "bfloat16 bfloat16 none",
            "plain_bfloat16_unscaled",
        ),
    ],
)
def test_names_say_what_is_not_the_default(
    tmp_path: pathlib.Path, defaults: str, combo: str, name: str
) -> None:
    query, kv, quantization = defaults.split()
    text = (
        changed("query: {dtype: bfloat16}", f"query: {{dtype: {query}}}")
        .replace("kv: {dtype: bfloat16}", f"kv: {{dtype: {kv}}}")
        .replace("quantization: none", f"quantization: {quantization}")
    )
    query, kv, quantization = combo.split()
    text += f"combos:\n  - {{query.dtype: {query}, kv.dtype: {kv}, quantization: {quantization}}}\n"
    assert list(variants_of(tmp_path, text)) == ["plain", name]


def test_no_features_where_the_default_has_some(tmp_path: pathlib.Path) -> None:
    text = changed("features: []", "features: [soft_cap]") + "combos:\n  - {features: []}\n"
    assert list(variants_of(tmp_path, text)) == ["plain", "plain_plain"]


def test_targets_make_a_variant_of_their_own(tmp_path: pathlib.Path) -> None:
    text = PLAIN + (
        "combos:\n"
        "  - {pipelining.kv_slots: 3}\n"
        "  - {pipelining.attention.depth: 0}\n"
        "  - {pipelining.attention.depth: 1, generations: [v5e]}\n"
        "targets:\n"
        "  v5e: {pipelining.attention.depth: 2}\n"
    )
    variants = variants_of(tmp_path, text)
    assert {
        name: (variant.generations, variant.launches["decode"].attention_depth, variant.is_default)
        for name, variant in variants.items()
    } == {
        "plain": (("v6e", "v7x"), 1, True),
        "plain_v5e": (("v5e",), 2, True),
        "plain_kv_slots3": (("v6e", "v7x"), 1, False),
        "plain_kv_slots3_v5e": (("v5e",), 2, False),
        "plain_depth0": (("v5e", "v6e", "v7x"), 0, False),
        # Not `plain`: on v5e, depth 1 is a step away from the default.
        "plain_depth1_v5e": (("v5e",), 1, False),
    }
    origins = variants["plain_v5e"].origins
    assert origins["pipelining.attention.depth"].mark.line == END + 5
    assert origins["pipelining.kv_slots"].mark.line == 11


def test_origins_and_marks(tmp_path: pathlib.Path) -> None:
    text = PLAIN + (
        "axes:\n"
        "  features: [[], [soft_cap]]\n"
        "combos:\n"
        "  - kv.dtype: int8\n"
        "    quantization: per_tensor\n"
        "  - {features: [], launches.decode.pipelining.kv_slots: 3}\n"
    )
    variants = variants_of(tmp_path, text)
    assert variants["plain"].mark.line == END
    combined = variants["plain_int8_soft_cap"]
    assert str(combined.mark) == f"specs/families/plain.yaml:{END + 3}:5"
    assert {path: (each.mark.line, each.mark.column) for path, each in combined.origins.items()} | {
        "layout": (4, 11),
        "kv.dtype": (END + 3, 15),
        "quantization": (END + 4, 19),
        "features": (END + 1, 18),
        "pipelining.attention.depth": (12, 24),
    } == {path: (each.mark.line, each.mark.column) for path, each in combined.origins.items()}
    assert set(combined.origins) == set(axes.BY_PATH)
    assert {combined.origins[path].field for path in ("layout", "kv.dtype", "features")} == {
        *("defaults.layout", "combos.kv.dtype", "axes.features")
    }
    decode = variants["plain_decode_kv_slots3"].origins
    assert decode["launches.decode.pipelining.kv_slots"].mark.line == END + 5
    assert decode["launches.mixed.pipelining.kv_slots"].mark.line == 11


def test_a_family_without_axes_is_marked_by_its_name(tmp_path: pathlib.Path) -> None:
    assert str(variants_of(tmp_path, "# one\n" + PLAIN)["plain"].mark).endswith(":2:1")


def test_exclusions_leave_out(tmp_path: pathlib.Path) -> None:
    text = PLAIN + (
        "axes:\n"
        "  features: [[], [soft_cap], [sliding_window], [sliding_window, soft_cap]]\n"
        "  pipelining.kv_slots: [2, 3]\n"
        "exclude:\n"
        "  - {when: {features: [soft_cap], pipelining.kv_slots: 3}, reason: it does not fit}\n"
        "  - {when: {features: [sliding_window, soft_cap]}, reason: no model has both}\n"
    )
    assert list(variants_of(tmp_path, text)) == [
        "plain",
        "plain_kv_slots3",
        "plain_soft_cap",
        "plain_sliding_window",
        "plain_sliding_window_kv_slots3",
    ]


def test_exclusion_of_pipelining_speaks_of_every_launch(tmp_path: pathlib.Path) -> None:
    text = PLAIN + (
        "combos:\n"
        "  - each: {launches.decode.pipelining.attention.depth: [0, 2]}\n"
        "exclude:\n"
        "  - {when: {pipelining.attention.depth: [0]}, reason: too slow}\n"
    )
    assert list(variants_of(tmp_path, text)) == ["plain", "plain_decode_depth2"]


def test_extended_combos_may_span_the_core(tmp_path: pathlib.Path) -> None:
    text = PLAIN + (
        "combos:\n"
        "  - {pipelining.kv_slots: 3}\n"
        "  - tier: extended\n"
        "    each: {pipelining.kv_slots: [2, 3], pipelining.attention.depth: [1, 2]}\n"
    )
    assert {name: variant.tier for name, variant in variants_of(tmp_path, text).items()} == {
        "plain": "core",
        "plain_kv_slots3": "core",
        "plain_depth2": "extended",
        "plain_kv_slots3_depth2": "extended",
    }


INT8 = "kv.dtype: int8, quantization: per_tensor"

REFUSED = {
    "twice by two combos": (
        f"combos:\n  - {{{INT8}}}\n  - {{{INT8}}}\n",
        f"""{END + 2}:5: the variant plain_int8 is made twice, before this at \
specs/families/plain.yaml:{END + 1}:5
  expected: every variant once
  next: remove one of the two, or limit both with generations""",
    ),
    "twice, said in two ways": (
        "combos:\n  - {pipelining.kv_slots: 3}\n  - {"
        + ", ".join(f"launches.{launch}.pipelining.kv_slots: 3" for launch in model.LAUNCHES)
        + "}\n",
        f"""{END + 2}:5: the variant plain_kv_slots3 is made twice, before this at \
specs/families/plain.yaml:{END + 1}:5
  expected: every variant once
  next: remove one of the two, or limit both with generations""",
    ),
    "twice by a target": (
        "combos:\n  - {pipelining.kv_slots: 3}\ntargets:\n  v5e: {pipelining.kv_slots: 3}\n",
        f"""{END + 1}:5: the variant plain_v5e is made twice, before this at \
specs/families/plain.yaml:1:1
  expected: every variant once
  next: remove one of the two, or limit both with generations""",
    ),
    "combo that a rule refuses": (
        "combos:\n  - {kv.dtype: int8}\n",
        f"""{END + 1}:5: combos: the combo adds no variant: an integer cache needs a scale
  expected: at least one variant that is offered
  next: correct its values, or remove it""",
    ),
    "combo that the core has": (
        "combos:\n  - {tier: extended, pipelining.kv_slots: 2}\n",
        f"""{END + 1}:5: combos: the combo adds no variant: the core tier has all that it makes
  expected: at least one variant that is offered
  next: correct its values, or remove it""",
    ),
    "exclusion that matches nothing": (
        "exclude:\n  - {when: {kv.dtype: int8}, reason: not wanted}\n",
        f"""{END + 1}:5: exclude: the exclusion matches no variant
  expected: a condition that holds for something the axes or a combo make
  next: correct its when, or remove it""",
    ),
    "everything excluded": (
        "exclude:\n  - {when: {kv.dtype: bfloat16}, reason: not wanted}\n",
        """1:1: family: everything is excluded: not wanted
  expected: at least one variant that is offered
  next: relax an exclusion, or correct the defaults""",
    ),
    "no default": (
        f"combos:\n  - {{{INT8}, each: {{pipelining.kv_slots: [3]}}}}\n"
        f"  - {{{INT8}, pipelining.attention.depth: 0}}\n",
        f"""{END + 2}:5: none of plain_int8_kv_slots3, plain_int8_depth0 can be the default on v5e
  expected: one variant with the family's defaults for everything the call does not decide
  next: add the combo {{layout: head_interleaved, query.dtype: bfloat16, kv.dtype: int8, \
quantization: per_tensor, features: []}}, or let one that is there serve v5e too""",
    ),
    "no default on one generation": (
        f"combos:\n  - {{{INT8}, generations: [v6e]}}\n  - {{{INT8}, pipelining.kv_slots: 3, "
        "generations: [v6e, v7x]}\n",
        f"""{END + 2}:5: none of plain_int8_kv_slots3 can be the default on v7x
  expected: one variant with the family's defaults for everything the call does not decide
  next: add the combo {{layout: head_interleaved, query.dtype: bfloat16, kv.dtype: int8, \
quantization: per_tensor, features: []}}, or let one that is there serve v7x too""",
    ),
    "default outside the core": (
        f"combos:\n  - {{{INT8}, pipelining.kv_slots: 3}}\n  - {{{INT8}, tier: extended}}\n",
        f"""{END + 2}:5: tier: plain_int8 is the default of plain_int8_kv_slots3 but not in the \
core tier as they are
  expected: the default in the core tier, which is emitted alone
  next: move the default to the core, or the others to the extended tier""",
    ),
    "an axis with nothing to choose": (
        "combos:\n  - {features: [kv_share]}\n"
        "  - {features: [kv_share], pipelining.new_kv_fetch: predicated}\n",
        f"""{END + 2}:5: combos: the combo adds no variant: with kv_share all KV is in the cache, \
so no launch fetches new KV
  expected: at least one variant that is offered
  next: correct its values, or remove it""",
    ),
    "too many": (
        "axes:\n"
        + "".join(
            f"  launches.{launch}.{axis.path}: {list(axis.names)}\n"
            for launch in model.LAUNCHES
            for axis in axes.PIPELINING_AXES
        ),
        f"""{END}:1: the family spans 110,592 combinations, 110,592 of them from here
  expected: at most 10,000
  next: list fewer values""",
    ),
    "name too long": (
        "combos:\n  - {"
        + ", ".join(
            f"launches.{launch}.{axis.path}: {value}"
            for launch in model.LAUNCHES[:2]
            for axis, value in zip(
                axes.PIPELINING_AXES, (3, 2, "per_page", "predicated"), strict=True
            )
        )
        + ", kv.dtype: float8_e4m3fn, quantization: per_tensor_with_query, features: "
        "[sliding_window, soft_cap, bidirectional]}\n",
        f"""{END + 1}:5: the name plain_float8_e4m3fn_query_scale_sliding_window_soft_cap_\
bidirectional_decode_kv_slots3_decode_depth2_decode_wait_per_page_decode_new_kv_predicated_\
prefill_kv_slots3_prefill_depth2_prefill_wait_per_page_prefill_new_kv_predicated has 227 characters
  expected: names of at most 200 characters
  next: differ from the defaults in fewer axes, or shorten the family's name""",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_says_where_what_and_what_next(tmp_path: pathlib.Path, name: str) -> None:
    text, expected = REFUSED[name]
    assert refusal(tmp_path, PLAIN + text) == expected


def test_the_combo_an_error_says_to_add_is_right(tmp_path: pathlib.Path) -> None:
    text = PLAIN + f"combos:\n  - {{{INT8}, pipelining.kv_slots: 3}}\n"
    added = refusal(tmp_path, text).partition("add the combo ")[2].partition(", or let")[0]
    assert set(variants_of(tmp_path, f"{text}  - {added}\n")) == {
        "plain",
        "plain_int8",
        "plain_int8_kv_slots3",
    }


def test_two_families_with_one_name(tmp_path: pathlib.Path) -> None:
    write(tmp_path, PLAIN)
    write(tmp_path, PLAIN, "same.yaml")
    with pytest.raises(SpecError) as caught:
        expand.load_variants(tmp_path / "specs")
    assert str(caught.value) == (
        "specs/families/same.yaml:1:1: the variant plain is made twice, before this at"
        " specs/families/plain.yaml:1:1\n"
        "  expected: every variant once\n"
        "  next: remove one of the two, or limit both with generations"
    )


def test_two_families_with_one_kernel(tmp_path: pathlib.Path) -> None:
    write(tmp_path, PLAIN)
    write(tmp_path, changed("family: plain", "family: same"), "same.yaml")
    with pytest.raises(SpecError) as caught:
        expand.load_variants(tmp_path / "specs")
    assert caught.value.problem == (
        "the variant same is made twice, before this as plain at specs/families/plain.yaml:1:1"
    )


def test_two_families_with_one_dispatch_key(tmp_path: pathlib.Path) -> None:
    write(tmp_path, PLAIN)
    text = changed("family: plain", "family: deep").replace("depth: 1", "depth: 2")
    write(tmp_path, text, "deep.yaml")
    with pytest.raises(SpecError) as caught:
        expand.load_variants(tmp_path / "specs")
    assert str(caught.value) == (
        "specs/families/plain.yaml:1:1: deep, plain would each be the default on v5e for layout:"
        " head_interleaved, query.dtype: bfloat16, kv.dtype: bfloat16, quantization: none,"
        " features: []\n"
        "  expected: one variant with the family's defaults for everything the call does not"
        " decide\n"
        "  next: limit one of the families with generations, or remove it"
    )


PER_TENSOR_SERVES = (
    "an 8-bit float cache is served by per_tensor, where a scale that is not given means 1.0"
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (("bfloat16", "bfloat16", "none", (), "head_interleaved"), []),
        (("bfloat16", "bfloat16", "none", (), "head_major"), []),
        (("float32", "float32", "none", ("soft_cap",), "head_interleaved"), []),
        (("bfloat16", "int8", "per_tensor", model.FEATURES, "head_interleaved"), []),
        (("bfloat16", "float8_e5m2", "per_tensor_with_query", (), "head_interleaved"), []),
        (("bfloat16", "float8_e4m3fn", "none", (), "head_interleaved"), [PER_TENSOR_SERVES]),
        (
            ("bfloat16", "int8", "none", (), "head_interleaved"),
            ["an integer cache needs a scale"],
        ),
        (
            ("bfloat16", "int8", "per_tensor_with_query", (), "head_interleaved"),
            ["queries quantized to integers would need int32 scores, which are not emitted yet"],
        ),
        (
            ("float32", "bfloat16", "per_tensor", (), "head_interleaved"),
            [
                "a cache of 16 bits or more stores values as they are, so there is no scale to"
                " apply",
                "float32 queries are offered with a float32 cache only",
            ],
        ),
        (
            ("bfloat16", "float32", "none", ("kv_share",), "head_major"),
            [
                "a float32 cache is offered with float32 queries only, so far",
                "the head_major layout is offered with a bfloat16 cache only, so far",
                "the head_major layout is offered without features, so far",
            ],
        ),
    ],
)
def test_reasons(key: tuple[str, str, str, tuple[str, ...], str], expected: list[str]) -> None:
    assert rules.reasons(*key) == expected
