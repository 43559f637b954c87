"""From modules to finished bodies: rendered, parsed, formatted and linted, on several processes.

A worker never raises for what an author of templates can get wrong: it returns the problems, so
that every module's are known before anything is written, and none is lost on its way between
processes.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from rpagen import processes
from rpagen.emit import lint, mistakes, render, trace
from rpagen.emit.format import formatted
from rpagen.emit.mistakes import EmitError, Problem
from rpagen.emit.render import Module
from rpagen.spec.model import Catalogue

Progress = Callable[[int, int], None]
"""Called with how many of how many modules are done."""

# Below this many modules, starting processes takes longer than it saves.
FEWEST_FOR_A_POOL = 4


@dataclasses.dataclass(frozen=True)
class Body:
    """The body of a module, or what stands in its way."""

    text: str = ""
    problems: tuple[Problem, ...] = ()


def make(
    modules: Sequence[Module],
    catalogue: Catalogue,
    jobs: int | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, str]:
    """The finished bodies of `modules`, by the paths of the modules.

    Raises:
        EmitError: a template is wrong, or a body is no Python or breaks a rule of `lint`.
    """
    bodies = []
    for body in _made(modules, catalogue, jobs or os.cpu_count() or 1):
        bodies.append(body)
        progress(len(bodies), len(modules))
    mistakes.refuse(problem for body in bodies for problem in body.problems)
    return {module.path: body.text for module, body in zip(modules, bodies, strict=True)}


def make_one(module: Module, catalogue: Catalogue) -> Body:
    """The finished body of one module, or its problems."""
    try:
        text = render.render(module, catalogue)
    except render.Unfinished as unfinished:
        return Body(problems=(mistakes.in_template(unfinished, module.path),))
    try:
        text = formatted(text)
    except SyntaxError as error:
        source = trace.traced(module, catalogue)
        return Body(problems=(mistakes.no_python(module.path, source, error),))
    findings = list(lint.lint(text))
    places = trace.places_of(text, trace.traced(module, catalogue)) if findings else {}
    problems = (mistakes.broken_rule(module.path, text, each, places) for each in findings)
    return Body(text, tuple(problems))


def _made(modules: Sequence[Module], catalogue: Catalogue, jobs: int) -> Iterator[Body]:
    if jobs == 1 or len(modules) < FEWEST_FOR_A_POOL:
        for module in modules:
            yield make_one(module, catalogue)
        return
    # Not forked: the caller may have threads, such as those of jax, which a fork would hang on.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        min(jobs, len(modules)), context, initializer=_start_worker, initargs=(catalogue,)
    )
    try:
        with processes.interrupts_held_back():
            bodies = pool.map(_work, modules)
        yield from bodies
    except BrokenProcessPool:
        raise EmitError("a process that renders was killed; try again with --jobs 1") from None
    finally:
        pool.shutdown(cancel_futures=True)


_worker_catalogue = Catalogue((), ())


def _start_worker(catalogue: Catalogue) -> None:
    """Hand a worker the catalogue once, rather than with every module."""
    global _worker_catalogue
    _worker_catalogue = catalogue
    processes.end_with_parent()


def _work(module: Module) -> Body:
    return make_one(module, _worker_catalogue)
