"""`rpagen predict`: tables, comparisons, dumps, and what is wrong with a request."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_fixtures import run as run

from rpagen.schedule import accuracy, regions

DUMP = Path(__file__).parent / "data" / "schedules" / "v6e-0.0.52"
GIVEN = ("--operand", "0=6", "--operand", "1=3,-1,5,0,-1,2,7,9")

SMALL = """\
workloads:
  small:
    doc: three short decodes
    sequences: [{count: 3, kv_len: [20, 60], new_tokens: 1}]
    padded: {tokens: 8, sequences: 4, context: 64}
  many:
    doc: a page table that SMEM cannot hold
    sequences: [{count: 1, kv_len: 20, new_tokens: 1}]
    padded: {tokens: 8, sequences: 4096, context: 8192}
"""
SMALL_CALL = ("--shape", "4x2x128", "--page", "16", "--workload", "small")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The options of a call that compiles in seconds, and is kept where no other test looks."""
    from rpagen.schedule import dump

    monkeypatch.setattr(dump, "default_folder", lambda: tmp_path / "kept")
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return ("--workloads", path, *SMALL_CALL)


def test_a_dump(run):
    status, out, err = run("predict", "--dump", DUMP, *GIVEN, "--json")
    assert (status, err) == (0, "")
    (found,) = json.loads(out)
    assert found["name"] == "sum_pages.1"
    assert found["bundles"] == 16 + 6 * 8 + 4 * 27 + 6 * 7 + 13
    # the table, the weights, four pages and the sum
    assert found["bytes"] == 512 + 128 * 128 * 2 + 4 * 16 * 128 * 2 + 16 * 128 * 4
    assert list(found["regions_us"]) == ["start", *regions.REGIONS]
    assert sum(found["regions_us"].values()) == pytest.approx(found["kernels_us"], abs=0.01)
    assert found["kernels_error_bar"] == pytest.approx(accuracy.error_bar("v6e").share, abs=1e-4)
    assert found["call_us"] >= found["kernels_us"]


def test_operands_from_a_file(run, tmp_path):
    np.save(tmp_path / "table.npy", np.array([3, -1, 5, 0, -1, 2, 7, 9], np.int32))
    status, out, _ = run(
        "predict", "--dump", DUMP, "--operand", "0=6", "--operand", f"1={tmp_path}/table.npy"
    )
    assert status == 0
    assert "sum_pages.1" in out
    assert out.splitlines()[-1].startswith("times of kernels, v6e: ")


def test_the_loops_of_a_dump(run):
    status, out, _ = run("predict", "--dump", DUMP, *GIVEN, "--loops")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split()[:6] == ["KERNEL", "LOOP", "BUNDLES", "SPILLS", "FILLS", "TIMES"]
    loop = next(line.split() for line in lines if "loop 0x10" in line)
    assert loop[:6] == ["sum_pages.1", "loop", "0x10", "42", "0", "0"]
    assert loop[6] == "6"


def test_the_loops_of_a_dump_as_json(run):
    status, out, _ = run("predict", "--dump", DUMP, *GIVEN, "--loops", "--json")
    assert status == 0
    outside, loop = json.loads(out)[0]["loops"]
    assert (outside["bundles"], outside["iterations"], outside["copies"]) == (16 + 13, 1, 3)
    # 8 + 27 + 7 bundles; four of six pages are there; one multiplication of 8 cycles for each
    assert (loop["bundles"], loop["iterations"], loop["copies"]) == (42, 6, 4)
    executed = 6 * 8 + 4 * 27 + 6 * 7
    assert loop["share_of_peak"] == pytest.approx(4 * 4 / executed, abs=1e-4)


def test_a_timeline_and_a_page(run, tmp_path):
    trace, page = tmp_path / "t.json", tmp_path / "p.html"
    status, _, err = run("predict", "--dump", DUMP, *GIVEN, "--trace", trace, "--html", page)
    assert (status, err) == (0, "")
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(event["ph"] == "B" for event in events)
    assert "sum_pages.1" in page.read_text()


@pytest.mark.parametrize("text", ["5", "x=1", "1=", "1=a", "1=1.5", "1=no.npy"])
def test_wrong_operands(run, text):
    status, _, err = run("predict", "--dump", DUMP, "--operand", text)
    assert status == 2
    assert "--operand" in err


def test_operands_that_are_missing(run):
    status, _, err = run("predict", "--dump", DUMP, "--operand", "0=6")
    assert status == 2
    assert "operand 1" in err
    assert "--operand" in err


def test_the_flags_that_make_a_dump(run):
    status, out, _ = run("predict", "--flags", "/tmp/of mine")
    assert status == 0
    assert out.startswith("--xla_jf_dump_to=/tmp/of mine --xla_jf_dump_llo_text=true ")
    assert len(out.splitlines()) == 1


def test_a_place_that_cannot_be_written_is_told_at_once(run, tmp_path):
    status, out, err = run("predict", "--dump", DUMP, *GIVEN, "--trace", tmp_path)
    assert (status, out) == (2, "")
    assert "folder" in err


def test_a_folder_that_is_no_dump(run, tmp_path):
    status, _, err = run("predict", "--dump", tmp_path)
    assert status == 2
    assert str(tmp_path) in err


def test_variants(run, small):
    """The whole path: emitted, compiled, run; and what is kept is taken the next time."""
    command = ("predict", "rpa", "rpa_head_major", *small, "--jobs", 1)
    status, out, err = run(*command, "--json")
    assert (status, err) == (0, ""), out
    found = json.loads(out)
    assert [each["name"] for each in found] == ["rpa", "rpa_head_major"]
    for each in found:
        assert each["floor"]["bound"] == "HBM"
        assert 0 < each["floor"]["share"] < 1
    # Nothing is moved but what the floor counts, and in both launches the four integer operands,
    # each in one row of 512 bytes.
    # New keys and values are read once more, on their way to the cache: three rows of 1 KiB.
    assert found[0]["bytes"] == found[0]["floor"]["bytes"] + 2 * 4 * 512 + 3 * 1024
    status, out, _ = run(*command, "--compare")
    assert status == 0
    lines = out.partition("\n\n")[0].splitlines()
    assert lines[0] == "v6e, small, us"
    assert lines[1].split() == ["rpa", "rpa_head_major", "RATIO"]
    assert [line.split()[0] for line in lines[2:]] == [
        "kernels", "start", *regions.REGIONS, "around", "call"
    ]  # fmt: skip


def test_a_call_that_is_refused(run, small):
    status, out, _ = run("predict", "rpa", *small, "--workload", "many")
    assert status == 1
    assert "FAILED: " in out
    assert "SMEM" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rpa", "--workload", "decode-2k"), 'no workload "decode-2k"'),
        (("rpa", "--config", "Z"), 'no configuration "Z"'),
        (("rpa", "--config", "C"), "rpa is not for configuration C: that has a cache of float8"),
        (("rpa", "--config", "E"), "rpa is not for configuration E: that has a sliding window"),
        (("rpa", "--compare"), "--compare takes two variants, and these are 1"),
        (("rpa", "rpa_head_major", "--loops"), "about one call, and these are 2"),
        (("nope",), "nope"),
        (("all", "nope"), "all"),
        (("rpa", "--operand", "1=2"), "--operand and a variant do not go together"),
        (("rpa", "--config", "A", "--shape", "8x2x128"), "--shape and --config do not go together"),
        (("rpa", "--dump", DUMP), "names of variants and --dump do not go together"),
        (("--config", "A", "--dump", DUMP), "--config and --dump do not go together"),
        (("--compare", "--dump", DUMP), "--compare and --dump do not go together"),
        (("--jobs", "2", "--dump", DUMP), "--jobs and --dump do not go together"),
        (("rpa", "--device", "v9"), 'there is no device "v9"'),
    ],
)
def test_wrong_requests(run, words, said):
    status, out, err = run("predict", *words)
    assert (status, out) == (2, "")
    assert said in err
