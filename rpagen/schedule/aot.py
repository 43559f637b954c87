"""`python -m rpagen.schedule.aot REQUEST`: compiles one call of one kernel, with no TPU at hand.

It runs in an environment of its own (`rpagen/schedule/environment.py`), whose jax is the one that
the public kernels want, and imports of rpagen only what imports nothing else, but where the kernel
is one of ours. libtpu writes its schedule to where the flags in LIBTPU_INIT_ARGS say. REQUEST is a
file of JSON, a `Request`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu

from rpagen.evidence import ahead
from rpagen.evidence.libtpu import TOPOLOGIES

_TPU_INFERENCE = "tpu_inference"
_KERNELS = f"{_TPU_INFERENCE}.kernels"


@dataclasses.dataclass(frozen=True)
class Device:
    """How tpu-inference calls a TPU generation."""

    name: str
    version: int


DEVICES = {
    "v5e": Device("TPU v5e", 5),
    "v6e": Device("TPU v6e", 6),
    "v7x": Device("TPU v7", 7),
}


@dataclasses.dataclass(frozen=True)
class Request:
    """A call to compile.

    kernel: a name of `_KERNELS_OF`. source: the folder that it is imported from; empty for what is
    installed. module: of ours, its name. head_dim and the like: sizes of the call.
    smem_bytes: what a kernel that fills SMEM is told that there is of it; 0 for what there is.
    options: keyword arguments of the kernel.
    """

    kernel: str
    device: str
    query_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    tokens: int
    sequences: int
    pages_per_sequence: int
    query_dtype: str
    kv_dtype: str
    source: str = ""
    module: str = ""
    smem_bytes: int = 0
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """What is compiled. donated: the operands whose memory may be written."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    donated: tuple[int, ...]


def main(arguments: list[str]) -> None:
    """Compiles the request in a file."""
    compile_request(parse(Path(arguments[0]).read_text(encoding="utf-8")))


def parse(text: str) -> Request:
    """The request that a text describes. JSON has no tuples, which kernels want block sizes as."""
    fields = json.loads(text)
    options = fields.get("options", {})
    fields["options"] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    return Request(**fields)


def compile_request(request: Request) -> None:
    """Compiles a call.

    Raises:
        Exception: whatever the kernel or the compiler has against it.
    """
    topology = TOPOLOGIES[request.device]
    device: Any = topologies.get_topology_desc(topology, platform="tpu").devices[0]
    with ahead.traced_for(device) as sharding:
        kernel = _KERNELS_OF[request.kernel](request)
        ahead.compile_call(
            lambda *operands: kernel.function(*operands, **request.options),
            kernel.operands,
            sharding,
            donated=kernel.donated,
        )


def _v3(request: Request) -> _Kernel:
    return _of_tpu_inference(request, f"{_KERNELS}.ragged_paged_attention.v3.kernel")


def _batched(request: Request) -> _Kernel:
    kernel = _of_tpu_inference(request, f"{_KERNELS}.experimental.batched_rpa.wrapper")
    sizes = importlib.import_module(f"{_KERNELS}.experimental.batched_rpa.configs").BlockSizes
    function = kernel.function

    def with_block_sizes(*operands: Any, **options: Any) -> Any:
        for name, value in options.items():
            if name.endswith("_block_sizes"):
                options[name] = sizes(**value)
        return function(*operands, **options)

    return dataclasses.replace(kernel, function=with_block_sizes)


def _stacked(request: Request) -> _Kernel:
    return _of_tpu_inference(request, f"{_KERNELS}.experimental.stacked_rpa.wrapper")


def _of_tpu_inference(request: Request, module: str) -> _Kernel:
    _stand_in(request)
    kernel = importlib.import_module(module)
    cache_dtype, int32 = jnp.dtype(request.kv_dtype), jnp.int32
    pages = request.sequences * request.pages_per_sequence
    struct: Any = jax.ShapeDtypeStruct  # it has no types of its own
    new = struct((request.tokens, request.kv_heads, request.head_dim), cache_dtype)
    cache = kernel.get_kv_cache_shape(
        pages, request.page_size, request.kv_heads, request.head_dim, cache_dtype
    )
    queries = (request.tokens, request.query_heads, request.head_dim)
    operands = (
        struct(queries, jnp.dtype(request.query_dtype)),
        new,
        new,
        struct(cache, cache_dtype),
        struct((request.sequences,), int32),
        struct((pages,), int32),
        struct((request.sequences + 1,), int32),
        struct((3,), int32),
    )
    # The queries, which it writes its output over, new keys and values, and the cache.
    return _Kernel(kernel.ragged_paged_attention, operands, (0, 1, 2, 3))


def _stand_in(request: Request) -> None:
    """Put empty packages in the place of tpu-inference's, which import much besides the kernels."""
    folder = Path(request.source)
    device = DEVICES[request.device]
    for name in (
        _TPU_INFERENCE,
        _KERNELS,
        f"{_KERNELS}.ragged_paged_attention",
        f"{_KERNELS}.ragged_paged_attention.v3",
        f"{_KERNELS}.experimental",
        f"{_KERNELS}.experimental.batched_rpa",
        f"{_KERNELS}.experimental.stacked_rpa",
    ):
        _module(name, __path__=[str(folder.joinpath(*name.split(".")))])
    log = types.SimpleNamespace(
        **{
            name: lambda *_, **__: None
            for name in ("debug", "info", "warning", "error", "warning_once", "info_once")
        }
    )
    _module(f"{_TPU_INFERENCE}.logger", init_logger=lambda *_: log)
    _module(f"{_TPU_INFERENCE}.utils", get_device_name=lambda *_: device.name)
    variables = _module(f"{_TPU_INFERENCE}.envs", __getattr__=lambda _: False)
    sys.modules[_TPU_INFERENCE].__dict__["envs"] = variables
    from jax._src import dtypes

    if request.smem_bytes:
        real = pltpu.get_tpu_info
        pltpu.__dict__["get_tpu_info"] = lambda *_: dataclasses.replace(
            real(), smem_capacity_bytes=request.smem_bytes
        )
    if not hasattr(dtypes, "bit_width"):  # its name before jax 0.11, which 0.13.2 wants
        dtypes.__dict__["bit_width"] = dtypes.itemsize_bits
    util = importlib.import_module(f"{_KERNELS}.ragged_paged_attention.v3.util")
    util.__dict__["get_tpu_version"] = lambda: device.version


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module


def _ours(request: Request) -> _Kernel:
    from rpagen.evidence import compile, emitted
    from rpagen.evidence.shapes import CallShape

    module = emitted.module(Path(request.source), request.module)
    fields = (field.name for field in dataclasses.fields(CallShape))
    shape = CallShape(**{name: getattr(request, name) for name in fields})
    return _Kernel(module.ragged_paged_attention, compile.operands_of(module, shape), (3,))


def _flash(request: Request) -> _Kernel:
    """That of jax, where `sequences` are the batch, and `tokens` those of each."""
    flash = importlib.import_module("jax.experimental.pallas.ops.tpu.flash_attention")
    shape = (request.sequences, request.query_heads, request.tokens, request.head_dim)
    struct: Any = jax.ShapeDtypeStruct  # it has no types of its own
    operand = struct(shape, jnp.dtype(request.query_dtype))
    return _Kernel(flash.flash_attention, (operand, operand, operand), ())


_KERNELS_OF: Mapping[str, Callable[[Request], _Kernel]] = {
    "v3": _v3,
    "batched": _batched,
    "stacked": _stacked,
    "ours": _ours,
    "flash": _flash,
}

if __name__ == "__main__":
    main(sys.argv[1:])
