"""Public kernels beside ours, without a network: what is asked for, kept, printed and written."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rpagen.emit import resources
from rpagen.errors import InputError, RpagenError
from rpagen.schedule import accuracy, aot, bench, environment, kept, peers, predict, workloads
from rpagen.schedule.accuracy import Compared, Record
from rpagen.schedule.bench import Cell
from rpagen.schedule.call import Call, Step, Timed
from rpagen.schedule.environment import CompileError, Environment
from rpagen.schedule.generations import GENERATIONS
from rpagen.spec import expand

KNOWN = workloads.load()


def fields(request):
    return aot.Request(**request)


def test_what_is_asked_of_a_peer():
    workload, configuration = KNOWN.workload("w1"), KNOWN.configuration("C")
    request = fields(peers.named("stacked").request(Path("/wheel"), "v6e", configuration, workload))
    assert (request.kernel, request.source, request.device) == ("stacked", "/wheel", "v6e")
    assert (request.query_heads, request.kv_heads, request.head_dim) == (32, 8, 128)
    assert (request.tokens, request.sequences) == (64, 64)
    assert (request.page_size, request.pages_per_sequence) == (128, 64)
    assert request.options == {"sm_scale": 128**-0.5, "k_scale": 0.5, "v_scale": 0.5}


def test_blocks_that_are_not_the_peers_own():
    peer, workload = peers.named("v3 0.32.0"), KNOWN.workload("w3")
    blocks = {
        (device, name): fields(
            peer.request(Path(), device, KNOWN.configuration(name), workload)
        ).options.get("m_block_sizes")
        for device in ("v6e", "v7x")
        for name in ("A", "B")
    }
    assert {key: value for key, value in blocks.items() if value} == {
        ("v7x", "A"): (256, 1024, 128, 512)
    }


def test_a_request_is_the_same_after_it_was_written():
    peer, configuration = peers.named("v3 0.32.0"), KNOWN.configuration("A")
    request = peer.request(Path("/wheel"), "v7x", configuration, KNOWN.workload("w1"))
    found = aot.parse(json.dumps(request))
    assert found == aot.Request(**request)
    assert found.options["m_block_sizes"] == (256, 1024, 128, 512)


def test_a_window_is_asked_for():
    assert peers.usual_options(KNOWN.configuration("E"))["sliding_window"] == 1024


@pytest.mark.parametrize("name", ["A", "C", "E", "F"])
def test_ours_and_theirs_are_asked_for_the_same(name):
    """`make bench-peers` and `rpagen predict` ask for a variant with the same words."""
    configuration = KNOWN.configuration(name)
    variants = expand.load_variants(resources.specs_dir(), ("core",))
    ours = bench.variant_of(configuration, "v6e", variants)
    assert predict.options_of(ours, configuration) == peers.usual_options(configuration)


def test_what_libtpu_is_told_can_be_had_without_any_package():
    program = "import sys, rpagen.evidence.libtpu; print(*sorted({*sys.modules} & {'jax', 'yaml'}))"
    command = [sys.executable, "-S", "-c", program]
    ran = subprocess.run(
        command, cwd=resources.checkout(), capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("\n", "")
    assert set(aot.DEVICES) == set(bench.CONFIGURATIONS) <= set(aot.TOPOLOGIES)


def test_names_of_peers():
    assert peers.named("batched") is peers.named("batched 0.32.0")
    with pytest.raises(KeyError):
        peers.named("v3")  # there are two


@pytest.mark.parametrize(
    ("name", "expected"),
    [("A", "rpa"), ("B", "rpa"), ("C", "rpa_float8_e4m3fn"), ("E", "rpa_sliding_window")],
)
def test_which_of_ours_is_compared(name, expected):
    variants = expand.load_variants(resources.specs_dir(), ("core",))
    found = bench.variant_of(KNOWN.configuration(name), "v6e", variants)
    assert found.name == expected


def test_no_variant_of_ours():
    with pytest.raises(RpagenError, match="no variant of the core is for configuration A on v6e"):
        bench.variant_of(KNOWN.configuration("A"), "v6e", ())


REQUEST = {"device": "v6e", "kernel": "v3"}
PROGRAM = """\
import json, os, pathlib, re, sys
folder = pathlib.Path(re.search("xla_jf_dump_to=([^ ]+)", os.environ["LIBTPU_INIT_ARGS"])[1])
with open({log!r}, "a") as log:
    log.write("ran\\n")
if {fails!r} == "killed":
    os.kill(os.getpid(), 9)
if {fails!r}:
    print("Traceback ...", file=sys.stderr)
    sys.exit({fails!r})
(folder / "1-TLP-hlo.txt").write_text('a "body":"long" b')
(folder / "2-k-03-final_bundles.txt").write_text("bundles")
(folder / "3-other.txt").write_text("not read")
"""


REFUSED = "jax.errors.JaxRuntimeError: it does not fit"


def compiler(folder, *, fails=""):
    """An environment whose Python writes a dump, fails with these words, or is "killed"."""
    log, program = folder / "log", folder / "program.py"
    program.write_text(PROGRAM.format(log=str(log), fails=fails))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}"\n')
    python.chmod(0o755)
    return Environment(python, folder / "schedules"), log


def test_a_call_is_compiled_once_and_kept(tmp_path):
    environment, log = compiler(tmp_path)
    folder = environment.compile(REQUEST)
    assert environment.compile(dict(reversed(REQUEST.items()))) == folder
    assert log.read_text() == "ran\n"
    kept = {path.name: path.read_text() for path in folder.iterdir()}
    assert json.loads(kept.pop("request.json")) == REQUEST
    assert kept == {"1-TLP-hlo.txt": 'a "body":"" b', "2-k-03-final_bundles.txt": "bundles"}
    assert [path.name for path in environment.folder.iterdir()] == [folder.name]


def test_another_call_or_source_is_compiled_anew(tmp_path):
    environment, log = compiler(tmp_path)
    source = tmp_path / "kernel.py"
    folders = {environment.compile(REQUEST), environment.compile(REQUEST | {"tokens": 1})}
    for text in ("one", "two"):
        source.write_text(text)
        folders.add(environment.compile(REQUEST, [source]))
    assert len(folders) == 4
    assert log.read_text() == "ran\n" * 4


def test_what_the_compiler_refuses_is_not_tried_again(tmp_path):
    environment, log = compiler(tmp_path, fails=REFUSED)
    for _ in range(2):
        with pytest.raises(CompileError) as caught:
            environment.compile(REQUEST)
        (refusal,) = environment.folder.iterdir()
        assert str(caught.value).splitlines() == [
            REFUSED,
            f"  kept in {refusal}",
            "  next: remove that file to try it again",
        ]
    assert log.read_text() == "ran\n"


@pytest.mark.parametrize(
    "fails",
    ["ModuleNotFoundError: no jax", "jax.errors.JaxRuntimeError: UNAVAILABLE: locked", "killed"],
)
def test_what_others_are_to_blame_for_is_tried_again(tmp_path, fails):
    environment, log = compiler(tmp_path, fails=fails)
    for _ in range(2):
        with pytest.raises(RpagenError, match="ended by signal 9" if fails == "killed" else fails):
            environment.compile(REQUEST)
    assert log.read_text() == "ran\n" * 2
    assert not list(environment.folder.iterdir())


def test_ours_is_named_by_what_calls_it_too(tmp_path, monkeypatch):
    found, _ = compiler(tmp_path)
    monkeypatch.setattr(environment, "PACKAGE", tmp_path)
    files = (*environment._SOURCES, *environment._SOURCES_OF_OURS)
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    ours, theirs = REQUEST | {"kernel": "ours"}, REQUEST
    names = {name: [found.name(ours), found.name(theirs)] for name in ["none"]}
    for name in files:
        (tmp_path / name).write_text("changed")
        names[name] = [found.name(ours), found.name(theirs)]
    assert len({ours for ours, _ in names.values()}) == 7
    assert len({theirs for _, theirs in names.values()}) == 4


def test_what_killed_processes_left_is_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, other = tmp_path / f".rpagen-{ended.pid}-abc", tmp_path / ".rpagen-mine"
    for folder in (left, other):
        folder.mkdir()
        (folder / "dump.txt").write_text("")
    with kept.workplace(tmp_path) as mine:
        kept.remove_left(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([mine, other])
    kept.remove_left(tmp_path / "not there")


def test_another_process_may_be_first(tmp_path):
    made, folder = tmp_path / "made", tmp_path / "folder"
    for each in (made, folder):
        each.mkdir()
        (each / "file").write_text(each.name)
    kept.name(made, folder)
    assert (folder / "file").read_text() == "folder"
    with pytest.raises(OSError, match="not there"):
        kept.name(tmp_path / "not there", tmp_path / "other")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("", "it said nothing"),
        ("Killed\n", "Killed"),
        ("  File x\nValueError: a\n\nafter that\n", "ValueError: a"),
        ("a.b.SomeError: one\nKeyError: 'two'\n", "KeyError: 'two'"),
        (f"ValueError: {'x' * 400}\n", f"ValueError: {'x' * 285}..."),
    ],
)
def test_why_it_cannot_be_compiled(output, expected):
    assert environment.reason(output) == expected


def test_a_python_that_is_too_old(monkeypatch):
    monkeypatch.setattr(environment, "LEAST_PYTHON", (99, 1))
    monkeypatch.setenv(environment.VARIABLE, sys.executable)
    with pytest.raises(RpagenError) as caught:
        environment.find_python()
    assert str(caught.value) == (
        f"the public kernels want jax==0.11.2, which wants Python 99.1 or newer, and"
        f" {sys.executable} is none: install one and name it, as in"
        " `make bench-peers PYTHON312=/usr/bin/python3.12`"
    )


def test_the_python_that_is_named(monkeypatch):
    monkeypatch.setattr(environment, "LEAST_PYTHON", (3, 11))
    monkeypatch.setenv(environment.VARIABLE, sys.executable)
    assert environment.find_python() == sys.executable


def test_an_environment_that_cannot_be_made(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "find_python", lambda: "/no/python")
    failed = subprocess.CompletedProcess((), 1)
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RpagenError, match=r"`/no/python -m venv .*` failed"):
        environment.environment(tmp_path)


def cell(kernel="ours", kernels=100.0, call=200.0, plan=0.0, problem="", workload="w1"):
    return Cell("v6e", "A", workload, kernel, 50.0, kernels, plan, call, problem)


def test_kernels_that_plan_are_counted_apart():
    generation = GENERATIONS["v6e"]
    cycles = generation.clock / 1e6  # of a microsecond
    steps = [
        Step(name, is_kernel, None, 0.0, count * cycles)
        for name, is_kernel, count in (
            ("copy.1", False, 5),
            ("rpa_metadata_schedule.3", True, 7),
            ("RPAd.1", True, 11),
            ("RPAm.1", True, 13),
        )
    ]
    found = bench.timed_cell(cell(), Timed(generation, tuple(steps)))
    assert [round(each, 6) for each in (found.kernels, found.plan, found.call)] == [24, 7, 36]


def test_the_table_has_ratios_of_theirs_to_ours():
    group = [cell(), cell("batched", 150.0, 180.0, 20.0), cell("v3", problem="it does not fit")]
    assert bench.rows(group) == [
        ("v6e", "A", "w1", "ours", "100", "0.0", "200", "50%", "", ""),
        ("v6e", "A", "w1", "batched", "150", "20.0", "180", "33%", "1.50", "0.90"),
        ("v6e", "A", "w1", "v3", "it does not fit", "", "", "", "", ""),
    ]


def test_ratios_are_of_the_best_peer_in_each_sense():
    group = [cell(), cell("fast kernel", 90.0, 400.0), cell("fast call", 300.0, 250.0)]
    assert bench.best_ratios(group) == ("0.90", "1.25")
    assert bench.best_ratios(group[:1]) == ("", "")
    assert bench.best_ratios(group[1:]) == ("", "")


def test_the_document():
    cells = [
        cell(),
        cell("batched", 150.0, 180.0, 20.0),
        cell(workload="w2", kernels=7.25),
        cell("batched", problem="it does not fit", workload="w2"),
        dataclasses.replace(cell(), configuration="B"),
    ]
    text = bench.performance(cells)
    assert "\n## v6e, configuration A\n\n| | floor | ours | batched | ratio, kernels |" in text
    assert "\n| w1 | 50.0 | 100 / 200 | 150 + 20.0 / 180 | 1.50 | 0.90 |\n" in text
    assert "\n| w2 | 50.0 | 7.2 / 200 | - |  |  |\n" in text
    assert "\n## v6e, configuration B\n" in text
    assert "\n- batched, v6e A w2: it does not fit\n" in text
    assert "jax==0.11.2" in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--device", "v6"], '"v6" is none of v5e, v6e, v7x'),
        (["--config", "A,Z"], '"Z" is none of A, B, C, E'),
        (["--workload", "w9"], '"w9" is none of w1, w2, w3, w4, w5'),
        (["--jobs", "0"], "'0' is no whole number from 1 to"),
        (["--peers", "v4"], '"v4" is none of v3-0.13.2, v3-0.32.0, batched-0.32.0'),
    ],
)
def test_limits_that_there_are_not(arguments, problem, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fails", "problem"),
    [
        (REFUSED, REFUSED),
        ("killed", "the compiler was ended by signal 9: try it again"),
    ],
)
def test_a_run_tells_what_cannot_be_compiled_and_writes_the_rest(
    fails, problem, tmp_path, monkeypatch, capsys
):
    failing, log = compiler(tmp_path, fails=fails)
    task = bench._Task(cell(), KNOWN.workload("w1"), 64, REQUEST)
    peer = dataclasses.replace(task, cell=cell("batched"))  # the same call, compiled once
    monkeypatch.setattr(environment, "environment", lambda: failing)
    monkeypatch.setattr(bench, "_tasks", lambda *_: iter([task, peer]))
    document = tmp_path / "performance.md"
    assert bench.main(["--document", str(document)]) == 1
    printed = capsys.readouterr()
    assert log.read_text() == "ran\n"
    assert printed.err.startswith(f"not compiled 1 of 1: batched, v6e A w1\n{problem}\n")
    assert ("remove that file" in printed.err) == (fails == REFUSED)
    assert f"v6e     A              w1        batched  {problem}" in printed.out
    assert f"- ours, v6e A w1: {problem}\n" in document.read_text()


COMPARED = (
    Compared("a, short", "v5e", 100.0, 90.0, "there"),
    Compared("a, long", "v5e", 100.0, 104.0, "there"),
    Compared("c", "v7x", 200.0, 240.0, "there"),
)


def test_errors_are_shares_of_what_was_measured():
    assert [round(each.error, 6) for each in COMPARED] == [-0.1, 0.04, 0.2]


@pytest.mark.parametrize(
    ("device", "share", "points", "is_own", "text"),
    [
        ("v5e", 0.15, 2, True, "within 15% (2 times of a, fitted to within 10%)"),
        ("v7x", 0.2, 1, True, "within 20% (1 time of c, fitted to within 20%)"),
        (
            *("v6e", 0.2, 3, False),
            "within 20% (nothing is published of it; 2 times of a on v5e and 1 time of c on v7x,"
            " fitted to within 20%)",
        ),
    ],
)
def test_the_error_bar_is_the_largest_error_or_what_is_promised(
    device, share, points, is_own, text
):
    bar = accuracy.error_bar(device, COMPARED)
    assert (round(bar.share, 6), bar.points, bar.is_own) == (share, points, is_own)
    assert bar.text == text


def test_the_error_bar_comes_from_a_file():
    assert accuracy.error_bar("v5e") == accuracy.error_bar("v5e", accuracy.read().points)


@pytest.mark.parametrize("text", [None, "", "[]", '{"points": []}', '{"points": [{"name": 1}]}'])
def test_a_file_that_is_none(text, tmp_path):
    file = tmp_path / "points.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match="run `make predictor-accuracy`"):
        accuracy.read(file)


def test_what_people_read_of_the_points():
    text = accuracy.document(Record("a compiler", "", COMPARED))
    assert "\na compiler.\n" in text
    assert "\n| a, short | v5e | 100 | 90.0 | -10.0% | there |\n" in text
    assert "\n- v5e: within 15% (2 times of a, fitted to within 10%)\n- v6e: within 20% (" in text


def test_the_points_of_the_document_are_those_of_the_file():
    record = accuracy.read()
    assert accuracy.DOCUMENT.read_text() == accuracy.document(record), (
        "run `make predictor-accuracy ARGS=--document`"
    )
    assert [each.name for each in record.points] == [each.name for each in accuracy.POINTS]


def test_the_document_is_written_anew_without_a_compiler(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(accuracy, "DOCUMENT", tmp_path / "accuracy.md")
    monkeypatch.setattr(environment, "environment", lambda: pytest.fail("it compiles"))
    assert accuracy.main(["--document"]) == 0
    assert (tmp_path / "accuracy.md").read_text() == accuracy.document(accuracy.read())


def test_the_predictions_are_as_near_as_promised():
    assert all(abs(each.error) <= accuracy.PROMISED for each in accuracy.read().points)


def test_the_points_were_predicted_with_these_parameters():
    assert accuracy.read().parameters == accuracy.parameters(), (
        "rpagen/schedule/generations.py has changed: run `make predictor-accuracy`, which predicts"
        " the published times anew"
    )


# Cycles of the kernel of a kept dump, which follow from the code that runs schedules as well.
PREDICTED = {
    "v5e-0.0.52": 10543.087173299102,
    "v6e-0.0.52": 13092.671553273429,
    "v7x-0.0.52": 14080.302824466575,
}


@pytest.mark.parametrize("dump", PREDICTED)
def test_the_points_were_predicted_by_this_code(dump):
    folder = Path(__file__).parent / "data" / "schedules" / dump
    timed = Call(folder, GENERATIONS[dump[:3]]).time(
        {0: np.array([6]), 1: np.array([3, -1, 5, 0, -1, 2, 7, 9])}
    )
    (kernel,) = timed.kernels
    assert kernel.cycles == pytest.approx(PREDICTED[dump], rel=1e-9), (
        "a schedule takes another time than when the published times were predicted: run"
        " `make predictor-accuracy`, then pin the new cycles here"
    )


def test_batched_is_given_a_plan_that_smem_holds():
    peer, workload = peers.named("batched"), KNOWN.workload("w1")
    asked = {
        (device, name): "decode_block_sizes"
        in fields(peer.request(Path(), device, KNOWN.configuration(name), workload)).options
        for device in ("v5e", "v6e", "v7x")
        for name in ("A", "B")
    }
    assert asked == {key: key[1] == "B" for key in asked}
