"""The extended TPU interpret mode against a model of refs in plain NumPy."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax._src.lax import lax as jax_lax
from jax._src.pallas.mosaic.interpret import interpret_pallas_call, shared_memory, utils
from jax._src.state import types as state_types
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rpagen.evidence.interpreter import (
    DeadlockError,
    PrecisionError,
    RaceError,
    RefView,
    tpu_interpret_mode,
)

DTYPES: list[Any] = [
    np.float32,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    np.int8,
    np.uint32,
]

# Takes a ref and dynamic indices to a view of the ref.
Chain = Callable[[Any, Any], Any]


# ---------------------------------------------------------------------------------------------
# The model


@dataclasses.dataclass
class ModelRef:
    """A ref on a NumPy array: `array` holds the elements of the view, `update` replaces them."""

    array: np.ndarray
    update: Callable[[np.ndarray], None] = lambda array: None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def at(self) -> ModelRef:
        return self

    def __getitem__(self, index: Any) -> ModelRef:
        entries = [
            slice(entry.start, entry.start + entry.size * entry.stride, entry.stride)
            if isinstance(entry, pl.Slice)
            else entry
            for entry in (index if isinstance(index, tuple) else (index,))
        ]

        def update(elements: np.ndarray) -> None:
            array = self.array.copy()
            array[*entries, ...] = elements
            self.update(array)

        return ModelRef(self.array[*entries, ...], update)

    def bitcast(self, dtype: Any) -> ModelRef:
        old = self.array.dtype
        return ModelRef(bitcast(self.array, dtype), lambda new: self.update(bitcast(new, old)))

    def reshape(self, *shape: Any) -> ModelRef:
        old = self.shape
        return ModelRef(self.array.reshape(*shape), lambda new: self.update(new.reshape(old)))

    def transpose(self, permutation: tuple[int, ...]) -> ModelRef:
        inverse = np.argsort(permutation)
        return ModelRef(
            self.array.transpose(permutation), lambda new: self.update(new.transpose(inverse))
        )


def bitcast(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Packs rows of the second-minor dimension into words, the first row in the low bits."""
    old_size, new_size = x.dtype.itemsize, np.dtype(dtype).itemsize
    bits = x.view(f"u{old_size}")
    *major, rows, lanes = x.shape
    new_bits = np.zeros((*major, rows * old_size // new_size, lanes), f"u{new_size}")
    if old_size <= new_size:
        ratio = new_size // old_size
        for i in range(ratio):
            new_bits |= bits[..., i::ratio, :].astype(new_bits.dtype) << (8 * old_size * i)
    else:
        ratio = old_size // new_size
        for i in range(ratio):
            new_bits[..., i::ratio, :] = (bits >> (8 * new_size * i)).astype(new_bits.dtype)
    return new_bits.view(dtype)


def load(chain: Chain, array: np.ndarray, indices: Any = ()) -> np.ndarray:
    """Returns the elements of `array` in the view."""
    return chain(ModelRef(array), indices).array


def store(chain: Chain, array: np.ndarray, value: np.ndarray, indices: Any = ()) -> np.ndarray:
    """Returns `array` after `value` was stored to the view."""
    result = array.copy()
    chain(ModelRef(array, lambda new: np.copyto(result, new)), indices).update(value)
    return result


def touched_bytes(chain: Chain, array: np.ndarray) -> np.ndarray:
    value = load(chain, array)
    zeros = np.zeros(value.nbytes, np.uint8).view(value.dtype).reshape(value.shape)
    ones = np.full(value.nbytes, 255, np.uint8).view(value.dtype).reshape(value.shape)
    return as_bytes(store(chain, array, zeros)) != as_bytes(store(chain, array, ones))


def as_bytes(array: Any) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def random_array(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    """Returns an array of arbitrary bit patterns, NaNs among them."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).view(dtype).reshape(shape)


def assert_same_bits(actual: Any, expected: np.ndarray) -> None:
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(as_bytes(actual), as_bytes(expected))


# ---------------------------------------------------------------------------------------------
# Views, without a kernel


def view_of(array: np.ndarray, chain: Chain) -> RefView:
    aval = state_types.AbstractRef(jax.core.ShapedArray(array.shape, array.dtype))
    return RefView.of(array, chain(state_types.TransformedRef(aval, ()), ()).transforms)


def random_step(rng: random.Random, shape: tuple[int, ...], dtype: np.dtype) -> Chain:
    """Returns a transform that is valid for a ref of this shape and dtype."""
    match rng.choice(["index", "index", "bitcast", "bitcast", "reshape", "transpose"]):
        case "index":
            index = tuple(random_entry(rng, dim) for dim in shape)
            return lambda ref, _: ref.at[index]
        case "bitcast" if len(shape) >= 2:
            row_size = shape[-2] * dtype.itemsize
            fitting = [t for t in (*DTYPES, np.uint16) if row_size % np.dtype(t).itemsize == 0]
            target = rng.choice(fitting)
            return lambda ref, _: ref.bitcast(target)
        case "reshape":
            dims = [1, 1]
            rest = math.prod(shape)
            while rest > 1:
                factor = rng.choice([d for d in range(2, rest + 1) if rest % d == 0])
                dims.append(factor)
                rest //= factor
            rng.shuffle(dims)
            return lambda ref, _: ref.reshape(tuple(dims))
        case _:
            permutation = tuple(rng.sample(range(len(shape)), len(shape)))
            return lambda ref, _: ref.transpose(permutation)


def random_entry(rng: random.Random, dim: int) -> Any:
    start = rng.randrange(dim)
    if rng.random() < 0.15:
        return start
    if rng.random() < 0.02:
        return pl.ds(start, 0)
    stride = rng.choice([1, 1, 2, 3])
    return pl.ds(start, rng.randint(1, (dim - 1 - start) // stride + 1), stride)


def random_chain(rng: random.Random, array: np.ndarray) -> Chain:
    steps: list[Chain] = []

    def chain(ref: Any, indices: Any) -> Any:
        for step in steps:
            ref = step(ref, indices)
        return ref

    for _ in range(rng.randint(1, 5)):
        view = load(chain, array)
        if not view.size:
            break
        steps.append(random_step(rng, view.shape, view.dtype))
    return chain


@pytest.mark.parametrize("seed", range(20))
def test_random_views(seed: int) -> None:
    rng = random.Random(seed)
    num_gathers = 0
    for _ in range(25):
        array = random_array((2, 3, 8, 6), rng.choice(DTYPES), seed)
        chains = random_chain(rng, array), random_chain(rng, array)
        views = [view_of(array, chain) for chain in chains]
        for chain, view in zip(chains, views, strict=True):
            num_gathers += view.is_gather
            expected = load(chain, array)
            assert_same_bits(view.read(), expected)
            value = random_array(expected.shape, expected.dtype, seed + 1)
            expected_array = store(chain, array, value)
            view.write(value)
            assert_same_bits(array, expected_array)
        touched = [touched_bytes(chain, array) for chain in chains]
        assert views[0].overlaps(views[1]) == np.any(touched[0] & touched[1])
        assert views[1].overlaps(views[0]) == np.any(touched[0] & touched[1])
    assert 0 < num_gathers < 50


def test_masked_view() -> None:
    array = random_array((4, 8, 128), ml_dtypes.bfloat16)

    def chain(ref: Any, _: Any) -> Any:
        return ref.bitcast(np.uint32).at[1]

    mask = np.random.default_rng(0).integers(0, 2, (4, 128), bool)
    value = random_array((4, 128), np.uint32, 1)
    expected = store(chain, array, np.where(mask, value, load(chain, array)))
    view = view_of(array, chain).masked(mask)
    view.write(value[mask])
    assert_same_bits(array, expected)
    assert not view.overlaps(view_of(array, chain).masked(~mask))


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (lambda ref, _: ref.at[-1], r"index -1 is out of .* axis 0 of ref, .* \[4, 8, 128\]"),
        (lambda ref, _: ref.at[1, pl.ds(-2, 2)], r"index ds\(-2, 2\) is out of bounds for axis 1"),
    ],
)
def test_out_of_bounds_view(chain: Chain, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        view_of(random_array((4, 8, 128), np.int8), chain)


# ---------------------------------------------------------------------------------------------
# Kernels

DMA = pltpu.SemaphoreType.DMA
SMEM, VMEM, ANY = (pl.BlockSpec(memory_space=space) for space in (pltpu.SMEM, pltpu.VMEM, pl.ANY))


def run(
    kernel: Callable[..., None],
    *args: Any,
    out_shape: Any,
    in_specs: Any = None,
    scratch_shapes: Any = (),
    **kwargs: Any,
) -> Any:
    """Calls a kernel with indices in SMEM and arrays in VMEM, and returns NumPy arrays."""
    call = pl.pallas_call(
        kernel,
        out_shape=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), out_shape),
        in_specs=[SMEM, *[VMEM] * (len(args) - 1)] if in_specs is None else in_specs,
        scratch_shapes=scratch_shapes,
        **kwargs,
    )
    return jax.tree.map(np.asarray, jax.jit(call)(*args))


def indices_of(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def copy(src: Any, dst: Any, sem: Any) -> None:
    dma = pltpu.make_async_copy(src, dst, sem)
    dma.start()
    dma.wait()


# Chains on a ref of shape [3, 16, rows, 128], where `rows` packed rows make two words.
CHAINS: dict[str, Chain] = {
    "strided": lambda ref, i: (
        ref.at[i[0]].bitcast(jnp.uint32).reshape(32, 128).at[pl.ds(i[1], 8, 2)]
    ),
    "bitcast first": lambda ref, i: (
        ref.bitcast(jnp.uint32).at[i[0]].reshape(32, 128).at[pl.ds(i[1], 9)]
    ),
    "index twice": lambda ref, i: (
        ref.at[i[0]].at[pl.ds(i[1], 8)].bitcast(jnp.uint32).reshape(4, 4, 128)
    ),
    "merge pages": lambda ref, i: ref.reshape(48, *ref.shape[2:]).at[pl.ds(i[1], 20)],
    "there and back": lambda ref, i: (
        ref.bitcast(jnp.uint32).at[i[0], :, pl.ds(0, 1)].bitcast(jnp.bfloat16)
    ),
    "not strided": lambda ref, i: (
        ref.at[:, pl.ds(i[1], 8)].reshape(24, *ref.shape[2:]).bitcast(jnp.uint32)
    ),
}


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *[(ml_dtypes.bfloat16, name) for name in CHAINS],
        *[(dtype, "strided") for dtype in DTYPES if dtype is not ml_dtypes.bfloat16],
        *[(dtype, "not strided") for dtype in (np.float32, ml_dtypes.float8_e5m2)],
        (np.int8, "there and back"),
    ],
)
def test_load_store_and_copy(dtype: Any, name: str) -> None:
    chain = CHAINS[name]
    indices = indices_of(1, 5)
    array = random_array((3, 16, 8 // np.dtype(dtype).itemsize, 128), dtype)
    expected = load(chain, array, indices)
    value = random_array(expected.shape, expected.dtype, 1)

    def kernel(i: Any, array: Any, value: Any, *out_refs_and_sem: Any) -> None:
        loaded, copied_out, stored, copied_in, sem = out_refs_and_sem
        loaded[...] = chain(array, i)[...]
        copy(chain(array, i), copied_out, sem)
        stored[...] = array[...]
        chain(stored, i)[...] = value[...]
        copied_in[...] = array[...]
        copy(value, chain(copied_in, i), sem)

    with tpu_interpret_mode(detect_races=True):
        loaded, copied_out, stored, copied_in = run(
            kernel,
            indices,
            array,
            value,
            out_shape=(expected, expected, array, array),
            scratch_shapes=[DMA],
        )
    assert_same_bits(loaded, expected)
    assert_same_bits(copied_out, expected)
    assert_same_bits(stored, store(chain, array, value, indices))
    assert_same_bits(copied_in, store(chain, array, value, indices))


@pytest.mark.parametrize(
    ("dtype", "new_dtype"),
    [
        (ml_dtypes.bfloat16, np.uint32),
        (ml_dtypes.float8_e4m3fn, np.uint32),
        (np.int8, ml_dtypes.bfloat16),
        (np.uint32, ml_dtypes.bfloat16),
        (np.float32, np.int8),
    ],
)
def test_bitcast_of_a_ref_equals_bitcast_of_a_value(dtype: Any, new_dtype: Any) -> None:
    array = random_array((16, 128), dtype)

    def kernel(_: Any, array: Any, of_ref: Any, of_value: Any) -> None:
        of_ref[...] = array.bitcast(new_dtype)[...]
        of_value[...] = pltpu.bitcast(array[...], new_dtype)

    expected = bitcast(array, new_dtype)
    with tpu_interpret_mode():
        of_ref, of_value = run(kernel, indices_of(0), array, out_shape=(expected, expected))
    assert_same_bits(of_ref, expected)
    assert_same_bits(of_value, expected)


def test_store_leaves_uninitialized_neighbours_alone() -> None:
    def chain(ref: Any, _: Any) -> Any:
        return ref.bitcast(jnp.uint32).reshape(16, 128).at[pl.ds(1, 4, 3)]

    def kernel(i: Any, value: Any, out: Any) -> None:
        chain(out, i)[...] = value[...]

    value = random_array((4, 128), np.uint32)
    uninitialized = np.full((2, 16, 128), np.nan, ml_dtypes.bfloat16)
    with tpu_interpret_mode():
        out = run(kernel, indices_of(0), value, out_shape=uninitialized)
    assert_same_bits(out, store(chain, uninitialized, value))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(("float32", np.nan), ("bfloat16", np.nan), ("float8_e4m3fn", np.nan)),
        *(("int32", -(1 << 31)), ("uint8", 255)),
    ],
)
def test_an_empty_array_is_not_zeros(dtype: str, value: float) -> None:
    """Whether it is traced or not, and whatever the same function made outside."""

    def empty() -> jax.Array:
        return jax.lax.empty((2, 3), dtype)

    traced = jax.jit(empty)
    expected = np.full((2, 3), value, dtype)
    for make in (empty, traced):
        assert not np.asarray(make()).any()
        with tpu_interpret_mode():
            assert_same_bits(make(), expected)
        with tpu_interpret_mode(uninitialized_memory="zero"):
            assert not np.asarray(make()).any()
        assert not np.asarray(make()).any()


def test_output_that_no_kernel_writes_shows() -> None:
    """An output that aliases an empty array is what a kernel has left of it."""

    def kernel(_: Any, out: Any) -> None:
        out[pl.ds(0, 3), :] = jnp.ones((3, 128), jnp.float32)

    @jax.jit
    def call() -> Any:
        shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        out = jax.lax.empty(shape.shape, shape.dtype)
        return pl.pallas_call(kernel, out_shape=shape, input_output_aliases={0: 0})(out)

    with tpu_interpret_mode():
        out = np.asarray(call())
    assert (out[:3] == 1).all() and np.isnan(out[3:]).all()


def test_masked_store() -> None:
    def chain(ref: Any, _: Any) -> Any:
        return ref.bitcast(jnp.uint32).at[1]

    def kernel(i: Any, array: Any, value: Any, mask: Any, out: Any) -> None:
        out[...] = array[...]
        pltpu.store(chain(out, i), value[...], mask=mask[...])

    array = random_array((2, 16, 128), ml_dtypes.bfloat16)
    value = random_array((8, 128), np.uint32)
    mask = np.random.default_rng(0).integers(0, 2, (8, 128), bool)
    with tpu_interpret_mode():
        out = run(kernel, indices_of(0), array, value, mask, out_shape=array)
    assert_same_bits(out, store(chain, array, np.where(mask, value, load(chain, array))))


@pytest.mark.parametrize("dma_execution_mode", ["on_wait", "eager", "random"])
def test_dynamic_copies_between_reshaped_hbm_and_vmem(dma_execution_mode: Any) -> None:
    """Copies pages of any size, zero included, from a cache and back into it, in place."""
    page_size = 8

    def kernel(i: Any, cache: Any, out_cache: Any, buffers: Any, sems: Any) -> None:
        rows = cache.reshape(4 * page_size, 4, 128)
        out_rows = out_cache.reshape(4 * page_size, 4, 128)

        def fetch(page: Any) -> Any:
            slot, start, size = page % 2, i[2 * page], i[2 * page + 1]
            dst = buffers.at[slot].reshape(2 * page_size, 4, 128).at[pl.ds(0, size)]
            return pltpu.make_async_copy(rows.at[pl.ds(start, size)], dst, sems.at[slot])

        fetch(0).start()
        for page in range(4):
            if page < 3:
                fetch(page + 1).start()
            fetch(page).wait()
            start, size = i[2 * page], i[2 * page + 1]
            words = buffers.at[page % 2].bitcast(jnp.uint32).reshape(32, 128)
            words[...] = words[...] ^ jnp.uint32(0x10001)
            src = buffers.at[page % 2].reshape(2 * page_size, 4, 128).at[pl.ds(0, size)]
            copy(src, out_rows.at[pl.ds(start, size)], sems.at[2])

    cache = random_array((4, page_size, 4, 128), ml_dtypes.bfloat16)
    indices = indices_of(0, 5, 5, 0, 16, 11, 27, 5)
    expected = cache.view(np.uint16).reshape(32, 4, 128).copy()
    for start, size in indices.reshape(-1, 2):
        expected[start : start + size] ^= 1
    with tpu_interpret_mode(dma_execution_mode=dma_execution_mode, detect_races=True):
        out = run(
            kernel,
            indices,
            cache,
            out_shape=cache,
            in_specs=[SMEM, ANY],
            out_specs=ANY,
            scratch_shapes=[pltpu.VMEM((2, 2, page_size, 4, 128), jnp.bfloat16), DMA((3,))],
            input_output_aliases={1: 0},
        )
    assert_same_bits(out, expected.view(ml_dtypes.bfloat16).reshape(cache.shape))


def test_grid_with_blocks_and_scalar_prefetch() -> None:
    def kernel(i: Any, array: Any, out: Any) -> None:
        words = array.bitcast(jnp.uint32).reshape(16, 128)
        out[...] = words[pl.ds(i[pl.program_id(0)], 8), :]

    array = random_array((4, 2, 16, 128), ml_dtypes.bfloat16)
    starts = indices_of(0, 3, 8, 5)
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((None, 2, 16, 128), lambda page, i: (3 - page, 0, 0, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda page, i: (page, 0)),
    )
    out_shape = jax.ShapeDtypeStruct((32, 128), jnp.uint32)
    with tpu_interpret_mode(detect_races=True):
        call = pl.pallas_call(kernel, grid_spec=grid_spec, out_shape=out_shape)
        out = np.asarray(jax.jit(call)(starts, array))
    words = bitcast(array, np.uint32).reshape(4, 16, 128)[::-1]
    expected = [page[start : start + 8] for page, start in zip(words, starts, strict=True)]
    assert_same_bits(out, np.concatenate(expected))


def test_semaphore_read() -> None:
    def kernel(i: Any, out: Any, sems: Any) -> None:
        out[0] = pl.semaphore_read(sems.at[i[0]])
        pl.semaphore_signal(sems.at[i[0]], 3)
        out[1] = pl.semaphore_read(sems.at[i[0]])
        pl.semaphore_wait(sems.at[1], 2)
        out[2] = pl.semaphore_read(sems.at[1])
        pl.semaphore_wait(sems.at[1], 1)

    with tpu_interpret_mode():
        out = run(
            kernel,
            indices_of(1),
            out_shape=jax.ShapeDtypeStruct((3,), jnp.int32),
            out_specs=SMEM,
            scratch_shapes=[pltpu.SemaphoreType.REGULAR((2,))],
        )
    np.testing.assert_array_equal(out, [0, 3, 1])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_approximate_reciprocal(dtype: Any) -> None:
    def kernel(_: Any, x: Any, out: Any) -> None:
        out[...] = reciprocal(x[...], approx=True)

    reciprocal = pltpu.reciprocal if hasattr(pltpu, "reciprocal") else pl.reciprocal
    x = np.linspace(1, 2, 8 * 128, dtype=np.float32).reshape(8, 128).astype(dtype)
    with tpu_interpret_mode():
        out = run(kernel, indices_of(0), x, out_shape=x)
    assert out.dtype == dtype
    np.testing.assert_allclose(out.astype(np.float32), 1 / x.astype(np.float32), rtol=2**-7)


# ---------------------------------------------------------------------------------------------
# Faults


def load_words(i: Any, array: Any, out: Any) -> None:
    words = array.at[i[0]].bitcast(jnp.uint32).reshape(32, 128)
    out[...] = words[pl.ds(i[1], 8, 3)]


def store_words(i: Any, array: Any, out: Any) -> None:
    words = array.at[i[0]].bitcast(jnp.uint32).reshape(32, 128)
    words[pl.ds(i[1], 8, 3)] = jnp.zeros((8, 128), jnp.uint32)


def copy_rows(i: Any, array: Any, out: Any) -> None:
    def body(sem: Any) -> None:
        src = array.at[:, pl.ds(8, 8)].at[i[0], pl.ds(i[1], 2)].bitcast(jnp.uint32)
        copy(src, out.reshape(2, 4, 128).at[:, pl.ds(0, 2)], sem)

    pl.run_scoped(body, DMA)


@pytest.mark.parametrize(
    ("kernel", "indices", "fault"),
    [
        (load_words, (2, 10), None),
        (load_words, (-1, 0), "index -1 is out of bounds for axis 0 of array, whose shape"),
        (load_words, (3, 0), "index 3 is out of bounds for axis 0 of array, whose shape"),
        (
            load_words,
            (0, -1),
            r"index ds\(-1, 8, 3\) is out of bounds for axis 0 of array\.at\[0\]\.",
        ),
        (load_words, (0, 11), r"index ds\(11, 8, 3\) is out .*\.reshape\(32, 128\), whose shape"),
        (store_words, (2, 10), None),
        (store_words, (-1, 0), "index -1 is out of bounds"),
        (store_words, (0, 11), r"index ds\(11, 8, 3\) is out of bounds"),
        (copy_rows, (0, 6), None),
        (copy_rows, (0, 7), r"index ds\(7, 2\) is out of bounds for axis 1 of array\.at\["),
        (copy_rows, (0, -1), r"index ds\(-1, 2\) is out of bounds for axis 1 of array\.at\["),
    ],
)
def test_out_of_bounds(kernel: Any, indices: tuple[int, ...], fault: str | None) -> None:
    array = np.zeros((3, 16, 4, 128), ml_dtypes.bfloat16)

    def call() -> None:
        with tpu_interpret_mode():
            run(kernel, indices_of(*indices), array, out_shape=np.zeros((8, 128), np.uint32))

    if fault is None:
        call()
        return
    with pytest.raises(IndexError, match=f"^out-of-bounds access in vmem at .*: {fault}"):
        call()


def test_out_of_bounds_block_names_the_operand() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

    with pytest.raises(IndexError, match="for the block of operand 'x_ref'"), tpu_interpret_mode():
        run(
            kernel,
            np.zeros((16, 128), np.float32),
            grid=(3,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
            out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        )


def test_copy_between_sizes_that_differ() -> None:
    def kernel(i: Any, array: Any, out: Any, sem: Any) -> None:
        copy(array.at[pl.ds(0, i[0])], out.at[pl.ds(0, i[1])], sem)

    array = np.zeros((4, 8, 128), np.float32)
    message = r"^cannot write float32\[1, 8, 128\] to out\.at\[ds\(0, 2\).* is float32\[2, 8, 128\]"
    with pytest.raises(ValueError, match=message), tpu_interpret_mode():
        run(kernel, indices_of(1, 2), array, out_shape=array, scratch_shapes=[DMA])


@pytest.mark.parametrize("dma_execution_mode", ["on_wait", "eager", "random"])
def test_wait_that_is_never_met(dma_execution_mode: Any) -> None:
    def kernel(_: Any, array: Any, out: Any, sems: Any) -> None:
        pltpu.make_async_copy(array.at[0], out.at[0], sems.at[0]).start()
        pltpu.make_async_copy(array.at[1], out.at[1], sems.at[1]).start()
        pltpu.make_async_copy(array.at[:2], out.at[:2], sems.at[1]).wait()

    array = np.zeros((3, 8, 128), np.float32)
    message = (
        r"^the wait for 8192 bytes on sems\[1\] at .*test_interpreter\.py:\d+:\d+ \(.*kernel\) can"
        r" never be met: its count is 4096, and no copy that signals it is in flight; sems\[0\] has"
        r" 4096$"
    )
    mode = tpu_interpret_mode(dma_execution_mode=dma_execution_mode)
    with pytest.raises(DeadlockError, match=message), mode:
        run(kernel, indices_of(0), array, out_shape=array, scratch_shapes=[DMA((2,))])


# Pairs of views of a ref of shape [2, 16, 4, 128], one for a DMA and one for the core.
def words_of(ref: Any) -> Any:
    return ref.at[0].bitcast(jnp.uint32).reshape(32, 128)


OVERLAPS: dict[str, tuple[Chain, Chain, bool]] = {
    "word in a copied row": (
        lambda ref, i: ref.at[0, pl.ds(4, 4)],
        lambda ref, i: words_of(ref).at[pl.ds(i[0] + 1, 4, 7)],
        True,
    ),
    "words around copied rows": (
        lambda ref, i: ref.at[0, pl.ds(4, 4)],
        lambda ref, i: words_of(ref).at[pl.ds(i[0] + 7, 2, 9)],
        False,
    ),
    "odd and even words": (
        lambda ref, i: ref.bitcast(jnp.uint32).at[0, :, 0],
        lambda ref, i: words_of(ref).at[pl.ds(i[0] + 1, 16, 2)],
        False,
    ),
    "odd words twice": (
        lambda ref, i: ref.bitcast(jnp.uint32).at[0, :, 1],
        lambda ref, i: words_of(ref).at[pl.ds(i[0] + 1, 16, 2)],
        True,
    ),
    "half of a word": (
        lambda ref, i: ref.at[0, :, pl.ds(0, 1)],
        lambda ref, i: words_of(ref).at[pl.ds(i[0], 1, 2)],
        True,
    ),
    "two slots": (
        lambda ref, i: ref.at[1].bitcast(jnp.uint32),
        lambda ref, i: words_of(ref).at[pl.ds(i[0], 32)],
        False,
    ),
    "gather": (
        lambda ref, i: ref.at[:, pl.ds(0, 8)].reshape(16, 4, 128).at[pl.ds(i[0] + 7, 2)],
        lambda ref, i: words_of(ref).at[pl.ds(14, 1)],
        True,
    ),
    "empty copy": (
        lambda ref, i: ref.at[0, pl.ds(0, i[0])],
        lambda ref, i: words_of(ref).at[pl.ds(i[0], 32)],
        False,
    ),
}


@pytest.mark.parametrize("access", ["load", "store"])
@pytest.mark.parametrize("name", OVERLAPS)
def test_race_between_a_copy_and_the_core(name: str, access: str) -> None:
    copied, accessed, is_race = OVERLAPS[name]

    def kernel(i: Any, array: Any, loaded: Any, buffer: Any, sem: Any) -> None:
        dma = pltpu.make_async_copy(copied(array, i), copied(buffer, i), sem)
        dma.start()
        view = accessed(buffer, i)
        if access == "load":
            loaded[...] = view[...]
        else:
            view[...] = accessed(array, i)[...]
        dma.wait()

    array = np.zeros((2, 16, 4, 128), ml_dtypes.bfloat16)

    def call() -> None:
        with tpu_interpret_mode(detect_races=True):
            run(
                kernel,
                indices_of(0),
                array,
                out_shape=load(accessed, array, (0,)),
                scratch_shapes=[pltpu.VMEM(array.shape, array.dtype), DMA],
            )

    if is_race:
        with pytest.raises(RaceError, match=r"race between (.|\n)*\.bitcast\(uint32\)"):
            call()
    else:
        call()


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize(
    ("dtypes", "precision", "is_fault"),
    [
        (("float32", "float32"), None, True),
        (("float32", "float32"), jax.lax.Precision.HIGH, True),
        (("float32", "bfloat16"), None, True),
        (("float32", "float32"), jax.lax.Precision.HIGHEST, False),
        (("bfloat16", "bfloat16"), None, False),
    ],
)
def test_precision_of_products(
    dtypes: tuple[str, str], precision: Any, is_fault: bool, in_loop: bool
) -> None:
    """A product of float32 matrices says that it is one; a CPU's numbers would not tell."""

    def kernel(left: Any, right: Any, out: Any) -> None:
        def multiply(_: Any = None) -> None:
            out[...] = jax.lax.dot_general(
                *(left[...], right[...], (((1,), (0,)), ((), ()))),
                precision=precision,
                preferred_element_type=jnp.float32,
            )

        pl.loop(0, 2)(multiply) if in_loop else multiply()

    operands = (jnp.ones((8, 128), dtypes[0]), jnp.ones((128, 128), dtypes[1]))
    with tpu_interpret_mode():
        call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32))
        if not is_fault:
            np.testing.assert_array_equal(call(*operands), np.full((8, 128), 128))
            return
        said = rf"product of float32 and {dtypes[1]} matrices at .*test_interpreter.*multiply\) has"
        with pytest.raises(PrecisionError, match=said):
            call(*operands)


# ---------------------------------------------------------------------------------------------
# The context


def test_everything_is_restored() -> None:
    owners: list[Any] = [
        *(interpret_pallas_call, shared_memory, shared_memory.Semaphore, utils),
        jax_lax.empty_p,
    ]
    before = [dict(vars(owner)) for owner in owners]
    impls = dict(interpret_pallas_call._interpret_impls)
    array = np.zeros((3, 16, 4, 128), ml_dtypes.bfloat16)
    out = np.zeros((8, 128), np.uint32)
    with pytest.raises(IndexError), tpu_interpret_mode():
        run(load_words, indices_of(7, 0), array, out_shape=out)
    with tpu_interpret_mode(), tpu_interpret_mode(detect_races=True):
        run(load_words, indices_of(0, 0), array, out_shape=out)
    assert [dict(vars(owner)) for owner in owners] == before
    assert interpret_pallas_call._interpret_impls == impls


def test_error_of_the_test_itself_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), tpu_interpret_mode():
        _ = 1 / 0


def test_compiled_kernels_are_not_shared_with_jax() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x.reshape(8, 256)[...]

    @jax.jit
    def call(x: jax.Array) -> Any:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 256), jnp.float32))(x)

    x = jnp.ones((16, 128), jnp.float32)
    with tpu_interpret_mode():
        np.testing.assert_array_equal(call(x), np.ones((8, 256)))
    same_params = pltpu.InterpretParams(vector_clock_size=256)
    with pytest.raises(Exception, match="indices"), pltpu.force_tpu_interpret_mode(same_params):
        call(x)
