"""Kernels through the real TPU compiler, ahead of time, on a machine that has no TPU.

libtpu compiles for every TPU generation on x86-64 Linux: a topology gives it the device, and an
abstract mesh tells the trace what it is for. What only this finds: layouts the compiler does not
support, slices that are not aligned, and VMEM or SMEM that does not suffice. It also tells how much
of these each launch takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rpagen.evidence import ahead, allocations, libtpu, options, workers
from rpagen.evidence.allocations import Allocated
from rpagen.evidence.devices import DEVICES
from rpagen.evidence.shapes import CallShape
from rpagen.spec import budget

# Of a cache: it makes no difference to the kernels, and HBM shall not be what is too small.
_MOST_PAGES = 1024

_WINDOW = 100
"""Tokens, of a variant that has one: no multiple of a page or a block."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compiler made of a call.

    seconds: of lowering and compiling. launches: what each launch takes of VMEM and SMEM.
    """

    seconds: float
    launches: Mapping[str, Allocated]


def compile_variant(
    module: Any, generation: str, shape: CallShape, *, launch: str = "", **options: Any
) -> Compiled:
    """Compiles a call of an emitted module for a TPU generation.

    launch: the only one to compile; all of them if empty. `options` are keyword arguments of its
    `ragged_paged_attention`.

    A module is planned also for a generation that its specs do not name, if this is one of
    `budget.VMEM_BYTES`.

    Raises:
        InputError: what the compiler dumped is not what was looked for.
        Exception: whatever the compiler, or a check of the module, has against the call.
    """
    device = _device(generation)
    module.support.DEVICE_KINDS.setdefault(device.device_kind, generation)
    _empty(dump())
    start = time.monotonic()
    only = _one_launch(module.support, launch) if launch else contextlib.nullcontext()
    with only, ahead.traced_for(device) as sharding:
        ahead.compile_call(
            lambda *operands: module.ragged_paged_attention(*operands, **options),
            operands_of(module, shape),
            sharding,
            donated=(3,),
            keep_unused=True,  # a workload gives its integers by their place among the operands
        )
    seconds = time.monotonic() - start
    planned = [launch] if launch else budget.launch_parts(options.get("chunk_prefill_size"))
    return Compiled(seconds, allocations.read(dump(), planned))


@contextlib.contextmanager
def _one_launch(support: Any, launch: str) -> Iterator[None]:
    """Within this context, calls of an emitted package plan one of their launches alone."""
    plan_launches = support.plan_launches

    def plan_one(*operands: Any, **options: Any) -> Any:
        every = plan_launches(*operands, **options)
        return tuple(each for each in every if each.name == launch)

    support.plan_launches = plan_one
    try:
        yield
    finally:
        support.plan_launches = plan_launches


def operands_of(module: Any, shape: CallShape) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and dtypes of the operands of a call, with keys and values as wide as the queries."""
    variant, int32 = module.VARIANT, jnp.int32
    struct: Any = jax.ShapeDtypeStruct  # it has no types of its own
    query_dtype = jnp.dtype(variant.query_dtype)
    cache_shape = module.support.kv_cache_shape(
        min(shape.sequences * shape.pages_per_sequence, _MOST_PAGES),
        shape.page_size,
        shape.kv_heads,
        shape.head_dim,
        variant.kv_dtype,
        layout=variant.layout,
    )
    new_kv = struct((shape.tokens, shape.kv_heads, shape.head_dim), query_dtype)
    return (
        struct((shape.tokens, shape.query_heads, shape.head_dim), query_dtype),
        new_kv,
        new_kv,
        struct(cache_shape, jnp.dtype(variant.kv_dtype)),
        struct((shape.sequences,), int32),
        struct((shape.sequences * shape.pages_per_sequence,), int32),
        struct((shape.sequences + 1,), int32),
        struct((3,), int32),
    )


def options_of(variant: Any) -> dict[str, Any]:
    """The keyword arguments that a variant's features and scales ask for, with usual values."""
    return options.usual(
        features=variant.features,
        quantization=variant.quantization,
        sliding_window=_WINDOW if "sliding_window" in variant.features else None,
    )


def _device(generation: str) -> Any:
    _set_environment()
    from jax.experimental import topologies  # loads libtpu, which reads the environment

    return topologies.get_topology_desc(DEVICES[generation].topology, platform="tpu").devices[0]


@functools.cache
def _set_environment() -> None:
    for name, value in libtpu.VARIABLES.items():
        os.environ.setdefault(name, value)
    if "XLA_FLAGS" in os.environ:  # libtpu reads these too, and ends where it does not know one
        os.environ["XLA_FLAGS"] = workers.without_ours(os.environ["XLA_FLAGS"])
    flags = os.environ.get("LIBTPU_INIT_ARGS", "")
    os.environ["LIBTPU_INIT_ARGS"] = allocations.with_dump(flags, dump())


def dump() -> Path:
    """Where libtpu writes what it made of the last call; it reads its flags once."""
    return Path(_dump_folder().name)


@functools.cache
def _dump_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="rpagen-")  # removed when Python ends


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
