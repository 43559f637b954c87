"""A call through the TPU compiler for a device that is not there.

This imports nothing of rpagen: `rpagen.schedule.aot`, which runs in an environment of its own,
takes it from here too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
)


@contextlib.contextmanager
def traced_for(device: Any) -> Iterator[NamedSharding]:
    """What is traced in this context is for one core of a device; gives the placing of its arrays.

    device: one of a topology, which need not be at hand.
    """
    mesh = AbstractMesh(
        (1,),
        ("x",),
        axis_types=(AxisType.Auto,),
        abstract_device=AbstractDevice(device_kind=device.device_kind, num_cores=1, platform="tpu"),
    )
    whole: Any = PartitionSpec  # it has no types of its own
    one_device = Mesh(np.array([device]), ("x",), axis_types=(AxisType.Auto,))
    with jax.sharding.use_abstract_mesh(mesh):
        yield NamedSharding(one_device, whole())


def compile_call(
    call: Callable[..., Any],
    operands: Sequence[Any],
    sharding: NamedSharding,
    *,
    donated: Sequence[int],
    keep_unused: bool = False,
) -> None:
    """Compiles a call, in the context of `traced_for`.

    operands: their shapes and dtypes. donated: those whose memory may be written. keep_unused:
    leave every operand where it is among the parameters of the program.

    Raises:
        Exception: whatever the call or the compiler has against it.
    """
    (
        jax.jit(
            call,
            in_shardings=sharding,
            out_shardings=sharding,
            donate_argnums=tuple(donated),
            keep_unused=keep_unused,
        )
        .trace(*operands)
        .lower(lowering_platforms=("tpu",))
        .compile()
    )
