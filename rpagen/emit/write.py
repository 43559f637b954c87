"""Writing a set of files so that a crash leaves each of them old or new, never half."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path


def read(path: Path) -> str | None:
    """The text of a file, exactly, or None when there is none.

    Bytes that are no UTF-8 come out as surrogates, which no emitted file holds.
    """
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except FileNotFoundError:
        return None


def write_changed(root: Path, texts: Mapping[str, str]) -> list[str]:
    """Write the files below `root` whose bytes differ, and return their names.

    All of them are staged beside their targets and flushed to disk before the first is renamed
    into place, so a full disk or a missing permission leaves everything as it was.

    Raises:
        OSError: a file could not be written; none of them was.
    """
    changed = [name for name, text in texts.items() if read(root / name) != text]
    staged: list[tuple[Path, Path]] = []
    try:
        for name in changed:
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            stage = target.with_name(f".{target.name}.{os.getpid()}.rpagen-tmp")
            staged.append((stage, target))
            _stage(stage, texts[name])
        for stage, target in staged:
            os.replace(stage, target)
    finally:
        for stage, _ in staged:
            with contextlib.suppress(FileNotFoundError):
                stage.unlink()
    return changed


def _stage(path: Path, text: str) -> None:
    with path.open("wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
