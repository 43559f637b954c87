"""The search for block sizes: where it looks, where it ends, and the rows that it leaves."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cli_fixtures import run as run  # a fixture

from rpagen.emit import resources, single
from rpagen.errors import RpagenError, SpecError
from rpagen.evidence.shapes import CallShape
from rpagen.schedule import predict, workloads
from rpagen.spec import expand, launches
from rpagen.spec.model import GENERATIONS
from rpagen.tune import measure, row, rows, search
from rpagen.tune.blocks import Blocks, Space
from rpagen.tune.rows import Key, Row, Tuned

CORE = {each.name: each for each in expand.load_variants(resources.specs_dir(), ("core",))}
SHAPE = CallShape(
    query_heads=32,
    kv_heads=8,
    head_dim=128,
    page_size=64,
    tokens=2048,
    sequences=64,
    pages_per_sequence=128,
)
PROBLEM = SHAPE.problem(CORE["rpa"])


def space(launch: str, device: str = "v6e", **changes: int) -> Space:
    problem = dataclasses.replace(PROBLEM, **changes)
    return Space(launch, problem, 6, device)


def test_the_default_blocks_can_be_tried_in_every_generation():
    for device in GENERATIONS:
        for plan in launches.plan(CORE["rpa"], PROBLEM, device, None):
            assert space(plan.launch, device).has(Blocks.of(plan))


def test_a_step_changes_one_size():
    start = Blocks(128, 1024, 128, 512)
    assert set(space("mixed").neighbours(start)) == {
        Blocks(128, 2048, 128, 512),
        Blocks(128, 512, 128, 512),
        Blocks(128, 1024, 128, 1024),
        Blocks(128, 1024, 128, 256),
        Blocks(256, 1024, 256, 512),
        Blocks(64, 1024, 64, 512),
        Blocks(256, 1024, 128, 512),  # two tiles
        Blocks(128, 1024, 64, 512),
    }


def test_a_token_has_blocks_of_keys_only():
    assert set(space("decode").neighbours(Blocks(1, 128, 1, 128))) == {
        Blocks(1, 256, 1, 128),
        Blocks(1, 64, 1, 128),
    }


@pytest.mark.parametrize(
    "blocks",
    [
        Blocks(1, 96, 1, 128),  # no whole pages
        Blocks(1, 0, 1, 128),
        Blocks(1, 16384, 1, 512),  # twice what a sequence can have
        Blocks(1, 256, 1, 512),  # a compute block of mostly nothing
        Blocks(1, 2048, 1, 2048),
        Blocks(1, 128, 1, 64),
        Blocks(96, 512, 64, 512),  # no whole tiles
        Blocks(1024, 512, 1024, 512),  # 4,096 rows of queries
        Blocks(4096, 512, 64, 512),  # twice the tokens of the call
    ],
)
def test_blocks_that_are_no_use_are_not_tried(blocks: Blocks):
    assert not space("mixed").has(blocks)


def test_blocks_that_do_not_fit_vmem_are_not_tried():
    large = Blocks(512, 2048, 512, 512)
    assert space("mixed", "v6e").has(large)
    assert not space("mixed", "v7x").has(large)


def bowl(best: Blocks) -> Callable[[Blocks], float]:
    """A cost that grows with every step away from the best blocks."""

    def cost(blocks: Blocks) -> float:
        pairs = zip(blocks.argument, best.argument, strict=True)
        return 100.0 * 1.1 ** sum(abs(math.log2(one / other)) for one, other in pairs)

    return cost


def counted(cost: Callable[[Blocks], float]) -> tuple[list[Blocks], Callable[..., list[float]]]:
    asked: list[Blocks] = []

    def costs(some: Sequence[Blocks]) -> list[float]:
        asked.extend(some)
        return [cost(each) for each in some]

    return asked, costs


@pytest.mark.parametrize(
    "best", [Blocks(128, 1024, 128, 512), Blocks(256, 512, 64, 256), Blocks(32, 4096, 32, 1024)]
)
def test_the_search_ends_at_the_bottom(best: Blocks):
    asked, costs = counted(bowl(best))
    found = search.downhill(space("mixed"), Blocks(128, 1024, 128, 512), costs)
    assert found.best == best and found.start == Blocks(128, 1024, 128, 512)
    assert len(set(asked)) == len(asked) == len(found.tried), "nothing is tried twice"
    assert found.tried[best] == pytest.approx(100)


def test_what_does_not_compile_is_walked_around():
    best, start = Blocks(1, 512, 1, 256), Blocks(1, 1024, 1, 512)
    inner = bowl(best)
    _, costs = counted(
        lambda each: math.inf if each.kv_block == 1024 and each != start else inner(each)
    )
    assert search.downhill(space("decode"), start, costs).best == best


def test_a_start_that_does_not_compile_is_an_error():
    with pytest.raises(RpagenError, match=r"default blocks \(1, 1024, 1, 512\) of decode do not"):
        search.downhill(
            space("decode"), Blocks(1, 1024, 1, 512), lambda some: [math.inf] * len(some)
        )


def test_a_gain_that_is_none_is_no_step():
    start = Blocks(1, 1024, 1, 512)
    _, costs = counted(lambda each: 100.0 if each == start else 99.5)
    assert search.downhill(space("decode"), start, costs).best == start


def test_no_workload_counts_more_than_another():
    times = measure.Times(Blocks(1, 512, 1, 512), (10.0, 1000.0))
    assert times.cost == pytest.approx(100.0)
    assert measure.Times(times.blocks, problem="too large").cost == math.inf


def test_each_launch_is_tuned_by_the_workloads_that_it_serves():
    known = workloads.load().workloads
    names = {
        launch: [each.name for each in row.workloads_of(launch, known)] for launch in row.LAUNCHES
    }
    assert names == {
        "decode": ["decode-1k", "decode-8k"],
        "mixed": ["prefill-2k", "append-512", "mixed"],
    }


TUNED = Tuned(
    Blocks(1, 1024, 1, 512),
    {"decode-1k": 180.2, "decode-8k": 1386.0},
    Blocks(1, 512, 1, 512),
    {"decode-1k": 198.2, "decode-8k": 1400.0},
)
ROW = Row(
    Key("rpa", 32, 8, 128, 64, 0),
    {"decode": TUNED},
    {"jax": "0.10.2", "libtpu": "0.0.52"},
)
WINDOWED = dataclasses.replace(ROW, key=dataclasses.replace(ROW.key, sliding_window=1024))


def test_a_row_is_read_as_it_was_written(tmp_path):
    assert rows.read(tmp_path, "v6e") == ()
    file = rows.write_rows(tmp_path, "v6e", rows.merged([WINDOWED], ROW))
    assert rows.read(tmp_path, "v6e") == (ROW, WINDOWED)
    before = file.read_text()
    rows.write_rows(tmp_path, "v6e", rows.read(tmp_path, "v6e"))
    assert file.read_text() == before
    other = dataclasses.replace(ROW, versions={"jax": "0.11.2", "libtpu": "0.0.48"})
    assert rows.merged(rows.read(tmp_path, "v6e"), other) == (WINDOWED, other)
    assert TUNED.worst_default == pytest.approx(198.2 / 180.2)


CHECKED_IN = [
    pytest.param(
        generation, each, id=f"{generation}-{'-'.join(map(str, dataclasses.astuple(each.key)))}"
    )
    for generation in GENERATIONS
    for each in rows.read(resources.specs_dir() / rows.FOLDER, generation)
]


def test_rows_are_checked_in_for_every_generation_that_is_tuned():
    assert {each.values[0] for each in CHECKED_IN} == {"v5e", "v6e", "v7x"}


@pytest.mark.parametrize(("generation", "found"), CHECKED_IN)
def test_the_default_blocks_are_near_the_best_of_every_row(generation: str, found: Row):
    variant, key = CORE[found.key.variant], found.key
    heads = workloads.Configuration(
        *("", "", key.query_heads, key.kv_heads, key.head_dim), sliding_window=key.sliding_window
    )
    for launch, tuned in found.launches.items():
        assert tuned.worst_default <= 1.15, launch
        some = tuple(workloads.load().workload(name) for name in tuned.microseconds)
        request = row.Request(
            variant,
            generation,
            predict.configuration_of(variant, heads),
            key.page_size,
            some,
            Path(),
            Path(),
        )
        assert request.key == key
        space, default = row.space_of(request, launch, some)
        assert default == tuned.default_blocks, "run `rpagen tune` for it anew"
        assert space.has(tuned.blocks)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("heads: 32x8x128", "heads: 32x8", "expected: query heads, kv heads and head dim, such as"),
        ("page_size: 64", "page_size: 0", "expected: a whole number from 1 to 1073741824"),
        ("variant: rpa", "varaint: rpa", "did you mean variant?"),
        ("[1, 1024, 1, 512]", "[1, 1024, 1]", "found 3 block sizes"),
        (
            "decode-8k: 1386.0",
            "decode-9k: 1386.0",
            "expected: times of the workloads that `us` has",
        ),
        ("{decode-1k: 180.2, decode-8k: 1386.0}", "{}", "found no times"),
        ("{decode-1k: 180.2, decode-8k: 1386.0}", "180.2", "expected: microseconds by workload"),
        ("variant: rpa", "variant: [rpa]", "expected: a text"),
        ("decode-1k: 180.2", "decode-1k: 0.0", "expected: microseconds with one digit"),
        ("    decode:", "    decoed:", "did you mean decode?"),
        ("libtpu: 0.0.52", "libtup: 0.0.52", "did you mean libtpu?"),
    ],
)
def test_a_wrong_row_is_an_error_with_its_place(old, new, said, tmp_path):
    file = rows.write_rows(tmp_path, "v6e", [ROW])
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))
    with pytest.raises(SpecError) as caught:
        rows.read(tmp_path, "v6e")
    assert said in str(caught.value) and f"{file}:" in str(caught.value)


def test_two_rows_for_the_same_are_an_error(tmp_path):
    file = rows.write_rows(tmp_path, "v6e", [ROW])
    file.write_text(file.read_text() + file.read_text().partition("rows:\n")[2])
    with pytest.raises(SpecError, match="there are two rows for this"):
        rows.read(tmp_path, "v6e")


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is for x86-64 Linux only"
)
def test_a_trial_is_of_one_launch_with_its_blocks(tmp_path):
    """In a process of its own, since libtpu says where it dumps only once."""
    single.emit(tmp_path / "emitted", [CORE["rpa"]], "a test")
    known = workloads.load()
    bench = measure.Bench(
        *("rpa", "v6e", known.configuration("B"), 64, "decode"),
        (known.workload("decode-1k"), known.workload("decode-8k")),
        tmp_path / "emitted",
        tmp_path / "dumps",
    )
    told: list[measure.Times] = []
    cost = measure.Measure(bench, 1, told.append)
    small, large, wrong = Blocks(1, 256, 1, 256), Blocks(1, 2048, 1, 512), Blocks(1, 100, 1, 256)
    costs = cost([small, large, wrong])
    assert costs[0] > costs[1] > 0 and costs[2] == math.inf
    assert {each.blocks for each in told} == {small, large, wrong}
    short, long = cost.times[large].microseconds
    assert 4 < long / short < 8, "eight times the keys"
    assert "expected a multiple of the page size, 64" in cost.times[wrong].problem
    (first, *_) = sorted((tmp_path / "dumps").iterdir())
    kernels = {each.name for each in first.iterdir() if "_mixed_" in each.name}
    assert len(list((tmp_path / "dumps").iterdir())) == 2 and not kernels


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Times by a rule, in the place of what is compiled: halves of the default KV block are best.

    Returns the benches that were asked for.
    """
    asked: list[str] = []

    class Fast:
        def __init__(self, bench: measure.Bench, jobs: int, told: Callable[..., None]) -> None:
            asked.append(f"{bench.variant} {bench.launch} {bench.configuration.kv_heads}")
            self._count, self._told = len(bench.workloads), told
            self.times: dict[Blocks, measure.Times] = {}
            self._best = 0

        def __call__(self, some: Sequence[Blocks]) -> list[float]:
            self._best = self._best or some[0].kv_block // 2
            for each in some:
                far = 1 + abs(each.kv_block - self._best) / 1024 + abs(each.compute_block - 512)
                self.times[each] = measure.Times(each, (10 * far,) * self._count)
                self._told(self.times[each])
            return [self.times[each].cost for each in some]

    monkeypatch.setattr(row, "Measure", Fast)
    return asked


LLAMA = "tests/data/hf_configs/llama-3.1-8b.json"


def test_the_command_writes_a_row_and_finds_it_again(run, fast, tmp_path):
    arguments = ("tune", LLAMA, "--tp", 8, "--rows", tmp_path)
    status, out, err = run(*arguments)
    assert status == 0 and fast == ["rpa decode 1", "rpa mixed 1"]
    assert out.startswith("rpa on v6e: 4 query heads, 1 kv head, head dim 128, pages of 64\n")
    assert f"wrote {tmp_path}/v6e.yaml\n" in out and err.startswith("  decode (1, 4096, 1, 512): ")
    (found,) = rows.read(tmp_path, "v6e")
    assert found.key == Key("rpa", 4, 1, 128, 64, 0)
    assert found.launches["decode"].blocks == Blocks(1, 2048, 1, 512)
    assert found.launches["decode"].worst_default == pytest.approx(3.0)
    assert set(found.versions) == {"jax", "libtpu"}
    text = (tmp_path / "v6e.yaml").read_text()
    assert run(*arguments, "--check")[0] == 0
    (tmp_path / "v6e.yaml").write_text(text.replace("[1, 2048, 1, 512]", "[1, 512, 1, 512]"))
    status, out, _ = run(*arguments, "--check")
    assert status == 1 and f"another row is in {tmp_path}/v6e.yaml, or none\n" in out
    assert "[1, 512, 1, 512]" in (tmp_path / "v6e.yaml").read_text(), "nothing is written"


def test_each_kind_of_layer_has_a_row(run, fast, tmp_path):
    config = "tests/data/hf_configs/gemma-2-27b.json"
    assert run("tune", config, "--device", "v7x", "--rows", tmp_path)[0] == 0
    windows = {each.key.sliding_window for each in rows.read(tmp_path, "v7x")}
    assert windows == {0, 4096}
    run("tune", LLAMA, "--device", "v7x", "--rows", tmp_path)
    assert len(rows.read(tmp_path, "v7x")) == 3, "rows of other shapes stay"


def test_a_model_that_is_not_served_is_refused(run, fast, tmp_path):
    config = "tests/data/hf_configs/deepseek-v3.json"
    status, _, err = run("tune", config, "--rows", tmp_path)
    assert status == 2 and "no layer of the model is served: `rpagen recommend` tells why" in err
    assert not list(tmp_path.iterdir()) and not fast


def test_rows_that_cannot_be_written_are_refused_before_the_search(run, fast, tmp_path):
    (tmp_path / "v6e.yaml").mkdir()
    status, _, err = run("tune", LLAMA, "--rows", tmp_path)
    assert status == 2 and not fast and "v6e.yaml" in err
