"""`make mutants`: puts every fault of `mutants` into kernels, and shows which call finds it.

A fault is looked for in one variant for each text that its function has, or in which its template
differs. Calls are tried one after the other until one fails: then the mutant is dead.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from unittest import mock

from rpagen.console import ProgressBar, table
from rpagen.emit import resources
from rpagen.evidence import calls, mutants, records, workers
from rpagen.evidence.mutants import Mutation, TemplateMutation
from rpagen.spec import expand
from rpagen.spec.model import Variant

SEEDS = (0, 1)
"""Of the calls at random times that are tried last."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A mutation in one variant, for all variants that would have the same text.

    stands_for: their names, with that of the variant.
    """

    mutation: Mutation | TemplateMutation
    variant: str
    stands_for: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    case, mode: of the call that killed it; empty if none did. how: the error, in short. tried:
    calls until then.
    """

    mutant: Mutant
    case: str
    mode: str
    how: str
    tried: int
    seconds: float


def every_mutant() -> list[Mutant]:
    """Every mutation, in every variant in which it has to be found.

    Raises:
        ValueError: a mutation is found nowhere.
    """
    package, variants = _package(), _variants()
    sources = [(each.name, mutants.source_of(each.name, package)) for each in variants]
    modules = [(each, mutants.rendered(each)) for each in variants]
    found = []
    for mutation in (*mutants.MUTATIONS, *mutants.TEMPLATE_MUTATIONS):
        if isinstance(mutation, Mutation):
            hosts = mutants.hosts(mutation, sources)
        else:
            hosts = mutants.hosts_of_template(mutation, modules)
        if not hosts:
            raise ValueError(
                f"no variant has what the mutation {mutation.name!r} changes in {mutation.place}"
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
    start = time.monotonic()
    tried = 0
    with mock.patch.dict(sys.modules):
        module = mutants.loaded(_source(mutant, variant, package), variant.name, package)
        attention = judge.of_module(module)
        for call in _calls(variant):
            tried += 1
            try:
                judge.judge(
                    attention,
                    variant.query_dtype,
                    cases.build(call.case, variant.key, call.seed),
                    tpu_interpret_mode(**call.interpreter_options),
                )
            except Exception as error:  # whatever it is, it is not the right answer
                seconds = time.monotonic() - start
                return Verdict(
                    mutant, call.case.name, call.timing, _in_short(error), tried, seconds
                )
            finally:
                jax.clear_caches()  # type: ignore[no-untyped-call]
    return Verdict(mutant, "", "", "", tried, time.monotonic() - start)


def _calls(variant: Variant) -> Iterator[calls.Call]:
    """The calls of a variant, those first that find most."""
    yield from calls.named(variant.key)
    yield from calls.by_seed(variant.key, SEEDS)


def _source(mutant: Mutant, variant: Variant, package: ModuleType) -> str:
    if isinstance(mutant.mutation, Mutation):
        source = mutant.mutation.apply(mutants.source_of(variant.name, package))
    else:
        source = mutant.mutation.render(variant)
    assert source is not None, f"{variant.name} has nothing of {mutant.mutation.name!r}"
    return source


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
    parser.add_argument("--only", default="", help="mutations with this in their name or place")
    parser.add_argument("--jobs", type=int, default=workers.usual_count(), help="processes")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what was found there")
    options = parser.parse_args(arguments)
    chosen = [
        each
        for each in every_mutant()
        if options.only in each.mutation.name or options.only in each.mutation.place
    ]
    start = time.monotonic()
    verdicts = []
    with ProgressBar("killing") as progress:
        progress(0, len(chosen))
        for verdict in workers.results(kill, chosen, options.jobs):
            verdicts.append(verdict)
            progress(len(verdicts), len(chosen))
    verdicts.sort(key=lambda verdict: chosen.index(verdict.mutant))
    print(report(verdicts))
    if options.record is not None:
        records.write(options.record, _record(verdicts, time.monotonic() - start))
    return int(any(not verdict.case for verdict in verdicts))


def report(verdicts: Sequence[Verdict]) -> str:
    """A row for every mutant, and how many were killed."""
    rows = [
        (
            verdict.mutant.mutation.name,
            verdict.mutant.mutation.place,
            verdict.mutant.variant,
            f"{verdict.case} {verdict.mode}" if verdict.case else "SURVIVED",
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
            table(("MUTATION", "PLACE", "VARIANT", "KILLED BY", "HOW"), rows),
            "",
            f"{len(verdicts) - len(survivors)} of {len(verdicts)} mutants killed, of"
            f" {len(mutations)} mutations; {', '.join(f'{n} {k}' for k, n in kinds.most_common())};"
            f" {sum(verdict.seconds for verdict in verdicts):.0f} s",
        ]
    )


def _record(verdicts: Sequence[Verdict], seconds: float) -> dict[str, object]:
    package = _package()
    assert package.__file__ is not None
    folder = Path(package.__file__).parent
    tried = sorted({name for verdict in verdicts for name in verdict.mutant.stands_for})
    return {
        "made_with": records.made_with(),
        "command": "make mutants",
        "seconds": round(seconds, 1),
        "digests": {name: records.digest(folder, name) for name in tried},
        "mutants": [
            {
                "mutation": verdict.mutant.mutation.name,
                "function": verdict.mutant.mutation.place,
                "variant": verdict.mutant.variant,
                "stands_for": list(verdict.mutant.stands_for),
                "case": verdict.case,
                "mode": verdict.mode,
                "how": verdict.how,
                "tried": verdict.tried,
                "seconds": round(verdict.seconds, 1),
            }
            for verdict in verdicts
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
