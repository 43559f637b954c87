"""Whatever is wrong with a spec: one error, exit status 2, and nothing written or changed."""

import json
from pathlib import Path

import pytest
from cli_fixtures import run as run  # a fixture
from spec_fixtures import ALIAS_BOMB, PLAIN, write
from test_spec_expand import REFUSED as REFUSED_BY_EXPANSION
from test_spec_load import REFUSED

from rpagen.emit import generate

BAD = {
    **{name: text for name, (text, _) in REFUSED.items()},
    **{name: PLAIN + text for name, (text, _) in REFUSED_BY_EXPANSION.items()},
    "50 MB": b" " * 50_000_000,
    "alias bomb": ALIAS_BOMB,
    "name that is a path": PLAIN.replace("family: plain", "family: ../plain"),
    "name that is code": PLAIN.replace("family: plain", "family: plain();import os"),
}


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A package that a good spec emitted."""
    folder = tmp_path_factory.mktemp("package")
    write(folder, PLAIN)
    generate.generate(folder / "out", folder / "specs", jobs=1)
    return folder / "out"


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", BAD)
def test_a_bad_spec_is_one_error_and_changes_nothing(run, package, tmp_path, name):
    write(tmp_path, BAD[name])
    before = snapshot(package)
    status, out, err = run("generate", "--specs", tmp_path / "specs", "-o", package)
    assert (status, out) == (2, "")
    place, *rest = err.splitlines()
    assert place.startswith("error: specs/families/plain.yaml:")
    assert [line.split(":")[0] for line in rest[:2]] == ["  expected", "  next"]
    assert snapshot(package) == before
    assert {path.name for path in package.iterdir()} == {
        *("rpa_kernels", "pyproject.toml", "MANIFEST.json", ".gitattributes")
    }


@pytest.mark.parametrize("name", BAD)
def test_the_parts_of_the_error_are_there_for_programs(run, tmp_path, name):
    write(tmp_path, BAD[name])
    status, out, _ = run("list", "--specs", tmp_path / "specs", "--json")
    error = json.loads(out)["error"]
    assert status == 2
    assert error["file"] == "specs/families/plain.yaml" and error["line"] >= 1
    assert error["problem"] and error["expected"] and error["next_step"]
