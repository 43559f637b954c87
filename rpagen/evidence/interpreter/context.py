"""The context in which kernels run in the extended interpret mode."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator
from typing import Any, Literal

import jax
from jax._src.lax import lax as jax_lax
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpret
from jax._src.pallas.mosaic.interpret import shared_memory
from jax._src.pallas.mosaic.interpret import utils as interpret_utils
from jax.experimental.pallas import tpu as pltpu

from rpagen.evidence.interpreter import accesses, memory, primitives

# More than the copies that are ever in flight at once: see `Memory.get_random_virtual_device_id`.
_VECTOR_CLOCK_SIZE = 256


class _ExtendedInterpretParams(pltpu.InterpretParams):
    """Parameters that differ from JAX's, so that the two do not share compiled kernels.

    What may differ from one run of a compiled kernel to the next is in `memory.Settings`.
    """


@contextlib.contextmanager
def tpu_interpret_mode(
    *,
    detect_races: bool = False,
    dma_execution_mode: memory.DmaExecutionMode = "on_wait",
    seed: int = 0,
    uninitialized_memory: Literal["nan", "zero"] = "nan",
) -> Iterator[None]:
    """Runs the Pallas TPU kernels that are called inside in the extended interpret mode.

    A kernel is called inside if its `pl.pallas_call` is evaluated inside.

    A fault in a kernel surfaces as a `jax.errors.JaxRuntimeError` inside of the context, and
    leaves it as the exception that the interpreter raised.  After a fault, leave the context
    before running another kernel.

    Args:
      detect_races: whether to look for accesses that no semaphore orders.
      dma_execution_mode: "on_wait" runs a DMA as late as its wait allows and the last one first,
        "eager" at its start, "random" at any time from its start to its wait, in any order.
      seed: of "random"; on a single core, all that happens follows from it.
      uninitialized_memory: what a buffer, an output or `jax.lax.empty` holds before it is
        written: "nan" is NaN, the lowest signed and the highest unsigned integer.

    Raises:
      IndexError: on an access outside of the view or the buffer it goes to.
      RaceError: on a race, if `detect_races`.
      DeadlockError: on a wait that nothing can meet, on a single core.
      LeftoverError: if a kernel ends before all DMAs and all signals were waited for.
      PrecisionError: if a kernel is traced that multiplies float32 matrices below the highest
        precision.
    """
    settings = memory.Settings(detect_races, dma_execution_mode, random.Random(seed))
    params = _ExtendedInterpretParams(
        uninitialized_memory=uninitialized_memory, vector_clock_size=_VECTOR_CLOCK_SIZE
    )
    with contextlib.ExitStack() as stack:
        for owner, name, replacement in _REPLACEMENTS:
            stack.enter_context(_replaced(owner, name, replacement))
        new_memory = functools.partial(memory.Memory, settings=settings)
        stack.enter_context(_replaced(shared_memory, "SharedMemory", new_memory))
        # What is traced inside is kept apart from what is traced outside: see the parameters.
        empty = functools.partial(primitives.empty, uninitialized_memory)
        stack.enter_context(_replaced(jax_lax.empty_p, "bind", empty))
        stack.enter_context(pltpu.force_tpu_interpret_mode(params))
        stack.callback(pltpu.reset_tpu_interpret_mode_state)
        try:
            yield
            # A kernel that is still running needs the replacements.
            jax.effects_barrier()  # type: ignore[no-untyped-call]
        except jax.errors.JaxRuntimeError as error:
            if not settings.failures:
                raise
            raise settings.failures[0] from error


_MISSING = object()


@contextlib.contextmanager
def _replaced(owner: Any, name: Any, replacement: Any) -> Iterator[None]:
    """Replaces an attribute of a module or a class, or an entry of a dict."""
    is_dict = isinstance(owner, dict)
    old = (owner if is_dict else vars(owner)).get(name, _MISSING)
    put, remove = (dict.__setitem__, dict.__delitem__) if is_dict else (setattr, delattr)
    put(owner, name, replacement)
    try:
        yield
    finally:
        if old is _MISSING:
            remove(owner, name)
        else:
            put(owner, name, old)


_REPLACEMENTS: list[tuple[Any, Any, Any]] = [
    (interpret, "get", accesses.get),
    (interpret, "store", accesses.store),
    (interpret, "swap", accesses.swap),
    (interpret, "interpret_pallas_call", primitives.interpret_pallas_call),
    (interpret, "_interpret_jaxpr", primitives.interpret_jaxpr),
    (
        interpret,
        "_update_clocks_for_device_barrier",
        primitives.update_clocks_for_device_barrier,
    ),
    (interpret._interpret_impls, pallas_primitives.reciprocal_p, primitives.reciprocal),
    (interpret_utils, "get_uninitialized_value", primitives.uninitialized_value),
    (shared_memory, "Semaphore", memory.Semaphore),
]
