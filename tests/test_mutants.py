"""Faults put into kernels on purpose: all can be put in, and some, others each time, are found.

`make mutants` looks for all of them.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import rpa_kernels

from rpagen.evidence import cases, kill, mutants

ROOT = Path(__file__).parent.parent
MUTANTS = kill.every_mutant()
VARIANTS = {variant.name: variant for variant in kill._variants()}
MODULES = [(variant.name, source) for variant, source in kill._modules()]
SAMPLE = 8


def of_this_tree() -> list[kill.Mutant]:
    """The sample for the files of the commit at hand: every change has another, to be run again."""
    git = shutil.which("git")
    if git is None:
        return random.Random(0).sample(MUTANTS, SAMPLE)
    head = subprocess.run(
        [git, "rev-parse", "HEAD^{tree}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return random.Random(head.stdout.strip()).sample(MUTANTS, SAMPLE)


@pytest.mark.parametrize(
    "mutant", of_this_tree(), ids=lambda each: f"{each.variant}-{each.mutation.name}"
)
def test_a_sample_is_killed(mutant: kill.Mutant, on_tpu: bool):
    if on_tpu:
        pytest.skip("a fault may hang a TPU")
    verdict = kill.kill(mutant)
    assert verdict.outcome == "killed", verdict


def test_there_are_many_and_every_one_has_a_name_of_its_own():
    names = [each.name for each in mutants.every()]
    assert len(set(names)) == len(names) >= 100


def test_every_axis_has_mutants_of_its_own():
    """Each text that a function has in some variant is mutated in one that has it."""
    hosts = {mutant.variant for mutant in MUTANTS}
    assert hosts >= {"rpa", "rpa_head_major", "rpa_wait_per_page", "rpa_depth0", "rpa_depth2"}
    assert hosts >= {"rpa_kv_share", "rpa_new_kv_predicated", "rpa_float8_e4m3fn_query_scale"}


@pytest.mark.parametrize("mutation", mutants.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutant_differs_in_its_function_only(mutation: mutants.Mutation):
    (host, *_) = (mutant.variant for mutant in MUTANTS if mutant.mutation == mutation)
    source = mutants.source_of(host, rpa_kernels)
    mutated = mutation.apply(VARIANTS[host], source)
    assert mutated is not None
    right, wrong = functions_of(source), functions_of(mutated)
    assert list(right) == list(wrong)
    changed = {name for name, tree in right.items() if wrong[name] != tree}
    assert changed and all(mutants._is_called(name, mutation.place) for name in changed)


def functions_of(source: str) -> dict[str, str]:
    """What each top-level statement computes, by its name or number."""
    return {
        getattr(node, "name", str(number)): ast.dump(node)
        for number, node in enumerate(ast.parse(source).body)
    }


@pytest.mark.parametrize("mutation", mutants.TEMPLATE_MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutated_template_makes_another_kernel(mutation: mutants.TemplateMutation):
    (host, *_) = (mutant.variant for mutant in MUTANTS if mutant.mutation == mutation)
    source = mutants.source_of(host, rpa_kernels)
    faulty = mutation.apply(VARIANTS[host], source)
    assert faulty is not None
    assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(source))


def test_a_mutation_that_lost_its_place_is_an_error(monkeypatch: pytest.MonkeyPatch):
    lost = mutants.Mutation("lost", "normalise", "what nobody wrote", "")
    monkeypatch.setattr(mutants, "MUTATIONS", (lost,))
    with pytest.raises(ValueError, match="no variant has what the mutation 'lost' changes in norm"):
        kill.every_mutant()
    of_template = mutants.TemplateMutation("gone", "stages/store/normalise.py.j2", "nobody", "")
    monkeypatch.setattr(mutants, "MUTATIONS", ())
    monkeypatch.setattr(mutants, "TEMPLATE_MUTATIONS", (of_template,))
    with pytest.raises(ValueError, match=r"normalise.py.j2 has 0 times what the mutation 'gone'"):
        kill.every_mutant()


@pytest.mark.parametrize("mutation", mutants.every(), ids=lambda mutation: mutation.name)
def test_every_variant_that_can_have_a_fault_is_stood_for(mutation: mutants.Fault):
    """By one with the same text, for every kind of cache and every feature that has it."""
    own = [mutant for mutant in MUTANTS if mutant.mutation == mutation]
    modules = dict(MODULES)
    changes = {name: mutation.changes(VARIANTS[name], source) for name, source in modules.items()}
    able = [name for name in modules if changes[name] and not mutation.harmless_in(VARIANTS[name])]
    assert sorted(name for mutant in own for name in mutant.stands_for) == sorted(able)
    for mutant in own:
        assert mutant.variant in mutant.stands_for
        assert {changes[name] for name in mutant.stands_for} == {changes[mutant.variant]}
    for text in set(changes.values()) - {()}:
        group = [name for name in able if changes[name] == text]
        hosts = [mutant.variant for mutant in own if changes[mutant.variant] == text]
        wanted = {trait for name in group for trait in mutants.traits(VARIANTS[name])}
        assert {trait for name in hosts for trait in mutants.traits(VARIANTS[name])} == wanted


def test_a_fault_that_cannot_matter_is_said_to_be_harmless():
    (tail,) = (each for each in mutants.every() if each.name == "the tail of a slot is not cleared")
    assert tail.harmless_in(VARIANTS["rpa_int8"]) == "no integer survives a product with zero"
    assert tail.harmless_in(VARIANTS["rpa"]) == ""
    (begins,) = (each for each in mutants.every() if "begins anew only where" in each.name)
    assert begins.harmless_in(VARIANTS["rpa"]) and not begins.harmless_in(
        VARIANTS["rpa_sliding_window"]
    )
    known = {each for variant in VARIANTS.values() for each in mutants.properties(variant)}
    for mutation in mutants.every():
        assert set(mutation.harmless) <= known


def test_a_kernel_without_a_fault_survives(on_tpu: bool, monkeypatch: pytest.MonkeyPatch):
    """Else everything would be killed by something that is no fault."""
    if on_tpu:
        pytest.skip("the interpreter's modes are tried")
    every = list(kill._calls(VARIANTS["rpa"]))
    (at_random_times, *_) = (call for call in every if call.mode == "random")
    nothing = mutants.Mutation("nothing", "scale_scores", "return scores", "return scores")
    verdict = kill.kill_with(kill.Mutant(nothing, "rpa"), [every[0], at_random_times])
    assert (verdict.outcome, verdict.case, verdict.how, verdict.tried) == ("survived", "", "", 2)


def test_a_kernel_that_cannot_be_traced_shows_nothing(on_tpu: bool):
    if on_tpu:
        pytest.skip("the interpreter's modes are tried")
    slip = mutants.Mutation("slip", "scale_scores", "return scores", "return scoers")
    calls = list(kill._calls(VARIANTS["rpa"]))[:1]
    verdict = kill.kill_with(kill.Mutant(slip, "rpa"), calls)
    assert verdict.outcome == "broken"
    assert verdict.how == "NameError: name 'scoers' is not defined"
    expected = dataclasses.replace(slip, dies_of="NameError")
    assert kill.kill_with(kill.Mutant(expected, "rpa"), calls).outcome == "killed"


def test_the_table_and_the_record_tell_what_survived(tmp_path: Path, monkeypatch, capsys):
    first, second = MUTANTS[:2]
    how = "AssertionError: out\nand more"
    verdicts = [
        kill.Verdict(first, "killed", "gqa4_three_ranges", "on_wait", how, 1, 2.0),
        kill.Verdict(second, "survived", "", "", "", 40, 90.0),
    ]
    monkeypatch.setattr(kill, "every_mutant", lambda: MUTANTS[:2])
    tried = answer_with(monkeypatch, verdicts)
    record = tmp_path / "mutants.json"
    assert kill.main(["--record", str(record)]) == 1
    out, err = capsys.readouterr()
    assert re.search(r"^the last key is left out .* gqa4_three_ranges on_wait +Asser", out, re.M)
    assert re.search(r"^.* SURVIVED$", out, re.M)
    assert "1 of 2 mutants killed" in out
    assert err == f"survived: {second.mutation.name} in {second.variant}\n"
    kept = json.loads(record.read_text())
    assert [each["outcome"] for each in kept["mutants"]] == ["killed", "survived"]
    assert kept["mutants"][0]["how"] == how
    assert set(kept["digests"]) == set(VARIANTS)
    # What killed a mutant is tried first on the others of its mutation.
    assert first.mutation == second.mutation
    assert [each.likely for each in tried] == [("", ""), ("gqa4_three_ranges", "on_wait")]


def answer_with(monkeypatch: pytest.MonkeyPatch, verdicts: list[kill.Verdict]) -> list[kill.Mutant]:
    """Verdicts in the place of what processes find; returns the mutants that are tried."""
    tried: list[kill.Mutant] = []

    def results(work, died, pieces, jobs):
        tried.extend(pieces)
        return (verdict for verdict in verdicts if verdict.mutant in pieces)

    monkeypatch.setattr(kill.workers, "results", results)
    return tried


def test_the_likely_call_is_the_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kill, "kill_with", lambda mutant, calls: list(calls))
    usual = kill.kill(MUTANTS[0])
    last = usual[-1]
    likely = (last.case.name, last.timing)
    sorted_calls = kill.kill(dataclasses.replace(MUTANTS[0], likely=likely))
    assert sorted_calls == [last, *usual[:-1]]


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        *((None, 1), ("digests", 2), ("judge", 2), ("fault", 2), ("call", 2), ("no record", 2)),
        # Other cases, such as one more, change nothing of what a call found.
        ("instrument", 1),
    ],
)
def test_what_is_known_of_the_same_fault_is_kept(changed, again, tmp_path, monkeypatch, capsys):
    first, second = MUTANTS[:2]
    key = VARIANTS[first.variant].key
    (case,) = (each for each in cases.cases_for(key) if each.name == "gqa4_three_ranges")
    call = cases.build(case, key).digest
    killed = kill.Verdict(first, "killed", case.name, "on_wait", "AssertionError", 1, 2.0, call)
    survived = kill.Verdict(second, "survived", "", "", "", 40, 90.0)
    monkeypatch.setattr(kill, "every_mutant", lambda: MUTANTS[:2])
    answer_with(monkeypatch, [killed, survived])
    file = tmp_path / "mutants.json"
    kill.main(["--record", str(file)])
    record = json.loads(file.read_text())
    if changed == "digests":
        record["digests"][first.variant] = "of another kernel"
    elif changed in ("judge", "instrument"):
        record[changed] = "of another"
    elif changed == "call":
        record["mutants"][0]["call"] = "another"
    elif changed == "fault":
        record["mutants"][0]["fault"] = "another"
        record["likely"] = {"another": ["gqa4_three_ranges", "on_wait"]}
    file.write_text(json.dumps(record))
    if changed == "no record":
        file.unlink()
    tried = answer_with(monkeypatch, [killed, dataclasses.replace(killed, mutant=second)])
    assert kill.main(["--record", str(file), "--keep"]) == 0
    assert tried == [first, second][-again:]
    # Also what killed a fault in another kernel, or by another judge, is tried first.
    knows_nothing = changed in ("fault", "no record")
    assert tried[0].likely == (("", "") if knows_nothing else (killed.case, killed.mode))
    out = capsys.readouterr().out
    assert "2 of 2 mutants killed" in out
    assert f"{2 - again} of them are from {file}, as an earlier run found them" in out
    kept = json.loads(file.read_text())["mutants"]
    assert [(each["variant"], each["case"]) for each in kept] == [
        (first.variant, killed.case),
        (second.variant, killed.case),
    ]


def test_nothing_is_kept_of_no_record(capsys):
    with pytest.raises(SystemExit) as ended:
        kill.main(["--keep"])
    assert ended.value.code == 2
    assert "--keep is about what --record FILE names: give both" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_refused_before_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kill.workers, "results", lambda *_: pytest.fail("a kernel ran"))
    with pytest.raises(SystemExit) as ended:
        kill.main(["--record", str(tmp_path)])
    assert ended.value.code == 2
    assert f"{tmp_path}: is a folder" in capsys.readouterr().err


def test_nothing_chosen_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        kill.main(["--only", "zzz"])
    assert ended.value.code == 2
    assert 'no mutation has "zzz" in its name or its place' in capsys.readouterr().err
