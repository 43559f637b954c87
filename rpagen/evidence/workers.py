"""Processes in which kernels run side by side: the interpreter takes a whole process."""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from rpagen import processes

Piece = TypeVar("Piece")
Result = TypeVar("Result")

_MOST_SECONDS = 900
"""That a piece of work may take: a fault may be a loop that does not end."""

_PIECES_OF_A_PROCESS = 25
"""Then it ends, and gives back what its compilations took."""


def usual_count() -> int:
    """As many as this process may use processors."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def results(
    work: Callable[[Piece], Result],
    died: Callable[[Piece, str], Result],
    pieces: Sequence[Piece],
    jobs: int,
) -> Iterator[Result]:
    """What `work` makes of every piece, as they come, in processes that run kernels on the CPU.

    died: what to say of a piece whose process ended, or gave no answer in time, and why.
    """
    set_environment()
    # Whole pools end, since the executor that ends single processes may wait for ever (CPython
    # issue 115634).
    some = _PIECES_OF_A_PROCESS * jobs
    for start in range(0, len(pieces), some):
        yield from _results_of_pool(work, died, pieces[start : start + some], jobs)


def _results_of_pool(
    work: Callable[[Piece], Result],
    died: Callable[[Piece, str], Result],
    pieces: Sequence[Piece],
    jobs: int,
) -> Iterator[Result]:
    left = list(pieces)
    while left:
        with _pool(jobs) as pool:
            with processes.interrupts_held_back():
                working = {pool.submit(_in_time, work, piece): piece for piece in left}
            try:
                for future in concurrent.futures.as_completed(working):
                    result = future.result()
                    left.remove(working[future])
                    yield result
            except BrokenProcessPool:
                pass  # one of those that were running ended their process
            finally:
                # Where nobody wants the other results, nobody waits for them.
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children() if left else ():
                    process.kill()
        suspects, left = left[: 2 * jobs], left[2 * jobs :]
        for piece in suspects:
            yield _alone(work, died, piece)


def _alone(
    work: Callable[[Piece], Result], died: Callable[[Piece, str], Result], piece: Piece
) -> Result:
    with _pool(1) as pool:
        with processes.interrupts_held_back():
            working = pool.submit(_in_time, work, piece)
        try:
            return working.result()
        except BrokenProcessPool:
            return died(piece, f"its process died, or gave no answer in {_MOST_SECONDS} s")


def _pool(jobs: int) -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), _start
    )


def _in_time(work: Callable[[Piece], Result], piece: Piece) -> Result:
    """What work makes of a piece; this process ends if it takes too long, wherever it hangs."""
    signal.alarm(_MOST_SECONDS)
    try:
        return work(piece)
    finally:
        signal.alarm(0)


def _start() -> None:
    """Makes a process one of these."""
    # What is wrong with a kernel is an outcome: jax need not write it down as well.
    logging.disable(logging.ERROR)
    processes.end_with_parent()


def set_environment() -> None:
    """For running kernels in interpret mode; jax reads it when it is imported."""
    os.environ.update(environment())


def environment() -> dict[str, str]:
    """The variables of processes that run kernels in interpret mode."""
    flags = without_ours(os.environ.get("XLA_FLAGS", ""))
    return {
        # With libtpu installed and no TPU, jax would look for one.
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": " ".join([*flags.split(), *_flags()]),
    }


def without_ours(flags: str) -> str:
    """Flags of XLA without those of `environment`, which libtpu need not know."""
    return " ".join(each for each in flags.split() if each not in _flags())


# The interpreter's programs run once or twice: to compile them well, or by several threads beside
# those of another worker, takes longer than it saves.
_FLAGS = ("--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1")
_FLAGS_BEFORE_JAXLIB_0_11 = ("--xla_cpu_use_fusion_emitters=false",)
"""Half of the time, where it is known. A flag that XLA does not know ends the process."""


def _flags() -> tuple[str, ...]:
    major, minor = importlib.metadata.version("jaxlib").split(".")[:2]
    return _FLAGS + (_FLAGS_BEFORE_JAXLIB_0_11 if (int(major), int(minor)) < (0, 11) else ())
