"""Processes in which kernels run side by side: the interpreter takes a whole process."""

from __future__ import annotations

import concurrent.futures
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")

_PIECES_OF_A_PROCESS = 25
"""Then it ends, and gives back what its compilations took."""


def usual_count() -> int:
    """As many as this process may use processors."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def results(
    work: Callable[[Piece], Result], pieces: Sequence[Piece], jobs: int
) -> Iterator[Result]:
    """What `work` makes of every piece, as they come, in processes that run kernels on the CPU."""
    set_environment()
    context = multiprocessing.get_context("spawn")
    # Whole pools end, since the executor that ends single processes may wait for ever (CPython
    # issue 115634).
    some = _PIECES_OF_A_PROCESS * jobs
    for start in range(0, len(pieces), some):
        with concurrent.futures.ProcessPoolExecutor(jobs, context, _be_quiet) as pool:
            working = [pool.submit(work, piece) for piece in pieces[start : start + some]]
            try:
                for done in concurrent.futures.as_completed(working):
                    yield done.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _be_quiet() -> None:
    """What is wrong with a kernel is an outcome: jax need not write it down as well."""
    logging.disable(logging.ERROR)


def set_environment() -> None:
    """For running kernels in interpret mode; jax reads it when it is imported."""
    os.environ.update(environment())


def environment() -> dict[str, str]:
    """The variables of processes that run kernels in interpret mode."""
    # The interpreter's programs run once or twice: to compile them well takes longer than it saves.
    flag = "--xla_backend_optimization_level=0"
    flags = os.environ.get("XLA_FLAGS", "").split()
    return {
        # With libtpu installed and no TPU, jax would look for one.
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join([*(each for each in flags if each != flag), flag]),
    }
