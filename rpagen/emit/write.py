"""Writing a set of files so that a run that fails or dies leaves the tree as it was, or complete.

Every file is staged in a folder below the root and flushed to disk; then a process of its own
(`commit`) moves them all into place, which nothing that ends this run can interrupt.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rpagen.emit import commit
from rpagen.errors import InputError, printable

_NEXT_STEPS = {
    errno.ENOSPC: "free some space, and try again",
    errno.EDQUOT: "free some space, and try again",
    errno.EEXIST: "move the file away that stands there, or choose another folder",
    errno.ENOTDIR: "move the file away that stands there, or choose another folder",
    errno.EXDEV: "choose a folder without links or mounts in it: all files move within one disk",
}
_USUAL_NEXT_STEP = "choose another folder, or change its permissions"


def read(path: Path) -> str | None:
    """The text of a file, exactly, or None when there is none.

    Bytes that are no UTF-8 come out as surrogates, which no emitted file holds.

    Raises:
        InputError: it is there, but cannot be read, or is a folder, a device or a pipe.
    """
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            # It may have no end to read up to, and writing would put a file in its place.
            raise InputError(
                "is neither a file nor a folder",
                place=printable(str(path)),
                expected="a file, or none yet",
                next_step="choose another place",
            )
        return path.read_bytes().decode(errors="surrogateescape")
    except IsADirectoryError as error:
        raise InputError(
            "is a folder",
            place=printable(str(path)),
            expected="a file, or none yet",
            next_step="name a file, which may be one in it, or move the folder away",
        ) from error
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}",
            place=printable(str(path)),
            expected="a file that can be read",
            next_step="change its permissions, or move it away",
        ) from error


def write_changed(root: Path, texts: Mapping[str, str], removed: Sequence[str] = ()) -> list[str]:
    """Write the files below `root` whose bytes differ, and return their names.

    removed: names of files below `root` to remove with the same stroke.

    Raises:
        InputError: a file could not be written; none was written or removed.
    """
    changed = [name for name, text in texts.items() if read(root / name) != text]
    if not changed and not removed:
        return []
    root = root.absolute()
    stage = _stage_below(root)
    with _committer(stage) as process:
        moves = []
        for number, name in enumerate(changed):
            source = stage / str(number)
            _stage(source, texts[name], root / name)
            moves.append((str(source), str(root / name)))
        order = {"moves": moves, "removals": [str(root / name) for name in removed]}
        _tell(process, order)
    return changed


def check_place(path: Path) -> None:
    """Try whether a file can be written, and leave everything as it is: for before a long run.

    Raises:
        InputError: it cannot.
    """
    read(path)
    with _committer(_stage_below(path.parent)):
        pass  # without an order, it removes all that it made


def _stage_below(root: Path) -> Path:
    return root.absolute() / f".{os.getpid()}.rpagen-tmp"


@contextlib.contextmanager
def _committer(stage: Path) -> Iterator[subprocess.Popen[str]]:
    """The process that makes the folder `stage` and carries out the order that it is told."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", commit.__file__, str(stage)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # no signal meant for this run reaches it
    )
    with process:  # whose input ends with this, and which is waited for
        _heed(process)
        yield process


def _tell(process: subprocess.Popen[str], order: Mapping[str, object]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    _heed_order(process)


def _heed_order(process: subprocess.Popen[str]) -> None:
    """Wait until the order is carried out, with which this run has nothing to do any more."""
    _heed(process)


def _heed(process: subprocess.Popen[str]) -> None:
    """Wait for an answer, and raise the error that it may hold."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the process that moves files into place ended without an answer")
    answer = json.loads(line)
    if answer:
        raise _cannot_write(answer["path"], answer["errno"])


def _stage(path: Path, text: str, target: Path) -> None:
    try:
        with path.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _cannot_write(str(target), error.errno or errno.EIO) from error


def _cannot_write(path: str, number: int) -> InputError:
    return InputError(
        f"cannot be written: {os.strerror(number)}; no file was changed",
        place=printable(path),
        expected="a folder that can be written to, with room in it",
        next_step=_NEXT_STEPS.get(number, _USUAL_NEXT_STEP),
    )
