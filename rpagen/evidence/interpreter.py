"""TPU interpret mode for kernels written in the form that is fast on hardware.

JAX's TPU interpret mode accesses a ref only through indices.  The fast kernels also reshape and
bitcast refs before they load, store or copy them::

    kv_ref.at[slot].bitcast(jnp.uint32).reshape(rows, 128)[pl.ds(start, n, stride)]

`tpu_interpret_mode` enters TPU interpret mode with an interpreter that handles these transforms
exactly, so that a test runs the kernel that a TPU runs::

    with interpreter.tpu_interpret_mode(detect_races=True):
        out = kernel(...)

How it works.  The interpreter holds every buffer as a NumPy array and runs each load, store and
DMA in a Python callback, which receives the transforms of the ref.  We replace these callbacks.
Ours turn the chain of transforms into a `RefView`: a NumPy view into the buffer of exactly the
elements that the ref denotes, with the order and the packing of the ref.  A load copies from the
view and a store assigns to it, so that an access touches its own elements and no others, and race
detection asks whether two views share memory.

Besides the transforms, these faults raise here, and pass or hang in JAX's own interpret mode: a
negative index, an index outside of the view it is applied to, and a wait that nothing can meet.

Not handled: masked loads, which do not lower for TPU either; bitcasts of types narrower than a
byte; loads of stride 0; reads past the end of a buffer that yield uninitialized values; and
`semaphore_read` as a way to poll, since pending DMAs run when a core waits and not before.
`pltpu.get_tpu_info` and `pltpu.emit_pipeline` need an abstract mesh from the caller.

The module needs NumPy 2.1 or later, and replaces private functions of JAX, as they are in 0.10.2
and 0.12.0.  They are replaced for the whole process while the context is active: do not enter it
in two threads at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import dtypes, source_info_util
from jax._src.pallas import primitives
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpret
from jax._src.pallas.mosaic.interpret import race_detection_state, shared_memory
from jax._src.state import indexing
from jax._src.state import primitives as state_primitives
from jax._src.state import types as state_types
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


class RaceError(RuntimeError):
    """Two accesses to the same memory, at least one of them a write, are not ordered."""


class DeadlockError(RuntimeError):
    """A wait needs more than all the signals that can still arrive.

    The message names semaphores by their ids in the interpreter, which count from 2000 in the
    order of allocation.
    """


@contextlib.contextmanager
def tpu_interpret_mode(
    *,
    detect_races: bool = False,
    dma_execution_mode: Literal["on_wait", "eager"] = "on_wait",
    uninitialized_memory: Literal["nan", "zero"] = "nan",
    vector_clock_size: int = 256,
) -> Iterator[None]:
    """Runs the Pallas TPU kernels that are called inside in the extended interpret mode.

    A kernel is called inside if its `pl.pallas_call` is evaluated inside.

    A fault in a kernel surfaces as a `jax.errors.JaxRuntimeError` inside of the context, and
    leaves it as the exception that the interpreter raised.  After a fault, leave the context
    before running another kernel.

    Args:
      detect_races: whether to look for accesses that no semaphore orders.
      dma_execution_mode: "on_wait" runs a DMA as late as its wait allows, "eager" at its start.
      uninitialized_memory: what a scratch buffer or an output holds before it is written.
      vector_clock_size: the number of entries in the clocks of race detection.  DMAs that share
        an entry look ordered, so a small number hides races.

    Raises:
      IndexError: on an access outside of the view or the buffer it goes to.
      RaceError: on a race, if `detect_races`.
      DeadlockError: on a wait that nothing can meet, on a single core.
    """
    params = _ExtendedInterpretParams(
        detect_races=detect_races,
        dma_execution_mode=dma_execution_mode,
        uninitialized_memory=uninitialized_memory,
        vector_clock_size=vector_clock_size,
    )
    failures: list[Exception] = []

    def set_failed(memory: Any, exception: Exception, *args: Any, **kwargs: Any) -> None:
        failures.append(exception)
        _set_failed_in_jax(memory, exception, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for owner, name, replacement in _REPLACEMENTS:
            stack.enter_context(_replaced(owner, name, replacement))
        stack.enter_context(_replaced(shared_memory.SharedMemory, "set_failed", set_failed))
        stack.enter_context(pltpu.force_tpu_interpret_mode(params))
        stack.callback(pltpu.reset_tpu_interpret_mode_state)
        try:
            yield
            # A kernel that is still running needs the replacements.
            jax.effects_barrier()  # type: ignore[no-untyped-call]
        except jax.errors.JaxRuntimeError as error:
            if not failures:
                raise
            raise failures[0] from error


_set_failed_in_jax = shared_memory.SharedMemory.set_failed


class _ExtendedInterpretParams(pltpu.InterpretParams):
    """Parameters that differ from JAX's, so that the two do not share compiled kernels."""


# ---------------------------------------------------------------------------------------------
# Views


@dataclasses.dataclass(frozen=True)
class RefView:
    """The elements of a buffer that a chain of ref transforms denotes.

    The buffer is seen as an array of units, unsigned integers as wide as the narrowest element
    type in the chain.  An element of the view consists of 2**k units, low bits first.  They are
    not adjacent in the buffer once a ref was bitcast to a wider type, because a TPU packs into
    one word the narrow elements of neighbouring sublanes, not of neighbouring lanes.  Hence
    `units` has k trailing axes of size 2, which together index the units of one element.

    `units` is a strided view into the buffer as long as there is one.  After a reshape or a
    bitcast that no strides can express it holds the positions of the units in `storage`, and
    `is_gather` is set.
    """

    units: np.ndarray
    shape: tuple[int, ...]
    dtype: np.dtype
    storage: np.ndarray
    is_gather: bool = False
    transforms: tuple[Any, ...] = ()

    @classmethod
    def of(cls, buffer: np.ndarray, transforms: Sequence[Any]) -> RefView:
        """Returns the view of `buffer` through `transforms`, all of whose leaves are known.

        Raises:
          IndexError: if an index is negative or outside of the view it is applied to.
        """
        casts = [t for t in transforms if isinstance(t, state_types.BitcastTransform)]
        unit_size = min([buffer.dtype.itemsize, *(np.dtype(t.dtype).itemsize for t in casts)])
        storage = buffer.reshape(-1, copy=False).view(f"u{unit_size}")
        unit_axes = _factors(buffer.dtype.itemsize // unit_size)
        view = cls(storage.reshape(buffer.shape + unit_axes), buffer.shape, buffer.dtype, storage)
        for transform in transforms:
            match transform:
                case indexing.NDIndexer():
                    view = view._index(transform)
                case state_types.BitcastTransform(dtype=dtype):
                    view = view._bitcast(np.dtype(dtype))
                case state_types.ReshapeTransform(shape=shape):
                    view = view._reshape(shape)
                case state_types.TransposeTransform(permutation=permutation):
                    view = view._transpose(permutation)
                case _:
                    raise NotImplementedError(f"{type(transform).__name__} of a ref")
            view = view._derive(transforms=(*view.transforms, transform))
        return view

    def masked(self, mask: np.ndarray) -> RefView:
        """Returns the elements at which `mask` is true, along one axis."""
        positions = self.positions()[mask]
        return self._derive(positions, positions.shape[:1], is_gather=True)

    def read(self) -> np.ndarray:
        """Returns a copy of the elements."""
        # Copying the n-th units of all elements at once keeps NumPy's inner loop long.
        values = np.empty(self.units.shape, self.storage.dtype)
        for index in np.ndindex(self.units.shape[len(self.shape) :]):
            units = self.units[..., *index]
            values[..., *index] = self.storage[units] if self.is_gather else units
        return values.reshape(-1).view(self.dtype).reshape(self.shape)

    def write(self, value: np.ndarray) -> None:
        """Assigns `value`, which has the shape and the dtype of the view, to the elements."""
        if (value.shape, value.dtype) != (self.shape, self.dtype):
            raise ValueError(
                f"cannot write {value.dtype}{list(value.shape)} to {self}, which is"
                f" {self.dtype}{list(self.shape)}"
            )
        flat = np.ascontiguousarray(value).reshape(-1)
        units = flat.view(self.storage.dtype).reshape(self.units.shape)
        if self.is_gather:
            self.storage[self.units] = units
        else:
            self.units[...] = units

    def positions(self) -> np.ndarray:
        """Returns the position in `storage` of every unit, in the shape of `units`."""
        if self.is_gather:
            return self.units
        unit_size = self.storage.itemsize
        offset = self.units.__array_interface__["data"][0]
        offset -= self.storage.__array_interface__["data"][0]
        positions = np.array(offset // unit_size)
        for size, stride in zip(self.units.shape, self.units.strides, strict=True):
            positions = positions[..., None] + np.arange(size) * (stride // unit_size)
        return positions

    def overlaps(self, other: RefView) -> bool:
        """Returns whether two views of one buffer have a byte in common."""
        if not (self.is_gather or other.is_gather):
            return np.shares_memory(self.units, other.units)
        touched = np.zeros(self.storage.nbytes, bool)
        touched[self._byte_positions()] = True
        return bool(touched[other._byte_positions()].any())

    def __str__(self) -> str:
        """Returns the chain of transforms as it would be written."""
        return "ref" + "".join(map(_format_transform, self.transforms))

    def _index(self, indexer: indexing.NDIndexer) -> RefView:
        if indexer.int_indexer_shape:
            raise NotImplementedError("array as an index of a ref")
        entries: list[Any] = []
        shape: list[Any] = []
        for axis, (entry, dim) in enumerate(zip(indexer.indices, self.shape, strict=True)):
            if isinstance(entry, pl.Slice):
                start, size, stride = int(entry.start), int(entry.size), entry.stride
                if stride == 0:
                    raise NotImplementedError("stride 0 in an index of a ref")
                # An empty slice touches nothing, and may start right behind the last element.
                last = start + (size - 1) * stride if size else start - 1
                in_bounds = start >= 0 and size >= 0 and last < dim
                entries.append(slice(start, start + size * stride, stride))
                shape.append(size)
            else:
                position = int(entry)
                in_bounds = 0 <= position < dim
                entries.append(position)
            if not in_bounds:
                raise IndexError(
                    f"index {_format_index(entry)} is out of bounds for axis {axis} of {self},"
                    f" whose shape is {list(self.shape)}"
                )
        # The ellipsis makes NumPy return a view of a single element too.
        return self._derive(self.units[*entries, ...], tuple(shape))

    def _bitcast(self, dtype: np.dtype) -> RefView:
        old_bits, new_bits = dtypes.itemsize_bits(self.dtype), dtypes.itemsize_bits(dtype)
        if old_bits % 8 or new_bits % 8:
            raise NotImplementedError(f"bitcast of a ref from {self.dtype} to {dtype}")
        if old_bits == new_bits:
            return self._derive(dtype=dtype)
        *major, rows, lanes = self.shape
        lane_axis = len(major) + 1
        if old_bits < new_bits:
            # The row within the word becomes the most significant part of the unit index.
            ratio = new_bits // old_bits
            factors = _factors(ratio)
            shape = (*major, rows // ratio, *factors, lanes)
            split = self._reshape(shape).units
            units = np.moveaxis(split, lane_axis + len(factors), lane_axis)
            view = self._derive(units, (*major, rows // ratio, lanes))
        else:
            ratio = old_bits // new_bits
            factors = _factors(ratio)
            units = np.moveaxis(self.units, lane_axis, lane_axis + len(factors))
            split_view = self._derive(units, (*major, rows, *factors, lanes))
            view = split_view._reshape((*major, rows * ratio, lanes))
        return view._derive(dtype=dtype)

    def _reshape(self, shape: tuple[int, ...]) -> RefView:
        units_shape = (*shape, *self.units.shape[len(self.shape) :])
        try:
            return self._derive(self.units.reshape(units_shape, copy=False), shape)
        except ValueError:  # No strides express the result.
            positions = self.positions().reshape(units_shape)
            return self._derive(positions, shape, is_gather=True)

    def _transpose(self, permutation: Sequence[int]) -> RefView:
        unit_axes = range(len(self.shape), self.units.ndim)
        units = self.units.transpose(*permutation, *unit_axes)
        return self._derive(units, tuple(self.shape[axis] for axis in permutation))

    def _derive(
        self,
        units: np.ndarray | None = None,
        shape: tuple[int, ...] | None = None,
        *,
        dtype: np.dtype | None = None,
        is_gather: bool = False,
        transforms: tuple[Any, ...] | None = None,
    ) -> RefView:
        # Every access derives several views, and `dataclasses.replace` is several times slower.
        return RefView(
            self.units if units is None else units,
            self.shape if shape is None else shape,
            self.dtype if dtype is None else dtype,
            self.storage,
            self.is_gather or is_gather,
            self.transforms if transforms is None else transforms,
        )

    def _byte_positions(self) -> np.ndarray:
        unit_size = self.storage.itemsize
        return self.positions()[..., None] * unit_size + np.arange(unit_size)


def _factors(power_of_two: int) -> tuple[int, ...]:
    return (2,) * (power_of_two.bit_length() - 1)


def _format_transform(transform: Any) -> str:
    match transform:
        case indexing.NDIndexer(indices=indices):
            return f".at[{', '.join(map(_format_index, indices))}]"
        case state_types.BitcastTransform(dtype=dtype):
            return f".bitcast({np.dtype(dtype).name})"
        case state_types.ReshapeTransform(shape=shape):
            return f".reshape{shape}"
        case state_types.TransposeTransform(permutation=permutation):
            return f".transpose{permutation}"
        case _:
            return f".{transform}"


def _format_index(entry: Any) -> str:
    if not isinstance(entry, pl.Slice):
        return str(int(entry))
    stride = "" if entry.stride == 1 else f", {entry.stride}"
    return f"ds({int(entry.start)}, {int(entry.size)}{stride})"


# ---------------------------------------------------------------------------------------------
# Callbacks: the counterparts of `get`, `store` and `swap`, which the interpreter calls for
# loads, stores, both ends of a DMA, and to copy blocks of inputs and outputs.


@dataclasses.dataclass(frozen=True)
class _Access:
    """An access to a buffer through transforms."""

    memory: shared_memory.SharedMemory
    device_id: int
    core_id: int
    memory_space: str
    buffer_id: int
    transforms: tuple[Any, ...]
    operand: str | None
    source_info: source_info_util.SourceInfo | None

    @property
    def key(self) -> tuple[str, int, int, int]:
        """The key of the buffer in the interpreter's memory."""
        core_id = interpret._local_core_id_or_zero_if_hbm(self.core_id, self.memory_space)
        return (self.memory_space, self.buffer_id, self.device_id, core_id)

    @functools.cached_property
    def view(self) -> RefView:
        """The accessed elements."""
        buffer = self.memory.mem[self.key]
        assert isinstance(buffer, shared_memory.Buffer)
        try:
            return RefView.of(buffer.content, self.transforms)
        except IndexError as error:
            block = "" if self.operand is None else f" for the block of operand {self.operand!r}"
            raise IndexError(
                f"out-of-bounds access to buffer {self.buffer_id} in {self.memory_space}{block}"
                f"{_format_source(self.source_info)}: {error}"
            ) from None

    def tick(self) -> Any:
        """Advances the vector clock of the core; returns a copy of it if races are detected."""
        core_id = self.memory.get_global_core_id(self.device_id, self.core_id)
        _, clock = self.memory.get_semaphores_and_increment_clock((), core_id)
        return clock

    def check_race(
        self, kind: Literal["read", "write"], view: RefView, clock: Any, dma_id: int | None = None
    ) -> None:
        """Raises if the access races with an earlier one, and notes it for later ones."""
        if not self.memory.detect_races:
            return
        races = interpret.races
        assert races is not None
        check: Any = races.check_read if kind == "read" else races.check_write
        # A DMA accesses memory in its own name.
        thread = (self.device_id, self.core_id) if dma_id is None else (dma_id, 0)
        try:
            check(
                *((thread,) if _RACES_TAKE_A_THREAD else thread),
                clock,
                self.key,
                view,
                source_info=self.source_info,
            )
        except RuntimeError as error:
            raise RaceError(str(error)) from None


_RACES_TAKE_A_THREAD = (
    "thread" in inspect.signature(race_detection_state.RaceDetectionState.check_read).parameters
)


def _format_source(source_info: source_info_util.SourceInfo | None) -> str:
    return "" if source_info is None else f" at {source_info_util.summarize(source_info)}"


def _access(
    device_id: Any,
    local_core_id: Any,
    memory_space: Any,
    buffer_id: Any,
    transforms: Any,
    *,
    operand: str | None = None,
    source_info: source_info_util.SourceInfo | None = None,
) -> _Access:
    return _Access(
        interpret._get_shared_memory(),
        int(device_id),
        int(local_core_id),
        interpret.TPU_MEMORY_SPACE_NAMES[int(memory_space)],
        int(buffer_id),
        transforms,
        operand,
        source_info,
    )


_Callback = TypeVar("_Callback", bound=Callable[..., Any])
# Reports an exception to the interpreter, where other cores and `tpu_interpret_mode` find it.
_reports_failure: Callable[[_Callback], _Callback] = interpret.fail_on_exception

# The interpreter passes `block_indices` and `grid_loop_idx` with the blocks of pallas_call
# operands, and `src_device_id`, `src_local_core_id` and `clock` for DMAs.


@_reports_failure
def _get(
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
    del block_indices, grid_loop_idx, src_local_core_id
    if int(memory_space) == _SEMAPHORE_MEMORY:
        return token, _read_semaphore(int(device_id), int(local_core_id), buffer_id, transforms)
    access = _access(
        device_id,
        local_core_id,
        memory_space,
        buffer_id,
        transforms,
        operand=input_name,
        source_info=source_info,
    )
    clock = access.tick() if clock is None else clock
    with access.memory.lock:
        value = access.view.read()
    access.check_race("read", access.view, clock, src_device_id)
    return token, value


@_reports_failure
def _store(
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
    del block_indices, grid_loop_idx, src_local_core_id
    access = _access(
        device_id,
        local_core_id,
        memory_space,
        buffer_id,
        transforms,
        operand=output_name,
        source_info=source_info,
    )
    clock = access.tick() if clock is None else clock
    with access.memory.lock:
        access.view.write(np.asarray(val))
    access.check_race("write", access.view, clock, src_device_id)
    return token


@_reports_failure
def _swap(
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
    access = _access(
        device_id, local_core_id, memory_space, buffer_id, transforms, source_info=source_info
    )
    clock = access.tick()
    view, value = access.view, np.asarray(val)
    with access.memory.lock:
        old_value = view.read()
        if mask is not None:
            mask = np.asarray(mask)
            view, value = view.masked(mask), value[mask]
            old_value = np.where(mask, old_value, val)
        view.write(value)
    access.check_race("write", view, clock)
    return token, old_value


def _ranges_overlap(view: RefView, other: RefView) -> bool:
    return view.overlaps(other)


def _raise_race(report: str) -> None:
    raise RaceError(report)


# ---------------------------------------------------------------------------------------------
# Semaphores

_wait_in_jax = shared_memory.Semaphore.wait


def _wait(self: shared_memory.Semaphore, value: int, global_core_id: int, **kwargs: Any) -> None:
    """Waits as `Semaphore.wait` does, and raises where that would never return.

    A single core signals itself only through its own pending DMAs, so that nothing is left to
    wait for once they have run.
    """
    if value == 0:
        # Orders nothing, which race detection in JAX cannot express before the first signal.
        return
    if self.shared_memory.num_cores == 1:
        while self.count_by_core[global_core_id] < value and self.tasks[global_core_id]:
            self.tasks[global_core_id].pop()()
        count = int(self.count_by_core[global_core_id])
        if count < value:
            unit = " bytes" if kwargs.get("has_tasks") else ""
            logging_info = kwargs.get("logging_info")
            source_info = None if logging_info is None else logging_info.source_info
            raise DeadlockError(
                f"wait for {value}{unit} on semaphore {self.id}{_format_source(source_info)} can"
                f" never be met: its count is {count} and no DMA that signals it is pending"
                f"{_format_busy_semaphores(self.shared_memory)}"
            )
    _wait_in_jax(self, value, global_core_id, **kwargs)


_SEMAPHORE_MEMORY = interpret.TPU_MEMORY_SPACE_IDXS[pltpu.MemorySpace.SEMAPHORE]


def _read_semaphore(
    device_id: int, local_core_id: int, semaphore_ids: Any, transforms: Any
) -> np.ndarray:
    """Returns the count of the semaphore that `transforms` select from an array of them."""
    memory = interpret._get_shared_memory()
    semaphore_id = RefView.of(np.array(semaphore_ids), transforms).read()
    core_id = memory.get_global_core_id(device_id, local_core_id)
    (semaphore,), _ = memory.get_semaphores_and_increment_clock((int(semaphore_id),), core_id)
    assert semaphore is not None
    return np.array(semaphore.count_by_core[core_id], np.int32)


def _format_busy_semaphores(memory: shared_memory.SharedMemory) -> str:
    """Describes the semaphores of a single core that have a count or pending DMAs."""
    busy = [
        f"semaphore {sem.id} has count {int(sem.count_by_core[0])} and"
        f" {len(sem.tasks[0])} pending DMAs"
        for sem in memory.sem.values()
        if sem.count_by_core[0] or sem.tasks[0]
    ]
    return f" ({'; '.join(busy)})" if busy else ""


# ---------------------------------------------------------------------------------------------
# Primitives

_interpret_jaxpr_in_jax = interpret._interpret_jaxpr


def _interpret_jaxpr(jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
    """Interprets a jaxpr in which each `semaphore_read` became a load through the semaphore ref.

    The interpreter orders loads among the other accesses, and `_get` recognizes this one by its
    memory space.
    """
    if any(eqn.primitive is primitives.semaphore_read_p for eqn in jaxpr.eqns):
        jaxpr = jaxpr.replace(eqns=[_load_semaphore(eqn) for eqn in jaxpr.eqns])
    return _interpret_jaxpr_in_jax(jaxpr, *args, **kwargs)


def _load_semaphore(eqn: Any) -> Any:
    if eqn.primitive is not primitives.semaphore_read_p:
        return eqn
    _, transforms_tree = eqn.params["args_tree"].children()
    return eqn.replace(primitive=state_primitives.get_p, params={"tree": transforms_tree})


def _reciprocal(x: jax.Array, *, approx: bool, full_range: bool) -> jax.Array:
    """Computes `pltpu.reciprocal`, whose lowering on CPU turns an approximate bf16 into f32."""
    del full_range
    return jnp.reciprocal(x.astype(jnp.bfloat16) if approx else x).astype(x.dtype)


# ---------------------------------------------------------------------------------------------
# Replacements

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
    (interpret, "get", _get),
    (interpret, "store", _store),
    (interpret, "swap", _swap),
    (interpret, "_interpret_jaxpr", _interpret_jaxpr),
    (interpret._interpret_impls, primitives.reciprocal_p, _reciprocal),
    (race_detection_state, "_ranges_overlap", _ranges_overlap),
    # JAX 0.10 prints a race where later versions raise an error.
    (race_detection_state, "print", _raise_race),
    (shared_memory.Semaphore, "wait", _wait),
]
