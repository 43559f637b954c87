"""The example engine: the command of the README, and what can break in such an engine."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rpa_kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
)

from examples.tiny_engine import __main__ as example
from examples.tiny_engine import engine as engines
from examples.tiny_engine.batch import Batch, make_batch
from examples.tiny_engine.model import Config, generate_plainly, random_weights
from examples.tiny_engine.pages import PagePool
from examples.tiny_engine.scheduler import Limits, Request, Schedule, Scheduler
from rpagen.evidence import compile as aot

ROOT = Path(__file__).parent.parent

# --- the whole of it -----------------------------------------------------------------------------


def test_the_command_of_the_readme_finds_all_requests_equal():
    (said,) = re.findall(
        r"`(\S+ PYTHONPATH=\S+) \.venv/bin/python -m examples\.tiny_engine`",
        (ROOT / "README.md").read_text(),
    )
    done = subprocess.run(
        [sys.executable, "-m", "examples.tiny_engine"],
        cwd=ROOT,
        env=os.environ | dict(pair.split("=") for pair in said.split()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_report(done.stdout)


def test_it_runs_compiled_on_a_tpu(on_tpu: bool, capsys: pytest.CaptureFixture[str]):
    if not on_tpu:
        pytest.skip("no TPU")
    assert example.main([]) == 0
    check_report(capsys.readouterr().out)


def check_report(report: str) -> None:
    """What the example is to show happens in it."""
    steps = re.findall(r"^step +\d+: (\d+) decode, (\d+) prefill, (\d+) mixed;", report, re.M)
    assert any("0" not in kinds for kinds in steps), "a step with all three kinds"
    requests = [
        (int(prompt), pages.split(), generated.split())
        for prompt, pages, generated in re.findall(
            r"^request \d+: +(\d+) tokens of prompt, pages ([\d ]+), generated ([\d ]+): equal$",
            report,
            re.M,
        )
    ]
    assert f"all {len(requests)} requests equal" in report.splitlines()
    assert len(requests) >= 5
    prompts, pages, generated = zip(*requests, strict=True)
    limits = Limits()
    assert min(prompts) == 1
    assert max(prompts) > max(limits.page_size, limits.chunk)
    assert len(set(prompts)) == len(prompts)
    all_pages = list(itertools.chain(*pages))
    assert len(set(all_pages)) < len(all_pages), "some pages are used again"
    last_page = [(prompt - 1) // limits.page_size for prompt in prompts]
    assert any(len(each) - 1 > last for each, last in zip(pages, last_page, strict=True))
    wanted = [count for *_, count in example.ARRIVALS]
    assert all(len(each) == count for each, count in zip(generated, wanted, strict=True))
    assert "; request 6 preempted" in report
    assert "compiled for 32 and 4 tokens" in report.splitlines()


# --- the comparison can fail ---------------------------------------------------------------------


def test_a_wrong_page_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Once a sequence has left its first page, it reads another one in its place."""

    def make_wrong_batch(schedule: Schedule, limits: Limits) -> Batch:
        batch = make_batch(schedule, limits)
        table = batch.page_indices.reshape(limits.sequences, -1)
        for row, share in enumerate(schedule.shares):
            if share.request.cached >= limits.page_size:
                table[row, 0] = 0  # which nobody has: the pages with high numbers go first
        return batch

    monkeypatch.setattr(engines, "make_batch", make_wrong_batch)
    limits = Limits(sequences=2, tokens=2, chunk=2, page_size=4)
    arrivals = [(0, 2, 9), (0, 1, 2)]
    engine, requests = example.prepare(Config(layers=1), limits, arrivals)
    example.serve(engine, requests, [0, 0])
    assert example.compare(engine, requests) == 1
    said = capsys.readouterr().out
    assert re.search(r"^request 0: .*: NOT equal to [\d ]+$", said, re.M)
    assert re.search(r"^request 1: .*: equal$", said, re.M), "it never leaves its first page"
    assert said.endswith("1 of 2 requests NOT equal\n")


@pytest.fixture
def finished() -> tuple[types.SimpleNamespace, Request]:
    """What an engine and a request look like when all went well."""
    engine, (request,) = example.prepare(Config(layers=1), Limits(), [(0, 9, 5)])
    request.generated, logits = generate_plainly(
        engine.config, engine.weights, request.prompt, request.wanted
    )
    seen = types.SimpleNamespace(
        config=engine.config,
        weights=engine.weights,
        chosen_by={0: list(logits)},
        compiled_sizes=[4],
    )
    return seen, request


def test_equal_tokens_are_found_equal(finished):
    engine, request = finished
    assert example.compare(engine, [request]) == 0


def test_one_other_token_is_found(finished, capsys: pytest.CaptureFixture[str]):
    engine, request = finished
    request.generated[3] += 1
    assert example.compare(engine, [request]) == 1
    assert capsys.readouterr().out.endswith("1 of 1 requests NOT equal\n")


def test_equal_tokens_of_other_logits_are_luck(finished, capsys: pytest.CaptureFixture[str]):
    engine, request = finished
    engine.chosen_by[0][2] = engine.chosen_by[0][2] + 0.15  # more than rounding accounts for
    assert example.compare(engine, [request]) == 1
    assert capsys.readouterr().out.endswith("NOT close enough\n")


# --- pages ---------------------------------------------------------------------------------------


def test_no_page_is_handed_out_twice():
    pool = PagePool(3)
    taken = [pool.take() for _ in range(3)]
    assert sorted(taken) == [0, 1, 2]
    assert pool.free == 0
    with pytest.raises(IndexError):
        pool.take()
    pool.give_back(taken[:1])
    assert pool.take() == taken[0]


def test_a_page_is_given_back_once():
    pool = PagePool(2)
    page = pool.take()
    pool.give_back([page])
    with pytest.raises(ValueError, match=f"page {page} is given back twice"):
        pool.give_back([page])


# --- scheduling ----------------------------------------------------------------------------------


def request_of(name: int, prompt: int, wanted: int) -> Request:
    return Request(name, list(range(1, prompt + 1)), wanted)


def step(scheduler: Scheduler) -> Schedule:
    """Schedules a step, and finishes it with tokens that tell how many there were."""
    schedule = scheduler.schedule()
    scheduler.finish(schedule, [100] * len(schedule.shares))
    return schedule


def shares_of(schedule: Schedule) -> list[list[tuple[int, int]]]:
    """Name and count of the decode, the prefill and the mixed shares."""
    kinds = (schedule.decode, schedule.prefill, schedule.mixed)
    return [[(share.request.name, share.count) for share in kind] for kind in kinds]


def test_a_step_is_decodes_then_whole_chunks_then_the_rest_within_its_budget():
    scheduler = Scheduler(Limits(sequences=4, tokens=14, chunk=8, pages=20))
    for request in (request_of(0, 10, 3), request_of(1, 1, 3)):
        scheduler.add(request)
    assert shares_of(step(scheduler)) == [[(1, 1)], [(0, 8)], []]
    scheduler.add(request_of(2, 20, 1))
    assert shares_of(step(scheduler)) == [[(1, 1)], [(2, 8)], [(0, 2)]]
    scheduler.add(request_of(3, 7, 1))
    assert shares_of(step(scheduler)) == [[(0, 1), (1, 1)], [(2, 8)], [(3, 4)]]
    assert shares_of(step(scheduler)) == [[(0, 1)], [], [(2, 4), (3, 3)]]
    assert not scheduler.running
    assert scheduler.pool.free == 20


def test_a_request_waits_for_pages():
    scheduler = Scheduler(Limits(page_size=4, pages=3, pages_per_sequence=3, chunk=8))
    first, second = request_of(0, 8, 3), request_of(1, 8, 1)
    scheduler.add(first)
    scheduler.add(second)
    names = [[share.request.name for share in step(scheduler).shares] for _ in range(4)]
    assert names == [[0], [0], [0], [1]]
    assert set(second.pages) < set(first.pages)
    assert scheduler.pool.free == 3


def test_the_youngest_gives_its_pages_to_an_older_one_and_comes_back():
    scheduler = Scheduler(Limits(page_size=4, pages=4, pages_per_sequence=4, chunk=8))
    old, young = request_of(0, 8, 6), request_of(1, 7, 6)
    scheduler.add(old)
    scheduler.add(young)
    step(scheduler)
    assert scheduler.pool.free == 0
    schedule = step(scheduler)  # the old one needs a third page
    assert schedule.preempted == [young]
    assert (young.pages, young.cached, young.generated) == ([], 0, [100])
    assert scheduler.waiting == [young]
    while scheduler.waiting or scheduler.running:
        step(scheduler)
    assert (len(old.generated), len(young.generated), scheduler.pool.free) == (6, 6, 4)


def test_a_decode_takes_no_pages_from_a_prompt_that_came_before_it():
    scheduler = Scheduler(Limits(page_size=4, pages=4, pages_per_sequence=4, chunk=4, tokens=5))
    old, young = request_of(0, 12, 2), request_of(1, 4, 4)
    scheduler.add(old)
    scheduler.add(young)
    schedules = []
    while scheduler.waiting or scheduler.running:
        schedules.append(step(scheduler))
    assert all(old not in schedule.preempted for schedule in schedules)
    assert (len(old.generated), len(young.generated), scheduler.pool.free) == (2, 4, 4)


def test_a_decode_that_waits_for_a_page_gives_its_pages_to_a_prompt_that_came_before_it():
    # The old one was preempted and computes its tokens again, when both of them need a page.
    limits = Limits(sequences=2, tokens=6, chunk=3, page_size=4, pages_per_sequence=5, pages=7)
    scheduler = Scheduler(limits)
    for name, (prompt, wanted) in enumerate([(7, 7), (12, 6), (7, 7)]):
        scheduler.add(request_of(name, prompt, wanted))
    while scheduler.waiting or scheduler.running:
        assert step(scheduler).shares
    assert scheduler.pool.free == 7


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [(0, 1), (1, 0), (13, 1), (8, 6)],
    ids=["empty", "nothing", "long", "more"],
)
def test_what_could_never_run_is_refused(prompt: int, wanted: int):
    scheduler = Scheduler(Limits(page_size=4, pages=3))
    scheduler.add(request_of(0, 8, 5))
    with pytest.raises(ValueError, match="expected at least one token each, and at most 3 pages"):
        scheduler.add(request_of(1, prompt, wanted))


@settings(max_examples=200)
@given(
    st.builds(
        Limits,
        sequences=st.integers(1, 4),
        tokens=st.integers(4, 20),
        chunk=st.integers(1, 9),
        page_size=st.just(4),
        pages_per_sequence=st.just(5),
        pages=st.integers(5, 9),
    ),
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 14), st.integers(1, 7)),
        min_size=1,
        max_size=9,
    ),
)
def test_whatever_comes_every_step_is_valid_and_all_requests_finish(
    limits: Limits, arrivals: list[tuple[int, int, int]]
):
    scheduler = Scheduler(limits)
    requests = [request_of(name, *sizes) for name, (_, *sizes) in enumerate(arrivals)]
    kv_cache = cache(limits.pages, limits.page_size)
    for now in range(2000):
        for (when, *_), request in zip(arrivals, requests, strict=True):
            if when == now:
                scheduler.add(request)
        schedule = scheduler.schedule()
        assert bool(schedule.shares) == bool(scheduler.running)
        assert schedule.tokens <= limits.tokens
        assert len(schedule.shares) <= len(scheduler.running) <= limits.sequences
        owned = [page for request in scheduler.running for page in request.pages]
        assert len(set(owned)) == len(owned) == schedule.pages_in_use
        batch = make_batch(schedule, limits)
        assert batch.tokens.size in (limits.sequences, limits.tokens)
        heads = np.zeros((batch.tokens.size, 1, 128), np.float32)
        rpa_kernels.validate_inputs(
            heads, heads, heads, kv_cache, *batch[2:6], chunk_prefill_size=limits.chunk
        )
        scheduler.finish(schedule, [100] * len(schedule.shares))
        if now > 20 and not (scheduler.waiting or scheduler.running):
            break
    assert [len(request.generated) for request in requests] == [wanted for *_, wanted in arrivals]
    assert scheduler.pool.free == limits.pages


@functools.cache
def cache(pages: int, page_size: int) -> jax.Array:
    return jnp.zeros(rpa_kernels.get_kv_cache_shape(pages, page_size, 1, 128, jnp.float32))


# --- what the device gets ------------------------------------------------------------------------


def test_the_arrays_of_a_step():
    limits = Limits(sequences=3, tokens=8, chunk=4, page_size=4, pages_per_sequence=2, pages=9)
    scheduler = Scheduler(limits)
    for request in (request_of(0, 7, 1), request_of(1, 2, 4)):
        scheduler.add(request)
    step(scheduler)
    batch = make_batch(scheduler.schedule(), limits)
    for name, expected in {
        "tokens": [100, 5, 6, 7, 0, 0, 0, 0],
        "positions": [2, 4, 5, 6, 0, 0, 0, 0],
        "kv_lens": [3, 7, 0],
        "page_indices": [7, 0, 8, 6, 0, 0],
        "cu_q_lens": [0, 1, 4, 4],
        "distribution": [1, 1, 2],
        "last_tokens": [0, 3, 0],
    }.items():
        array = getattr(batch, name)
        assert array.tolist() == expected, name
        assert array.dtype == np.int32


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is for x86-64 Linux only"
)
def test_the_step_compiles_for_a_tpu_and_updates_its_caches_in_place():
    config, limits = Config(), Limits()
    engine = engines.Engine(config, random_weights(config, seed=0), limits)
    batch = make_batch(Schedule([], [], [], [], 0), limits)
    device = aot._device("v6e")
    tpu = AbstractDevice(device_kind=device.device_kind, num_cores=1, platform="tpu")
    types_of_axes = {"axis_types": (AxisType.Auto,)}
    mesh = AbstractMesh((1,), ("x",), abstract_device=tpu, **types_of_axes)
    on_it = NamedSharding(Mesh(np.array([device]), ("x",), **types_of_axes), PartitionSpec())
    with jax.sharding.use_abstract_mesh(mesh):
        jitted = jax.jit(
            engine._step, donate_argnames="caches", in_shardings=on_it, out_shardings=on_it
        )
        forms = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype),
            (engine.weights, engine.caches, batch),
        )
        compiled = jitted.trace(*forms).lower(lowering_platforms=("tpu",)).compile()
    in_place = compiled.memory_analysis().alias_size_in_bytes
    assert in_place == sum(cache.nbytes for cache in engine.caches)
