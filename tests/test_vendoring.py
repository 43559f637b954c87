"""The emitted package stands alone, and so does one module of it with its helper."""

from __future__ import annotations

import ast
import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import rpa_kernels

from rpagen.evidence import cases, tolerance
from rpagen.spec import model

GENERATED = Path(__file__).parent.parent / "generated"
PACKAGE = GENERATED / "rpa_kernels"
MODULES = [variant.name for variant in rpa_kernels.variants()]

ALONE = """
import importlib.abc
import sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("rpagen", "jinja2", "yaml", "black"):
            raise ImportError(f"{name} is not for the emitted package")

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
import rpa_kernels

for variant in rpa_kernels.variants():
    rpa_kernels.load(variant.name)
print(rpa_kernels.get_kv_cache_shape(4, 16, 8, 128, "bfloat16"))
"""


def test_the_package_imports_where_the_generator_is_not(tmp_path):
    process = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(GENERATED)],
        cwd=tmp_path,
        env={"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "(4, 16, 8, 2, 128)\n"


def imports_of(path: Path) -> set[str]:
    """The modules that a file imports; its own package's begin with a dot."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                found |= {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=None, names=names):
                found |= {f".{alias.name}" for alias in names}
            case ast.ImportFrom(module=module, level=level):
                found.add("." * level + module.partition(".")[0])
    return found


@pytest.mark.parametrize("name", [*MODULES, "support"])
def test_a_module_needs_jax_and_its_helper_alone(name):
    own = set() if name == "support" else {".support"}
    others = imports_of(PACKAGE / f"{name}.py") - own - {"jax", "numpy"}
    assert others <= sys.stdlib_module_names


@pytest.mark.parametrize("name", MODULES)
def test_a_module_copied_with_its_helper_imports(name, tmp_path, monkeypatch):
    module = copied(name, tmp_path, monkeypatch)
    assert module.VARIANT.name == name
    assert module.VARIANT != rpa_kernels.load(name).VARIANT, "records of two packages"
    assert callable(module.ragged_paged_attention)


def test_a_module_copied_with_its_helper_computes(tmp_path, monkeypatch, kernel_mode):
    key = model.DispatchKey("head_interleaved", "bfloat16", "bfloat16", "none", ())
    (case,) = [each for each in cases.cases_for(key) if each.name == "mqa7_three_ranges"]
    inputs = cases.build(case, key)
    geometry = case.geometry
    module = copied("rpa", tmp_path, monkeypatch)
    with kernel_mode():
        out, kv_cache = module.ragged_paged_attention(
            *map(jnp.asarray, inputs.arrays),
            sm_scale=geometry.sm_scale,
            chunk_prefill_size=geometry.chunk_prefill_size,
            d_block_sizes=geometry.decode_blocks,
            p_block_sizes=geometry.prefill_blocks,
            m_block_sizes=geometry.mixed_blocks,
        )
        out, kv_cache = np.asarray(out), np.asarray(kv_cache)
    expected = inputs.expected()
    tolerance.assert_same_bits(kv_cache, expected.kv_cache)
    tolerance.assert_close(out, expected, query_dtype="bfloat16")


def copied(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The module of a variant, from a package that has nothing but it and its helper."""
    package = folder / "an_engine" / "kernels"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    for file in (f"{name}.py", "support.py"):
        shutil.copy(PACKAGE / file, package)
    monkeypatch.syspath_prepend(str(folder))
    for known in [known for known in sys.modules if known.partition(".")[0] == "an_engine"]:
        monkeypatch.delitem(sys.modules, known)
    module = importlib.import_module(f"an_engine.kernels.{name}")
    assert Path(module.support.__file__).parent == package
    return module
