"""All that the page says, computed: its template only decides which elements exist.

A cell is about one thing that was tried on one variant. It is `well` or `bad`, `apart` where there
is nothing to try, or `unknown` where no record is about the variant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rpagen.console import counted, first_line
from rpagen.emit import wording
from rpagen.evidence.records import ENOUGH_CALLS, TOO_LOOSE
from rpagen.evidence.report import formats
from rpagen.evidence.report.formats import (
    Call,
    Compilation,
    Found,
    Mutant,
    Mutants,
    Outcome,
    Source,
    Tried,
    Validation,
)
from rpagen.spec.model import BIT_WIDTHS, GENERATIONS, TIERS, Variant

WELL, BAD, APART, UNKNOWN = "well", "bad", "apart", "unknown"

STALE = "stale"
"""Of a cell: another text of the kernel was tried."""

OLDER = "older"
"""Of a cell: what judged is not what would judge now."""

NOT_RUN = "not run"
COMPILED = "compiled"
LARGE = "large"

FIRST_LINE = 200
"""Characters of a message that are shown without unfolding it."""


@dataclasses.dataclass(frozen=True)
class AtHand:
    """What records are held against. digest: of the kernel. instrument: what judges now."""

    digest: str
    instrument: str

    def badges(self, digest: str, instrument: str | None = None) -> tuple[str, ...]:
        """How a record is out of date: it tried that digest, and that instrument judged, if any."""
        stale = (STALE,) if digest != self.digest else ()
        older = (OLDER,) if instrument not in (None, self.instrument) else ()
        return stale + older


@dataclasses.dataclass(frozen=True)
class Message:
    """A message: the line that is shown, and all of it where that is more."""

    first: str
    whole: str = ""


def message(said: str) -> Message:
    """A message, to be folded where it is long."""
    said = said.strip()
    first = first_line(said)
    if len(first) > FIRST_LINE:
        first = first[:FIRST_LINE].rstrip() + " \N{HORIZONTAL ELLIPSIS}"
    return Message(first, said if said != first else "")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of the table. target: the id of what it is about, further down.

    badges: how its record is out of date. command: that makes the record, where there is none about
    the variant. note: a second line, in small. second: a line of its own about something else.
    """

    text: str
    state: str
    target: str
    badges: tuple[str, ...] = ()
    command: str = ""
    note: str = ""
    second: Cell | None = None

    @property
    def lines(self) -> tuple[Cell, ...]:
        """The cell, and the second line that it may have."""
        return (self, self.second) if self.second else (self,)


@dataclasses.dataclass(frozen=True)
class CallRow:
    """A call in the list of a variant. target: its id, if something links to it."""

    case: str
    mode: str
    seed: str
    races: str
    outcome: Message
    state: str
    fraction: str
    seconds: str
    target: str = ""


@dataclasses.dataclass(frozen=True)
class MutantRow:
    """A mutant in the list of its host. target: its id."""

    mutation: str
    function: str
    outcome: str
    state: str
    how: Message
    tried: str
    seconds: str
    target: str


@dataclasses.dataclass(frozen=True)
class MutantsElsewhere:
    """Mutants of which another variant is the host, with one outcome.

    mutations: their names, and the ids of their rows there.
    """

    host: str
    outcome: str
    state: str
    mutations: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class HarmlessRow:
    """A fault that cannot matter in a variant."""

    mutation: str
    function: str
    reason: Message


@dataclasses.dataclass(frozen=True)
class LaunchRow:
    """A launch that compiled, in MiB of VMEM and KiB of SMEM: what it takes, and its budget."""

    name: str
    vmem: str
    vmem_kernel: str
    vmem_compiler: str
    smem: str
    smem_kernel: str
    smem_compiler: str
    hbm_spills: str
    verdict: str
    state: str


@dataclasses.dataclass(frozen=True)
class DeviceRows:
    """What became of a variant on a device. reason: that it has no launches."""

    device: str
    target: str
    verdict: str
    state: str
    reason: Message
    seconds: str
    launches: tuple[LaunchRow, ...]


@dataclasses.dataclass(frozen=True)
class Part:
    """One kind of evidence of a variant: what it comes to, in a cell, and all of it."""

    cell: Cell
    summary: str
    digest: str = ""
    calls: tuple[CallRow, ...] = ()
    mutants: tuple[MutantRow, ...] = ()
    elsewhere: tuple[MutantsElsewhere, ...] = ()
    harmless: tuple[HarmlessRow, ...] = ()
    devices: tuple[DeviceRows, ...] = ()

    @property
    def target(self) -> str:
        """The id of the part."""
        return self.cell.target


@dataclasses.dataclass(frozen=True)
class Row:
    """A variant: its row of the table, and its section further down.

    words: all by which the row is found, in lower case. digest: of the kernel at hand.
    """

    name: str
    tier: str
    about: str
    axes: Mapping[str, str]
    digest: str
    cells: tuple[Cell, ...]
    calls: Part
    mutants: Part
    compilation: Part
    compilation_large: Part | None
    hardware: Part
    words: str

    @property
    def is_stale(self) -> bool:
        """Whether a record is about another kernel."""
        return any(STALE in line.badges for line in self.lines)

    @property
    def is_older(self) -> bool:
        """Whether another instrument judged in a record."""
        return any(OLDER in line.badges for line in self.lines)

    @property
    def is_bad(self) -> bool:
        """Whether a record says that something is wrong."""
        return any(line.state == BAD for line in self.lines)

    @property
    def is_unknown(self) -> bool:
        """Whether no record says something about the variant that one should."""
        return any(line.state == UNKNOWN for line in self.lines)

    @property
    def lines(self) -> list[Cell]:
        """All that is in the cells."""
        return [line for cell in self.cells for line in cell.lines]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number at the top of the page. is_missing: whether there is no record that says it."""

    name: str
    value: str
    notes: tuple[str, ...]
    state: str
    is_missing: bool = False


@dataclasses.dataclass(frozen=True)
class Worst:
    """The largest error of all calls with those dtypes, and the call that has it.

    verdict: what it says of the bound.
    """

    query_dtype: str
    kv_dtype: str
    where: str
    calls: str
    fraction: str
    verdict: str
    state: str
    variant: str
    case: str
    target: str


@dataclasses.dataclass(frozen=True)
class RecordRow:
    """A record: what it was made with, or the command that makes it.

    is_older: whether another instrument judged in it.
    """

    file: str
    of_what: str
    command: str
    is_there: bool
    where: str
    made_with: Mapping[str, str]
    seconds: str
    is_older: bool = False


@dataclasses.dataclass(frozen=True)
class Page:
    """All of it.

    unknown: variants in the records that no spec makes. unknown_bad: those of them of which a
    record says that something is not well.
    """

    generations: tuple[str, ...]
    figures: tuple[Figure, ...]
    worst: tuple[Worst, ...]
    records: tuple[RecordRow, ...]
    rows: tuple[Row, ...]
    unknown: tuple[str, ...]
    unknown_bad: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """The variants that have a section on the page."""
        return frozenset(row.name for row in self.rows)

    @property
    def mutants(self) -> frozenset[str]:
        """The ids of the mutants that have a row on the page."""
        return frozenset(each.target for row in self.rows for each in row.mutants.mutants)

    @property
    def has_large(self) -> bool:
        """Whether variants were compiled for a production shape."""
        return any(row.compilation_large for row in self.rows)


def shown(variants: Sequence[Variant], found: Found) -> list[Variant]:
    """The variants that the page is about: the core, and others that a record is about."""
    chosen = [each for each in variants if each.tier == TIERS[0] or each.name in found.named]
    return sorted(chosen, key=lambda each: TIERS.index(each.tier))


def make(
    variants: Sequence[Variant], found: Found, digests: Mapping[str, str], instrument: str
) -> Page:
    """The page.

    variants: of every tier. digests: of the kernels at hand, at least of those in records.
    instrument: at hand.
    """
    chosen = shown(variants, found)
    generations = _generations(found)
    rows = tuple(
        _row(variant, found, AtHand(digests.get(variant.name, ""), instrument), generations)
        for variant in chosen
    )
    names = {variant.name for variant in variants}
    return Page(
        generations=generations,
        figures=tuple(_figures(rows, found)),
        worst=tuple(_worst_of_all(found, {row.name for row in rows})),
        records=tuple(
            _record_row(source, found, instrument)
            for source in formats.SOURCES
            if found.of(source) or not source.is_optional
        ),
        rows=rows,
        unknown=tuple(sorted(found.named - names)),
        unknown_bad=tuple(sorted(found.wrong - names)),
    )


def _generations(found: Found) -> tuple[str, ...]:
    """The columns: what specs name, and whatever else a record has."""
    records = [each for each in (found.compilation, found.compilation_large) if each]
    devices = {outcome.device for record in records for outcome in record.outcomes}
    return (*GENERATIONS, *sorted(devices - set(GENERATIONS)))


# --- a variant -----------------------------------------------------------------------------------


def _row(variant: Variant, found: Found, at_hand: AtHand, generations: Sequence[str]) -> Row:
    name = variant.name
    calls = _calls(name, found.validation, at_hand)
    mutants = _mutants(name, found.mutants, at_hand)
    compilation, on_devices = _compilation(
        name, found.compilation, formats.COMPILATION, at_hand, generations
    )
    large = None
    if found.compilation_large is not None:
        large, seconds = _compilation(
            name, found.compilation_large, formats.COMPILATION_LARGE, at_hand, generations
        )
        on_devices = [
            _with_second_line(cell, second)
            for cell, second in zip(on_devices, seconds, strict=True)
        ]
    hardware = _hardware(name, found.hardware, at_hand)
    cells = (
        calls.cell,
        _races(name, found.validation, at_hand),
        mutants.cell,
        *on_devices,
        _error(name, found.validation, at_hand),
        hardware.cell,
    )
    axes = {path: wording.said(value) for path, value in wording.axes_in_short(variant).items()}
    return Row(
        name=name,
        tier=variant.tier,
        about=wording.summary(variant),
        axes=axes,
        digest=at_hand.digest,
        cells=cells,
        calls=calls,
        mutants=mutants,
        compilation=compilation,
        compilation_large=large,
        hardware=hardware,
        words=_words(variant, axes, cells),
    )


def _with_second_line(cell: Cell, second: Cell) -> Cell:
    """The cell of a generation, with what became of the production shape below."""
    if (second.text, second.state) == (NOT_RUN, APART):
        return cell  # nobody asks for it
    return dataclasses.replace(
        cell, second=dataclasses.replace(second, text=f"{LARGE}: {second.text}")
    )


def _words(variant: Variant, axes: Mapping[str, str], cells: Iterable[Cell]) -> str:
    words = [variant.name, variant.family, variant.tier]
    words += [f"{path}={value.replace(', ', ',')}" for path, value in axes.items()]
    for cell in cells:
        words += [word for line in cell.lines for word in (line.text, *line.badges)]
    return " ".join(dict.fromkeys(words)).lower()


def _of_variant(record: Validation | None, name: str) -> tuple[Tried, str] | None:
    """The calls of a variant, if there are any, and what judged them."""
    for each in record.variants if record else ():
        if record and each.variant == name and each.calls:
            return each, record.instrument
    return None


def _not_run(target: str, source: Source, text: str = NOT_RUN) -> Cell:
    return Cell(text, UNKNOWN, target, command=source.command)


def _calls(name: str, record: Validation | None, at_hand: AtHand) -> Part:
    target = f"{name}-calls"
    found = _of_variant(record, name)
    if found is None:
        return Part(_not_run(target, formats.VALIDATION), NOT_RUN)
    tried, instrument = found
    well = sum(call.is_well for call in tried.calls)
    total = len(tried.calls)
    state = WELL if well == total else BAD
    cell = Cell(f"{well} of {total}", state, target, at_hand.badges(tried.digest, instrument))
    rows = _call_rows(tried, _worst_id(name, "calls"))
    return Part(cell, f"{well} of {counted(total, 'call')} passed", tried.digest, rows)


def _races(name: str, record: Validation | None, at_hand: AtHand) -> Cell:
    target = f"{name}-calls"
    found = _of_variant(record, name)
    watched = [call for call in found[0].calls if call.races] if found else []
    if found is None or not watched:
        return _not_run(target, formats.VALIDATION)
    tried, instrument = found
    races = sum(call.found_race for call in watched)
    if races:
        text, state = f"{counted(races, 'race')} in {len(watched)}", BAD
    else:
        text, state = f"none in {len(watched)}", WELL
    return Cell(text, state, target, at_hand.badges(tried.digest, instrument))


def _error(name: str, record: Validation | None, at_hand: AtHand) -> Cell:
    target = f"{name}-calls"
    found = _of_variant(record, name)
    if found is None:
        return _not_run(target, formats.VALIDATION)
    tried, instrument = found
    badges = at_hand.badges(tried.digest, instrument)
    worst = _worst(tried)
    if worst is None or worst.fraction is None:
        return Cell("not measured", BAD, target, badges)
    state = WELL if worst.fraction <= 1 else BAD
    return Cell(_fraction(worst.fraction), state, _worst_id(name, "calls"), badges)


def _hardware(name: str, record: Validation | None, at_hand: AtHand) -> Part:
    target = f"{name}-hardware"
    found = _of_variant(record, name)
    if found is None:
        return Part(_not_run(target, formats.HARDWARE, f"no, {NOT_RUN}"), NOT_RUN)
    tried, instrument = found
    failed = sum(not call.is_well for call in tried.calls)
    total = len(tried.calls)
    text, state = (f"no, {failed} of {total} failed", BAD) if failed else ("yes", WELL)
    return Part(
        Cell(text, state, target, at_hand.badges(tried.digest, instrument)),
        f"{total - failed} of {counted(total, 'call')} passed",
        tried.digest,
        _call_rows(tried, _worst_id(name, "hardware")),
    )


def _worst(tried: Tried) -> Call | None:
    """The call with the largest error."""
    measured = [call for call in tried.calls if call.fraction is not None]
    return max(measured, key=lambda call: call.fraction or 0.0, default=None)


def _worst_id(name: str, part: str) -> str:
    return f"{name}-{part}-largest-error"


def _call_rows(tried: Tried, worst_id: str) -> tuple[CallRow, ...]:
    """All calls, those that failed first."""
    worst = _worst(tried)
    return tuple(
        CallRow(
            case=call.case,
            mode=call.mode,
            # 0 is what there is if nobody asks; in mode `random` it is a choice like others.
            seed=str(call.seed) if call.seed or call.mode == "random" else "",
            races="detected" if call.races else "not looked for",
            outcome=message(call.problem or "passed"),
            state=WELL if call.is_well else BAD,
            fraction="" if call.fraction is None else _fraction(call.fraction),
            seconds=_seconds(call.seconds),
            target=worst_id if call is worst else "",
        )
        for call in sorted(tried.calls, key=lambda call: call.is_well)
    )


def _mutants(name: str, record: Mutants | None, at_hand: AtHand) -> Part:
    target = f"{name}-mutants"
    applying = record.applying_to(name) if record else []
    harmless = record.harmless_in(name) if record else []
    if record is None or not (applying or harmless or name in record.digests):
        return Part(_not_run(target, formats.MUTANTS), NOT_RUN)
    tried = record.digests.get(name, "")
    badges = at_hand.badges(tried, record.instrument)
    rows = tuple(
        HarmlessRow(each.mutation, each.function, message(each.reason)) for each in harmless
    )
    apart = f"; {len(rows)} cannot matter here" if rows else ""
    if not applying:
        cell = Cell("none apply", APART, target, badges)
        return Part(cell, f"none of them applies{apart}", tried, harmless=rows)
    killed = [mutant for mutant in applying if mutant.is_killed]
    here = sum(mutant.variant == name for mutant in killed)
    elsewhere = len(killed) - here
    of_them = f"{len(killed)} of {len(applying)}"
    not_killed = _not_killed(applying)
    state = BAD if not_killed else WELL
    ids = {id(mutant): f"mutant-{number}" for number, mutant in enumerate(record.mutants)}
    return Part(
        Cell(
            f"{of_them}{not_killed}",
            state,
            target,
            badges,
            note=f"{here} here, {elsewhere} elsewhere",
        ),
        f"{of_them} mutants killed: {here} in this variant, {elsewhere} in another that stands for"
        f" it{not_killed.replace(',', ';', 1)}{apart}",
        tried,
        mutants=tuple(
            _mutant_row(mutant, ids[id(mutant)])
            for mutant in sorted(applying, key=_bad_first)
            if mutant.variant == name
        ),
        elsewhere=tuple(
            MutantsElsewhere(
                host=host,
                outcome=outcome,
                state=WELL if outcome == "killed" else BAD,
                mutations=tuple((each.mutation, ids[id(each)]) for each in together),
            )
            for (host, outcome), together in _by_host(applying, name)
        ),
        harmless=rows,
    )


def _not_killed(mutants: Sequence[Mutant]) -> str:
    """How many are alive, or show nothing, as the end of a phrase."""
    counts = {
        outcome: sum(mutant.outcome == outcome for mutant in mutants)
        for outcome in ("survived", "broken")
    }
    return "".join(f", {count} {outcome}" for outcome, count in counts.items() if count)


def _bad_first(mutant: Mutant) -> int:
    return ("survived", "broken", "killed").index(mutant.outcome)


def _by_host(
    mutants: Sequence[Mutant], name: str
) -> Iterator[tuple[tuple[str, str], Sequence[Mutant]]]:
    """Mutants of other variants, by host and outcome."""
    groups: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in sorted(mutants, key=_bad_first):
        if mutant.variant != name:
            groups.setdefault((mutant.variant, mutant.outcome), []).append(mutant)
    yield from groups.items()


def _mutant_row(mutant: Mutant, target: str) -> MutantRow:
    call = ", ".join(word for word in (mutant.case, mutant.mode) if word)
    said = {
        "killed": f"killed by {call}",
        "survived": "survived",
        "broken": "broken: it cannot be traced, which shows nothing",
    }
    return MutantRow(
        mutation=mutant.mutation,
        function=mutant.function,
        outcome=said[mutant.outcome],
        state=WELL if mutant.is_killed else BAD,
        how=message(mutant.how),
        tried=str(mutant.tried),
        seconds=_seconds(mutant.seconds),
        target=target,
    )


def _compilation(
    name: str,
    record: Compilation | None,
    source: Source,
    at_hand: AtHand,
    generations: Sequence[str],
) -> tuple[Part, list[Cell]]:
    """What the compiler said of a variant, and a cell for every generation."""
    target = f"{name}-{source.file.removesuffix('.json')}"
    outcomes = {}
    if record is not None:
        outcomes = {each.device: each for each in record.outcomes if each.variant == name}
    nothing = _not_run(target, source)
    if record is None or not outcomes:
        return Part(nothing, NOT_RUN), [nothing for _ in generations]
    tried = record.digests.get(name, "")
    badges = at_hand.badges(tried)
    rows = {
        device: _device_rows(outcomes[device], f"{target}-{device}")
        for device in generations
        if device in outcomes
    }
    cells = []
    for device in generations:
        if device in rows:
            verdict = rows[device].verdict
            text = "yes" if verdict == COMPILED else verdict
            cells.append(Cell(text, rows[device].state, rows[device].target, badges))
        else:
            # Of a generation that no spec names, nothing is missing.
            is_asked = device in GENERATIONS
            cells.append(nothing if is_asked else Cell(NOT_RUN, APART, target))
    is_well = all(each.is_well for each in outcomes.values())
    by_verdict: dict[str, list[str]] = {}
    for each in rows.values():
        by_verdict.setdefault(each.verdict, []).append(each.device)
    summary = "; ".join(f"{verdict} for {', '.join(on)}" for verdict, on in by_verdict.items())
    cell = Cell(summary, WELL if is_well else BAD, target, badges)
    return Part(cell, summary, tried, devices=tuple(rows.values())), cells


def _device_rows(outcome: Outcome, target: str) -> DeviceRows:
    if outcome.is_excluded:
        verdict, state = "excluded", APART
    elif not outcome.launches:
        verdict, state = "failed", BAD
    elif not outcome.is_well:
        verdict, state = "over budget", BAD
    else:
        verdict, state = COMPILED, WELL
    return DeviceRows(
        device=outcome.device,
        target=target,
        verdict=verdict,
        state=state,
        reason=message(outcome.reason),
        seconds=_seconds(outcome.seconds),
        launches=tuple(
            LaunchRow(
                name=launch.name,
                vmem=_of(launch.vmem.total, launch.vmem.model + launch.vmem.margin, _mib),
                vmem_kernel=_of(launch.vmem.taken.of_kernel, launch.vmem.model, _mib),
                vmem_compiler=_of(launch.vmem.taken.of_compiler, launch.vmem.margin, _mib),
                smem=_of(launch.smem.total, launch.smem.model + launch.smem.margin, _kib),
                smem_kernel=_of(launch.smem.taken.of_kernel, launch.smem.model, _kib),
                smem_compiler=_of(launch.smem.taken.of_compiler, launch.smem.margin, _kib),
                hbm_spills=str(launch.hbm_spills),
                verdict="within budget" if launch.is_held else "budget does not hold",
                state=WELL if launch.is_held else BAD,
            )
            for launch in outcome.launches
        ),
    )


# --- the top -------------------------------------------------------------------------------------


def _figures(rows: Sequence[Row], found: Found) -> list[Figure]:
    names = {row.name for row in rows}
    return [
        _figure_of_variants(rows),
        *_figures_of_calls(found, names),
        _figure_of_mutants(found, names),
        _figure_of_compilation("Compiled", found.compilation, names),
        *(
            [_figure_of_compilation("Compiled, large shape", found.compilation_large, names)]
            if found.compilation_large
            else []
        ),
        _figure_of_hardware(rows, found),
        _figure_of_age(rows),
    ]


def _figure_of_variants(rows: Sequence[Row]) -> Figure:
    core = sum(row.tier == TIERS[0] for row in rows)
    others = len(rows) - core
    bad = sum(row.is_bad for row in rows)
    notes = [f"{core} of the core tier"]
    notes += [f"{others} of other tiers, in records"] if others else []
    notes += [f"{bad} with something that is not well" if bad else "nothing is known to be wrong"]
    return Figure("Variants", str(len(rows)), tuple(notes), BAD if bad else WELL)


def _missing(name: str) -> Figure:
    return Figure(name, NOT_RUN, (), UNKNOWN, is_missing=True)


def _figures_of_calls(found: Found, names: set[str]) -> list[Figure]:
    if found.validation is None:
        return [_missing("Calls in interpret mode")]
    calls = [
        call
        for tried in found.validation.variants
        if tried.variant in names
        for call in tried.calls
    ]
    well = sum(call.is_well for call in calls)
    watched = [call for call in calls if call.races]
    races = sum(call.found_race for call in watched)
    cases = len({call.case for call in calls})
    return [
        Figure(
            "Calls in interpret mode",
            f"{well:,} of {len(calls):,}",
            (f"passed, of {counted(cases, 'case')}",),
            WELL if well == len(calls) else BAD,
        ),
        Figure(
            "Races",
            f"{races:,}" if races else "none",
            (f"in {len(watched):,} calls that looked for them",),
            BAD if races else WELL,
        ),
    ]


def _figure_of_mutants(found: Found, names: set[str]) -> Figure:
    record = found.mutants
    if record is None:
        return _missing("Mutants")
    applying = {id(each): each for name in names for each in record.applying_to(name)}
    mutants = list(applying.values())
    killed = sum(mutant.is_killed for mutant in mutants)
    mutations = len({(mutant.mutation, mutant.function) for mutant in mutants})
    not_killed = _not_killed(mutants)
    return Figure(
        "Mutants",
        f"{killed:,} of {len(mutants):,}",
        (f"killed, of {counted(mutations, 'mutation')}{not_killed}",),
        BAD if not_killed else WELL,
    )


def _figure_of_compilation(name: str, record: Compilation | None, names: set[str]) -> Figure:
    if record is None:
        return _missing(name)
    outcomes = [each for each in record.outcomes if each.variant in names]
    compiled = [each for each in outcomes if each.launches]
    excluded = sum(each.is_excluded for each in outcomes)
    launches = [launch for each in compiled for launch in each.launches]
    held = sum(launch.is_held for launch in launches)
    notes = [
        "pairs of a variant and a generation",
        f"{excluded} excluded, {len(outcomes) - len(compiled) - excluded} failed",
        f"launches within their budget: {held} of {len(launches)}",
    ]
    is_well = all(each.is_well for each in outcomes)
    value = f"{len(compiled)} of {len(outcomes)}"
    return Figure(name, value, tuple(notes), WELL if is_well else BAD)


def _figure_of_hardware(rows: Sequence[Row], found: Found) -> Figure:
    if found.hardware is None:
        return _missing("Seen on hardware")
    seen = sum(row.hardware.cell.state == WELL for row in rows)
    failed = sum(row.hardware.cell.state == BAD for row in rows)
    state = BAD if failed else WELL if seen == len(rows) else UNKNOWN
    return Figure(
        "Seen on hardware",
        f"{seen} of {len(rows)}",
        (f"variants, on {found.hardware.where}", f"{failed} failed there"),
        state,
    )


def _figure_of_age(rows: Sequence[Row]) -> Figure:
    stale = sum(row.is_stale for row in rows)
    unknown = sum(row.is_unknown for row in rows)
    older = sum(row.is_older for row in rows)
    return Figure(
        "Stale",
        str(stale) if stale else "none",
        (
            "variants of which a record tried another text than that at hand",
            *([f"{older} judged by an older instrument"] if older else []),
            f"{unknown} of which something was not run",
        ),
        BAD if stale else WELL,
    )


def _worst_of_all(found: Found, names: set[str]) -> Iterable[Worst]:
    """By query and kv dtype, and by where it ran."""
    for record, part in ((found.validation, "calls"), (found.hardware, "hardware")):
        by_dtypes: dict[tuple[str, str], list[Tried]] = {}
        for tried in record.variants if record else ():
            if tried.variant in names:
                by_dtypes.setdefault((tried.query_dtype, tried.kv_dtype), []).append(tried)
        for dtypes in sorted(by_dtypes, key=_width):
            measured = [
                (call.fraction, tried.variant, call.case)
                for tried in by_dtypes[dtypes]
                for call in [_worst(tried)]
                if call is not None and call.fraction is not None
            ]
            if record is None or not measured:
                continue
            fraction, variant, case = max(measured, key=lambda each: each[0])
            calls = sum(len(tried.calls) for tried in by_dtypes[dtypes])
            verdict, state = _bound(fraction, calls)
            yield Worst(
                *dtypes,
                where=record.where,
                calls=f"{calls:,}",
                fraction=_fraction(fraction),
                verdict=verdict,
                state=state,
                variant=variant,
                case=case,
                target=_worst_id(variant, part),
            )


def _bound(fraction: float, calls: int) -> tuple[str, str]:
    """What the largest error of some calls says of its bound: a verdict, and its state."""
    if fraction > 1:
        return "exceeded", BAD
    if fraction * TOO_LOOSE >= 1:
        return "tight enough", WELL
    if calls < ENOUGH_CALLS:
        return f"too few calls to say: fewer than {ENOUGH_CALLS}", APART
    return f"too loose: more than {TOO_LOOSE} times the largest error", BAD


def _width(dtypes: tuple[str, str]) -> tuple[list[int], tuple[str, str]]:
    """Orders dtypes, the widest first."""
    return [-BIT_WIDTHS.get(dtype, 0) for dtype in dtypes], dtypes


def _record_row(source: Source, found: Found, instrument: str) -> RecordRow:
    record = found.of(source)
    if record is None:
        return RecordRow(source.file, source.of_what, source.command, False, "", {}, "")
    return RecordRow(
        file=source.file,
        of_what=source.of_what,
        command=record.command,
        is_there=True,
        where=record.where if isinstance(record, Validation) else "",
        made_with=record.made_with,
        seconds=f"{record.seconds:,.0f}",
        is_older=not isinstance(record, Compilation) and record.instrument != instrument,
    )


# --- numbers -------------------------------------------------------------------------------------


def _fraction(fraction: float) -> str:
    return f"{fraction:.2f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}"


def _of(taken: int, allowed: int, said: Callable[[int], str]) -> str:
    return f"{said(taken)} of {said(allowed)}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.2f}"


def _kib(size: int) -> str:
    return f"{size / 2**10:.1f}"
