"""What the dumps beside this were made of: `python sum_pages.py v6e FOLDER`, with each libtpu.

A loop over a table that fetches each page that there is, multiplies it, and adds it up. Of a folder
the files of `sum_pages.1` and `TLP-hlo.txt` are kept, without the body of the kernel.
"""

import os
import sys

DEVICE, FOLDER = sys.argv[1:]
TOPOLOGY = {"v5e": "v5e:2x2", "v6e": "v6e:2x2", "v7x": "tpu7x:2x2x1"}[DEVICE]
os.environ.update(  # before libtpu is loaded
    JAX_PLATFORMS="cpu",
    TPU_SKIP_MDS_QUERY="1",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_WORKER_HOSTNAMES="localhost",
    LIBTPU_INIT_ARGS=f"--xla_jf_dump_to={FOLDER} --xla_jf_dump_llo_text=true"
    " --xla_jf_dump_llo_pass_label_regex=.*final_.*",
)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.experimental.pallas import tpu as pltpu  # noqa: E402
from jax.sharding import (  # noqa: E402
    AbstractDevice,
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
)

ROWS, LANES = 16, 128


def kernel(count_ref, table_ref, pages, weights, out, page_ref, weights_ref, sum_ref, read, write):
    """Adds up pages[table[i]] @ weights over i < count, where table[i] is not negative."""
    fetch_weights = pltpu.make_async_copy(weights, weights_ref, read)
    fetch_weights.start()
    fetch_weights.wait()
    sum_ref[...] = jnp.zeros_like(sum_ref)

    @pl.loop(0, count_ref[0])
    def _(index):
        page = table_ref[index]

        @pl.when(page >= 0)
        def _():
            fetch = pltpu.make_async_copy(pages.at[page], page_ref, read)
            fetch.start()
            fetch.wait()
            sum_ref[...] += jnp.dot(
                page_ref[...], weights_ref[...], preferred_element_type=jnp.float32
            )

    store = pltpu.make_async_copy(sum_ref, out, write)
    store.start()
    store.wait()


def sum_pages(count, table, pages, weights):
    """The kernel's call."""
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((ROWS, LANES), jnp.float32),
        name="sum_pages",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(1,),
            in_specs=[in_hbm, in_hbm],
            out_specs=in_hbm,
            scratch_shapes=[
                pltpu.VMEM((ROWS, LANES), jnp.bfloat16),
                pltpu.VMEM((LANES, LANES), jnp.bfloat16),
                pltpu.VMEM((ROWS, LANES), jnp.float32),
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.DMA,
            ],
        ),
        compiler_params=pltpu.CompilerParams(disable_bounds_checks=True),
    )(count, table, pages, weights)


device = topologies.get_topology_desc(TOPOLOGY, platform="tpu").devices[0]
axis = (AxisType.Auto,)
abstract = AbstractDevice(device_kind=device.device_kind, num_cores=1, platform="tpu")
sharding = NamedSharding(Mesh(np.array([device]), ("x",), axis_types=axis), PartitionSpec())
with jax.sharding.use_abstract_mesh(
    AbstractMesh((1,), ("x",), axis_types=axis, abstract_device=abstract)
):
    jax.jit(sum_pages, in_shardings=sharding, out_shardings=sharding).trace(
        jax.ShapeDtypeStruct((1,), jnp.int32),
        jax.ShapeDtypeStruct((8,), jnp.int32),
        jax.ShapeDtypeStruct((1 << 15, ROWS, LANES), jnp.bfloat16),  # too large for VMEM
        jax.ShapeDtypeStruct((LANES, LANES), jnp.bfloat16),
    ).lower(lowering_platforms=("tpu",)).compile()
