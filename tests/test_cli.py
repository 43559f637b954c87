"""The front door: what each verb prints, where to, and what it ends with."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fixtures import interrupted
from cli_fixtures import run as run  # a fixture
from emit_fixtures import BODY, ONE, TWO
from emit_fixtures import emitted as emitted  # a fixture

from rpagen import cli
from rpagen.emit import resources
from rpagen.spec import expand, schema

ROOT = Path(__file__).parent.parent
VERBS = [verb.__name__.rpartition(".")[2] for verb in cli.VERBS]


@pytest.fixture
def elsewhere(monkeypatch):
    """As when rpagen is installed, away from its source checkout."""
    monkeypatch.setattr(resources, "checkout", lambda: None)


def command(*arguments, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "rpagen", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


# --- help and usage ------------------------------------------------------------------------------


def test_help_names_every_verb(run):
    status, out, _ = run("--help")
    assert status == 0
    assert all(re.search(rf"^ +{verb}\b", out, re.MULTILINE) for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_in_the_help_of_a_verb_works(run, verb, tmp_path):
    status, out, _ = run(verb, "--help")
    assert status == 0
    example = re.search(r"Example: rpagen (.*)", out)[1].replace("/tmp", str(tmp_path))
    assert example.startswith(verb)
    if verb == "compile" and importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is for x86-64 Linux only")
    if verb == "tune":
        pytest.skip("it searches for minutes: test_tune runs this with times by a rule")
    status, out, err = run(*shlex.split(example))
    assert (status, err) == (0, "") and out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: VERB"),
        (["zzz"], "invalid choice: 'zzz' (choose from generate, check, "),
        (["chek"], "invalid choice: 'chek' (did you mean check?)"),
        (["list", "--kv-dtype", "int9"], "invalid choice: 'int9' (did you mean int8?)"),
        (["list", "--kv-dtype", "fp8"], "invalid choice: 'fp8'"),
        (["list", "--feature", "windows"], "invalid choice: 'windows'"),
        (["generate", "--jobs", "0"], "'0' is no number of processes"),
        (["generate", "--jobs", "many"], "'many' is no number of processes"),
        (["check", "--tier", "some"], "invalid choice: 'some'"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_where_to_look(run, arguments, said):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and said in err
    assert "--help" in err


def test_a_wrong_spec_is_an_error_with_its_place(run, tmp_path):
    (tmp_path / "families").mkdir()
    (tmp_path / "families/rpa.yaml").write_text("family: rpa\nfamilly: rpa\n")
    status, out, err = run("list", "--specs", tmp_path)
    assert (status, out) == (2, "")
    assert re.match(r"error: \S*rpa\.yaml:2:1: ", err)


def test_with_json_an_error_is_json_too(run, tmp_path):
    (tmp_path / "families").mkdir()
    (tmp_path / "families/rpa.yaml").write_text("family: rpa\nfamilly: rpa\n")
    status, out, err = run("list", "--specs", tmp_path, "--json")
    assert status == 2 and err.startswith("error: ")
    error = json.loads(out)["error"]
    assert (error["line"], error["column"]) == (2, 1)
    assert error["problem"] and error["next_step"]


def test_specs_that_are_not_there_are_an_error(run, tmp_path):
    status, _, err = run("generate", "--specs", tmp_path, "-o", tmp_path / "out")
    assert status == 2
    assert err.startswith("error: ") and "no family spec" in err
    assert not (tmp_path / "out").exists()


# --- generate and check --------------------------------------------------------------------------


def test_generate_says_what_it_did(run, emitted):
    arguments = ("generate", "-o", emitted.root, "--jobs", 1)
    assert run(*arguments) == (0, "6 files, 2 rendered, 6 written\n", "")
    assert run(*arguments) == (0, "6 files, 0 rendered, 0 written\n", "")


def test_generate_says_what_it_overwrote_removed_and_left(run, emitted):
    old, worked_on = "rpa_kernels/old.py", "rpa_kernels/worked on.py"
    emitted.texts |= {old: BODY.format(number=3), worked_on: BODY.format(number=4)}
    emitted.generate()
    del emitted.texts[old], emitted.texts[worked_on]
    for name in (ONE, worked_on):
        emitted.path(name).write_text(emitted.path(name).read_text() + "EXTRA = 1\n")
    status, out, _ = run("generate", "-o", emitted.root)
    assert status == 0
    assert out.splitlines() == [
        f"overwrote {ONE}, which had been edited by hand",
        f"removed {old}, which nothing emits any more",
        f"left {worked_on}, which nothing emits but somebody edited; to be rid of it: "
        f"rm '{emitted.root}/{worked_on}'",
        "6 files, 1 rendered, 2 written",
    ]


def test_generate_reports_a_mistake_in_a_template_without_a_traceback(run, emitted):
    emitted.texts[TWO] = "import os\n"
    status, out, err = run("generate", "-o", emitted.root)
    assert (status, out) == (2, "")
    assert err.startswith("error: nothing was written:\n") and "[unused-name]" in err


def test_a_folder_that_cannot_be_written_is_an_error(run, emitted, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = run("generate", "-o", tmp_path / "file")
    assert status == 2
    assert err.startswith("error: ") and "Traceback" not in err


def test_check_has_a_line_for_each_fault_and_what_to_type(run, emitted, monkeypatch):
    orphan = "rpa_kernels/old.py"
    emitted.texts[orphan] = BODY.format(number=3)
    emitted.generate()
    arguments = ("check", "-o", emitted.root)
    assert run(*arguments) == (0, "everything is up to date\n", "")

    del emitted.texts[orphan]
    emitted.texts["rpa_kernels/new.py"] = BODY.format(number=4)
    emitted.texts[TWO] = BODY.format(number=5)
    emitted.path(ONE).write_text(emitted.path(ONE).read_text() + "EXTRA = 1\n")
    monkeypatch.chdir(emitted.root.parent)
    again = f"rpagen generate -o {emitted.root}"
    status, out, err = run(*arguments)
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        f"missing: out/rpa_kernels/new.py; to do: {again}",
        "hand-edited: out/rpa_kernels/one.py; to do: move the change to the templates or the "
        f"specs, then {again}",
        f"stale: out/rpa_kernels/two.py; to do: {again}",
        f"orphaned: out/rpa_kernels/old.py; to do: {again}",
    ]

    status, out, _ = run(*arguments, "--json")
    assert status == 1
    assert [(fault["state"], fault["path"]) for fault in json.loads(out)] == [
        ("missing", "out/rpa_kernels/new.py"),
        ("hand-edited", "out/rpa_kernels/one.py"),
        ("stale", "out/rpa_kernels/two.py"),
        ("orphaned", "out/rpa_kernels/old.py"),
    ]
    assert all(fault["next_step"] for fault in json.loads(out))


def test_in_a_checkout_check_looks_at_its_own_files_and_the_schema(
    run, emitted, monkeypatch, tmp_path
):
    monkeypatch.setattr(resources, "checkout", lambda: tmp_path)
    (tmp_path / "specs").mkdir()
    monkeypatch.chdir(tmp_path)
    emitted.root = tmp_path / "generated"

    status, out, _ = run("generate")
    assert (status, out) == (0, "6 files, 2 rendered, 7 written\n")
    assert run("check") == (0, "everything is up to date\n", "")
    assert run("schema", "--check")[0] == 0

    (tmp_path / "specs/schema.json").write_text("{}\n")
    assert run("check") == (1, "stale: specs/schema.json; to do: make generate\n", "")
    status, out, _ = run("schema", "--check")
    assert (status, out) == (1, "specs/schema.json is stale; to do: rpagen schema\n")
    assert run("schema") == (0, "wrote specs/schema.json\n", "")
    assert run("schema") == (0, "specs/schema.json is up to date\n", "")
    (tmp_path / "specs/schema.json").unlink()
    assert run("check") == (1, "missing: specs/schema.json; to do: make generate\n", "")


@pytest.mark.parametrize("verb", ["generate", "check", "schema"])
def test_outside_a_checkout_the_place_must_be_said(run, elsewhere, verb):
    status, out, err = run(verb)
    assert (status, out) == (2, "")
    assert err.startswith("error: rpagen does not run from its source checkout: say where with -o")


def test_the_command_to_type_repeats_tier_and_specs(run, emitted, tmp_path):
    status, out, _ = run(
        "check", "-o", emitted.root, "--tier", "all", "--specs", tmp_path / "my specs"
    )
    assert status == 1
    again = f"rpagen generate --tier all --specs '{tmp_path}/my specs' -o {emitted.root}"
    assert all(line.endswith(f"to do: {again}") for line in out.splitlines())


# --- list ----------------------------------------------------------------------------------------


def names(run, *filters) -> set[str]:
    status, out, err = run("list", "--json", *filters)
    assert (status, err) == (0, "")
    return {record["name"] for record in json.loads(out)}


def test_list_is_a_table_of_every_core_variant(run):
    status, out, _ = run("list")
    assert status == 0
    heading, *rows = out.splitlines()
    assert heading.split() == [
        *("NAME", "LAYOUT", "QUERY", "KV", "QUANTIZATION", "FEATURES", "TIER", "DEFAULT")
    ]
    core = expand.load_variants(resources.specs_dir())
    assert [row.split()[0] for row in rows] == [variant.name for variant in core]
    column = heading.index("LAYOUT")
    assert all(row[column - 2 : column] == "  " and row[column] != " " for row in rows)
    assert not any(line != line.rstrip() for line in out.splitlines())


def test_list_json_says_every_axis(run):
    record = next(
        record
        for record in json.loads(run("list", "--json")[1])
        if record["name"] == "rpa_sliding_window"
    )
    assert record["features"] == ["sliding_window"]
    assert record["kv_dtype"] == "bfloat16"
    assert set(record["launches"]) == {"decode", "prefill", "mixed"}
    assert set(record["launches"]["decode"]) == {
        *("kv_slots", "attention_depth", "dma_wait", "new_kv_fetch")
    }
    assert re.fullmatch(r"specs/families/rpa\.yaml:\d+", record["spec"])
    assert record["is_default"] is True


@pytest.mark.parametrize(
    ("filters", "keeps"),
    [
        (["--kv-dtype", "int8"], lambda v: v.kv_dtype == "int8"),
        (["--query-dtype", "float32"], lambda v: v.query_dtype == "float32"),
        (["--layout", "head_major"], lambda v: v.layout == "head_major"),
        (["--quantization", "per_tensor"], lambda v: v.quantization == "per_tensor"),
        (["--generation", "v5e"], lambda v: "v5e" in v.generations),
        (["--feature", "soft_cap"], lambda v: v.has("soft_cap")),
        (
            ["--feature", "soft_cap", "--feature", "sliding_window"],
            lambda v: v.has("soft_cap") and v.has("sliding_window"),
        ),
        (["--feature", "none"], lambda v: not v.features),
        (
            ["--kv-dtype", "float8_e4m3fn", "--feature", "sliding_window"],
            lambda v: v.kv_dtype == "float8_e4m3fn" and v.has("sliding_window"),
        ),
        (["--feature", "none", "--feature", "soft_cap"], lambda v: False),
    ],
)
def test_list_filters(run, filters, keeps):
    core = expand.load_variants(resources.specs_dir())
    wanted = {variant.name for variant in core if keeps(variant)}
    assert names(run, *filters) == wanted
    assert wanted or filters[-1] == "soft_cap", "the filter is tried on something"


def test_list_knows_the_tiers(run):
    everything = expand.load_variants(resources.specs_dir(), ("core", "extended"))
    assert names(run, "--tier", "all") == {variant.name for variant in everything}
    assert names(run, "--tier", "core") | names(run, "--tier", "extended") == names(
        run, "--tier", "all"
    )


def test_list_of_nothing_says_so(run):
    status, out, err = run("list", "--kv-dtype", "int8", "--query-dtype", "float32")
    assert (status, out, err) == (
        0,
        "",
        "no variant is like that in the tier core; try --tier all\n",
    )


# --- schema --------------------------------------------------------------------------------------


def test_schema_prints_or_writes_where_it_is_told(run, tmp_path):
    assert run("schema", "-o", "-") == (0, schema.text(), "")
    path = tmp_path / "schema.json"
    assert run("schema", "-o", path)[0] == 0
    assert path.read_text() == schema.text()


# --- how it ends ---------------------------------------------------------------------------------


def test_the_version(run):
    assert run("--version") == (0, "rpagen 0.1.0\n", "")


@pytest.mark.parametrize("verb", [["list"], ["schema", "-o", "-"]])
def test_a_closed_pipe_is_quiet(verb):
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = subprocess.run(
        [sys.executable, "-m", "rpagen", *verb], cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE
    )
    os.close(write_end)
    assert (process.returncode, process.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("words", "status"), [("list", 0), ("list --json", 0), ("explain nope --json", 2), ("nope", 2)]
)
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_take_what_is_printed(words, status, closed):
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m rpagen {words} {closed}",
        cwd=ROOT,
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status and "Traceback" not in done.stderr
    # What was meant for one stream does not end up in the other.
    assert not done.stdout or "error: " not in done.stdout
    assert not done.stderr or done.stderr.startswith("error: ")


def test_what_a_stream_cannot_encode_is_escaped(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "rpagen", "emit", "rpa", "-o", tmp_path / "ü"],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{tmp_path}/\\xfc/rpa.py"


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--tier", "x", "--json"],
        ["recommend", "--json"],
        ["explain", "rpa", "--json", "--specs", ""],
        ["nope", "--json"],
    ],
)
def test_wrong_usage_is_json_too(run, words):
    status, out, err = run(*words)
    error = json.loads(out)["error"]
    assert status == 2
    assert err == f"error: {error['problem']}\nsee: {error['next_step']}\n"


def test_what_the_system_refuses_is_json_too(run, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied", "/x\x1b[31m")

    monkeypatch.setattr(expand, "load_variants", refused)
    status, out, err = run("list", "--json")
    assert (status, json.loads(out)["error"]["problem"]) == (
        2,
        "[Errno 13] Permission denied: '/x\\x1b[31m'",
    )
    assert err.startswith("error: [Errno 13]")


@pytest.mark.parametrize(
    "words",
    [
        ["emit", "rpa", "-o", ""],
        ["generate", "-o", ""],
        ["check", "-o", ""],
        ["schema", "-o", ""],
        ["list", "--specs", ""],
    ],
)
def test_an_empty_path_is_no_place(run, words):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert ": the path is empty: write . for the current folder\n" in err


@pytest.mark.skipif(sys.platform != "linux", reason="looks for its child processes in /proc")
def test_ctrl_c_is_quiet(tmp_path):
    words = ("generate", "-o", str(tmp_path), "--jobs", "2")
    assert interrupted(*words, children=1, seconds=0.5) == (130, "", "")
    assert not any(tmp_path.rglob("*"))


def test_the_checkout_holds_the_core_and_no_other_tier(run):
    for verb in ("generate", "check"):
        status, out, err = run(verb, "--tier", "extended")
        assert (status, out) == (2, "")
        assert err == (
            "error: generated/ holds the tier core: say where to have the tier extended with -o"
            " DIR\n"
        )
