"""What emitted modules look like side by side: one axis changes what it speaks of, and no more."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import rpa_kernels

from rpagen.spec import expand

PACKAGE = Path(__file__).parent.parent / "generated/rpa_kernels"

# What names a variant: different in any two modules.
IDENTITY = {"docstring", "NAME", "VARIANT"}


def definitions(name: str) -> dict[str, str]:
    """The text of every top-level statement of a module, by what it defines."""
    source = (PACKAGE / f"{name}.py").read_text()
    found = {}
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                key = node.name
            case ast.Assign(targets=[ast.Name(id=key)]):
                pass
            case ast.Expr():
                key = "docstring"
            case _:
                key = "imports"
        found[key] = found.get(key, "") + (ast.get_source_segment(source, node) or "")
    return found


def differing(one: str, other: str) -> set[str]:
    """The names that two modules define differently, or only one of them does."""
    first, second = definitions(one), definitions(other)
    return {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}


# Each against `rpa`.
SINGLE_AXES = {
    "rpa_depth0": {"attend"},
    "rpa_depth2": {"attend"},
    "rpa_kv_slots2": {"KV_SLOTS"},
    "rpa_new_kv_predicated": {"start_kv_fetch"},
    "rpa_wait_per_page": {"wait_kv_fetch"},
    "rpa_soft_cap": {"scale_scores", "SOFT_CAP", "ragged_paged_attention"},
}


@pytest.mark.parametrize("name", SINGLE_AXES)
def test_one_axis_changes_what_it_speaks_of(name: str):
    assert differing("rpa", name) - IDENTITY == SINGLE_AXES[name]


def test_depths_differ_in_one_line_of_code():
    one, two = (definitions(name)["attend"].splitlines() for name in ("rpa", "rpa_depth2"))
    changed = [(a.strip(), b.strip()) for a, b in zip(one, two, strict=True) if a != b]
    code = [pair for pair in changed if pair[0].startswith("if")]
    assert code == [("if len(waiting) > 1:", "if len(waiting) > 2:")]


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("rpa*.py")), ids=lambda path: path.stem)
def test_kernels_import_jax_and_their_helper_only(path: Path):
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    helper = {None}  # from . import support
    jax = {"jax", "jax.numpy", "jax.experimental", "jax.experimental.pallas"}
    assert imported <= helper | jax | {"__future__", "dataclasses", "functools", "typing"}


def test_every_core_variant_is_emitted_and_no_other():
    core = expand.load_variants(PACKAGE.parent.parent / "specs")
    assert [variant.name for variant in core] == [each.name for each in rpa_kernels.variants()]
