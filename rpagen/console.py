"""What the command line looks like: columns, and a progress bar where a person is watching."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rpagen import errors

_BAR = 30


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their headings, every column as wide as its widest cell."""
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def counted(count: int, thing: str) -> str:
    """A number of things: `1 layer`, `2 layers`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def first_line(text: str) -> str:
    """What there is room for in a table; what names a fault may follow below."""
    return text.partition("\n")[0]


class ProgressBar:
    """A bar on standard error, drawn over itself; nothing where that is no terminal.

    Used as a context, so that an error does not land on the line of the bar.
    """

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._is_shown = sys.stderr.isatty()
        self._is_drawn = False

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._wipe()

    def say(self, line: str) -> None:
        """Write a line that stays, above the bar."""
        self._wipe()
        sys.stderr.write(f"{errors.printable(line)}\n")
        sys.stderr.flush()

    def _wipe(self) -> None:
        if self._is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_drawn = False

    def __call__(self, done: int, total: int) -> None:
        """Draw that `done` of `total` is done."""
        if self._is_shown:
            full = _BAR * done // total
            bar = "#" * full + "." * (_BAR - full)
            sys.stderr.write(f"\r{self._doing} [{bar}] {done}/{total}")
            sys.stderr.flush()
            self._is_drawn = True
