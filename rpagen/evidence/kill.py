"""`make mutants`: puts every fault of `mutants` into kernels, and shows which call finds it.

A fault is looked for in one variant for each text that its function has, or in which its template
differs. Calls are tried one after the other until one fails: then the mutant is dead. What found a
fault in one variant is tried first in the others, since most calls find few faults.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import importlib
import shlex
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rpagen import errors
from rpagen.commands import shared
from rpagen.console import ProgressBar, first_line, table
from rpagen.emit import resources, write
from rpagen.evidence import calls, mutants, records, validate, workers
from rpagen.evidence.mutants import Fault
from rpagen.spec import expand
from rpagen.spec.model import Variant

SEEDS = (0, 1)
"""Of the calls at random times that are tried last."""


ANSWERS = (
    *("AssertionError", "RaceError", "DeadlockError", "LeftoverError", "IndexError"),
    "PrecisionError",
)
"""The errors by which the instrument finds a fault, by name."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A mutation in one variant, for all variants that it stands for, its own among them.

    likely: case and mode of the call to try first.
    """

    mutation: Fault
    variant: str
    stands_for: tuple[str, ...] = ()
    likely: tuple[str, str] = dataclasses.field(default=("", ""), compare=False)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    outcome: "killed", "survived", or "broken": another error than the instrument's, such as one of
    a kernel that cannot be traced, which shows nothing. case, mode, call: of the call that ended
    it, the last a digest of what it was given. how: the error. tried: calls until then.
    """

    mutant: Mutant
    outcome: str
    case: str
    mode: str
    how: str
    tried: int
    seconds: float
    call: str = ""


def every_mutant() -> list[Mutant]:
    """Every mutation, in every variant in which it has to be found.

    Raises:
        ValueError: a mutation is found nowhere.
    """
    modules = _modules()
    found = []
    for mutation in mutants.every():
        hosts = mutants.hosts(mutation, modules)
        if not hosts:
            raise ValueError(
                f"no variant has what the mutation {mutation.name!r} changes in {mutation.place}"
            )
        found += [Mutant(mutation, host.variant, host.stands_for) for host in hosts]
    return found


def kill(mutant: Mutant) -> Verdict:
    """Tries calls on a mutant until one fails."""
    every = _calls(_variant(mutant.variant))
    return kill_with(
        mutant, sorted(every, key=lambda call: (call.case.name, call.timing) != mutant.likely)
    )


def kill_with(mutant: Mutant, tries: Iterable[calls.Call]) -> Verdict:
    """The same with certain calls."""
    import jax

    from rpagen.evidence import cases, judge
    from rpagen.evidence.interpreter import tpu_interpret_mode

    package, variant = _package(), _variant(mutant.variant)
    source = mutant.mutation.apply(variant, mutants.source_of(variant.name, package))
    assert source is not None, f"{variant.name} has nothing of {mutant.mutation.name!r}"
    start = time.monotonic()
    tried = 0
    with mutants.loaded(source, variant.name, package) as module:
        attention = judge.of_module(module)
        for call in tries:
            tried += 1
            inputs = cases.build(call.case, variant.key, call.seed)
            try:
                judge.judge(
                    attention,
                    variant.query_dtype,
                    inputs,
                    tpu_interpret_mode(**call.interpreter_options),
                )
            except Exception as error:  # whether it is the instrument's is told by its name
                name = type(error).__name__
                is_answer = name in ANSWERS or name == mutant.mutation.dies_of
                return Verdict(
                    mutant,
                    "killed" if is_answer else "broken",
                    call.case.name,
                    call.timing,
                    validate.said(error),
                    tried,
                    time.monotonic() - start,
                    inputs.digest,
                )
            finally:
                jax.clear_caches()  # type: ignore[no-untyped-call]
    return Verdict(mutant, "survived", "", "", "", tried, time.monotonic() - start)


def _calls(variant: Variant) -> Iterator[calls.Call]:
    """The calls of a variant, those first that find most."""
    yield from calls.named(variant.key)
    yield from calls.by_seed(variant.key, SEEDS)


def _digest_of_call(variant: Variant, case: str, timing: str) -> str:
    """Of what a call is given, by its case and when copies run in it; empty if there is none."""
    from rpagen.evidence import cases

    for call in _calls(variant):
        if (call.case.name, call.timing) == (case, timing):
            return cases.build(call.case, variant.key, call.seed).digest
    return ""


def _modules() -> list[tuple[Variant, str]]:
    package = _package()
    return [(each, mutants.source_of(each.name, package)) for each in _variants()]


def _package() -> ModuleType:
    return importlib.import_module("rpa_kernels")


def _variant(name: str) -> Variant:
    return next(each for each in _variants() if each.name == name)


@functools.cache
def _variants() -> tuple[Variant, ...]:
    return expand.load_variants(resources.specs_dir())


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what became of every mutant; 0 if all were killed, 1 if not, 2 if there are none."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutations with this in their name or place")
    parser.add_argument("--jobs", type=shared.size, default=workers.usual_count(), help="processes")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write what was found there")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="what --record has of the same faults in the same kernels is not tried again, and what"
        " killed them in others is tried first",
    )
    options = parser.parse_args(arguments)
    chosen = [
        each
        for each in every_mutant()
        if options.only in each.mutation.name or options.only in each.mutation.place
    ]
    if not chosen:
        parser.error(
            f"no mutation has {errors.quoted(options.only)} in its name or its place: give --only"
            " less of it, or leave it away to see all"
        )
    if options.keep and options.record is None:
        parser.error("--keep is about what --record FILE names: give both")
    if options.record is not None:
        try:
            write.check_place(options.record)
        except errors.InputError as error:
            parser.error(str(error))
    start = time.monotonic()
    before = _read(options.record) if options.keep else _NOTHING
    verdicts = list(_kept(before, chosen))
    kept = len(verdicts)
    likely = {fault: (case, mode) for fault, (case, mode) in before["likely"].items()}
    try:
        with ProgressBar("killing") as progress:
            progress(len(verdicts), len(chosen))
            for wave in (_one_of_each, _the_others):
                tried = wave(chosen, verdicts, likely)
                for verdict in workers.results(kill, _died, tried, options.jobs):
                    verdicts.append(verdict)
                    if verdict.outcome == "killed":
                        likely[verdict.mutant.mutation.digest] = (verdict.case, verdict.mode)
                    progress(len(verdicts), len(chosen))
                    if verdict.outcome != "killed":
                        progress.say(f"{verdict.outcome}: {_described(verdict.mutant)}")
    finally:
        verdicts.sort(key=lambda verdict: chosen.index(verdict.mutant))
        print(report(verdicts))
        if options.keep:
            print(f"{kept} of them are from {options.record}, as an earlier run found them")
        if options.record is not None:
            words = ["--only", options.only] if options.only else []
            command = " ".join(
                ["make mutants", *([f"ARGS='{shlex.join(words)}'"] if words else [])]
            )
            seconds = time.monotonic() - start
            records.write(options.record, _record(verdicts, likely, command, seconds))
    return int(any(verdict.outcome != "killed" for verdict in verdicts))


Likely = Mapping[str, tuple[str, str]]
"""Case and mode that killed a mutant of a fault, by the digest of the fault."""


def _one_of_each(
    chosen: Sequence[Mutant], verdicts: Sequence[Verdict], likely: Likely
) -> list[Mutant]:
    """A mutant of every mutation of which nothing is known yet."""
    known = {verdict.mutant.mutation for verdict in verdicts}
    first: dict[Fault, Mutant] = {}
    for mutant in chosen:
        if mutant.mutation not in known and mutant.mutation.digest not in likely:
            first.setdefault(mutant.mutation, mutant)
    return list(first.values())


def _the_others(
    chosen: Sequence[Mutant], verdicts: Sequence[Verdict], likely: Likely
) -> list[Mutant]:
    """The mutants without a verdict, with the call that killed another of their mutation."""
    known = {verdict.mutant for verdict in verdicts}
    return [
        dataclasses.replace(mutant, likely=likely.get(mutant.mutation.digest, ("", "")))
        for mutant in chosen
        if mutant not in known
    ]


def _described(mutant: Mutant) -> str:
    return f"{mutant.mutation.name} in {mutant.variant}"


def _died(mutant: Mutant, why: str) -> Verdict:
    return Verdict(mutant, "broken", "", "", why, 0, 0.0)


_NOTHING: dict[str, Any] = {"judge": "", "digests": {}, "mutants": [], "likely": {}}


def _read(file: Path) -> dict[str, Any]:
    """What an earlier run found, if there is a record of one."""
    try:
        found: dict[str, Any] = records.read(file)
    except OSError:
        return _NOTHING
    return found


def _kept(record: Mapping[str, Any], chosen: Sequence[Mutant]) -> Iterator[Verdict]:
    """What an earlier run killed, where fault, kernel, judge and call are still what they were."""
    if record["judge"] != records.judge():
        return
    digest_of_call = functools.cache(
        lambda name, case, timing: _digest_of_call(_variant(name), case, timing)
    )
    digests = _digests()
    before = {(each["fault"], each["variant"]): each for each in record["mutants"]}
    for mutant in chosen:
        known = before.get((mutant.mutation.digest, mutant.variant))
        is_same = record["digests"].get(mutant.variant) == digests[mutant.variant]
        if known is None or not is_same or known["outcome"] != "killed":
            continue
        if known["call"] == digest_of_call(mutant.variant, known["case"], known["mode"]):
            fields = (known[name] for name in ("case", "mode", "how", "tried", "seconds", "call"))
            yield Verdict(mutant, "killed", *fields)


def report(verdicts: Sequence[Verdict]) -> str:
    """A row for every mutant, and how many were killed."""
    rows = [
        (
            verdict.mutant.mutation.name,
            verdict.mutant.mutation.place,
            verdict.mutant.variant,
            f"{verdict.case} {verdict.mode}"
            if verdict.outcome == "killed"
            else verdict.outcome.upper(),
            first_line(verdict.how)[:100],
        )
        for verdict in verdicts
    ]
    dead = [verdict for verdict in verdicts if verdict.outcome == "killed"]
    mutations = {verdict.mutant.mutation.name for verdict in verdicts}
    kinds = collections.Counter(verdict.how.partition(":")[0] for verdict in dead)
    return "\n".join(
        [
            table(("MUTATION", "PLACE", "VARIANT", "KILLED BY", "HOW"), rows),
            "",
            *(
                f"harmless: {each['mutation']} in {', '.join(each['variants'])}: {each['reason']}"
                for each in _harmless(mutations)
            ),
            f"{len(dead)} of {len(verdicts)} mutants killed, of {len(mutations)} mutations;"
            f" {', '.join(f'{n} {kind}' for kind, n in kinds.most_common())};"
            f" {sum(verdict.seconds for verdict in verdicts):.0f} s",
        ]
    )


def _harmless(mutations: Collection[str]) -> list[dict[str, Any]]:
    """The mutations that cannot matter in some variants, by reason."""
    found: dict[tuple[Fault, str], list[str]] = {}
    for variant, source in _modules():
        for mutation in mutants.every():
            reason = mutation.harmless_in(variant)
            if reason and mutation.name in mutations and mutation.changes(variant, source):
                found.setdefault((mutation, reason), []).append(variant.name)
    return [
        {
            "mutation": mutation.name,
            "function": mutation.place,
            "variants": variants,
            "reason": reason,
        }
        for (mutation, reason), variants in found.items()
    ]


def _digests() -> dict[str, str]:
    """Of the text that each variant's kernels have."""
    package = _package()
    assert package.__file__ is not None
    folder = Path(package.__file__).parent
    return {each.name: records.digest(folder, each.name) for each in _variants()}


def _record(
    verdicts: Sequence[Verdict], likely: Likely, command: str, seconds: float
) -> dict[str, object]:
    return {
        "made_with": records.made_with(),
        "instrument": records.instrument(),
        "judge": records.judge(),
        "command": command,
        "seconds": round(seconds, 1),
        "digests": _digests(),
        "likely": likely,
        "harmless": _harmless({verdict.mutant.mutation.name for verdict in verdicts}),
        "mutants": [
            {
                "mutation": verdict.mutant.mutation.name,
                "function": verdict.mutant.mutation.place,
                "fault": verdict.mutant.mutation.digest,
                "variant": verdict.mutant.variant,
                "stands_for": list(verdict.mutant.stands_for),
                "outcome": verdict.outcome,
                "case": verdict.case,
                "mode": verdict.mode,
                "call": verdict.call,
                "how": verdict.how,
                "tried": verdict.tried,
                "seconds": round(verdict.seconds, 1),
            }
            for verdict in verdicts
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
