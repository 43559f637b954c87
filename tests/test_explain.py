"""`rpagen explain` and `rpagen diff`: what they say of the variants that are checked in."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from cli_fixtures import run as run  # a fixture
from spec_fixtures import END, PLAIN, write

from rpagen.emit import header
from rpagen.spec import expand

ROOT = Path(__file__).parent.parent
LAUNCHES = ["decode,", "prefill,", "mixed"]
GENERATED = ROOT / "generated/rpa_kernels"


def number_of(name: str, line: str) -> int:
    """The number of a line of an emitted module."""
    lines = (GENERATED / f"{name}.py").read_text().splitlines()
    (number,) = (at for at, text in enumerate(lines, start=1) if text.strip() == line)
    return number


def explained(run, target, *options) -> dict:
    status, out, err = run("explain", str(target), "--json", *options)
    assert (status, err) == (0, "")
    return json.loads(out)


# --- explain a variant ---------------------------------------------------------------------------


@pytest.mark.parametrize("variant", expand.load_variants(ROOT / "specs"), ids=lambda v: v.name)
def test_every_axis_is_where_the_spec_says_it(run, variant):
    said = explained(run, variant.name)
    values = {path: axis["value"] for path, axis in said["axes"].items()}
    assert values["kv.dtype"] == variant.kv_dtype
    assert values["features"] == list(variant.features)
    for axis in said["axes"].values():
        line = (ROOT / axis["file"]).read_text().splitlines()[axis["line"] - 1]
        there, value = line[axis["column"] - 1 :], axis["value"]
        if isinstance(value, list):  # which a spec may have in any order
            (words,) = re.findall(r"^\[(.*?)\]", there)
            assert sorted(re.findall(r"\w+", words)) == sorted(value)
        else:
            assert there.startswith(str(value))


def test_a_variant_is_explained_in_tables(run):
    status, out, _ = run("explain", "rpa_kv_slots2")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "rpa_kv_slots2: family rpa, tier core"
    assert lines[1].startswith("for v5e, v6e, v7x; asked for at specs/families/rpa.yaml:")
    (slots,) = (line.split() for line in lines if line.startswith("pipelining.kv_slots"))
    assert slots[1:3] == ["2", "combos.pipelining.kv_slots"]
    (features,) = (line.split() for line in lines if line.startswith("features"))
    assert features[1:3] == ["none", "combos.features"]
    (pipeline,) = (line.split() for line in lines if "stages/pipeline" in line)
    assert pipeline[1:] == ["templates/stages/pipeline/two_step.py.j2", *LAUNCHES]


def test_the_stages_of_a_variant_are_where_it_says(run):
    text = (GENERATED / "rpa_soft_cap.py").read_text().splitlines()
    stages = explained(run, "rpa_soft_cap")["stages"]
    (scores,) = (each for each in stages if each["template"].startswith("templates/stages/scores/"))
    assert scores["template"] == "templates/stages/scores/soft_cap.py.j2"
    assert scores["launches"] == ["decode", "prefill", "mixed"]
    assert text[scores["first_line"] - 1].startswith("def scale_scores(")
    ends = [0, *(each["last_line"] for each in stages)]
    assert all(each["first_line"] > end for each, end in zip(stages, ends, strict=False))


def test_launches_that_differ_are_explained_apart(run):
    said = explained(run, "rpa_decode_kv_slots2")
    assert said["axes"]["launches.decode.pipelining.kv_slots"]["value"] == 2
    assert said["axes"]["launches.decode.pipelining.kv_slots"]["field"].startswith("combos.each.")
    assert said["axes"]["launches.mixed.pipelining.kv_slots"]["value"] == 6
    assert said["axes"]["pipelining.dma_wait"]["field"] == "defaults.pipelining.dma_wait"


def test_a_target_is_named(run, tmp_path):
    write(tmp_path, PLAIN + "targets:\n  v5e: {pipelining.kv_slots: 3}\n")
    said = explained(run, "plain_v5e", "--specs", str(tmp_path / "specs"))
    assert said["axes"]["pipelining.kv_slots"] == {
        "value": 3,
        "field": "targets.v5e.pipelining.kv_slots",
        "file": "specs/families/plain.yaml",
        "line": END + 1,
        "column": 30,
    }


# --- explain a line ------------------------------------------------------------------------------


def test_a_line_that_an_axis_decides(run):
    line = "window_start = jnp.maximum(kv_len - launch.sliding_window, 0)"
    number = number_of("rpa_sliding_window", line)
    status, out, _ = run("explain", f"rpa_sliding_window:{number}")
    assert status == 0
    feature = explained(run, f"rpa_sliding_window:{number}")["decided_by"]["features"]
    place = f"{feature['file']}:{feature['line']}:{feature['column']}"
    assert out.splitlines() == [
        f"rpa_kernels/rpa_sliding_window.py:{number}",
        f"    {line}",
        "is printed by templates/stages/span/one_token.py.j2:7",
        f"    {line}",
        "and depends on",
        f"  features: sliding_window, from axes.features at {place}",
        "    with none it would be left out",
    ]


@pytest.mark.parametrize(
    ("name", "line", "template", "paths"),
    [
        ("rpa", "return scores * scales_ref[SCORE_SCALE]", "stages/scores/plain", {"features"}),
        ("rpa_int8", "KV_DTYPE = jnp.dtype(jnp.int8)", "module", {"kv.dtype"}),
        ("rpa_kv_slots2", 'KV_SLOTS = {"decode": 2', "module", {"pipelining.kv_slots"}),
        ("rpa", "layout                      head_interleaved", "module", {"layout"}),
        ("rpa", 'kv_dtype="bfloat16",', "module", {"kv.dtype"}),
        ("rpa_int8", "VALUE_SCALE = 1", "module", {"quantization"}),
        ("rpa", "slot = kv.cursor_ref[3]", "stages/fetch_ahead/one_token", set()),
    ],
)
def test_what_a_line_depends_on(run, name, line, template, paths):
    lines = (GENERATED / f"{name}.py").read_text().splitlines()
    (number, *_) = (at for at, text in enumerate(lines, start=1) if line in text)
    said = explained(run, f"{name}:{number}")
    assert line in said["text"]
    assert said["template"].startswith(f"templates/{template}.py.j2:")
    assert set(said["decided_by"]) == paths


def test_what_another_value_would_print(run):
    number = number_of("rpa_int8", "KV_DTYPE = jnp.dtype(jnp.int8)")
    otherwise = explained(run, f"rpa_int8:{number}")["decided_by"]["kv.dtype"]["otherwise"]
    assert {each["value"]: each["prints"] for each in otherwise} == {
        dtype: f"KV_DTYPE = jnp.dtype(jnp.{dtype})"
        for dtype in ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    }


def test_a_path_will_do_for_a_name(run):
    path = GENERATED / "rpa.py"
    number = number_of("rpa", "def scale_scores(scores, scales_ref):")
    assert explained(run, f"{path}:{number}") == explained(run, f"rpa:{number}")
    assert explained(run, path) == explained(run, "rpa")


@pytest.mark.parametrize("name", ["registry", "support", "__init__"])
def test_what_all_variants_share_is_explained_too(run, name):
    status, out, _ = run("explain", name)
    template = "init.py.j2" if name == "__init__" else f"{name}.py.j2"
    assert (status, out.splitlines()[1]) == (0, f"made from templates/{template}")
    said = explained(run, f"{name}:{header.LINES + 1}")
    assert said["template"] == f"templates/{template}:1"
    assert said["decided_by"] == {}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("rpa:2", "no template printed it: it is the header"),
        (f"rpa:{header.LINES}", "no template printed it: it is blank"),
    ],
)
def test_lines_that_no_template_printed(run, target, said):
    status, out, _ = run("explain", target)
    assert (status, out.splitlines()[-1]) == (0, said)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("rpa_slding", 'there is no variant "rpa_slding": did you mean rpa_sliding_window?'),
        ("zzz", 'there is no variant "zzz": `rpagen list --tier all` shows those there are'),
        ("rpa:zzz", '"zzz" is no line: write NAME:LINE, such as rpa:200'),
        ("rpa:-1", '"-1" is no line: write NAME:LINE, such as rpa:200'),
        (
            "nowhere/rpa.py:90",
            'there is no file "nowhere/rpa.py": correct the path, or name the variant',
        ),
        ("rpa:0", "rpa_kernels/rpa.py has {last} lines: there is no line 0"),
        ("rpa:99999", "rpa_kernels/rpa.py has {last} lines: there is no line 99999"),
    ],
)
def test_what_cannot_be_explained(run, target, said):
    last = len((GENERATED / "rpa.py").read_text().splitlines())
    assert run("explain", target) == (2, "", f"error: {said.format(last=last)}\n")


# --- diff ----------------------------------------------------------------------------------------


def test_diff_shows_axes_and_then_the_sources(run):
    status, out, err = run("diff", "rpa", "rpa_wait_per_page")
    assert (status, err) == (0, "")
    table, _, source = out.partition("\n\n")
    assert [line.split() for line in table.splitlines()] == [
        ["AXIS", "rpa", "rpa_wait_per_page"],
        ["pipelining.dma_wait", "aggregate", "per_page"],
    ]
    lines = source.splitlines()
    assert lines[:2] == ["--- rpa", "+++ rpa_wait_per_page"]
    assert '-NAME = "rpa"' in lines and '+NAME = "rpa_wait_per_page"' in lines
    # What patch makes of the one is the other.
    assert not any("sha256" in line for line in lines)


def test_a_source_patched_with_its_diff_is_the_other(run, tmp_path):
    source = json.loads(run("diff", "rpa", "rpa_int8", "--json")[1])["source"]
    bodies = {
        name: header.split((GENERATED / f"{name}.py").read_text())[1]
        for name in ("rpa", "rpa_int8")
    }
    (tmp_path / "module.py").write_text(bodies["rpa"])
    subprocess.run(
        ["patch", "--quiet", "module.py"], input=source, text=True, cwd=tmp_path, check=True
    )
    assert (tmp_path / "module.py").read_text() == bodies["rpa_int8"]


def test_diff_of_launches_that_differ(run):
    axes = json.loads(run("diff", "rpa", "rpa_decode_kv_slots2", "--json")[1])["axes"]
    assert axes == {"launches.decode.pipelining.kv_slots": {"a": 6, "b": 2}}


def test_diff_of_a_variant_with_itself(run):
    assert run("diff", "rpa", "rpa") == (0, "no axis differs\n", "")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("rpa", "rpa_in8"), 'there is no variant "rpa_in8": did you mean rpa_int8?'),
        (("support", "rpa"), "rpa_kernels/support.py is shared by all variants: name a variant"),
    ],
)
def test_what_has_no_difference(run, names, said):
    assert run("diff", *names) == (2, "", f"error: {said}\n")


def test_a_file_that_has_another_line_there_is_not_explained(run, tmp_path):
    path = tmp_path / "rpa.py"
    text = (GENERATED / "rpa.py").read_text()
    path.write_text(text)
    assert explained(run, f"{path}:210")["text"] == text.splitlines()[209]
    path.write_text(text.replace("\nimport jax\n", "\n\nimport jax\n", 1))
    status, out, err = run("explain", f"{path}:210")
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {path} is not as it is emitted now: its line 210 is another one")
    path.write_text(text[:1000])
    assert run("explain", f"{path}:210")[0] == 2
    assert explained(run, f"{path}:1")["template"] is None
