"""Faults on purpose: one small kernel, and every way to get its copies wrong must show."""

from __future__ import annotations

import faulthandler
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from rpagen.evidence.interpreter import (
    DeadlockError,
    LeftoverError,
    RaceError,
    tpu_interpret_mode,
)
from rpagen.evidence.interpreter.views import UNINITIALIZED_INT32

# How each fault shows: as an exception, in wrong numbers, or not at all (-). With an order of its
# own for each seed, "random" may show a fault with some seeds only, and does with some.
TABLE_OF_FAULTS = """
                                          alone                         with detect_races
fault                                     on_wait  eager    random      on_wait  eager    random
none                                      -        -        -           -        -        -
missing wait                              leftover leftover leftover    leftover race     race
wait on the wrong semaphore               deadlock deadlock deadlock    deadlock deadlock deadlock
start on the wrong semaphore              deadlock deadlock deadlock    deadlock deadlock deadlock
one semaphore for both slots              -        -        numbers/-   race     race     race
wait for too few bytes                    leftover leftover leftover    race     race     race
wait for too many bytes                   deadlock deadlock deadlock    deadlock deadlock deadlock
wait without a signal                     deadlock deadlock deadlock    deadlock deadlock deadlock
signal left over                          leftover leftover leftover    leftover leftover leftover
prefetch into a slot and semaphore in use numbers  numbers  numbers     race     race     race
buffer overwritten, semaphore right       -        numbers  numbers     race     race     race
output buffer overwritten in flight       numbers  -        numbers     race     race     race
missing final drain                       leftover leftover leftover    leftover leftover leftover
extra prefetch never waited for           leftover leftover leftover    leftover leftover leftover
HBM read after write                      -        -        numbers/-   race     race     race
page out of bounds                        index    index    index       index    index    index
page index -1                             index    index    index       index    index    index
table out of bounds                       index    index    index       index    index    index
destination out of bounds                 index    index    index       index    index    index
stale rows of a partial block             numbers  numbers  numbers     numbers  numbers  numbers
uninitialized accumulator                 numbers  numbers  numbers     numbers  numbers  numbers
uninitialized index in SMEM               index    index    index       index    index    index
"""
ROWS_OF_FAULTS = [
    (line[:42].strip(), line[42:].split()) for line in TABLE_OF_FAULTS.strip("\n").split("\n")[2:]
]

DMA = pltpu.SemaphoreType.DMA
SMEM, VMEM, ANY = (pl.BlockSpec(memory_space=space) for space in (pltpu.SMEM, pltpu.VMEM, pl.ANY))


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    # JAX cannot be interrupted by an exception while a kernel runs.
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


STEPS, PAGES, PAGE_SIZE = 5, 6, 8


def add_up_pages(
    table: Any,  # i32[STEPS + 1], the page of each step
    rows: Any,  # i32[STEPS + 1], its rows that count
    _: Any,
    cache: Any,  # f32[PAGES, PAGE_SIZE, 128]
    total: Any,  # f32[PAGE_SIZE, 128]
    pages: Any,  # two slots
    result: Any,
    accumulator: Any,
    cursor: Any,  # i32[1], the step to fetch next
    fetches: Any,  # a semaphore for each slot
    written: Any,
    done: Any,
    *,
    fault: str,
) -> None:
    """Adds up pages while the next one is fetched, and writes each sum over its page."""
    row = jax.lax.broadcasted_iota(jnp.int32, (PAGE_SIZE, 128), 0)

    def fetch(step: Any, semaphore_slot: Any, rows: Any) -> Any:
        slot, page = step % 2, table[step]
        match fault:
            case "prefetch into a slot and semaphore in use":
                slot = semaphore_slot = 0
            case "one semaphore for both slots":
                semaphore_slot = 0
            case "buffer overwritten, semaphore right":
                slot = 0
            case "destination out of bounds":
                slot += 1
            case "page out of bounds":
                page += PAGES
            case "page index -1":
                page = -1
            case "table out of bounds":
                page = table[step + STEPS]
        return pltpu.make_async_copy(
            cache.at[page, pl.ds(0, rows)],
            pages.at[slot, pl.ds(0, rows)],
            fetches.at[semaphore_slot],
        )

    def start_fetch() -> None:
        step = cursor[0]
        slot = (step + 1) % 2 if fault == "start on the wrong semaphore" else step % 2
        fetch(step, slot, rows[step]).start()
        cursor[0] = step + 1

    def wait_fetch(step: Any) -> None:
        match fault:
            case "missing wait":
                return
            case "wait on the wrong semaphore":
                fetch(step, (step + 1) % 2, rows[step]).wait()
            case "wait for too few bytes":
                fetch(step, step % 2, rows[step] - 1).wait()
            case "wait for too many bytes":
                fetch(step, step % 2, rows[step] + 1).wait()
            case _:
                fetch(step, step % 2, rows[step]).wait()

    def write(step: Any) -> Any:
        here = pl.ds(0, rows[step])
        return pltpu.make_async_copy(result.at[here], cache.at[table[step], here], written)

    if fault != "uninitialized index in SMEM":
        cursor[0] = 0
    if fault != "uninitialized accumulator":
        accumulator[...] = jnp.zeros_like(accumulator)
    start_fetch()

    @pl.loop(0, STEPS)
    def _(step: Any) -> None:
        if fault == "HBM read after write":
            pl.when(step + 1 < STEPS)(start_fetch)
        if fault == "output buffer overwritten in flight":
            result[...] = jnp.zeros_like(result)
        pl.when(step > 0)(lambda: write(step - 1).wait())
        if fault == "extra prefetch never waited for":
            start_fetch()
        elif fault != "HBM read after write":
            pl.when(step + 1 < STEPS)(start_fetch)
        wait_fetch(step)
        page = pages[step % 2 if fault not in ONE_SLOT else 0]
        if fault != "stale rows of a partial block":
            page = jnp.where(row < rows[step], page, 0)
        accumulator[...] += page
        result[...] = accumulator[...] + 1
        write(step).start()

    if fault != "missing final drain":
        write(STEPS - 1).wait()
    if fault == "signal left over":
        pl.semaphore_signal(done, 2)
    if fault == "wait without a signal":
        pl.semaphore_wait(done, 2)
    total[...] = accumulator[...]


ONE_SLOT = ("prefetch into a slot and semaphore in use", "buffer overwritten, semaphore right")
TABLE = np.array([3, 1, 3, 0, 1, 5], np.int32)  # Page 3 is fetched soon after it was written.
ROWS = np.array([8, 6, 7, 5, 8, 4], np.int32)
CACHE = np.arange(PAGES * PAGE_SIZE * 128, dtype=np.float32).reshape(PAGES, PAGE_SIZE, 128)


@functools.cache
def adding_up_pages(fault: str) -> Callable[..., Any]:
    call = pl.pallas_call(
        functools.partial(add_up_pages, fault=fault),
        in_specs=[SMEM, SMEM, ANY],
        out_specs=[ANY, VMEM],
        out_shape=[
            jax.ShapeDtypeStruct(CACHE.shape, CACHE.dtype),
            jax.ShapeDtypeStruct(CACHE.shape[1:], CACHE.dtype),
        ],
        scratch_shapes=[
            pltpu.VMEM((2, PAGE_SIZE, 128), jnp.float32),
            pltpu.VMEM((PAGE_SIZE, 128), jnp.float32),
            pltpu.VMEM((PAGE_SIZE, 128), jnp.float32),
            pltpu.SMEM((1,), jnp.int32),
            DMA((2,)),
            DMA,
            pltpu.SemaphoreType.REGULAR,
        ],
        input_output_aliases={2: 0},
    )
    return jax.jit(call)


def run(fault: str, **mode: Any) -> Any:
    with tpu_interpret_mode(**mode):
        return jax.tree.map(np.asarray, adding_up_pages(fault)(TABLE, ROWS, CACHE))


def outcome(fault: str, **mode: Any) -> str:
    cache, total = CACHE.copy(), np.zeros_like(CACHE[0])
    for page, rows in zip(TABLE[:STEPS], ROWS, strict=False):
        total[:rows] += cache[page, :rows]
        cache[page, :rows] = total[:rows] + 1
    try:
        actual_cache, actual_total = run(fault, **mode)
    except (IndexError, RaceError, DeadlockError, LeftoverError) as error:
        return type(error).__name__.removesuffix("Error").lower()
    is_right = np.array_equal(actual_cache, cache) and np.array_equal(actual_total, total)
    return "-" if is_right else "numbers"


@pytest.mark.parametrize(
    ("fault", "expected"), [pytest.param(*row, id=row[0]) for row in ROWS_OF_FAULTS]
)
def test_how_a_fault_shows(fault: str, expected: list[str]) -> None:
    shown = []
    for detect_races in (False, True):
        for mode in ("on_wait", "eager"):
            shown.append(outcome(fault, detect_races=detect_races, dma_execution_mode=mode))
        number_of_seeds = 20 if fault == "none" else 6
        outcomes = {
            outcome(fault, detect_races=detect_races, dma_execution_mode="random", seed=seed)
            for seed in range(number_of_seeds)
        }
        shown.append("/".join(sorted(outcomes, reverse=True)))
    assert shown == expected


def test_a_seed_says_it_all() -> None:
    fault = "prefetch into a slot and semaphore in use"
    totals = [run(fault, dma_execution_mode="random", seed=seed)[1] for seed in (0, 0, 1, 2, 3)]
    np.testing.assert_array_equal(totals[0], totals[1])
    assert any(not np.array_equal(totals[0], other) for other in totals[2:])


# ---------------------------------------------------------------------------------------------
# What is said of them

START = r"test_interpreter_faults\.py:\d+:\d+ \(add_up_pages\.<locals>\.start_fetch\)"
FETCH = r"the copy of cache\.at\[%s\] to pages\.at\[%s\] that is started at [^\n]*" + START


@pytest.mark.parametrize("mode", ["on_wait", "eager", "random"])
def test_a_leftover_names_the_semaphore_and_the_copy(mode: str) -> None:
    expected = (
        r"^the kernel ends without a wait for:\n  2048 bytes on fetches\[1\], as of "
        + FETCH % (r"5, ds\(0, 4\)", r"1, ds\(0, 4\)")
        + "$"
    )
    with pytest.raises(LeftoverError, match=expected):
        run("extra prefetch never waited for", dma_execution_mode=mode)
    with pytest.raises(LeftoverError, match=r":\n  a count of 2 on done$"):
        run("signal left over", dma_execution_mode=mode)


def test_a_deadlock_names_the_semaphore_and_the_wait() -> None:
    expected = (
        r"^the wait for 4096 bytes on fetches\[1\] at [^\n]*test_interpreter_faults\.py:\d+:\d+"
        r" \(add_up_pages.<locals>.wait_fetch\) can never be met: its count is 3072, and no copy"
        r" that signals it is in flight; fetches\[0\] has 4096$"
    )
    with pytest.raises(DeadlockError, match=expected):
        run("wait on the wrong semaphore")
    with pytest.raises(DeadlockError, match=r"^the wait for 2 on done can never be met: "):
        run("wait without a signal")


def test_a_race_names_both_accesses() -> None:
    first = FETCH % (r"3", r"0")
    expected = (
        r"^race between two accesses that nothing orders:\n"
        r"  read of pages\.at\[0\] by the core at [^\n]*"
        r"test_interpreter_faults\.py:\d+:\d+ \(add_up_pages.*\)\n"
        r"  write of pages\.at\[0\] by " + first + ", which ran first this time$"
    )
    with pytest.raises(RaceError, match=expected):
        run("missing wait", detect_races=True, dma_execution_mode="eager")


def test_an_uninitialized_index_is_called_so() -> None:
    expected = r": index uninitialized is out of bounds for axis 0 of rows, whose shape is \[6\]$"
    with pytest.raises(IndexError, match=expected):
        run("uninitialized index in SMEM")


@pytest.mark.parametrize("mode", ["on_wait", "random"])
def test_a_scope_does_not_end_before_a_copy_into_it(mode: str) -> None:
    def kernel(x: Any, out: Any, semaphore: Any) -> None:
        def body(buffer: Any) -> None:
            pltpu.make_async_copy(x, buffer, semaphore).start()

        pl.run_scoped(body, pltpu.VMEM((8, 128), jnp.float32))
        pltpu.make_async_copy(x, out, semaphore).wait()

    expected = "^the scope of buffer ends before the copy of x to buffer that is started at "
    with (
        pytest.raises(LeftoverError, match=expected),
        # With this seed the copy does not run at once.
        tpu_interpret_mode(dma_execution_mode=mode, seed=1),
    ):
        shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        call = pl.pallas_call(kernel, out_shape=shape, scratch_shapes=[DMA])
        jax.block_until_ready(call(np.zeros((8, 128), np.float32)))


def test_memory_is_poisoned_and_semaphores_are_zero() -> None:
    dtypes = [np.float32, ml_dtypes.bfloat16, np.int32, np.int8, np.uint32]

    def kernel(*refs: Any) -> None:
        of_smem, counts, *of_vmem = refs[: 2 + len(dtypes)]
        smem, semaphores, *vmem = refs[2 + 2 * len(dtypes) :]
        for i in range(2):
            of_smem[i] = smem[i]
            counts[i] = pl.semaphore_read(semaphores.at[i])
        for out, scratch in zip(of_vmem, vmem, strict=True):
            out[...] = scratch[...]

    vectors = [jax.ShapeDtypeStruct((32, 128), dtype) for dtype in dtypes]
    make_call = functools.partial(
        pl.pallas_call,
        kernel,
        out_specs=[SMEM, SMEM] + [VMEM] * 2 * len(dtypes),
        out_shape=[jax.ShapeDtypeStruct((2,), jnp.int32)] * 2 + vectors * 2,
        scratch_shapes=[
            pltpu.SMEM((2,), jnp.int32),
            pltpu.SemaphoreType.REGULAR((2,)),
            *[pltpu.VMEM((32, 128), dtype) for dtype in dtypes],
        ],
    )
    with tpu_interpret_mode():
        of_smem, counts, *of_vmem = jax.tree.map(np.asarray, make_call()())
    lowest = np.iinfo(np.int32).min
    assert set(of_smem) == {UNINITIALIZED_INT32} and lowest < UNINITIALIZED_INT32 < lowest / 2
    np.testing.assert_array_equal(counts, 0)
    # What scratch held, and outputs that nothing was stored to.
    for values, dtype in zip(of_vmem, dtypes * 2, strict=True):
        match np.dtype(dtype).kind:
            case "i":
                least = UNINITIALIZED_INT32 if dtype == jnp.int32 else np.iinfo(dtype).min
                np.testing.assert_array_equal(values, least)
            case "u":
                np.testing.assert_array_equal(values, np.iinfo(dtype).max)
            case _:
                assert np.isnan(values.astype(np.float32)).all()
