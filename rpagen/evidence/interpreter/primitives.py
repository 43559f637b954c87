"""What happens to a kernel when the interpreter traces it."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import callback
from jax._src.pallas import primitives
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpret
from jax._src.state import primitives as state_primitives
from jax.experimental.pallas import tpu as pltpu

from rpagen.evidence.interpreter.accesses import reports_failure, running_memory
from rpagen.evidence.interpreter.errors import PrecisionError
from rpagen.evidence.interpreter.memory import format_source
from rpagen.evidence.interpreter.views import UNINITIALIZED_INT32

_interpret_pallas_call_in_jax = interpret.interpret_pallas_call
_interpret_jaxpr_in_jax = interpret._interpret_jaxpr
_update_clocks_in_jax = interpret._update_clocks_for_device_barrier

# The jaxprs whose arguments are refs that nothing further out has named: the kernel, and the
# bodies of `run_scoped`.
_naming: contextvars.ContextVar[list[Any]] = contextvars.ContextVar("_naming")


def interpret_pallas_call(*args: Any, jaxpr: Any, **kwargs: Any) -> Any:
    """Interprets a kernel, whose refs get the names that they have in its source."""
    reset = _naming.set([jaxpr])
    try:
        return _interpret_pallas_call_in_jax(*args, jaxpr=jaxpr, **kwargs)
    finally:
        _naming.reset(reset)


def interpret_jaxpr(jaxpr: Any, *args: Any, token: Any, **kwargs: Any) -> Any:
    """Interprets a jaxpr in which each `semaphore_read` became a load through the semaphore ref.

    The interpreter orders loads among the other accesses, and `accesses.get` recognizes this one
    by its memory space.

    Raises:
      PrecisionError: if a product of float32 matrices is of no full precision.
    """
    naming = _naming.get()
    if any(jaxpr is each for each in naming):
        token = _name_refs(jaxpr, args[len(jaxpr.constvars) :], token)
    for eqn in jaxpr.eqns:
        if eqn.primitive is jax.lax.dot_general_p:
            _check_precision(eqn)
        if eqn.primitive is primitives.run_scoped_p:
            naming.append(eqn.params["jaxpr"])
    if any(eqn.primitive is primitives.semaphore_read_p for eqn in jaxpr.eqns):
        jaxpr = jaxpr.replace(eqns=[_load_semaphore(eqn) for eqn in jaxpr.eqns])
    return _interpret_jaxpr_in_jax(jaxpr, *args, token=token, **kwargs)


def _check_precision(dot: Any) -> None:
    """Refuses a product of float32 matrices that a TPU would make of bfloat16 passes.

    A CPU computes it in float32 whatever its precision, so that no number would show it.
    """
    operands = [var.aval.dtype for var in dot.invars]
    precision = dot.params["precision"]
    if jnp.float32 in operands and precision != 2 * (jax.lax.Precision.HIGHEST,):
        left, right = (each.name for each in operands)
        raise PrecisionError(
            f"the product of {left} and {right} matrices"
            f"{format_source(dot.source_info)} has the precision {precision}: a TPU makes it of"
            " bfloat16 passes unless it is jax.lax.Precision.HIGHEST"
        )


def _name_refs(jaxpr: Any, ids: Sequence[Any], token: Any) -> Any:
    """Tells the memory the names of refs, given the ids of their buffers and semaphores."""
    names = jaxpr.debug_info.arg_names
    if names is None or len(names) != len(ids):
        return token
    are_semaphores = [var.aval.memory_space is pltpu.MemorySpace.SEMAPHORE for var in jaxpr.invars]
    note = functools.partial(_note_names, tuple(names), tuple(are_semaphores))
    return callback.io_callback(note, interpret.TOKEN_SHAPE_DTYPE, token, *ids)


def _note_names(names: Any, are_semaphores: Any, token: Any, *ids: Any) -> Any:
    memory = running_memory()
    for name, is_semaphore, numbers in zip(names, are_semaphores, ids, strict=True):
        known = memory.semaphore_names if is_semaphore else memory.buffer_names
        for index, number in np.ndenumerate(np.asarray(numbers)):
            known[int(number)] = f"{name}[{', '.join(map(str, index))}]" if index else name
    return token


def _load_semaphore(eqn: Any) -> Any:
    if eqn.primitive is not primitives.semaphore_read_p:
        return eqn
    _, transforms_tree = eqn.params["args_tree"].children()
    return eqn.replace(primitive=state_primitives.get_p, params={"tree": transforms_tree})


@reports_failure
def update_clocks_for_device_barrier(token: Any, device_id: Any) -> Any:
    """Checks a device for leftovers, if this is after its grid and not before it.

    After the grid is before the outputs are read: what was not waited for is not called a race.
    """
    memory, device_id = running_memory(), int(device_id)
    if device_id in memory.running_devices:
        memory.check_leftovers(device_id)
    memory.running_devices.add(device_id)
    return _update_clocks_in_jax(token, device_id)


def reciprocal(x: jax.Array, *, approx: bool, full_range: bool) -> jax.Array:
    """Computes `pltpu.reciprocal`, whose lowering on CPU turns an approximate bf16 into f32."""
    del full_range
    return jnp.reciprocal(x.astype(jnp.bfloat16) if approx else x).astype(x.dtype)


def empty(uninitialized_memory: str, *, shape: Any, dtype: Any, out_sharding: Any) -> jax.Array:
    """Computes `jax.lax.empty`, which is zeros on a CPU and whatever was there on a TPU.

    shape, dtype, out_sharding: the parameters of the primitive.
    """
    value = np.array(uninitialized_value(dtype, uninitialized_memory), dtype)
    return jax.lax.broadcast(value, shape, out_sharding=out_sharding)


def uninitialized_value(dtype: Any, uninitialized_memory: str) -> Any:
    """Returns what memory holds before it is written.

    The lowest integers are no index, no size and no number of iterations.
    """
    iinfo: Any = jnp.iinfo
    if uninitialized_memory == "zero":
        return 0
    if jnp.issubdtype(dtype, jnp.floating):
        return np.nan
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return UNINITIALIZED_INT32 if dtype == jnp.int32 else iinfo(dtype).min
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return iinfo(dtype).max
    if jnp.issubdtype(dtype, jnp.bool_):
        return True
    raise NotImplementedError(f"uninitialized memory of {dtype}")
