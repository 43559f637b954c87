"""The records behind the report: what each holds, and which command makes it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from rpagen import errors
from rpagen.errors import InputError
from rpagen.evidence import records, survey
from rpagen.evidence.records import ON_TPU
from rpagen.evidence.report import typed
from rpagen.evidence.report.typed import Lines, WrongValueError
from rpagen.spec import budget

_RACE = re.compile(r"\bRaceError\b|\brace between two accesses\b")


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a variant.

    seed: of the numbers of the case, and in mode `random` of when copies run.
    races: whether races were looked for. problem: the whole message; empty if there was none.
    fraction: the largest error as a fraction of what is tolerated; None if it was not measured.
    """

    case: str
    mode: Literal["on_wait", "eager", "random", "tpu"]
    seed: int
    races: bool
    problem: Lines
    fraction: float | None
    seconds: float

    @property
    def is_well(self) -> bool:
        """Whether the answer was right and nothing stood in the way of it."""
        return not self.problem

    @property
    def found_race(self) -> bool:
        """Whether what was wrong is a race."""
        return self.races and _RACE.search(self.problem) is not None


@dataclasses.dataclass(frozen=True)
class Tried:
    """The calls of one variant."""

    variant: str
    digest: str
    query_dtype: str
    kv_dtype: str
    calls: tuple[Call, ...]


@dataclasses.dataclass(frozen=True)
class Validation:
    """What `rpagen validate` found.

    instrument: what judged, as `records.instrument` says. where: it ran, a kind of TPU or interpret
    mode.
    """

    made_with: dict[str, str]
    instrument: str
    command: str
    where: str
    seconds: float
    variants: tuple[Tried, ...]

    @property
    def digests(self) -> dict[str, str]:
        """By variant, of the kernel that was tried."""
        return {each.variant: each.digest for each in self.variants}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A fault that was put into a variant, its host, and what became of it.

    stands_for: the variants whose function has the same text, the host among them. outcome:
    `broken` is what the interpreter could not even trace. case: of the call that killed it.
    how: the whole message. tried: calls until then.
    """

    mutation: str
    function: str
    variant: str
    stands_for: tuple[str, ...]
    outcome: Literal["killed", "survived", "broken"]
    case: str
    mode: str
    how: Lines
    tried: int
    seconds: float

    @property
    def is_killed(self) -> bool:
        """Whether a call found it. That a kernel cannot be traced shows nothing of calls."""
        return self.outcome == "killed"


@dataclasses.dataclass(frozen=True)
class Harmless:
    """A fault that cannot matter in some variants, and the reason."""

    mutation: str
    function: str
    variants: tuple[str, ...]
    reason: Lines


@dataclasses.dataclass(frozen=True)
class Mutants:
    """What `make mutants` found. instrument: what judged, as `records.instrument` says."""

    made_with: dict[str, str]
    instrument: str
    command: str
    seconds: float
    digests: dict[str, str]
    mutants: tuple[Mutant, ...]
    harmless: tuple[Harmless, ...]

    def applying_to(self, variant: str) -> list[Mutant]:
        """The mutants that are to be killed in a variant, in it or in one that stands for it."""
        harmless = {(each.mutation, each.function) for each in self.harmless_in(variant)}
        return [
            each
            for each in self.mutants
            if variant in each.stands_for and (each.mutation, each.function) not in harmless
        ]

    def harmless_in(self, variant: str) -> list[Harmless]:
        """The faults that cannot matter in a variant."""
        return [each for each in self.harmless if variant in each.variants]


@dataclasses.dataclass(frozen=True)
class Outcome(survey.Outcome):
    """What became of one variant on one device. reason: the whole message."""

    reason: Lines = ""


@dataclasses.dataclass(frozen=True)
class Compilation:
    """What `rpagen compile` found."""

    made_with: dict[str, str]
    command: str
    seconds: float
    digests: dict[str, str]
    outcomes: tuple[Outcome, ...]


@dataclasses.dataclass(frozen=True)
class Source:
    """A record: the name of its file, what it says, and the command that makes it.

    is_optional: whether nothing is said where it is not there.
    """

    file: str
    of_what: str
    command: str
    form: Any
    check: Callable[[Any], None]
    is_optional: bool = False


@dataclasses.dataclass(frozen=True)
class Found:
    """All records; None for one that is not there."""

    validation: Validation | None
    hardware: Validation | None
    mutants: Mutants | None
    compilation: Compilation | None
    compilation_large: Compilation | None

    def of(self, source: Source) -> Validation | Mutants | Compilation | None:
        """The record of a source."""
        return {
            VALIDATION: self.validation,
            HARDWARE: self.hardware,
            MUTANTS: self.mutants,
            COMPILATION: self.compilation,
            COMPILATION_LARGE: self.compilation_large,
        }[source]

    @property
    def named(self) -> set[str]:
        """The variants that any record is about."""
        return {
            name
            for source in SOURCES
            for record in [self.of(source)]
            if record is not None
            for name in record.digests
        }

    @property
    def wrong(self) -> set[str]:
        """The variants of which a record says that something is not well."""
        tried = [each for each in (self.validation, self.hardware) if each is not None]
        compiled = [each for each in (self.compilation, self.compilation_large) if each is not None]
        return {
            *(
                of.variant
                for record in tried
                for of in record.variants
                if not all(call.is_well for call in of.calls)
            ),
            *(
                mutant.variant
                for mutant in (self.mutants.mutants if self.mutants else ())
                if not mutant.is_killed
            ),
            *(
                outcome.variant
                for record in compiled
                for outcome in record.outcomes
                if not outcome.is_well
            ),
        }


def read(folder: Path) -> Found:
    """All records of a folder.

    Raises:
        InputError: one cannot be read, or is not what it should be.
    """
    return Found(*(_read(folder / source.file, source) for source in SOURCES))


def _read(file: Path, source: Source) -> Any:
    try:
        found = records.read(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(file, source, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        said = errors.escaped(str(error)) if isinstance(error, ValueError) else "nested too deeply"
        raise _refused(file, source, f"is no JSON: {said}") from error
    try:
        record = typed.convert(source.form, found)
        source.check(record)
    except WrongValueError as wrong:
        problem, expected = wrong.problem, wrong.expected
        raise _refused(file, source, problem, wrong.field, expected) from wrong
    return record


def _refused(
    file: Path, source: Source, problem: str, field: str = "", expected: str = ""
) -> InputError:
    return InputError(
        problem,
        place=errors.printable(str(file)),
        field=field,
        expected=expected or f"the record that `{source.command}` writes",
        next_step=f"make it again with `{source.command}`, or remove it",
    )


def _check_validation(record: Validation) -> None:
    _refuse_tpu(record, False, "a call in interpret mode: hardware.json has those on a TPU")


def _check_hardware(record: Validation) -> None:
    _refuse_tpu(record, True, f'the mode "{ON_TPU}": validate.json has those of the interpreter')


def _refuse_tpu(record: Validation, is_wanted: bool, expected: str) -> None:
    _refuse_twice("variants", (each.variant for each in record.variants))
    for number, tried in enumerate(record.variants):
        for place, call in enumerate(tried.calls):
            if (call.mode == ON_TPU) != is_wanted:
                field = f"variants[{number}].calls[{place}].mode"
                raise WrongValueError(field, f'is "{call.mode}"', expected)


def _check_mutants(record: Mutants) -> None:
    for number, mutant in enumerate(record.mutants):
        if mutant.variant not in mutant.stands_for:
            field = f"mutants[{number}].stands_for"
            raise WrongValueError(field, "lacks the host", f"{errors.quoted(mutant.variant)} in it")
        if mutant.is_killed and not mutant.case:
            field = f"mutants[{number}].case"
            raise WrongValueError(field, "is empty", "the call that killed it")


def _check_compilation(record: Compilation) -> None:
    pairs = (f"{each.variant} for {each.device}" for each in record.outcomes)
    _refuse_twice("outcomes", pairs)
    for number, outcome in enumerate(record.outcomes):
        field = f"outcomes[{number}]"
        if outcome.device not in budget.VMEM_BYTES:
            known = ", ".join(budget.VMEM_BYTES)
            raise WrongValueError(
                f"{field}.device", f"is {errors.quoted(outcome.device)}", f"one of {known}"
            )
        for place, launch in enumerate(outcome.launches):
            for memory, compared in (("vmem", launch.vmem), ("smem", launch.smem)):
                if not compared.taken.of_kernel:  # which the budget is a share of
                    raise WrongValueError(
                        f"{field}.launches[{place}].{memory}.taken.of_kernel", "is 0", "some bytes"
                    )


def _refuse_twice(field: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise WrongValueError(field, f"has {errors.listed(twice)} more than once", "each once")


VALIDATION = Source(
    "validate.json",
    "calls of every variant in interpret mode, with races detected, against the reference",
    "make validate",
    Validation,
    _check_validation,
)
HARDWARE = Source(
    "hardware.json",
    "calls of every variant compiled on a TPU, against the reference",
    "rpagen validate --tpu --record docs/evidence/hardware.json",
    Validation,
    _check_hardware,
)
MUTANTS = Source(
    "mutants.json",
    "faults put into kernels on purpose, and the calls that found them",
    "make mutants",
    Mutants,
    _check_mutants,
)
COMPILATION = Source(
    "compile.json",
    "every variant through the TPU compiler, and the budget beside what it took",
    "make compile",
    Compilation,
    _check_compilation,
)
COMPILATION_LARGE = Source(
    "compile-large.json",
    "the same for a production shape: 32x8x128, pages of 64, 2048 tokens",
    "make compile-large",
    Compilation,
    _check_compilation,
    is_optional=True,
)
SOURCES = (VALIDATION, HARDWARE, MUTANTS, COMPILATION, COMPILATION_LARGE)
"""In the order of the fields of `Found`."""
