"""Folders of what was compiled: made out of sight, and whole as soon as they have their name."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rpagen.schedule import hlo, read

_BODY = re.compile(r'"body":"[^"]*"')
"""Of a kernel, as XLA is given it: most of the text, and nothing that is read."""

_TEMPORARY = re.compile(r"\.rpagen-(\d+)-")
"""How a folder begins that a process works in, with the number of the process."""


@contextlib.contextmanager
def workplace(parent: Path) -> Iterator[Path]:
    """A hidden folder of this process in another one, which is made; removed in the end."""
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".rpagen-{os.getpid()}-") as name:
        yield Path(name)


def remove_left(parent: Path) -> None:
    """Removes the workplaces of processes that are no more, such as those that were killed."""
    for path in parent.glob(".rpagen-*"):
        found = _TEMPORARY.match(path.name)
        if found and not _is_running(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)


def copy(dumped: Path, folder: Path) -> None:
    """Copies what is read of a dump of libtpu to a new folder."""
    folder.mkdir()
    for path in sorted(dumped.iterdir()):
        if path.name.endswith(hlo.NAME):
            text = path.read_text(encoding="utf-8", errors="replace")
            (folder / path.name).write_text(_BODY.sub('"body":""', text), encoding="utf-8")
        elif path.name.endswith((read.BUNDLES, read.UTILIZATION)):
            shutil.copyfile(path, folder / path.name)


def name(made: Path, folder: Path) -> None:
    """Gives a folder its name, unless another process was first and there is such a one.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # it is another user's, or no number of a process here
    return True
