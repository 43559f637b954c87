"""From modules to finished bodies: rendered, parsed, formatted and linted, on several processes.

A worker never raises for what an author of templates can get wrong: it returns the problems, so
that every module's are known before anything is written, and none is lost on its way between
processes.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import jinja2

from rpagen.emit import header, lint, render, resources
from rpagen.emit.format import formatted
from rpagen.emit.render import Module
from rpagen.errors import RpagenError
from rpagen.spec.model import Variant

Progress = Callable[[int, int], None]
"""Called with how many of how many modules are done."""

# Below this many modules, starting processes takes longer than it saves.
FEWEST_FOR_A_POOL = 4
SHOWN_PROBLEMS = 20
_LINES_AROUND = 3


class EmitError(RpagenError):
    """The templates and the specs make no package that may be written."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """What an author of templates got wrong.

    place: where it shows in an emitted module; empty where `said` names the template itself.
    excerpt: the emitted text there. Modules that share a template share what was said and the
    excerpt, which is how one mistake in many modules is known to be one.
    """

    said: str
    place: str = ""
    excerpt: str = ""


@dataclasses.dataclass(frozen=True)
class Body:
    """The body of a module, or what stands in its way."""

    text: str = ""
    problems: tuple[Problem, ...] = ()


def make(
    modules: Sequence[Module],
    variants: tuple[Variant, ...],
    jobs: int | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, str]:
    """The finished bodies of `modules`, by the paths of the modules.

    Raises:
        EmitError: a template is wrong, or a body is no Python or breaks a rule of `lint`.
    """
    bodies = []
    for body in _made(modules, variants, jobs or os.cpu_count() or 1):
        bodies.append(body)
        progress(len(bodies), len(modules))
    _refuse_problems(bodies)
    return {module.path: body.text for module, body in zip(modules, bodies, strict=True)}


def make_one(module: Module, variants: tuple[Variant, ...]) -> Body:
    """The finished body of one module, or its problems."""
    try:
        text = render.render(module, variants)
    except jinja2.TemplateNotFound as error:
        asking = _template_line(error) or module.path
        return Body(problems=(Problem(f"{asking}: there is no template {error.name}"),))
    except Exception as error:
        place = _template_line(error)
        if place is None:
            raise  # no template had part in it: a fault of rpagen itself
        return Body(problems=(Problem(f"{place}: {type(error).__name__}: {error}"),))
    try:
        text = formatted(text)
    except SyntaxError as error:
        return Body(problems=(_not_python(module, text, error),))
    lines = text.splitlines()
    problems = (
        Problem(
            f"{finding.message} [{finding.rule}]",
            f"{module.path}:{finding.line + header.LINES}",
            f"    {lines[finding.line - 1]}",
        )
        for finding in lint.lint(text)
    )
    return Body(text, tuple(problems))


def _made(modules: Sequence[Module], variants: tuple[Variant, ...], jobs: int) -> Iterator[Body]:
    if jobs == 1 or len(modules) < FEWEST_FOR_A_POOL:
        for module in modules:
            yield make_one(module, variants)
        return
    pool = ProcessPoolExecutor(jobs, initializer=_start_worker, initargs=(variants,))
    try:
        yield from pool.map(_work, modules)
    except BrokenProcessPool:
        raise EmitError("a process that renders was killed; try again with --jobs 1") from None
    finally:
        pool.shutdown(cancel_futures=True)


_worker_variants: tuple[Variant, ...] = ()


def _start_worker(variants: tuple[Variant, ...]) -> None:
    """Hand a worker the variants once, and leave Ctrl-C to its parent."""
    global _worker_variants
    _worker_variants = variants
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(module: Module) -> Body:
    return make_one(module, _worker_variants)


# --- problems ------------------------------------------------------------------------------------


def _refuse_problems(bodies: Iterable[Body]) -> None:
    """Raise what stands in the way, the same mistake in many modules once."""
    first: dict[tuple[str, str], Problem] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for problem in (problem for body in bodies for problem in body.problems):
        key = (problem.said, problem.excerpt)
        first.setdefault(key, problem)
        counts[key] += 1
    if not first:
        return
    shown = [_shown(problem, counts[key]) for key, problem in first.items()]
    if len(shown) > SHOWN_PROBLEMS:
        shown[SHOWN_PROBLEMS:] = [f"and {len(shown) - SHOWN_PROBLEMS} more"]
    raise EmitError("\n".join(["nothing was written:", *shown]))


def _shown(problem: Problem, count: int) -> str:
    place = f"{problem.place}: " if problem.place else ""
    also = f" (and in {count - 1} more modules)" if count > 1 else ""
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


def _not_python(module: Module, text: str, error: SyntaxError) -> Problem:
    """Bad emitted text with the lines around it, and the template line it seems to come from."""
    lines = text.splitlines()
    number = min(error.lineno or 1, len(lines))
    first, last = max(number - _LINES_AROUND, 1), min(number + _LINES_AROUND, len(lines))
    around = (f"  {'>' if at == number else ' '} {lines[at - 1]}" for at in range(first, last + 1))
    source = _likely_source(lines[number - 1]) if lines else None
    return Problem(
        f"{error.msg}{f', probably from {source}' if source else ''}",
        f"{module.path}, line {number} as rendered",
        "\n".join(around),
    )


def _likely_source(line: str) -> str | None:
    """The one template file:line that reads like an emitted line, if there is just one."""
    places = [
        f"{_below_root(str(path))}:{number}"
        for path in sorted(resources.templates_dir().rglob("*.j2"))
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if text.strip() == line.strip()
    ]
    return places[0] if len(places) == 1 else None
