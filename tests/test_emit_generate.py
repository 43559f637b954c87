"""Emission: what is rendered, what is written, and what is left alone."""

import ast
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from emit_fixtures import BODY, ONE, TWO
from emit_fixtures import emitted as emitted  # a fixture

from rpagen.emit import header, package, write
from rpagen.emit.format import formatted
from rpagen.emit.mistakes import EmitError
from rpagen.errors import InputError

ROOT = Path(__file__).parent.parent
SIDE_FILES = {".gitattributes", "pyproject.toml", "rpa_kernels/py.typed", "MANIFEST.json"}


def test_a_cold_run_emits_every_file(emitted):
    report = emitted.generate()
    assert report.rendered == [ONE, TWO]
    assert set(report.written) == {ONE, TWO} | SIDE_FILES
    assert report.total == 6
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
    with pytest.raises(InputError) as caught:
        emitted.generate()
    assert str(caught.value) == (
        f"{emitted.path(TWO)}: cannot be written: No space left on device; no file was changed\n"
        "  expected: a folder that can be written to, with room in it\n"
        "  next: free some space, and try again"
    )
    assert emitted.snapshot() == before


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder, whatever its name, with its bytes.

    What another process removes while this looks, a file or a folder, is left out.
    """
    found = {}
    for folder, _, names in os.walk(root):  # Path.rglob raises where a folder vanishes
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def settled(root: Path) -> dict[str, bytes]:
    """The files once the process that moves them, if there is one left, has ended."""
    end = time.monotonic() + 20
    while any(name.endswith(".rpagen-tmp") for _, names, _ in os.walk(root) for name in names):
        assert time.monotonic() < end, "a temporary folder is left"
        time.sleep(0.02)
    return contents(root)


OLD = {"a.py": "old a\n", "b/c.py": "old c\n", "gone.py": "to be removed\n"}
NEW = {"a.py": "new a\n", "b/c.py": "new c\n", "d/e/f.py": "new f\n"}
KILLED_RUN = """
import os, pathlib, signal, sys
from rpagen.emit import write

def dies(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def dies_after(function):
    return lambda *arguments: (function(*arguments), dies())

{where}
write.write_changed(pathlib.Path(sys.argv[1]), {texts!r}, {removed!r})
"""


@pytest.mark.parametrize(
    ("where", "is_complete"),
    [
        ("write._committer = dies", False),
        ("write._stage = dies", False),
        ("write._stage = dies_after(write._stage)", False),
        ("os.fsync = dies", False),
        ("write._tell = dies", False),
        ("write.json.dumps = lambda order: '{\"moves\": ['; write._heed_order = dies", False),
        ("write._heed_order = dies", True),
    ],
)
def test_a_killed_run_leaves_the_tree_as_it_was_or_complete(tmp_path, where, is_complete):
    root = tmp_path / "tree"
    write.write_changed(root, OLD)
    script = KILLED_RUN.format(where=where, texts=NEW, removed=["gone.py"])
    done = subprocess.run([sys.executable, "-c", script, root], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    wanted = NEW if is_complete else OLD
    end = time.monotonic() + 20
    while contents(root) != {name: text.encode() for name, text in wanted.items()}:
        assert time.monotonic() < end, contents(root)
        time.sleep(0.02)
    assert (root / "d").exists() == is_complete


def test_a_run_killed_before_it_made_anything_leaves_not_even_a_folder(tmp_path):
    script = KILLED_RUN.format(where="write._stage = dies", texts=NEW, removed=[])
    subprocess.run([sys.executable, "-c", script, tmp_path / "deep/tree"], cwd=ROOT)
    end = time.monotonic() + 20
    while any(tmp_path.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for its child processes in /proc")
@pytest.mark.parametrize("delay", [0.3, 1.0, 1.5, 2.0, 3.0, 5.0])
def test_a_killed_generation_leaves_nothing_behind(tmp_path, delay):
    """Killed at some time, wherever that is: nothing half-written, and no process left."""
    root = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "rpagen", "generate", "--jobs", "2", "-o", root],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    time.sleep(delay)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    found = settled(root)
    assert not found or found == {
        name: data for name, data in contents(ROOT / "generated").items() if "pycache" not in name
    }
    end = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < end, "a process outlived the run"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("prepare", "name", "said"),
    [
        (lambda root: root.write_text(""), "", "cannot be written: File exists; no file was"),
        (lambda root: (root / "a.py").mkdir(parents=True), "a.py", "is a folder"),
    ],
)
def test_something_in_the_way_is_named_and_nothing_is_changed(tmp_path, prepare, name, said):
    root = tmp_path / "tree"
    prepare(root)
    with pytest.raises(InputError) as caught:
        write.write_changed(root, {"b.py": "b\n", "a.py": "a\n"})
    place, _, rest = str(caught.value).partition(": ")
    assert place == str(root / name).rstrip("/")
    assert rest.startswith(said) and "move" in rest.splitlines()[2]
    assert not (root / "b.py").exists()
    assert not any(tmp_path.rglob("*.rpagen-tmp"))


def test_what_fails_half_way_is_undone(tmp_path):
    root = tmp_path / "tree"
    write.write_changed(root, OLD)
    before = contents(root)
    with pytest.raises(InputError, match="Not a directory; no file was changed"):
        # The last thing that is done: all files are in their places by then.
        write.write_changed(root, NEW, ["gone.py", "a.py/below a file"])
    assert contents(root) == before
    assert not (root / "d").exists()
    assert not any(tmp_path.rglob("*.rpagen-tmp"))


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        lambda path: path.symlink_to("/dev/null"),
        lambda path: path.symlink_to("/dev/zero"),  # which has no end to read up to
    ],
)
def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path, make):
    make(tmp_path / "a.py")
    with pytest.raises(InputError, match=r"a\.py: is neither a file nor a folder"):
        write.write_changed(tmp_path, {"a.py": "a\n"})
    assert not (tmp_path / "a.py").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
@pytest.mark.parametrize(
    ("options", "reason", "next_step"),
    [
        ("ro", "Read-only file system", "choose another folder, or change its permissions"),
        ("size=16k", "No space left on device", "free some space, and try again"),
    ],
)
def test_a_disk_that_is_read_only_or_full_is_said_and_nothing_is_changed(
    tmp_path, options, reason, next_step
):
    script = (
        f"mount -t tmpfs -o {options} none {tmp_path} || exit 77;"
        f" {shlex.quote(sys.executable)} -m rpagen generate -o {tmp_path}/out; status=$?;"
        f" find {tmp_path} -mindepth 1; exit $status"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"this machine does not let a test mount: {done.stderr}")
    assert (done.returncode, done.stdout) == (2, "")
    place, _, rest = done.stderr.partition(": cannot be written")
    assert place.startswith(f"error: {tmp_path}/out")
    assert rest == (
        f": {reason}; no file was changed\n"
        "  expected: a folder that can be written to, with room in it\n"
        f"  next: {next_step}\n"
    )


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
