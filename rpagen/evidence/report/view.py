"""All that the page says, computed: its template only decides which elements exist.

A cell is about one thing that was tried on one variant. It is `well` or `bad`, `apart` where there
is nothing to try, or `unknown` where no record is about the variant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from rpagen.console import counted
from rpagen.emit import wording
from rpagen.evidence.report import formats
from rpagen.evidence.report.formats import Call, Found, Mutant, Source, Tried
from rpagen.evidence.survey import Outcome
from rpagen.spec.model import BIT_WIDTHS, GENERATIONS, TIERS, Variant

WELL, BAD, APART, UNKNOWN = "well", "bad", "apart", "unknown"

STALE = "stale"
NOT_RUN = "not run"
COMPILED = "compiled"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of the table. target: the id of what it is about, further down.

    command: that makes the record, where there is none about the variant.
    """

    text: str
    state: str
    target: str
    is_stale: bool = False
    command: str = ""


@dataclasses.dataclass(frozen=True)
class CallRow:
    """A call in the list of a variant. target: its id, if something links to it."""

    case: str
    mode: str
    seed: str
    races: str
    outcome: str
    state: str
    fraction: str
    seconds: str
    target: str = ""


@dataclasses.dataclass(frozen=True)
class MutantRow:
    """A mutant in the list of a variant. is_host: whether the fault was put into this variant."""

    mutation: str
    function: str
    host: str
    is_host: bool
    killed_by: str
    state: str
    how: str
    tried: str
    seconds: str


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
    reason: str
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
    hardware: Part
    words: str

    @property
    def is_stale(self) -> bool:
        """Whether a record is about another kernel."""
        return any(cell.is_stale for cell in self.cells)

    @property
    def is_bad(self) -> bool:
        """Whether a record says that something is wrong."""
        return any(cell.state == BAD for cell in self.cells)

    @property
    def is_unknown(self) -> bool:
        """Whether no record says something about the variant that one should."""
        return any(cell.state == UNKNOWN for cell in self.cells)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All kinds of evidence, in order."""
        return self.calls, self.mutants, self.compilation, self.hardware


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
    """The largest error of all calls with those dtypes, and the call that has it."""

    query_dtype: str
    kv_dtype: str
    where: str
    fraction: str
    variant: str
    case: str
    target: str


@dataclasses.dataclass(frozen=True)
class RecordRow:
    """A record: what it was made with, or the command that makes it."""

    file: str
    of_what: str
    command: str
    is_there: bool
    where: str
    made_with: Mapping[str, str]
    seconds: str


@dataclasses.dataclass(frozen=True)
class Page:
    """All of it. unknown: variants in the records that no spec makes."""

    generations: tuple[str, ...]
    figures: tuple[Figure, ...]
    worst: tuple[Worst, ...]
    records: tuple[RecordRow, ...]
    rows: tuple[Row, ...]
    unknown: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """The variants that have a section on the page."""
        return frozenset(row.name for row in self.rows)


def shown(variants: Sequence[Variant], found: Found) -> list[Variant]:
    """The variants that the page is about: the core, and others that a record is about."""
    chosen = [each for each in variants if each.tier == TIERS[0] or each.name in found.named]
    return sorted(chosen, key=lambda each: TIERS.index(each.tier))


def make(variants: Sequence[Variant], found: Found, digests: Mapping[str, str]) -> Page:
    """The page.

    variants: of every tier. digests: of the kernels at hand, at least of those in records.
    """
    chosen = shown(variants, found)
    generations = _generations(found)
    rows = tuple(
        _row(variant, found, digests.get(variant.name, ""), generations) for variant in chosen
    )
    names = {variant.name for variant in variants}
    return Page(
        generations=generations,
        figures=tuple(_figures(rows, found)),
        worst=tuple(_worst_of_all(found, {row.name for row in rows})),
        records=tuple(_record_row(source, found) for source in formats.SOURCES),
        rows=rows,
        unknown=tuple(sorted(found.named - names)),
    )


def _generations(found: Found) -> tuple[str, ...]:
    """The columns: what specs name, and whatever else a record has."""
    outcomes = found.compilation.outcomes if found.compilation else ()
    others = {outcome.device for outcome in outcomes} - set(GENERATIONS)
    return (*GENERATIONS, *sorted(others))


# --- a variant -----------------------------------------------------------------------------------


def _row(variant: Variant, found: Found, digest: str, generations: Sequence[str]) -> Row:
    tried = _of_variant(found.validation, variant)
    on_tpu = _of_variant(found.hardware, variant)
    calls = _calls(variant.name, tried, digest)
    mutants = _mutants(variant.name, found, digest)
    compilation, on_devices = _compilation(variant.name, found, digest, generations)
    hardware = _hardware(variant.name, on_tpu, digest)
    cells = (
        calls.cell,
        _races(variant.name, tried, digest),
        mutants.cell,
        *on_devices,
        _error(variant.name, tried, digest),
        hardware.cell,
    )
    axes = {path: wording.said(value) for path, value in wording.axes_in_short(variant).items()}
    return Row(
        name=variant.name,
        tier=variant.tier,
        about=wording.summary(variant),
        axes=axes,
        digest=digest,
        cells=cells,
        calls=calls,
        mutants=mutants,
        compilation=compilation,
        hardware=hardware,
        words=_words(variant, axes, cells),
    )


def _words(variant: Variant, axes: Mapping[str, str], cells: Iterable[Cell]) -> str:
    words = [variant.name, variant.family, variant.tier]
    words += [f"{path}={value.replace(', ', ',')}" for path, value in axes.items()]
    for cell in cells:
        words += [cell.text] + ([STALE] if cell.is_stale else [])
    return " ".join(dict.fromkeys(words)).lower()


def _of_variant(record: formats.Validation | None, variant: Variant) -> Tried | None:
    if record is None:
        return None
    return next((each for each in record.variants if each.variant == variant.name), None)


def _not_run(target: str, source: Source, text: str = NOT_RUN) -> Cell:
    return Cell(text, UNKNOWN, target, command=source.command)


def _calls(name: str, tried: Tried | None, digest: str) -> Part:
    target = f"{name}-calls"
    if tried is None or not tried.calls:
        return Part(_not_run(target, formats.VALIDATION), NOT_RUN)
    well = sum(call.is_well for call in tried.calls)
    total = len(tried.calls)
    state = WELL if well == total else BAD
    cell = Cell(f"{well} of {total}", state, target, tried.digest != digest)
    rows = _call_rows(tried, _worst_id(name, "calls"))
    return Part(cell, f"{well} of {counted(total, 'call')} passed", tried.digest, rows)


def _races(name: str, tried: Tried | None, digest: str) -> Cell:
    target = f"{name}-calls"
    watched = [call for call in tried.calls if call.races] if tried else []
    if tried is None or not watched:
        return _not_run(target, formats.VALIDATION)
    races = sum(call.found_race for call in watched)
    if races:
        text, state = f"{counted(races, 'race')} in {len(watched)}", BAD
    else:
        text, state = f"none in {len(watched)}", WELL
    return Cell(text, state, target, tried.digest != digest)


def _error(name: str, tried: Tried | None, digest: str) -> Cell:
    worst = _worst(tried)
    if tried is None or worst is None or worst.fraction is None:
        if tried is not None and tried.calls:
            return Cell("not measured", BAD, f"{name}-calls", tried.digest != digest)
        return _not_run(f"{name}-calls", formats.VALIDATION)
    state = WELL if worst.fraction <= 1 else BAD
    return Cell(_fraction(worst.fraction), state, _worst_id(name, "calls"), tried.digest != digest)


def _hardware(name: str, tried: Tried | None, digest: str) -> Part:
    target = f"{name}-hardware"
    if tried is None or not tried.calls:
        return Part(_not_run(target, formats.HARDWARE, f"no, {NOT_RUN}"), NOT_RUN)
    failed = sum(not call.is_well for call in tried.calls)
    total = len(tried.calls)
    text, state = (f"no, {failed} of {total} failed", BAD) if failed else ("yes", WELL)
    return Part(
        Cell(text, state, target, tried.digest != digest),
        f"{total - failed} of {counted(total, 'call')} passed",
        tried.digest,
        _call_rows(tried, _worst_id(name, "hardware")),
    )


def _worst(tried: Tried | None) -> Call | None:
    """The call with the largest error."""
    measured = [call for call in tried.calls if call.fraction is not None] if tried else []
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
            seed="" if call.seed is None else str(call.seed),
            races="detected" if call.races else "not looked for",
            outcome=call.problem or "passed",
            state=WELL if call.is_well else BAD,
            fraction="" if call.fraction is None else _fraction(call.fraction),
            seconds=_seconds(call.seconds),
            target=worst_id if call is worst else "",
        )
        for call in sorted(tried.calls, key=lambda call: call.is_well)
    )


def _mutants(name: str, found: Found, digest: str) -> Part:
    target = f"{name}-mutants"
    record = found.mutants
    applying = [each for each in record.mutants if name in each.stands_for] if record else []
    if record is None or not (applying or name in record.digests):
        return Part(_not_run(target, formats.MUTANTS), NOT_RUN)
    tried = record.digests.get(name, "")
    if not applying:
        cell = Cell("none apply", APART, target, tried != digest)
        return Part(cell, "none of them applies", tried)
    killed = sum(mutant.is_killed for mutant in applying)
    total = len(applying)
    state = WELL if killed == total else BAD
    lived = f", {total - killed} survived" if killed < total else ""
    return Part(
        Cell(f"{killed} of {total}{lived}", state, target, tried != digest),
        f"{killed} of {counted(total, 'mutant')} killed{lived}",
        tried,
        mutants=tuple(
            _mutant_row(mutant, name)
            for mutant in sorted(applying, key=lambda mutant: mutant.is_killed)
        ),
    )


def _mutant_row(mutant: Mutant, name: str) -> MutantRow:
    mode = f", {mutant.mode}" if mutant.mode else ""
    return MutantRow(
        mutation=mutant.mutation,
        function=mutant.function,
        host=mutant.variant,
        is_host=mutant.variant == name,
        killed_by=f"{mutant.case}{mode}" if mutant.is_killed else "survived",
        state=WELL if mutant.is_killed else BAD,
        how=mutant.how,
        tried=str(mutant.tried),
        seconds=_seconds(mutant.seconds),
    )


def _compilation(
    name: str, found: Found, digest: str, generations: Sequence[str]
) -> tuple[Part, list[Cell]]:
    """What the compiler said of a variant, and a cell for every generation."""
    target = f"{name}-compile"
    record = found.compilation
    outcomes = {}
    if record is not None:
        outcomes = {each.device: each for each in record.outcomes if each.variant == name}
    nothing = _not_run(target, formats.COMPILATION)
    if record is None or not outcomes:
        return Part(nothing, NOT_RUN), [nothing for _ in generations]
    tried = record.digests.get(name, "")
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
            cells.append(Cell(text, rows[device].state, rows[device].target, tried != digest))
        else:
            # Of a generation that no spec names, nothing is missing.
            is_asked = device in GENERATIONS
            cells.append(nothing if is_asked else Cell(NOT_RUN, APART, target))
    is_well = all(each.is_well for each in outcomes.values())
    by_verdict: dict[str, list[str]] = {}
    for each in rows.values():
        by_verdict.setdefault(each.verdict, []).append(each.device)
    summary = "; ".join(f"{verdict} for {', '.join(on)}" for verdict, on in by_verdict.items())
    cell = Cell(summary, WELL if is_well else BAD, target, tried != digest)
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
        reason=outcome.reason,
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
        _figure_of_compilation(found, names),
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
    if found.mutants is None:
        return _missing("Mutants")
    mutants = [each for each in found.mutants.mutants if names.intersection(each.stands_for)]
    killed = sum(mutant.is_killed for mutant in mutants)
    mutations = len({(mutant.mutation, mutant.function) for mutant in mutants})
    return Figure(
        "Mutants",
        f"{killed:,} of {len(mutants):,}",
        (f"killed, of {counted(mutations, 'mutation')}",),
        WELL if killed == len(mutants) else BAD,
    )


def _figure_of_compilation(found: Found, names: set[str]) -> Figure:
    if found.compilation is None:
        return _missing("Compiled")
    outcomes = [each for each in found.compilation.outcomes if each.variant in names]
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
    return Figure("Compiled", value, tuple(notes), WELL if is_well else BAD)


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
    return Figure(
        "Stale",
        str(stale) if stale else "none",
        (
            "variants of which a record tried another text than that at hand",
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
            target = _worst_id(variant, part)
            yield Worst(*dtypes, record.where, _fraction(fraction), variant, case, target)


def _width(dtypes: tuple[str, str]) -> tuple[list[int], tuple[str, str]]:
    """Orders dtypes, the widest first."""
    return [-BIT_WIDTHS.get(dtype, 0) for dtype in dtypes], dtypes


def _record_row(source: Source, found: Found) -> RecordRow:
    record = found.of(source)
    if record is None:
        return RecordRow(source.file, source.of_what, source.command, False, "", {}, "")
    return RecordRow(
        file=source.file,
        of_what=source.of_what,
        command=record.command,
        is_there=True,
        where=record.where if isinstance(record, formats.Validation) else "",
        made_with=record.made_with,
        seconds=f"{record.seconds:,.0f}",
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
