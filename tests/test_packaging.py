"""From nothing to a working rpagen: the wheel, the emitted package, and `make`.

These tests install from the package registry, as a newcomer would.
"""

import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
SOURCES = (
    *("pyproject.toml", "constraints.txt", "Makefile", "LICENSE", "README.md"),
    *("rpagen", "specs", "templates", "generated"),
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """The versions in constraints.txt that hold for the Python at hand."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        normal(pin.name): str(pin.specifier).removeprefix("==")
        for pin in pinned
        if pin.marker is None or pin.marker.evaluate()
    }


PINS = pins()


def run(*arguments, cwd: Path, status: int = 0, **variables: str) -> str:
    """Run a command as from a fresh shell, and return what it printed."""
    # A make that runs the tests would tell a make in a test that it is not the first.
    not_fresh = ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")
    inherited = {name: value for name, value in os.environ.items() if name not in not_fresh}
    process = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env=inherited | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.returncode == status, process.stdout
    return process.stdout


def build_wheel(project: Path, folder: Path) -> Path:
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", folder, project),
        cwd=folder,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def texts(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


# --- the wheels ----------------------------------------------------------------------------------


def test_the_wheel_works_from_any_folder_and_emits_the_same(tmp_path):
    wheel = build_wheel(ROOT, tmp_path)
    run(sys.executable, "-m", "venv", "env", cwd=tmp_path)
    constraints = ("--constraint", ROOT / "constraints.txt")
    run("env/bin/python", "-m", "pip", "install", "--quiet", *constraints, wheel, cwd=tmp_path)
    away = tmp_path / "away from it"
    away.mkdir()
    rpagen = tmp_path / "env/bin/rpagen"

    assert "rpa_sliding_window" in run(rpagen, "list", cwd=away)
    assert "say where with -o" in run(rpagen, "generate", cwd=away, status=2)
    run(rpagen, "generate", "-o", "kernels", cwd=away)
    assert run(rpagen, "check", "-o", "kernels", cwd=away) == "everything is up to date\n"
    assert texts(away / "kernels") == texts(ROOT / "generated")

    # No more than generating needs.
    installed = run("env/bin/python", "-m", "pip", "freeze", cwd=tmp_path).lower()
    assert "jax" not in installed and "numpy" not in installed


def test_the_wheel_carries_what_it_needs_and_no_more(tmp_path):
    names = zipfile.ZipFile(build_wheel(ROOT, tmp_path)).namelist()
    data = [name for name in names if name.startswith("rpagen/_data/")]
    for folder in ("specs", "templates"):
        wanted = set(texts(ROOT / folder))
        assert {
            name.removeprefix(f"rpagen/_data/{folder}/")
            for name in data
            if name.startswith(f"rpagen/_data/{folder}/")
        } == wanted
    folders = ("rpagen/evidence/report", "rpagen/schedule/page")
    page = {f"{folder}/page.{end}" for folder in folders for end in ("html.j2", "css", "js")}
    assert page | {"rpagen/evidence/report/base.css"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "generated", "docs"))]


def test_the_emitted_package_installs_and_imports_alone(tmp_path):
    wheel = build_wheel(ROOT / "generated", tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        modules = {name for name in archive.namelist() if name.endswith(".py")}
        (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        said = archive.read(metadata).decode()
        assert "rpa_kernels/py.typed" in archive.namelist()
    assert modules == {f"rpa_kernels/{path.name}" for path in (ROOT / "generated").rglob("*.py")}
    assert re.findall(r"^Requires-Dist: (.*)$", said, re.MULTILINE) == ["jax>=0.10.2"]
    code = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); import rpa_kernels; "
        "assert rpa_kernels.__file__.startswith(sys.path[0]); "
        "assert not any(name.split('.')[0] == 'rpagen' for name in sys.modules)"
    )
    run(sys.executable, "-I", "-c", code, cwd=tmp_path, JAX_PLATFORMS="cpu")


# --- the pins ------------------------------------------------------------------------------------


def test_what_the_project_names_is_pinned():
    extras = PROJECT["optional-dependencies"].values()
    for requirement in itertools.chain(PROJECT["dependencies"], *extras):
        name = normal(Requirement(requirement).name)
        assert name == "rpagen" or name in PINS, requirement


def test_black_is_pinned_to_the_same_version_everywhere():
    assert f"black=={PINS['black']}" in PROJECT["dependencies"]


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="not run by `make test`")
def test_everything_installed_is_pinned():
    installed = {
        normal(distribution.metadata["Name"]): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    del installed["rpagen"]
    installed.pop("rpa-kernels", None)  # the README says how to install it
    installed.pop("setuptools", None)  # comes with a venv before Python 3.12
    assert installed.items() <= PINS.items()


# --- make ----------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path) -> Path:
    """A checkout whose path has spaces, and whose development tools are none, to save time."""
    clone = tmp_path / "a fresh clone"
    clone.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, clone / name, ignore=ignored)
        else:
            shutil.copy2(source, clone / name)
    project = clone / "pyproject.toml"
    text, count = re.subn(r"^dev = \[.*?^\]", "dev = []", project.read_text(), flags=re.M | re.S)
    assert count == 1
    project.write_text(text)
    return clone


def test_make_sets_up_from_nothing_and_again_when_it_must(clone):
    def make(*arguments, status=0) -> str:
        return run("make", *arguments, cwd=clone, status=status)

    before = texts(clone / "generated")
    python = f"PYTHON={sys.executable}"

    said = make("generate", python)
    assert "making .venv" in said and "0 written" in said
    assert texts(clone / "generated") == before
    assert make("check") == "everything is up to date\n", ".venv is good, nothing to set up"
    assert make("check", python) == "everything is up to date\n"

    # What is emitted is mended, and what is not right is told.
    (clone / "generated/rpa_kernels/rpa.py").unlink()
    assert "missing: generated/rpa_kernels/rpa.py; to do: make generate" in make("check", status=2)
    assert "1 written" in make("generate")
    assert texts(clone / "generated") == before

    # New pins: brought up to date. No stamp: half made, so made anew.
    constraints = clone / "constraints.txt"
    constraints.write_text(constraints.read_text() + "# a change\n")
    assert "bringing .venv up to date" in make("check")
    (clone / ".venv/made-from").unlink()
    stray = clone / ".venv/stray"
    stray.touch()
    assert "making .venv" in make("check", python)
    assert not stray.exists()

    # A clone that was moved cannot keep its .venv.
    moved = clone.rename(clone.parent / "a clone elsewhere")
    assert "making .venv" in run("make", "check", python, cwd=moved)


def test_make_refuses_an_old_python(clone, tmp_path):
    old = tmp_path / "old python"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    said = run("make", "check", "PYTHON=../old python", cwd=clone, status=2)
    assert "error: rpagen needs Python 3.11 or newer: name one with PYTHON=" in said
    assert not (clone / ".venv").exists()


def test_a_set_up_that_fails_is_not_taken_for_a_good_one(clone):
    (clone / "constraints.txt").write_text("black==0.0.0\n")
    said = run("make", "check", f"PYTHON={sys.executable}", cwd=clone, status=2)
    assert "making .venv" in said and "No module named" not in said
    assert (clone / ".venv").exists() and not (clone / ".venv/made-from").exists()


def test_make_help_names_every_target(tmp_path):
    said = run("make", cwd=ROOT)
    targets = (
        "generate",
        "check",
        "test",
        "upstream-suites",
        "validate",
        "mutants",
        "interpreter-matrix",
        "compile",
        "compile-large",
        "report",
        "lint",
        "clean",
    )
    for target in targets:
        assert f"make {target} " in said
