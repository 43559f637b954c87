"""`make upstream-suites` on a small wheel that is made here, so that nothing is fetched."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from rpagen.errors import RpagenError
from rpagen.evidence import upstream

THEIR_KERNEL = """
from tpu_inference.logger import init_logger
from tpu_inference.utils import get_device_name

logger = init_logger(__name__)


def ragged_paged_attention(*args, **kwargs):
    raise AssertionError("the kernel of the wheel was called")


def reference():
    return "theirs"
"""

THEIR_TESTS = """
import jax.numpy as jnp
from jax._src import test_util as jtu

from tpu_inference.kernels.ragged_paged_attention.v3.kernel import ragged_paged_attention, reference


def attention(**options):
    assert jtu.is_device_tpu_at_least(version=5)
    queries, kv, cache = jnp.ones((4, 2, 128)), jnp.ones((4, 1, 128)), jnp.zeros((2, 16, 2, 1, 128))
    kv_lens, pages, starts, ends = (jnp.array(each) for each in ([4], [0], [0, 4], [0, 0, 1]))
    return ragged_paged_attention(queries, kv, kv, cache, kv_lens, pages, starts, ends, **options)


class KernelTest(jtu.JaxTestCase):

    def test_our_kernel_with_their_reference(self):
        out, kv_cache = attention()
        assert reference() == "theirs"
        assert jnp.all(out == 1) and jnp.all(kv_cache[0, :4] == 1)

    def test_that_fails(self):
        attention(soft_cap=-1.0)

    def test_that_skips(self):
        self.skipTest("no reason")

    def test_that_calls_nothing(self):
        pass

    def test_that_fails_before_the_call(self):
        raise ValueError
"""

# jax's test utilities need of absl no more than this.
ABSL = {
    "absl/testing/absltest.py": "from unittest import TestLoader",
    "absl/testing/parameterized.py": "from unittest import TestCase",
}
CONTENT = {
    upstream.TESTS: THEIR_TESTS,
    f"{upstream.KERNEL}kernel.py": THEIR_KERNEL,
    "tpu_inference/__init__.py": "raise ImportError('the engine')",
}
OUTCOMES = {
    "KernelTest::test_our_kernel_with_their_reference": "passed",
    "KernelTest::test_that_fails": "failed",
    "KernelTest::test_that_skips": "skipped",
    "KernelTest::test_that_calls_nothing": "skipped",
    "KernelTest::test_that_fails_before_the_call": "failed",
}


def wheel(folder: Path, content: dict[str, str], parts: tuple[str, ...]) -> upstream.Wheel:
    """A wheel as if it had been fetched to a folder before."""
    file = folder / "some_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return upstream.Wheel("some-thing", "1.0", sha256, parts)


def test_a_wheel_that_is_there_is_unpacked_in_part(tmp_path):
    fetched = upstream.fetch(wheel(tmp_path, CONTENT, (upstream.KERNEL,)), tmp_path)
    files = [path for path in fetched.rglob("*") if path.is_file()]
    assert files == [fetched / upstream.KERNEL / "kernel.py"]


def test_another_wheel_than_the_one_known_is_refused(tmp_path):
    known = wheel(tmp_path, CONTENT, (upstream.KERNEL,))
    wheel(tmp_path, ABSL, ())
    with pytest.raises(RpagenError, match=f"expected {known.sha256}"):
        upstream.fetch(known, tmp_path)
    assert not (tmp_path / known.name).exists()


def test_their_tests_run_on_our_kernel(tmp_path):
    folder = upstream.fetch(wheel(tmp_path, CONTENT, (upstream.TESTS, upstream.KERNEL)), tmp_path)
    for name, text in ABSL.items():
        file = tmp_path / "absl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    results = upstream.run(folder, tmp_path / "absl", detect_races=True)
    assert {result.case: result.outcome for result in results} == OUTCOMES


def test_no_results_where_the_tests_cannot_be_run(tmp_path):
    assert upstream.run(tmp_path, tmp_path, detect_races=False) == []


# --- the table of exceptions ---------------------------------------------------------------------


def suite(*listed: str) -> upstream.Suite:
    return upstream.Suite(upstream.Wheel("some-thing", "1.0", "", ()), 2, frozenset(listed))


def judged(known: upstream.Suite, **outcomes: str) -> tuple[tuple[str, ...], list[str]]:
    """The counts and the complaints."""
    results = [upstream.Result(case, outcome) for case, outcome in outcomes.items()]
    name, *counts, seconds = upstream.summary_row(known, results, 61.6)
    assert (name, seconds) == ("some_thing-1.0", "62")
    return tuple(counts), upstream.complaints_of(known, results)


def test_cases_pass_or_are_listed_and_skipped():
    assert judged(suite("b"), a="passed", b="skipped") == (("1", "1", "0"), [])


@pytest.mark.parametrize(
    ("outcome", "complaints"),
    [
        ("passed", ["b is listed and was not skipped"]),
        ("failed", ["b failed", "b is listed and was not skipped"]),
    ],
)
def test_a_listed_case_must_be_skipped(outcome: str, complaints: list[str]):
    assert judged(suite("b"), a="passed", b=outcome) == (("1", "0", "1"), complaints)


def test_a_case_that_is_skipped_must_be_listed():
    complaints = ["a was skipped and is not listed"]
    assert judged(suite(), a="skipped", b="passed") == (("1", "0", "1"), complaints)


def test_a_listed_case_must_exist():
    complaints = ["c is listed and was not skipped"]
    assert judged(suite("c"), a="passed", b="passed") == (("2", "0", "0"), complaints)


def test_a_case_must_not_get_lost():
    assert judged(suite(), a="passed") == (("1", "0", "0"), ["1 cases ran; expected 2"])


@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        ("skipped", 0, "some_thing-1.0  1       1       0       0\n"),
        ("passed", 1, "error: some_thing-1.0: b is listed and was not skipped\n"),
    ],
)
def test_the_summary_comes_last(outcome, status, said, monkeypatch, capsys):
    results = [upstream.Result("a", "passed"), upstream.Result("b", outcome)]
    monkeypatch.setattr(upstream, "SUITES", [suite("b")])
    monkeypatch.setattr(upstream, "fetch", lambda wheel, folder: folder / wheel.name)
    monkeypatch.setattr(upstream, "run", lambda *_, **__: results)
    assert upstream.main([]) == status
    out = capsys.readouterr().out
    assert out.endswith(said)
    for row in upstream.LISTED:
        assert row.reason in out


def test_what_cannot_be_fetched_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(upstream, "FOLDER", tmp_path)
    assert upstream.main([]) == 2
    assert "error: pip did not fetch absl-py==2.5.1" in capsys.readouterr().err


def test_every_row_of_the_table_holds_for_versions_that_are_run():
    versions = {each.wheel.version for each in upstream.SUITES}
    for row in upstream.LISTED:
        assert row.cases and row.reason and row.versions and set(row.versions) <= versions
    cases = [case for row in upstream.LISTED for case in row.cases]
    assert len(cases) == len(set(cases))
