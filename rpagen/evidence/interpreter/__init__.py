"""TPU interpret mode for kernels written in the form that is fast on hardware.

JAX's TPU interpret mode accesses a ref only through indices.  The fast kernels also reshape and
bitcast refs before they load, store or copy them::

    kv_ref.at[slot].bitcast(jnp.uint32).reshape(rows, 128)[pl.ds(start, n, stride)]

`tpu_interpret_mode` enters TPU interpret mode with an interpreter that handles these transforms
exactly, so that a test runs the kernel that a TPU runs::

    with interpreter.tpu_interpret_mode(detect_races=True):
        out = kernel(...)

How it works.  The interpreter holds every buffer as a NumPy array and runs each load, store and
DMA in a Python callback, which receives the transforms of the ref.  We replace these callbacks
(`accesses`).  Ours turn the chain of transforms into a `RefView` (`views`): a NumPy view into the
buffer of exactly the elements that the ref denotes, with the order and the packing of the ref.  A
load copies from the view and a store assigns to it, so that an access touches its own elements and
no others, and race detection (`races`) asks whether two views share memory.  The memory of a
kernel and its semaphores are ours too (`memory`): they decide when DMAs run, and call everything
by its name in the kernel.

Besides the transforms, these faults raise here, and pass, print or hang in JAX's own interpret
mode: a negative index, an index outside of the view it is applied to, a DMA out of bounds that is
never waited for, a wait that nothing can meet, whatever a kernel has not waited for when it ends,
and a product of float32 matrices that a CPU computes more exactly than a TPU would.

Not handled: masked loads, which do not lower for TPU either; bitcasts of types narrower than a
byte; loads of stride 0; reads past the end of a buffer that yield uninitialized values; and
`semaphore_read` as a way to poll, since pending DMAs need not run before a core waits.  Where
several cores or devices run, a wait that nothing can meet still hangs.  JAX does not say where
waits for semaphores other than those of DMAs are.  `pltpu.get_tpu_info` and `pltpu.emit_pipeline`
need an abstract mesh from the caller.

The package needs NumPy 2.1 or later, and replaces private functions of JAX, as they are in 0.10.2,
0.11.2 and 0.12.0.  They are replaced for the whole process while the context is active: do not
enter it in two threads at once.
"""

from __future__ import annotations

from rpagen.evidence.interpreter.context import tpu_interpret_mode
from rpagen.evidence.interpreter.errors import (
    DeadlockError,
    LeftoverError,
    PrecisionError,
    RaceError,
)
from rpagen.evidence.interpreter.views import RefView

__all__ = [
    "DeadlockError",
    "LeftoverError",
    "PrecisionError",
    "RaceError",
    "RefView",
    "tpu_interpret_mode",
]
