"""`rpagen predict`: tables, comparisons, dumps, and what is wrong with a request."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from cli_fixtures import run as run

from rpagen.schedule import accuracy, regions

DOCUMENT = Path(__file__).parent.parent / "docs" / "prediction.md"
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
    *_, trust, others = out.splitlines()
    assert trust.startswith("times of kernels, v6e: ")
    assert others == "those were kernels of attention: of others, no time was compared"


def test_the_loops_of_a_dump(run):
    status, out, _ = run("predict", "--dump", DUMP, *GIVEN, "--loops")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split()[:6] == ["KERNEL", "LOOP", "BUNDLES", "SPILLS", "FILLS", "TIMES"]
    loop = next(line.split() for line in lines if "loop 0x10" in line)
    assert loop[:6] == ["sum_pages.1", "loop", "0x10", "42", "0", "0"]
    assert loop[6] == "6"
    assert loop[8].endswith("%") and int(loop[8][:-1]) > 50 and loop[10] == "copies"


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


@pytest.mark.parametrize("given", [("--operand", "0=6"), ()])
def test_operands_that_are_missing(run, given):
    status, _, err = run("predict", "--dump", DUMP, *given)
    assert status == 2
    number = len(given) // 2
    assert f"as its operand {number}: a parameter that is not given" in err
    assert f"expected: the integers of parameter {number}\n" in err
    assert f"next: give them as --operand {number}=..., or name the --workload that the call" in err


def test_the_device_of_a_dump_follows_from_it(run):
    for device in ("v5e", "v6e", "v7x"):
        folder = DUMP.with_name(f"{device}-0.0.52")
        (found,) = json.loads(run("predict", "--dump", folder, *GIVEN, "--json")[1])
        assert found["device"] == device


RECIPE = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[1]
VECTORS = """
    def add(_, total):
        return total + x_ref[...]

    out_ref[...] = jax.lax.fori_loop(0, x_ref.shape[0], add, x_ref[...])
"""


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is for x86-64 Linux only"
)
def test_the_recipe_for_another_kernel(run, tmp_path):
    """That of the docs; besides, a loop that carries vectors. Neither has integers to be given."""
    with_loop = RECIPE.replace("out_ref[...] = x_ref[...] + 1\n", textwrap.indent(VECTORS, "    "))
    for number, recipe in enumerate((RECIPE, with_loop.replace("512, 512", "8, 128"))):
        folder = tmp_path / str(number)
        environment = {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "",  # which has flags of the CPU's compiler here
            **dict(each.split("=", 1) for each in re.findall(r"TPU_\w+=\S+", DOCUMENT.read_text())),
            "LIBTPU_INIT_ARGS": run("predict", "--flags", folder)[1].strip(),
        }
        subprocess.run(
            [sys.executable, "-c", recipe], env=os.environ | environment, check=True, cwd=tmp_path
        )
        status, _, err = run("predict", "--dump", folder)
        assert (status, err) == (
            2,
            f"error: the call in {folder} is for v6e or v7x: give the --device that it was"
            " compiled for\n",
        )
        status, out, _ = run("predict", "--dump", folder, "--device", "v6e", "--json")
        (found,) = json.loads(out)
        assert status == 0 and found["name"].startswith("add_one") and found["kernels_us"] > 0
        assert found["workload"] == ""
    assert "vphi" in next(folder.glob("*add_one*-final_bundles.txt")).read_text()


def test_the_flags_that_make_a_dump(run):
    status, out, _ = run("predict", "--flags", "/tmp/mine")
    assert status == 0
    assert out.startswith("--xla_jf_dump_to=/tmp/mine --xla_jf_dump_llo_text=true ")
    assert len(out.splitlines()) == 1
    status, out, err = run("predict", "--flags", "/tmp/of mine")
    assert (status, out) == (2, "") and '"/tmp/of mine": name a folder without' in err


def test_a_place_that_cannot_be_written_is_told_at_once(run, tmp_path):
    status, out, err = run("predict", "--dump", DUMP, *GIVEN, "--trace", tmp_path)
    assert (status, out) == (2, "")
    assert "folder" in err


def test_a_folder_that_is_no_dump(run, tmp_path):
    status, _, err = run("predict", "--dump", tmp_path)
    assert status == 2
    assert str(tmp_path) in err
    status, _, err = run("predict", "--dump", tmp_path / "none")
    assert status == 2
    assert err.startswith(f"error: {tmp_path}/none: there is no such folder\n")


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
    ((first, second, ratios),) = (
        each.values() for each in json.loads(run(*command, "--compare", "--json")[1])
    )
    assert [first, second] == found
    assert ratios["call"] == pytest.approx(second["call_us"] / first["call_us"], rel=1e-3)
    assert [f"{ratios[line.split()[0]]:.2f}" for line in lines[2:] if len(line.split()) == 4] == [
        line.split()[3] for line in lines[2:] if len(line.split()) == 4
    ]


def test_blocks_of_a_launch_can_be_given(run, small):
    words = ("predict", "rpa", *small, "--loops", "--json")
    kernels = []
    for blocks in ((), ("--blocks", "decode=1,32,1,32"), ("--blocks", "decode=1,33,1,32")):
        status, out, _ = run(*words, *blocks)
        (found,) = json.loads(out)
        kernels.append({each["kernel"] for each in found.get("loops", ())})
    assert status == 1 and "expected a multiple of the page size" in found["problem"]
    assert not any("_q1_1_kv32_32" in name for name in kernels[0])
    assert any("_q1_1_kv32_32" in name for name in kernels[1])


def test_a_call_that_is_refused(run, small):
    status, out, _ = run("predict", "rpa", *small, "--workload", "many")
    assert status == 1
    row, failure = out.partition("\n\n")[0].splitlines()[1:]
    assert row.split() == ["rpa", "v6e", "many", "FAILED"]
    assert failure.startswith("rpa, v6e, many: FAILED: ") and "SMEM" in failure


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
        (("rpa", "--blocks", "prefill=1,2,3,4"), "one of decode, mixed, and its query block"),
        (
            ("rpa", "--blocks", "mixed=128,512,128"),
            '"mixed=128,512,128" is not like mixed=128,512,',
        ),
        (("rpa", "--blocks", "mixed=0,16,1,16"), '"mixed=0,16,1,16" is not like mixed=128,512,'),
        (("rpa", *(("--blocks", "mixed=1,16,1,16") * 2)), "a launch is there twice"),
        (("--blocks", "mixed=1,2,3,4", "--dump", DUMP), "--blocks and --dump do not go together"),
        (("--compare", "--dump", DUMP), "--compare and --dump do not go together"),
        (("--jobs", "2", "--dump", DUMP), "--jobs and --dump do not go together"),
        (("--workload", "w1", "--dump", DUMP, *GIVEN), "--workload and --operand do not go"),
        (("rpa", "--trace", "x/../y", "--html", "y"), "would both write y: name two files"),
        (("rpa", "--device", "v9"), 'there is no device "v9"'),
    ],
)
def test_wrong_requests(run, words, said):
    status, out, err = run("predict", *words)
    assert (status, out) == (2, "")
    assert said in err


def test_what_cannot_be_compiled_has_no_loops(run, small, tmp_path):
    page = tmp_path / "page.html"
    words = ("predict", "rpa", *small[:-1], "many", "--loops", "--html", page)
    status, out, err = run(*words)
    assert (status, err) == (1, "")
    assert "FAILED: " in out.splitlines()[2] and "SMEM" in out and not page.exists()
    assert "SMEM" in json.loads(run(*words, "--json")[1])[0]["problem"]
