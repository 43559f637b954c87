"""Faults put into kernels on purpose: all can be put in, and some, others each time, are found.

`make mutants` looks for all of them.
"""

from __future__ import annotations

import ast
import difflib
import random
import subprocess
from pathlib import Path

import pytest
import rpa_kernels

from rpagen.evidence import kill, mutants

ROOT = Path(__file__).parent.parent
MUTANTS = kill.every_mutant()
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
    names = [mutation.name for mutation in mutants.MUTATIONS]
    assert len(set(names)) == len(names) >= 40


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


def test_a_kernel_without_a_fault_survives(on_tpu: bool, monkeypatch: pytest.MonkeyPatch):
    """Else everything would be killed by something that is no fault."""
    if on_tpu:
        pytest.skip("the interpreter's modes are tried")
    monkeypatch.setattr(kill, "_calls", lambda variant: list(_two_calls(variant)))
    nothing = mutants.Mutation("nothing", "scale_scores", "return scores", "return scores")
    assert kill.kill(kill.Mutant(nothing, "rpa")).case == ""


def _two_calls(variant):
    calls = list(CALLS(variant))
    return calls[0], calls[-len(kill.FIRST)]


CALLS = kill._calls
