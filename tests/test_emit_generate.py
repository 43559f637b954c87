"""Emission: what is rendered, what is written, and what is left alone."""

import ast
import json
import os

import pytest
from emit_fixtures import BODY, ONE, TWO
from emit_fixtures import emitted as emitted  # a fixture

from rpagen.emit import header, package, write
from rpagen.emit.format import formatted
from rpagen.emit.mistakes import EmitError

SIDE_FILES = {".gitattributes", "pyproject.toml", "MANIFEST.json"}


def test_a_cold_run_emits_every_file(emitted):
    report = emitted.generate()
    assert report.rendered == [ONE, TWO]
    assert set(report.written) == {ONE, TWO} | SIDE_FILES
    assert report.total == 5
    assert set(emitted.snapshot()) == {ONE, TWO} | SIDE_FILES
    assert emitted.check() == {}


def test_nothing_is_rendered_or_written_when_nothing_changed(emitted):
    emitted.generate()
    before = emitted.snapshot()
    report = emitted.generate()
    assert emitted.rendered == report.rendered == report.written == []
    assert emitted.snapshot() == before


def test_only_the_module_whose_inputs_changed_is_rendered(emitted):
    emitted.generate()
    emitted.texts[TWO] = BODY.format(number=3)
    assert emitted.check() == {TWO: "stale"}
    report = emitted.generate()
    assert emitted.rendered == [TWO]
    assert report.written == [TWO, "MANIFEST.json"]
    assert emitted.check() == {}


def test_force_renders_everything_and_writes_what_differs(emitted):
    emitted.generate()
    emitted.inputs[TWO] = emitted.texts[TWO]
    emitted.texts[TWO] = BODY.format(number=3)  # as a body that digests cannot tell from the last
    assert emitted.generate().written == []
    report = emitted.generate(force=True)
    assert emitted.rendered == [ONE, TWO]
    assert report.written == [TWO, "MANIFEST.json"]


def test_a_spec_that_only_moved_changes_the_header_without_rendering(emitted):
    emitted.generate()
    emitted.origins[ONE] = "specs/families/rpa.yaml:7"
    assert emitted.check() == {ONE: "stale"}
    report = emitted.generate()
    assert emitted.rendered == []
    assert report.written == [ONE, "MANIFEST.json"]
    assert "# Made from: specs/families/rpa.yaml:7\n" in emitted.path(ONE).read_text()


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text + "EXTRA = 1\n",
        lambda text: text.replace("VARIANT = 1", "VARIANT = 2"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.removeprefix("# SPDX-License-Identifier: Apache-2.0\n"),
        lambda text: "",
        lambda text: text + "# caf\udce9\n",  # a byte that is no UTF-8
    ],
)
def test_a_hand_edited_module_is_told_and_overwritten(emitted, edit):
    emitted.generate()
    path = emitted.path(ONE)
    good = path.read_bytes()
    path.write_bytes(edit(good.decode()).encode(errors="surrogateescape"))
    assert emitted.check() == {ONE: "hand-edited"}
    report = emitted.generate()
    assert report.overwritten == [ONE]
    assert path.read_bytes() == good
    assert emitted.check() == {}


def test_an_edited_header_makes_a_module_stale(emitted):
    emitted.generate()
    path = emitted.path(ONE)
    good = path.read_text()
    path.write_text(good.replace("Made from: specs/", "Made from: elsewhere/"))
    assert emitted.check() == {ONE: "stale"}
    emitted.generate()
    assert path.read_text() == good


def test_an_edit_that_signs_itself_is_told_by_the_manifest(emitted):
    emitted.generate()
    path = emitted.path(ONE)
    found, body = header.split(path.read_text())
    body += "EXTRA = 1\n"
    path.write_text(found.sign(body).text() + body)
    assert emitted.check() == {"MANIFEST.json": "stale"}


def test_orphans_are_removed_unless_somebody_worked_on_them(emitted):
    emitted.texts["rpa_kernels/old.py"] = BODY.format(number=4)
    emitted.texts["rpa_kernels/worked_on.py"] = BODY.format(number=5)
    emitted.generate()
    del emitted.texts["rpa_kernels/old.py"], emitted.texts["rpa_kernels/worked_on.py"]
    worked_on = emitted.path("rpa_kernels/worked_on.py")
    worked_on.write_text(worked_on.read_text() + "EXTRA = 1\n")
    foreign = emitted.path("rpa_kernels/foreign.py")
    foreign.write_text("print('not ours')\n")

    assert emitted.check() == {
        "rpa_kernels/old.py": "orphaned",
        "rpa_kernels/worked_on.py": "orphaned",
    }
    report = emitted.generate()
    assert report.removed == ["rpa_kernels/old.py"]
    assert report.kept == ["rpa_kernels/worked_on.py"]
    assert worked_on.exists() and foreign.exists()
    assert not emitted.path("rpa_kernels/old.py").exists()


def test_missing_files_are_told_and_emitted_again(emitted):
    assert set(emitted.check()) == {ONE, TWO} | SIDE_FILES
    emitted.generate()
    before = {name: data for name, (data, _) in emitted.snapshot().items()}
    for name in [ONE, *SIDE_FILES]:
        emitted.path(name).unlink()
        assert emitted.check()[name] == "missing"
    emitted.generate()
    assert {name: data for name, (data, _) in emitted.snapshot().items()} == before


@pytest.mark.parametrize("name", sorted(SIDE_FILES))
def test_a_changed_side_file_is_stale(emitted, name):
    emitted.generate()
    path = emitted.path(name)
    path.write_text(path.read_text() + "\n")
    assert emitted.check() == {name: "stale"}
    assert emitted.generate().written == [name]


def test_check_writes_nothing(emitted):
    emitted.check()
    assert not emitted.root.exists()


# --- all or nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["import os\n", "def f(:\n"])
def test_one_bad_module_keeps_all_from_being_written(emitted, bad):
    emitted.generate()
    before = emitted.snapshot()
    emitted.texts = {ONE: BODY.format(number=7), TWO: bad}
    with pytest.raises(EmitError, match=r"nothing was written"):
        emitted.generate()
    assert emitted.snapshot() == before


def test_a_full_disk_leaves_everything_as_it_was(emitted, monkeypatch):
    emitted.generate()
    before = emitted.snapshot()
    emitted.texts = {ONE: BODY.format(number=7), TWO: BODY.format(number=8)}
    synced = []

    def fsync(file):
        synced.append(file)
        if len(synced) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        emitted.generate()
    assert emitted.snapshot() == before


def test_written_files_are_readable_by_all(tmp_path):
    write.write_changed(tmp_path, {"a/b.py": "x\n"})
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "a/b.py").stat().st_mode & 0o777 == 0o666 & ~mask
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.py"]


# --- what is in the files ------------------------------------------------------------------------


def test_the_header_says_where_the_module_is_from_and_holds_no_date(emitted):
    emitted.generate()
    text = emitted.path(ONE).read_text()
    found, body = header.split(text)
    assert text.splitlines()[0] == "# SPDX-License-Identifier: Apache-2.0"
    assert found.origin == "specs/families/rpa.yaml:1"
    assert found.command == "rpagen generate"
    assert found.body == header.digest(body)
    assert text.removesuffix(body).count("\n") == header.LINES
    assert ast.get_docstring(ast.parse(text)) == "A module."


def test_black_has_nothing_to_change_in_an_emitted_file(emitted):
    emitted.texts[ONE] = "'''A module.'''\nVARIANT = {'a':1,\n 'b' : 2}\n"
    emitted.generate()
    text = emitted.path(ONE).read_text()
    assert formatted(text) == text


def test_the_manifest_is_sorted_and_repeats_the_headers(emitted):
    emitted.texts["rpa_kernels/__init__.py"] = '"""The package."""\n'
    emitted.generate()
    manifest = json.loads(emitted.path(package.MANIFEST).read_text())
    assert [entry["path"] for entry in manifest["modules"]] == sorted(emitted.texts)
    for entry in manifest["modules"]:
        found, _ = header.split(emitted.path(entry["path"]).read_text())
        assert (entry["inputs"], entry["body"]) == (found.inputs, found.body)
        assert entry["origin"] == found.origin
    assert set(manifest) == {"generator", "black", "modules"}


def test_the_package_needs_jax_and_nothing_of_rpagen(emitted):
    emitted.generate()
    assert 'dependencies = ["jax>=0.10.2"]' in emitted.path("pyproject.toml").read_text()
    assert "*.py linguist-generated=true" in emitted.path(".gitattributes").read_text()


@pytest.mark.parametrize("name", [".gitattributes", "pyproject.toml"])
def test_a_folder_of_somebody_else_is_refused(emitted, name):
    emitted.root.mkdir()
    emitted.path(name).write_text("[project]\n")
    before = emitted.snapshot()
    with pytest.raises(EmitError, match=f"{name} is not rpagen's"):
        emitted.generate()
    assert emitted.snapshot() == before
