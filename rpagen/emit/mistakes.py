"""What authors of templates and specs get wrong, told by its place in a template where it can be.

A mistake in one template shows in many modules; it is said once.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import jinja2

from rpagen.emit import header, render, resources
from rpagen.emit.lint import Finding
from rpagen.emit.trace import Place, Traced
from rpagen.errors import RpagenError

SHOWN_PROBLEMS = 20
_LINES_AROUND = 3


class EmitError(RpagenError):
    """The templates and the specs make no package that may be written."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One mistake.

    said: what is wrong. template: the line of a template that it comes from, where that is known.
    place: where it shows in an emitted module. excerpt: the emitted text there.
    """

    said: str
    template: str
    place: str
    excerpt: str = ""


def refuse(problems: Iterable[Problem]) -> None:
    """Raise EmitError if there are any problems, with the same mistake in many modules once."""
    first: dict[tuple[str, str], Problem] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for problem in problems:
        key = (problem.said, problem.template or problem.excerpt)
        first.setdefault(key, problem)
        counts[key] += 1
    if not first:
        return
    shown = [_shown(problem, counts[key]) for key, problem in first.items()]
    if len(shown) > SHOWN_PROBLEMS:
        shown[SHOWN_PROBLEMS:] = [f"and {len(shown) - SHOWN_PROBLEMS} more"]
    raise EmitError("\n".join(["nothing was written:", *shown]))


def in_template(unfinished: render.Unfinished, path: str) -> Problem:
    """The mistake in a template for which the file at `path` could not be finished.

    Raises:
        Exception: the cause itself, where no template had part in it: a fault of rpagen.
    """
    error = unfinished.__cause__
    assert error is not None
    template = _template_line(error)
    if template is None and not isinstance(error, jinja2.TemplateNotFound):
        raise error
    if isinstance(error, jinja2.TemplateNotFound):
        said = f"there is no template {error.name}"
    else:
        said = f"{type(error).__name__}: {error}"
    line = unfinished.text.count("\n") + 1
    return Problem(said, template or "", f"{path}, line {line} as rendered")


def broken_rule(path: str, text: str, finding: Finding, places: Mapping[int, Place]) -> Problem:
    """A rule of `lint` that the body `text` of a module breaks.

    places: the template lines that printed the lines of the body.
    """
    place = places.get(finding.line)
    return Problem(
        f"{finding.message} [{finding.rule}]",
        str(place) if place else "",
        f"{path}:{finding.line + header.LINES}",
        f"    {text.splitlines()[finding.line - 1]}",
    )


def no_python(path: str, source: Traced, error: SyntaxError) -> Problem:
    """Bad emitted text with the lines around it, and the template line it comes from."""
    lines = source.text.splitlines()
    number = min(error.lineno or 1, len(lines))
    first, last = max(number - _LINES_AROUND, 1), min(number + _LINES_AROUND, len(lines))
    around = (f"  {'>' if at == number else ' '} {lines[at - 1]}" for at in range(first, last + 1))
    return Problem(
        str(error.msg),
        str(source.place_at(number)) if lines else "",
        f"{path}, line {number} as rendered",
        "\n".join(around),
    )


def _shown(problem: Problem, count: int) -> str:
    also = f" (and in {count - 1} more)" if count > 1 else ""
    if not problem.template:
        return "\n".join(filter(None, [f"{problem.place}: {problem.said}{also}", problem.excerpt]))
    lines = [f"{problem.template}: {problem.said}", f"  in {problem.place}{also}", problem.excerpt]
    return "\n".join(filter(None, lines))


def _template_line(error: BaseException) -> str | None:
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
