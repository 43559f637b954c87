"""`make mutants`: puts every fault of `mutants` into kernels, and shows which call finds it.

A fault is looked for in one variant for each text that its function has. Calls are tried one after
the other, in the interpreter's modes, until one fails: then the mutant is dead.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any
from unittest import mock

from rpagen.console import ProgressBar, table
from rpagen.emit import resources
from rpagen.evidence import mutants
from rpagen.evidence.mutants import Mutation
from rpagen.spec import expand
from rpagen.spec.model import Variant

FIRST = ("gqa4_three_ranges", "gqa3_three_ranges", "gqa4_large_logits", "gqa4_empty_sequences")
"""The cases that find most, tried before the others."""

SEEDS = (0, 1)
"""Of the random times at which copies run, after they were tried as late as can be."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A mutation in one variant, for all variants that would have the same text.

    stands_for: their names, with that of the variant.
    """

    mutation: Mutation
    variant: str
    stands_for: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    case: that killed it; empty if none did. how: the error, in short. tried: calls until then.
    """

    mutant: Mutant
    case: str
    how: str
    tried: int
    seconds: float


def every_mutant() -> list[Mutant]:
    """Every mutation, in every variant in which it has to be found.

    Raises:
        ValueError: a mutation is found nowhere.
    """
    package = _package()
    names = [variant.name for variant in _variants()]
    sources = [(name, mutants.source_of(name, package)) for name in names]
    found = []
    for mutation in mutants.MUTATIONS:
        hosts = mutants.hosts(mutation, sources)
        if not hosts:
            raise ValueError(
                f"no variant has what the mutation {mutation.name!r} changes in"
                f" {mutation.function}: {mutation.old!r}"
            )
        found += [Mutant(mutation, together[0], tuple(together)) for together in hosts]
    return found


def kill(mutant: Mutant) -> Verdict:
    """Tries calls on a mutant until one fails."""
    import jax

    from rpagen.evidence import cases, judge
    from rpagen.evidence.interpreter import tpu_interpret_mode

    package = _package()
    variant = next(each for each in _variants() if each.name == mutant.variant)
    source = mutant.mutation.apply(mutants.source_of(variant.name, package))
    assert source is not None
    start = time.monotonic()
    tried = 0
    with mock.patch.dict(sys.modules):
        module = mutants.loaded(source, variant.name, package)
        assert sys.modules[f"{package.__name__}.{variant.name}"] is module
        for case, mode in _calls(variant):
            tried += 1
            try:
                judge.judge(
                    package,
                    variant,
                    cases.build(case, variant.key),
                    tpu_interpret_mode(detect_races=True, **mode),
                )
            except Exception as error:  # whatever it is, it is not the right answer
                seconds = time.monotonic() - start
                return Verdict(mutant, case.name, _in_short(error), tried, seconds)
            finally:
                jax.clear_caches()  # type: ignore[no-untyped-call]
    return Verdict(mutant, "", "", tried, time.monotonic() - start)


def _calls(variant: Variant) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Cases of a variant, each with a mode of the interpreter."""
    from rpagen.evidence import cases, named_bugs

    named = {case.name: case for case in cases.cases_for(variant.key)}
    ordered = [named[name] for name in FIRST] + [
        case for name, case in named.items() if name not in FIRST
    ]
    bugs = [
        cases.adapt(bug.case, variant.key) for bug in named_bugs.BUGS if bug.touches(variant.key)
    ]
    for case in [*ordered, *bugs]:
        yield case, {}
    for seed in SEEDS:
        for case in ordered[: len(FIRST)]:
            yield case, {"dma_execution_mode": "random", "seed": seed}


def _in_short(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0] if said else ''}"[:100]


def _package() -> ModuleType:
    return importlib.import_module("rpa_kernels")


def _variants() -> tuple[Variant, ...]:
    return expand.load_variants(resources.specs_dir())


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what became of every mutant; 0 if all were killed."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutations with this in their name or function")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args(arguments)
    chosen = [
        each
        for each in every_mutant()
        if options.only in each.mutation.name or options.only in each.mutation.function
    ]
    # Compiling the interpreter's programs well takes longer than it saves.
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    context = multiprocessing.get_context("spawn")
    verdicts = []
    with (
        concurrent.futures.ProcessPoolExecutor(
            options.jobs, context, max_tasks_per_child=20
        ) as pool,
        ProgressBar("killing") as progress,
    ):
        for verdict in pool.map(kill, chosen):
            verdicts.append(verdict)
            progress(len(verdicts), len(chosen))
    print(report(verdicts))
    return int(any(not verdict.case for verdict in verdicts))


def report(verdicts: Sequence[Verdict]) -> str:
    """A row for every mutant, and how many were killed."""
    rows = [
        (
            verdict.mutant.mutation.name,
            verdict.mutant.mutation.function,
            verdict.mutant.variant,
            verdict.case or "SURVIVED",
            verdict.how,
        )
        for verdict in verdicts
    ]
    survivors = [verdict for verdict in verdicts if not verdict.case]
    mutations = {verdict.mutant.mutation for verdict in verdicts}
    kinds = collections.Counter(
        verdict.how.partition(":")[0] for verdict in verdicts if verdict.how
    )
    return "\n".join(
        [
            table(("MUTATION", "FUNCTION", "VARIANT", "KILLED BY", "HOW"), rows),
            "",
            f"{len(verdicts) - len(survivors)} of {len(verdicts)} mutants killed, of"
            f" {len(mutations)} mutations; {', '.join(f'{n} {k}' for k, n in kinds.most_common())};"
            f" {sum(verdict.seconds for verdict in verdicts):.0f} s",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
