"""Loads and stores: the counterparts of JAX's `get`, `store` and `swap`.

The interpreter calls them for loads and stores, for both ends of a DMA, and to copy the blocks of
operands.  It passes `block_indices` and `grid_loop_idx` with the blocks of operands; and the id of
a DMA as `src_device_id`, with its `clock`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import numpy as np
from jax._src import source_info_util
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpret
from jax.experimental.pallas import tpu as pltpu

from rpagen.evidence.interpreter.memory import Memory, clock_values, format_source
from rpagen.evidence.interpreter.races import Access
from rpagen.evidence.interpreter.views import RefView

SEMAPHORE_MEMORY = interpret.TPU_MEMORY_SPACE_IDXS[pltpu.MemorySpace.SEMAPHORE]

_Callback = TypeVar("_Callback", bound=Callable[..., Any])
# Reports an exception to the interpreter, where other cores and `tpu_interpret_mode` find it.
reports_failure: Callable[[_Callback], _Callback] = interpret.fail_on_exception


def running_memory() -> Memory:
    """Returns the memory of the kernel that runs."""
    memory = interpret._get_shared_memory()
    assert isinstance(memory, Memory)
    return memory


@dataclasses.dataclass(frozen=True)
class _Core:
    """A core that accesses memory."""

    core_id: int
    is_only_one: bool
    source_info: source_info_util.SourceInfo | None

    def __str__(self) -> str:
        if self.source_info is None:
            return "pallas_call, which copies the blocks of its operands"
        core = "the core" if self.is_only_one else f"core {self.core_id}"
        return core + format_source(self.source_info)


def _note(
    kind: Literal["read", "write"],
    memory: Memory,
    key: Any,
    view: RefView,
    core_id: int,
    clock: Any,
    dma_id: int | None,
    source_info: source_info_util.SourceInfo | None,
) -> None:
    """Notes an access for the detection of races."""
    if not memory.detect_races:
        return
    values = clock_values(clock).tolist()
    if dma_id is None:
        doer: Any = _Core(core_id, memory.num_cores == 1, source_info)
        entry = core_id
    else:
        doer = memory.copies[dma_id]
        entry = doer.dma.virtual_device_id
    memory.races.note(key, Access(kind, view, entry, values[entry], doer), values)


@reports_failure
def get(
    token: Any,
    device_id: Any,
    local_core_id: Any,
    memory_space: Any,
    buffer_id: Any,
    transforms: Any,
    block_indices: Any = None,
    grid_loop_idx: Any = None,
    *,
    src_device_id: int | None = None,
    src_local_core_id: int | None = None,
    clock: Any = None,
    source_info: source_info_util.SourceInfo | None = None,
    input_name: str | None = None,
) -> tuple[Any, np.ndarray]:
    """Loads from a buffer, or the count of a semaphore."""
    del block_indices, grid_loop_idx, src_local_core_id
    memory = running_memory()
    core_id = memory.get_global_core_id(int(device_id), int(local_core_id))
    if int(memory_space) == SEMAPHORE_MEMORY:
        semaphore_id = int(RefView.of(np.array(buffer_id), transforms).read())
        (semaphore,), _ = memory.get_semaphores_and_increment_clock((semaphore_id,), core_id)
        return token, np.array(semaphore.count_by_core[core_id], np.int32)
    if src_device_id is None:
        _, clock = memory.get_semaphores_and_increment_clock((), core_id)
    key = memory.key(memory_space, buffer_id, device_id, local_core_id)
    view = memory.view(key, transforms, source_info, input_name)
    with memory.lock:
        value = view.read()
    _note("read", memory, key, view, core_id, clock, src_device_id, source_info)
    return token, value


@reports_failure
def store(
    token: Any,
    device_id: Any,
    local_core_id: Any,
    memory_space: Any,
    buffer_id: Any,
    transforms: Any,
    val: Any,
    block_indices: Any = None,
    grid_loop_idx: Any = None,
    *,
    src_device_id: int | None = None,
    src_local_core_id: int | None = None,
    clock: Any = None,
    source_info: source_info_util.SourceInfo | None = None,
    output_name: str | None = None,
) -> Any:
    """Stores to a buffer."""
    del block_indices, grid_loop_idx, src_local_core_id
    memory = running_memory()
    core_id = memory.get_global_core_id(int(device_id), int(local_core_id))
    if src_device_id is None:
        _, clock = memory.get_semaphores_and_increment_clock((), core_id)
    key = memory.key(memory_space, buffer_id, device_id, local_core_id)
    view = memory.view(key, transforms, source_info, output_name)
    with memory.lock:
        view.write(np.asarray(val))
    _note("write", memory, key, view, core_id, clock, src_device_id, source_info)
    return token


@reports_failure
def swap(
    token: Any,
    device_id: Any,
    local_core_id: Any,
    memory_space: Any,
    buffer_id: Any,
    transforms: Any,
    val: Any,
    mask: Any,
    *,
    source_info: source_info_util.SourceInfo | None = None,
) -> tuple[Any, np.ndarray]:
    """Stores to a buffer, where `mask` says so, and returns what was there."""
    memory = running_memory()
    core_id = memory.get_global_core_id(int(device_id), int(local_core_id))
    _, clock = memory.get_semaphores_and_increment_clock((), core_id)
    key = memory.key(memory_space, buffer_id, device_id, local_core_id)
    view, value = memory.view(key, transforms, source_info), np.asarray(val)
    with memory.lock:
        old_value = view.read()
        if mask is not None:
            mask = np.asarray(mask)
            view, value = view.masked(mask), value[mask]
            old_value = np.where(mask, old_value, val)
        view.write(value)
    _note("write", memory, key, view, core_id, clock, None, source_info)
    return token, old_value
