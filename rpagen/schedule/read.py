"""Reading the schedule that libtpu writes down for a kernel.

libtpu writes two texts for each kernel that are read here, and both have one entry for a *bundle*,
what a core does in one cycle: `*-final_bundles.txt` has its operations, and
`*-final_hlo-static-per-bundle-utilization.txt` counts the slots that they take. The form is
nowhere documented; what is relied on was checked with dumps of libtpu 0.0.48 to 0.0.52 for v5e, v6e
and v7x. Whatever has another form is an error with its line.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from rpagen.errors import InputError

BUNDLES = "-final_bundles.txt"
UTILIZATION = "-final_hlo-static-per-bundle-utilization.txt"
_ANALYSIS = "-schedule-analysis_final_bundles.txt"

_NEXT_STEP = (
    "check that this is a dump of libtpu 0.0.48 to 0.0.52, as `rpagen predict --help` tells to make"
    " it; if it is, this libtpu writes another form: mend rpagen/schedule/read.py"
)

_KEY_ENDS = "= control target key end"
_BUNDLE = re.compile(
    r" *(?P<address>0|0x[0-9a-f]+) *(?P<marks>(?:[A-Z]{2} *)*): *(?P<depth>>*) *"
    r"\{(?P<body>.*)\}(?P<after>[\s\0]*)"
)
_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)  # one may hold braces and line breaks
_REGION_END = re.compile(r"\bEnd region \d")
_REGION_START = re.compile(r"Start(?:/End empty)? region (\d+)")
_OPERATION = re.compile(
    r"(?:%(?P<result>\w+) = )?"
    r"(?P<name>[a-z][\w.-]*(?:<no memory space>|\[\d+\][\w.]*)?)(?=[ ]|$)"
    r"(?: \[(?P<attributes>(?:thread|resolvable):[^\]]*)\])?"
    r" *(?:\((?P<negated>!?)%(?P<predicate>\w+)(?:, (?P<otherwise>[^()]*))?\),?)?"
    r" *(?P<operands>.*)"
)
# Loads have their predicate at the end, stores behind their address.
_AFTER = re.compile(
    r"(?P<operands>\[.*?\]) *\((?P<negated>!?)%(?P<predicate>p\w+)(?:, (?P<otherwise>[^()]*))?\)"
    r"(?:,(?P<rest> .*))?"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Predicate:
    """A condition of an operation: a value, or that it is false."""

    value: str
    is_negated: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One slot of a bundle.

    result: the value that it defines, such as "s12_s3": value 12, in scalar register 3.
    name: such as "sadd.s32".
    operands: as they are written: values as "%s12_s3", numbers, allocations as "#allocation3",
        and addresses in brackets.
    predicate: it takes effect only where this holds.
    otherwise: of an operation that chooses: the operand that is its result where the predicate
        does not hold. Empty for one that then has no effect.
    comment: what libtpu says of it.
    """

    result: str
    name: str
    operands: tuple[str, ...]
    predicate: Predicate | None
    otherwise: str
    comment: str

    @property
    def values(self) -> list[str]:
        """The values that it reads, its predicate apart."""
        return re.findall(r"%(\w+)", " ".join((*self.operands, self.otherwise)))


@dataclasses.dataclass(frozen=True, slots=True)
class Bundle:
    """What a core does in one cycle.

    marks: "LB" where the body of a loop begins, "PF" where control goes on past a predicated part.
    depth: of loops around it. regions: that start here, by number. ends_region: whether one ends
    here. line: in the text, from 1.
    """

    address: int
    marks: tuple[str, ...]
    depth: int
    operations: tuple[Operation, ...]
    regions: tuple[int, ...]
    ends_region: bool
    line: int


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The bundles of one kernel, in order: the address of each is its index.

    name: that the compiler gave the kernel, such as "rpa_decode_p64.1".
    place: the file, for errors.
    """

    name: str
    place: str
    bundles: tuple[Bundle, ...]

    @cached_property
    def starts(self) -> Mapping[int, int]:
        """The bundle at which each region starts."""
        return {region: bundle.address for bundle in self.bundles for region in bundle.regions}

    def error(self, bundle: Bundle, problem: str, *, expected: str) -> InputError:
        """An error about a bundle."""
        return _error(self.place, bundle.line, problem, expected)


@dataclasses.dataclass(frozen=True)
class Slots:
    """How many slots of each kind there are in a bundle, and how many each bundle takes.

    VLOAD counts VLOAD:FILL too, and VSTORE counts VSTORE:SPILL.
    """

    kinds: tuple[str, ...]
    capacities: tuple[int, ...]
    taken: tuple[tuple[int, ...], ...]


def schedule(text: str, name: str, place: str) -> Schedule:
    """The schedule that `*-final_bundles.txt` holds.

    Raises:
        InputError: a line is of no known form.
    """
    bundles: list[Bundle] = []
    for line, entry in _entries(text, place):
        comments = _COMMENT.findall(entry)
        match = _BUNDLE.fullmatch(_COMMENT.sub("\0", entry))
        if match is None:
            raise _error(place, line, f"{_shown(entry)} is no bundle", "`0x1f : { ... }`")
        address = int(match["address"], 16)
        if address != len(bundles):
            raise _error(
                place,
                line,
                f"bundle {address:#x} follows bundle {len(bundles) - 1:#x}",
                "bundles with consecutive addresses",
            )
        operations = _operations(match["body"], comments, place, line)
        after = comments[match["body"].count("\0") :]
        for comment in after:
            if comment.count("Start") != len(_REGION_START.findall(comment)):
                raise _error(
                    place, line, f"{_shown(comment.strip())} is not understood", "`Start region 1`"
                )
        bundles.append(
            Bundle(
                address,
                tuple(match["marks"].split()),
                len(match["depth"]),
                tuple(operations),
                tuple(int(region) for each in after for region in _REGION_START.findall(each)),
                any(_REGION_END.search(each) for each in after),
                line,
            )
        )
    if not bundles:
        raise _error(place, 1, "there is no bundle", "bundles after the key")
    return Schedule(name, place, tuple(bundles))


def slots(text: str, place: str) -> Slots:
    """What `*-static-per-bundle-utilization.txt` holds.

    Raises:
        InputError: a line is of no known form.
    """
    lines = text.splitlines()
    if len(lines) < 4 or not lines[0].startswith("== CAPA") or lines[3] != "== UTILIZATION:":
        raise _error(place, 1, "the head is not known", "`== CAPACTIY:`, kinds, numbers, a rule")
    kinds = tuple(lines[1].split(", "))
    rows = [
        tuple(map(int, line.split())) if re.fullmatch(r"[\d ]+", line) else ()
        for line in (lines[2], *lines[4:])
    ]
    for number, row in enumerate(rows):
        if len(row) != len(kinds):
            line = number + 4 if number else 3
            raise _error(
                place, line, f"{_shown(lines[line - 1])} is no row", f"{len(kinds)} numbers"
            )
    return Slots(kinds, rows[0], tuple(rows[1:]))


@dataclasses.dataclass(frozen=True)
class Texts:
    """The files of one kernel in a dump."""

    name: str
    bundles: Path
    utilization: Path

    def schedule(self) -> Schedule:
        """Its bundles.

        Raises:
            InputError: a line is of no known form.
        """
        text = self.bundles.read_text(encoding="utf-8", errors="replace")
        return schedule(text, self.name, str(self.bundles))

    def slots(self) -> Slots:
        """The slots that they take.

        Raises:
            InputError: a line is of no known form.
        """
        return slots(self.utilization.read_text(encoding="utf-8"), str(self.utilization))


def texts(folder: Path) -> dict[str, Texts]:
    """The files of every kernel and fusion in a dump, by name, in the order of their writing.

    Raises:
        InputError: there is none, or one lacks a file.
    """
    found: dict[str, Texts] = {}
    paths = sorted(folder.iterdir(), key=lambda path: path.name) if folder.is_dir() else []
    tables = {_stem(path, UTILIZATION): path for path in paths if path.name.endswith(UTILIZATION)}
    for path in paths:
        if path.name.endswith(BUNDLES) and not path.name.endswith(_ANALYSIS):
            stem = _stem(path, BUNDLES)
            if stem not in tables:
                raise InputError(
                    f"{path.name} has no table of slots beside it",
                    place=str(folder),
                    expected=f"a file {stem}-*{UTILIZATION}",
                    next_step=_NEXT_STEP,
                )
            name = stem.partition("-")[2]
            found[name] = Texts(name, path, tables[stem])
    if not found:
        raise InputError(
            "there is no schedule of the TPU compiler",
            place=str(folder),
            expected=f"files *{BUNDLES}",
            next_step="make a dump as `rpagen predict --help` tells",
        )
    return found


def _stem(path: Path, ending: str) -> str:
    # TIME-NAME-NUMBER-final_bundles.txt
    return path.name[: -len(ending)].rpartition("-")[0]


def _entries(text: str, place: str) -> Iterator[tuple[int, str]]:
    """Bundles with the lines of their comments that follow, and the line of each."""
    lines = text.splitlines()
    try:
        start = lines.index(_KEY_ENDS) + 1
    except ValueError:
        raise _error(place, 1, "there is no key of marks", f"a line `{_KEY_ENDS}`") from None
    entry: list[str] = []
    first = start + 1
    for number, line in enumerate(lines[start:], start + 1):
        if not entry and not line.strip():
            continue
        if not entry:
            first = number
        entry.append(line)
        whole = "\n".join(entry)
        if whole.count("/*") == whole.count("*/"):  # a comment may hold line breaks
            yield first, whole
            entry = []
    if entry:
        raise _error(place, first, "a comment does not end", "`*/`")


def _operations(body: str, comments: Sequence[str], place: str, line: int) -> Iterator[Operation]:
    """The operations of a bundle in which each comment is a zero."""
    said = iter(comments)
    for text in body.split(";;"):
        own = " ".join(next(said).strip() for _ in range(text.count("\0")))
        bare = " ".join(text.replace("\0", "").split())
        if bare:
            yield _operation(bare, own, place, line)


def _operation(text: str, comment: str, place: str, line: int) -> Operation:
    match = _OPERATION.fullmatch(text)
    if match is None:
        raise _error(place, line, f"{_shown(text)} is no operation", "`%result = name operands`")
    operands, where = match["operands"], match
    if match["predicate"] is None and (after := _AFTER.fullmatch(operands)):
        operands, where = after["operands"] + (after["rest"] or ""), after
    return Operation(
        match["result"] or "",
        match["name"],
        tuple(_split(operands)),
        Predicate(where["predicate"], where["negated"] == "!") if where["predicate"] else None,
        where["otherwise"] or "",
        comment,
    )


def _split(operands: str) -> Iterator[str]:
    """At commas outside of brackets."""
    depth, start = 0, 0
    for index, character in enumerate(operands):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            yield operands[start:index].strip()
            start = index + 1
    if operands[start:].strip():
        yield operands[start:].strip()


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _error(place: str, line: int, problem: str, expected: str) -> InputError:
    return InputError(problem, place=f"{place}:{line}", expected=expected, next_step=_NEXT_STEP)
