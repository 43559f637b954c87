"""Formatting of emitted code: black, pinned exactly, by its library interface.

Formatting is most of what a generation costs, and most functions are the same in many modules. So
a module is cut after every top-level function and class, and equal pieces are formatted once.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
from collections.abc import Iterator

LINE_LENGTH = 100


@functools.cache
def black_version() -> str:
    """The version of the black at hand, found without importing it."""
    return importlib.metadata.version("black")


def formatted(code: str) -> str:
    """`code` as black formats it.

    Raises:
        SyntaxError: `code` is not Python.
    """
    # Whatever follows a function or a class, black puts two blank lines between.
    return "\n\n".join(_formatted_piece(piece) for piece in _pieces(code))


def whole(code: str) -> str:
    """`code` as black formats it in one piece."""
    from black import format_str  # takes 0.2 s, which a run that renders nothing need not pay
    from black.mode import Mode, TargetVersion

    mode = Mode(
        target_versions={TargetVersion.PY311},
        line_length=LINE_LENGTH,
        magic_trailing_comma=False,  # what fits in a line is in a line, whatever the template
    )
    return format_str(code, mode=mode)


_formatted_piece = functools.cache(whole)


def _pieces(code: str) -> Iterator[str]:
    """`code`, cut after every top-level function and class; comments stay with what follows."""
    lines = code.splitlines(keepends=True)
    start = 0
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            end = node.end_lineno or node.lineno
            while end < len(lines) and _ends_a_body(lines[end]):
                end += 1
            yield "".join(lines[start:end])
            start = end
    rest = "".join(lines[start:])
    if rest.strip():
        yield rest


def _ends_a_body(line: str) -> bool:
    """Whether a line after the last statement of a body still belongs to it: blank or indented."""
    return not line.strip() or line[0].isspace()
