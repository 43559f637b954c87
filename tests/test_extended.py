"""Variants that are emitted on demand: all of them render and lint, and some of them compute."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from kernel_checks import check

from rpagen.emit import generate
from rpagen.evidence import cases
from rpagen.spec import expand

SPECS = Path(__file__).parent.parent / "specs"
PACKAGE = "extended_kernels"

# Launches that differ in every axis that a launch can have of its own.
OWN_PLANS = """
  - features: [sliding_window]
    tier: extended
    launches.decode.pipelining.kv_slots: 2
    launches.decode.pipelining.dma_wait: per_page
    launches.prefill.pipelining.attention.depth: 0
    launches.prefill.pipelining.new_kv_fetch: predicated
    launches.mixed.pipelining.attention.depth: 2
    launches.mixed.pipelining.dma_wait: per_page
"""

CHOSEN = (
    "rpa_kv_slots2_depth2_wait_per_page_new_kv_predicated",
    "rpa_decode_kv_slots2_decode_depth0",
    "rpa_float8_e4m3fn_sliding_window_kv_share",
    "rpa_soft_cap_bidirectional",
    "rpa_head_major_wait_per_page",
    "rpa_float32_sliding_window_soft_cap",
    "rpa_float8_e5m2_query_scale_soft_cap",
    "rpa_sliding_window_decode_kv_slots2_decode_wait_per_page_prefill_depth0"
    "_prefill_new_kv_predicated_mixed_depth2_mixed_wait_per_page",
)

pytestmark = pytest.mark.xdist_group("extended")


@pytest.fixture(scope="module")
def emitted(tmp_path_factory) -> tuple[Path, ModuleType]:
    """Our specs with one more combo, and the package that they make."""
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(SPECS, root / "specs")
    family = root / "specs/families/rpa.yaml"
    family.write_text(family.read_text().replace("\ncombos:\n", f"\ncombos:\n{OWN_PLANS}"))
    generate.generate(root / "generated", root / "specs", "all")
    # Under another name: the checked-in package may be imported already.
    folder = root / "generated/rpa_kernels"
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return root / "specs", package


def test_every_variant_of_every_tier_imports(emitted):
    specs, package = emitted
    wanted = expand.load_variants(specs, ("core", "extended"))
    assert [variant.name for variant in package.variants()] == [each.name for each in wanted]
    for variant in package.variants():
        assert variant == package.load(variant.name).VARIANT


@pytest.mark.parametrize("name", CHOSEN)
def test_a_variant_on_demand_computes_what_the_reference_does(name: str, emitted, kernel_mode):
    specs, package = emitted
    (variant,) = (
        each for each in expand.load_variants(specs, ("core", "extended")) if each.name == name
    )
    case = next(c for c in cases.cases_for(variant.key) if c.name == "gqa4_three_ranges")
    check(variant, cases.build(case, variant.key), kernel_mode, package)
