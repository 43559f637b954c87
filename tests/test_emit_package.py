"""The real package: what is checked in is what the specs and templates at hand emit."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rpagen.emit import check, format, header, inputs, plan, render, resources
from rpagen.spec import expand, schema

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "generated"


def texts(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_cold_generation_emits_what_is_checked_in(tmp_path, seed):
    """Whatever the order of sets, and however well somebody forged the digests."""
    subprocess.run(
        [sys.executable, "-m", "rpagen", "generate", "-o", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed},
        check=True,
    )
    assert texts(tmp_path) == texts(GENERATED)


def test_what_is_checked_in_is_up_to_date():
    assert check.check(GENERATED, ROOT / "specs", plan.DEFAULT_TIER, "make generate") == []
    assert (ROOT / "specs/schema.json").read_text() == schema.text()


def test_the_header_fits_and_black_has_nothing_to_change():
    from black import format_str
    from black.mode import Mode, TargetVersion

    mode = Mode(target_versions={TargetVersion.PY311}, line_length=format.LINE_LENGTH)
    for name in ("__init__.py", "support.py", "registry.py", "rpa.py"):
        text = (GENERATED / render.PACKAGE / name).read_text()
        assert format_str(text, mode=mode) == text, name
    for path in GENERATED.rglob("*.py"):
        lines = path.read_text().splitlines()
        assert max(map(len, lines[: header.LINES])) <= format.LINE_LENGTH, path


def test_a_module_depends_on_its_own_variant_and_the_registry_on_all():
    catalogue = expand.load_catalogue(resources.specs_dir())
    fewer = dataclasses.replace(catalogue, variants=catalogue.variants[:-1])
    for module in render.modules(fewer):
        is_same = render.inputs(module, fewer) == render.inputs(module, catalogue)
        assert is_same == (module.path != "rpa_kernels/registry.py"), module.path


def test_the_digest_covers_the_sources_that_make_text_and_no_others():
    covered = {path.relative_to(ROOT / "rpagen").as_posix() for path in inputs.sources()}
    assert covered >= {
        *("emit/render.py", "emit/format.py", "emit/header.py", "emit/lint.py"),
        *("spec/axes.py", "spec/budget.py", "spec/model.py"),
    }
    assert not covered & {"cli.py", "emit/check.py", "emit/write.py", "spec/load.py"}


@pytest.mark.parametrize("changed", ["a template", "a source", "black", "rpagen", "the specs"])
def test_the_digest_changes_with_everything_that_makes_a_body(monkeypatch, tmp_path, changed):
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    shutil.copytree(ROOT / "rpagen", tmp_path / "rpagen")
    monkeypatch.setattr(resources, "root", lambda: tmp_path)
    monkeypatch.setattr(resources, "PACKAGE", tmp_path / "rpagen")
    monkeypatch.setattr(inputs, "_generator_digest", inputs._generator_digest.__wrapped__)
    before = inputs.digest("spec")
    assert inputs.digest("spec") == before
    match changed:
        case "a template":
            path = tmp_path / "templates/module.py.j2"
            path.write_text(path.read_text() + "\n")
        case "a source":
            path = tmp_path / "rpagen/spec/budget.py"
            path.write_text(path.read_text() + "\n")
        case "black":
            monkeypatch.setattr(inputs, "black_version", lambda: "1.0")
        case "rpagen":
            monkeypatch.setattr("rpagen.__version__", "9")
    assert inputs.digest("other spec" if changed == "the specs" else "spec") != before
