"""What authors of templates and specs get wrong, told by its place in a template where it can be.

A mistake in one template shows in many modules; it is said once.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import jinja2

from rpagen.emit import resources
from rpagen.emit.lint import Finding
from rpagen.errors import RpagenError

SHOWN_PROBLEMS = 20
_LINES_AROUND = 3


class EmitError(RpagenError):
    """The templates and the specs make no package that may be written."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One mistake.

    place: where it shows in an emitted module; empty where `said` names the template itself.
    excerpt: the emitted text there. Modules that share a template share what is said and the
    excerpt, which is how one mistake in many modules is known to be one.
    """

    said: str
    place: str = ""
    excerpt: str = ""


def refuse(problems: Iterable[Problem]) -> None:
    """Raise EmitError if there are any problems, with the same mistake in many modules once."""
    first: dict[tuple[str, str], Problem] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        key = (problem.said, problem.excerpt)
        first.setdefault(key, problem)
        counts[key] += 1
    if not first:
        return
    shown = [_shown(problem, counts[key]) for key, problem in first.items()]
    if len(shown) > SHOWN_PROBLEMS:
        shown[SHOWN_PROBLEMS:] = [f"and {len(shown) - SHOWN_PROBLEMS} more"]
    raise EmitError("\n".join(["nothing was written:", *shown]))


def in_template(error: Exception, asked_for: str) -> Problem | None:
    """The mistake in a template behind an error, or None when no template had part in it.

    asked_for: the file that was being made of the template.
    """
    place = _template_line(error)
    if isinstance(error, jinja2.TemplateNotFound):
        return Problem(f"{place or asked_for}: there is no template {error.name}")
    return Problem(f"{place}: {type(error).__name__}: {error}") if place else None


def broken_rule(path: str, text: str, finding: Finding, lines_above: int) -> Problem:
    """A rule of `lint` that the body `text` of a module breaks, below its header."""
    return Problem(
        f"{finding.message} [{finding.rule}]",
        f"{path}:{finding.line + lines_above}",
        f"    {text.splitlines()[finding.line - 1]}",
    )


def no_python(path: str, text: str, error: SyntaxError) -> Problem:
    """Bad emitted text with the lines around it, and the template line it seems to come from."""
    lines = text.splitlines()
    number = min(error.lineno or 1, len(lines))
    first, last = max(number - _LINES_AROUND, 1), min(number + _LINES_AROUND, len(lines))
    around = (f"  {'>' if at == number else ' '} {lines[at - 1]}" for at in range(first, last + 1))
    source = _likely_source(lines[number - 1]) if lines else None
    return Problem(
        f"{error.msg}{f', probably from {source}' if source else ''}",
        f"{path}, line {number} as rendered",
        "\n".join(around),
    )


def _shown(problem: Problem, count: int) -> str:
    place = f"{problem.place}: " if problem.place else ""
    also = f" (and in {count - 1} more)" if count > 1 else ""
    return "\n".join(filter(None, [f"{place}{problem.said}{also}", problem.excerpt]))


def _template_line(error: Exception) -> str | None:
    """The innermost template file:line behind an error, or None when no template had part in it.

    jinja2 rewrites tracebacks so that they pass through the lines of templates; only an error in
    a template's own syntax carries its place itself.
    """
    file, line = getattr(error, "filename", None), getattr(error, "lineno", None)
    if isinstance(file, str) and file.endswith(".j2"):
        return f"{_below_root(file)}:{line}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.endswith(".j2"):
            return f"{_below_root(frame.filename)}:{frame.lineno}"
    return None


def _below_root(file: str) -> str:
    path = Path(file)
    root = resources.root()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


def _likely_source(line: str) -> str | None:
    """The one template file:line that reads like an emitted line, if there is just one."""
    places = [
        f"{_below_root(str(path))}:{number}"
        for path in sorted(resources.templates_dir().rglob("*.j2"))
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if text.strip() == line.strip()
    ]
    return places[0] if len(places) == 1 else None
