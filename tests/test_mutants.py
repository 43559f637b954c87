"""Faults put into kernels on purpose: all can be put in, and some, others each time, are found.

`make mutants` looks for all of them.
"""

from __future__ import annotations

import ast
import difflib
import json
import random
import re
import subprocess
from pathlib import Path

import pytest
import rpa_kernels

from rpagen.evidence import kill, mutants

ROOT = Path(__file__).parent.parent
MUTANTS = kill.every_mutant()
VARIANTS = kill._variants()
SAMPLE = 8


def of_this_commit() -> list[kill.Mutant]:
    """The sample for the commit at hand, so that every one has another and can be run again."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return random.Random(head.stdout.strip()).sample(MUTANTS, SAMPLE)


@pytest.mark.parametrize(
    "mutant", of_this_commit(), ids=lambda each: f"{each.variant}-{each.mutation.name}"
)
def test_a_sample_is_killed(mutant: kill.Mutant, on_tpu: bool):
    if on_tpu:
        pytest.skip("a fault may hang a TPU")
    verdict = kill.kill(mutant)
    assert verdict.case, f"nothing found out that {mutant.mutation.name}"


def test_there_are_many_and_every_one_has_a_name_of_its_own():
    names = [each.name for each in (*mutants.MUTATIONS, *mutants.TEMPLATE_MUTATIONS)]
    assert len(set(names)) == len(names) >= 100


def test_every_axis_has_mutants_of_its_own():
    """Each text that a function has in some variant is mutated in one that has it."""
    hosts = {mutant.variant for mutant in MUTANTS}
    assert hosts >= {"rpa", "rpa_sliding_window", "rpa_soft_cap", "rpa_float32", "rpa_head_major"}
    assert hosts >= {"rpa_kv_share", "rpa_wait_per_page", "rpa_depth0", "rpa_new_kv_predicated"}


@pytest.mark.parametrize("mutation", mutants.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutant_differs_in_its_function_only(mutation: mutants.Mutation):
    (host, *_) = (mutant.variant for mutant in MUTANTS if mutant.mutation == mutation)
    source = mutants.source_of(host, rpa_kernels)
    mutated = mutation.apply(source)
    assert mutated is not None
    changed = {
        line
        for line in difflib.unified_diff(
            source.splitlines(), mutated.splitlines(), n=0, lineterm=""
        )
        if line.startswith("-") and not line.startswith("---")
    }
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    lines = source.splitlines()
    inside = {
        f"-{line}"
        for node in functions
        if node.name.startswith(mutation.function)
        for line in lines[node.lineno - 1 : node.end_lineno]
    }
    assert changed and changed <= inside


@pytest.mark.parametrize("mutation", mutants.TEMPLATE_MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutated_template_makes_another_kernel(mutation: mutants.TemplateMutation):
    (host, *_) = (mutant.variant for mutant in MUTANTS if mutant.mutation == mutation)
    (variant,) = (each for each in kill._variants() if each.name == host)
    faulty, right = mutation.render(variant), mutants.rendered(variant)
    assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(right))


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


def test_a_mutant_stands_for_every_variant_with_the_same_text():
    """So that no variant with the text of a fault is left out."""
    for mutation in mutants.MUTATIONS:
        together = [mutant.stands_for for mutant in MUTANTS if mutant.mutation == mutation]
        sources = {each.name: mutants.source_of(each.name, rpa_kernels) for each in VARIANTS}
        have_it = [name for name, source in sources.items() if mutation.has_place(source)]
        assert sorted(name for names in together for name in names) == sorted(have_it)


def test_a_kernel_without_a_fault_survives(on_tpu: bool, monkeypatch: pytest.MonkeyPatch):
    """Else everything would be killed by something that is no fault."""
    if on_tpu:
        pytest.skip("the interpreter's modes are tried")
    every = list(kill._calls(next(each for each in VARIANTS if each.name == "rpa")))
    (at_random_times, *_) = (call for call in every if call.mode == "random")
    monkeypatch.setattr(kill, "_calls", lambda variant: [every[0], at_random_times])
    nothing = mutants.Mutation("nothing", "scale_scores", "return scores", "return scores")
    verdict = kill.kill(kill.Mutant(nothing, "rpa"))
    assert (verdict.case, verdict.how, verdict.tried) == ("", "", 2)


def test_the_table_and_the_record_tell_what_survived(tmp_path: Path, monkeypatch, capsys):
    verdicts = [
        kill.Verdict(MUTANTS[0], "gqa4_three_ranges", "on_wait", "AssertionError: out", 1, 2.0),
        kill.Verdict(MUTANTS[1], "", "", "", 40, 90.0),
    ]
    monkeypatch.setattr(kill, "every_mutant", lambda: MUTANTS[:2])
    monkeypatch.setattr(kill.workers, "results", lambda work, pieces, jobs: iter(verdicts))
    record = tmp_path / "mutants.json"
    assert kill.main(["--record", str(record)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^the last key is left out .* gqa4_three_ranges on_wait +Asser", out, re.M)
    assert re.search(r"^.* SURVIVED$", out, re.M)
    assert "1 of 2 mutants killed" in out
    kept = json.loads(record.read_text())
    assert [each["case"] for each in kept["mutants"]] == ["gqa4_three_ranges", ""]
    assert set(kept["digests"]) == {*MUTANTS[0].stands_for, *MUTANTS[1].stands_for}
