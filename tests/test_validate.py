"""`rpagen validate`: it runs what it says, finds what is wrong, and says so in every form."""

from __future__ import annotations

import json
import os
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from cli_fixtures import interrupted
from cli_fixtures import run as run  # a fixture

from rpagen.evidence import calls, cases, emitted, judge, records, validate, workers
from rpagen.evidence.calls import Call
from rpagen.spec import expand

VARIANTS = {
    each.name: each for each in expand.load_variants(Path(__file__).parent.parent / "specs")
}
RPA = VARIANTS["rpa"]
CALLS = ("gqa3_no_mixed-on_wait", "gqa3_no_mixed-eager")
SMALL = ("rpa", "--only", "gqa3_no_mixed", "--jobs", "1")


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of work run here, where a test can put something into them."""
    monkeypatch.setattr(
        validate.workers, "results", lambda work, died, pieces, jobs: map(work, pieces)
    )


# --- which calls there are -----------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_every_call_of_a_variant_has_a_name_of_its_own(variant):
    chosen = list(calls.every(variant.key, range(3)))
    assert len({call.name for call in chosen}) == len(chosen) > 40
    on_tpu = list(calls.on_tpu(variant.key, range(3)))
    assert len({call.name for call in on_tpu}) == len(on_tpu) > 40
    assert {call.mode for call in chosen} == {"on_wait", "eager", "random"}
    assert {call.mode for call in on_tpu} == {"tpu"}


def test_what_a_variant_cannot_differ_in_is_left_to_others():
    heads = {case.name for case in cases.HEAD_CASES}
    windows = {case.name for case in cases.WINDOW_CASES}
    plain = {call.case.name for call in calls.every(RPA.key, ())}
    windowed = {call.case.name for call in calls.every(VARIANTS["rpa_sliding_window"].key, ())}
    assert heads <= plain and not windows & plain
    assert windows <= windowed and not heads & windowed


def test_calls_that_share_a_compilation_are_one_piece():
    chosen = list(calls.every(RPA.key, range(1)))
    pieces = validate.work(Path(), RPA, chosen)
    assert sorted(call.name for piece in pieces for call in piece.calls) == sorted(
        call.name for call in chosen
    )
    for piece in pieces:
        assert len({call.case.geometry for call in piece.calls}) == 1
    (largest,) = (piece for piece in pieces if piece.calls[0].case.name == "gqa4_three_ranges")
    assert len(largest.calls) > 5


# --- the command ---------------------------------------------------------------------------------


def test_what_is_right_is_said_to_be(run, tmp_path):
    record, junit = tmp_path / "record.json", tmp_path / "junit.xml"
    status, out, err = run("validate", *SMALL, "--record", str(record), "--junit", str(junit))
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["NAME", "CALLS", "WRONG", "ERROR/TOLERANCE", "SECONDS"]
    assert lines[1].split()[:3] == ["rpa", "2", "-"]
    assert lines[-1] == "2 of 2 calls right, of 1 variant"
    fraction = float(lines[1].split()[3])
    assert 1 / 8 < fraction <= 1
    assert lines[3] == (
        f"bfloat16 over bfloat16: the largest error is {fraction:.2f} of what is tolerated"
    )
    kept = json.loads(record.read_text())
    assert kept["command"] == "rpagen validate rpa --only gqa3_no_mixed"
    assert kept["where"] == "interpret mode on a CPU"
    (variant,) = kept["variants"]
    assert [(call["mode"], call["problem"]) for call in variant["calls"]] == [
        ("on_wait", ""),
        ("eager", ""),
    ]
    generated = Path(__file__).parent.parent / "generated/rpa_kernels"
    assert variant["digest"] == records.digest(generated, "rpa")
    suite = xml.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")


def test_a_fault_is_found_and_said_in_every_form(run, monkeypatch, in_this_process, tmp_path):
    def wrong(attention, query_dtype, inputs, mode):
        raise AssertionError(f"out: {inputs.case.name} is\x1b wrong\nand more")

    monkeypatch.setattr(judge, "judge", wrong)
    junit = tmp_path / "junit.xml"
    status, out, err = run("validate", *SMALL, "--junit", str(junit))
    assert status == 1
    said = "AssertionError: out: gqa3_no_mixed is\x1b wrong\nand more"
    first, second = said.replace("\x1b", "\\x1b").splitlines()
    assert err.splitlines() == [
        line for call in CALLS for line in (f"rpa {call}:", f"  {first}", f"  {second}")
    ]
    assert out.splitlines()[1].split()[:4] == ["rpa", "2", "2", "-"]
    assert out.splitlines()[-1] == "0 of 2 calls right, of 1 variant"
    suite = xml.parse(junit).getroot()
    assert suite.get("failures") == "2"
    failures = list(suite.iter("failure"))
    in_xml = said.replace("\x1b", "?")
    assert [each.get("message") for each in failures] == [in_xml.splitlines()[0]] * 2
    assert [each.text for each in failures] == [in_xml] * 2
    status, out, err = run("validate", *SMALL, "--json")
    assert status == 1
    found = json.loads(out)["variants"][0]["calls"]
    assert [(call["problem"], call["fraction"]) for call in found] == [(said, None)] * 2


def test_a_wrong_kernel_is_found(run, monkeypatch, in_this_process, tmp_path):
    """Nothing stands between the emitted module and the reference."""
    emit = emitted.module

    def doubled(folder, name):
        module = emit(folder, name)
        right = module.normalise
        monkeypatch.setattr(module, "normalise", lambda *args: 2 * right(*args))
        return module

    monkeypatch.setattr(emitted, "module", doubled)
    status, _, err = run("validate", *SMALL)
    assert status == 1
    assert "AssertionError: out: " in err and "elements are out of tolerance" in err


def test_what_the_interpreter_has_against_a_kernel_is_said_whole(run, monkeypatch, in_this_process):
    """Which copy, of which refs, by which line: not that there is one."""
    emit = emitted.module

    def without_a_wait(folder, name):
        module = emit(folder, name)
        monkeypatch.setattr(module, "wait_output", lambda *_: None)
        return module

    monkeypatch.setattr(emitted, "module", without_a_wait)
    status, _, err = run("validate", *SMALL)
    assert status == 1
    assert "LeftoverError: the kernel ends without a wait for:" in err
    assert "outputs.slots_ref.at[" in err or "RaceError" in err


def test_a_tolerance_that_is_too_large_falls_short(run, monkeypatch, in_this_process):
    monkeypatch.setattr(judge, "judge", lambda *_: 0.12)
    status, out, _ = run("validate", "rpa", "--seeds", "9")
    assert status == 1
    assert "bfloat16 over bfloat16: more than 8 times the largest error is tolerated, in 100" in out
    monkeypatch.setattr(judge, "judge", lambda *_: 0.13)
    assert run("validate", "rpa", "--seeds", "9")[0] == 0


def test_a_record_takes_the_place_of_a_file_alone(run, monkeypatch, in_this_process, tmp_path):
    monkeypatch.setattr(judge, "judge", lambda *_: 0.5)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for option in ("--record", "--junit"):
        status, _, err = run("validate", *SMALL, option, str(pipe))
        assert status == 2
        assert f"{pipe}: is neither a file nor a folder" in err
        assert pipe.is_fifo()


@pytest.mark.parametrize("option", ["--record", "--junit"])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", "is a folder\n  expected: a file, or none yet\n  next: name a file, "),
        ("file/below", "cannot be written: "),
        ("locked/record", "cannot be written: Permission denied"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_run(
    run, monkeypatch, in_this_process, tmp_path, option, place, said
):
    monkeypatch.setattr(judge, "judge", lambda *_: pytest.fail("a kernel ran"))
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir(mode=0o500)
    if "locked" in place and os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("nothing is locked for root")
    status, out, err = run("validate", *SMALL, option, str(tmp_path / place))
    assert (status, out) == (2, "") and said in err and "Traceback" not in err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "locked"]


def test_what_was_found_is_printed_before_it_is_written(
    run, monkeypatch, in_this_process, tmp_path
):
    """So that nothing is lost where the place is gone after the run."""
    record = tmp_path / "record.json"

    def judged(*_: object) -> float:
        record.mkdir(exist_ok=True)
        return 0.5

    monkeypatch.setattr(judge, "judge", judged)
    status, out, err = run("validate", *SMALL, "--record", str(record))
    assert status == 2 and "is a folder" in err
    assert "of 1 call right" in out or "calls right" in out


# --- processes -----------------------------------------------------------------------------------


def end_or_square(number: int) -> int:
    if number == 3:
        os._exit(1)
    return number * number


def test_a_process_that_dies_takes_its_own_piece_of_work_along():
    pieces = list(range(9))
    found = list(workers.results(end_or_square, lambda piece, why: (piece, why), pieces, 2))
    assert sorted(each for each in found if isinstance(each, int)) == [
        number * number for number in pieces if number != 3
    ]
    (died,) = (each for each in found if not isinstance(each, int))
    assert died == (3, "its process died, or gave no answer in 900 s")


def sleep_and_say(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_a_process_that_hangs_ends(monkeypatch):
    monkeypatch.setattr(workers, "_in_time", in_a_second)
    found = list(workers.results(sleep_and_say, lambda piece, why: -piece, [0.0, 60.0], 2))
    assert sorted(found) == [-60.0, 0.0]


def in_a_second(work, piece):
    workers._MOST_SECONDS = 1
    return IN_TIME(work, piece)


IN_TIME = workers._in_time


@pytest.mark.skipif(sys.platform != "linux", reason="looks for its child processes in /proc")
def test_ctrl_c_ends_it_with_its_processes():
    words = ("validate", "rpa", "--jobs", "1")
    assert interrupted(*words, children=2, seconds=2) == (130, "", "")


def test_random_workloads_go_on_until_the_time_is_over(run, monkeypatch, in_this_process):
    made: list[Call] = []

    def attend(attention, query_dtype, inputs, mode):
        made.append(inputs.case.name)
        return 0.5

    clock = iter(range(0, 10**6, 2))
    monkeypatch.setattr(judge, "judge", attend)
    monkeypatch.setattr("rpagen.commands.validate.time.monotonic", lambda: next(clock))
    status, _, _ = run("validate", "rpa", "--minutes", "1", "--first-seed", "40")
    assert status == 0
    assert sorted(made[:4]) == [f"random_40_{index}" for index in range(4)]
    seeds = {name.split("_")[1] for name in made}
    assert "41" in seeds and len(seeds) < 20


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rpa", "--only", "nothing"), 'no call has "nothing" in its name'),
        (("rpaa",), 'there is no variant "rpaa": did you mean rpa?'),
        (("--seeds", "-1"), "'-1' is no whole number from 0 to 1073741824"),
        (("--minutes", "0"), "'0' is no whole number from 1 to 1073741824"),
        (("--record", ""), "the path is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_cannot_be_is_refused(run, words, said):
    status, out, err = run("validate", *words)
    assert (status, out) == (2, "")
    assert said in err


def test_without_a_tpu_it_says_so(run, on_tpu):
    if on_tpu:
        pytest.skip("there is one")
    status, out, err = run("validate", "rpa", "--tpu")
    assert (status, out) == (2, "")
    assert err == (
        "error: jax finds no TPU: leave --tpu away to run the kernels on this CPU, in interpret"
        " mode\n"
    )


def test_what_a_record_holds_names_no_place_of_one_machine():
    root = Path(__file__).parent.parent
    error = AssertionError(f"read at {root}/generated/rpa_kernels/support.py:470:13")
    assert validate.said(error) == "AssertionError: read at generated/rpa_kernels/support.py:470:13"
    for record in (root / "docs" / "evidence").glob("*.json"):
        assert f"{root}/" not in record.read_text(encoding="utf-8")
        assert "/generated/rpa_kernels/" not in record.read_text(encoding="utf-8")
