"""From a line of an emitted module back to the line of a template that printed it.

A second rendering of the module, with an invisible mark wherever a template's own line begins or a
value is printed, tells where each character comes from. What black made of the text is then laid
beside it, token by token: black adds and removes parentheses and commas, splits statements and
moves comments. What else differs, such as text that a template measured with its marks, is skipped.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import io
import itertools
import re
import tokenize
from collections.abc import Iterator

import jinja2
import jinja2.ext
import jinja2.lexer

from rpagen.emit import render, resources
from rpagen.emit.render import Module
from rpagen.spec.model import Catalogue

# Characters for private use, which no template and no spec may print.
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]+):([0-9]+){_CLOSE}")

_BLACKS_OWN = frozenset("(),;")
"""Tokens that black adds and removes."""

_ALIKE_AGAIN = 4
"""Tokens in a row that are the same on both sides, after some that were not."""

# Quotes, blanks in docstrings and before comments, and the case of letters in numbers. Since Python
# 3.12, f-strings come in parts.
_BLACKS_WAY = frozenset(
    getattr(tokenize, name)
    for name in ("STRING", "COMMENT", "NUMBER", "FSTRING_START", "FSTRING_END")
    if hasattr(tokenize, name)
)
"""Kinds of tokens that black writes in its own way."""

_LAYOUT = frozenset(
    {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    """A line of a template: its file below `templates/`, and its 1-based number."""

    template: str
    line: int

    def __str__(self) -> str:
        return f"templates/{self.template}:{self.line}"

    def text(self) -> str:
        """The line, as the template has it."""
        file = resources.templates_dir() / self.template
        return file.read_text(encoding="utf-8").split("\n")[self.line - 1]


@dataclasses.dataclass(frozen=True)
class Traced:
    """A module's text before formatting, and where each part of it was printed.

    offsets: where in the text a part begins, rising. places: what printed that part.
    """

    text: str
    offsets: tuple[int, ...]
    places: tuple[Place, ...]

    def place_at(self, row: int, column: int = 0) -> Place:
        """What printed the first ink from a column of a 1-based row of the text on."""
        line = self._lines[row - 1]
        blanks = len(line[column:]) - len(line[column:].lstrip())
        offset = self._line_starts[row - 1] + column + blanks
        return self.places[max(bisect.bisect_right(self.offsets, offset) - 1, 0)]

    @functools.cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    @functools.cached_property
    def _line_starts(self) -> list[int]:
        return list(itertools.accumulate((len(line) + 1 for line in self._lines), initial=0))

    def parts(self) -> dict[Place, str]:
        """All that each line of a template printed."""
        printed: dict[Place, str] = {}
        ends = (*self.offsets[1:], len(self.text))
        for start, end, place in zip(self.offsets, ends, self.places, strict=True):
            printed[place] = printed.get(place, "") + self.text[start:end]
        return printed


def traced(module: Module, catalogue: Catalogue) -> Traced:
    """The text of a module before formatting, with the origin of every part of it.

    Raises:
        render.Unfinished: a template is wrong.
    """
    return _without_marks(render.render(module, catalogue, _marking_environment()))


def places_of(body: str, source: Traced) -> dict[int, Place]:
    """By the number of each line of a formatted body, the template line that printed it.

    Lines that hold nothing have no place. One that holds only what black added has its neighbour's.
    """
    places: dict[int, Place] = {}
    for ours, theirs in _aligned(_tokens(body), _tokens(source.text)):
        # A string over several lines has as many in both.
        for number, line in enumerate(ours.string.split("\n")):
            if line.strip():
                column = 0 if number else theirs.start[1]
                place = source.place_at(theirs.start[0] + number, column)
                places.setdefault(ours.start[0] + number, place)
    known = sorted(places)
    for number, line in enumerate(body.split("\n"), start=1):
        if known and line.strip() and number not in places:
            before = bisect.bisect_left(known, number) - 1
            places[number] = places[known[max(before, 0)]]
    return places


class _Marks(jinja2.ext.Extension):
    """Has every template print a mark before each of its own lines and before each value."""

    def filter_stream(self, stream: jinja2.lexer.TokenStream) -> Iterator[jinja2.lexer.Token]:
        template = stream.name or ""
        for token in stream:
            if token.type == "data":
                text = "\n".join(
                    _mark(template, token.lineno + number) + line if line else line
                    for number, line in enumerate(token.value.split("\n"))
                )
                yield jinja2.lexer.Token(token.lineno, "data", text)
            else:
                if token.type == "variable_begin":
                    yield jinja2.lexer.Token(token.lineno, "data", _mark(template, token.lineno))
                yield token


def _mark(template: str, line: int) -> str:
    return f"{_OPEN}{template}:{line}{_CLOSE}"


def _marking_environment() -> jinja2.Environment:
    return render.make_environment([_Marks])


def _without_marks(text: str) -> Traced:
    pieces: list[str] = []
    offsets: list[int] = []
    places: list[Place] = []
    length = start = 0
    for mark in _MARK.finditer(text):
        pieces.append(text[start : mark.start()])
        length += len(pieces[-1])
        offsets.append(length)
        places.append(Place(mark[1], int(mark[2])))
        start = mark.end()
    pieces.append(text[start:])
    return Traced("".join(pieces), tuple(offsets), tuple(places))


def _tokens(code: str) -> list[tokenize.TokenInfo]:
    readline = io.StringIO(code).readline
    return [token for token in tokenize.generate_tokens(readline) if token.type not in _LAYOUT]


def _aligned(
    ours: list[tokenize.TokenInfo], theirs: list[tokenize.TokenInfo]
) -> Iterator[tuple[tokenize.TokenInfo, tokenize.TokenInfo]]:
    """The tokens of formatted code, each with the one that it was before formatting."""
    mine = other = 0
    while mine < len(ours) and other < len(theirs):
        if _same(ours[mine], theirs[other]):
            yield ours[mine], theirs[other]
            mine, other = mine + 1, other + 1
        elif ours[mine].string in _BLACKS_OWN:
            mine += 1
        elif theirs[other].string in _BLACKS_OWN:
            other += 1
        elif ours[mine].type == tokenize.COMMENT:  # moved past some of the above, or behind code
            mine += 1
        elif theirs[other].type == tokenize.COMMENT:
            other += 1
        else:
            mine, other = _alike_again(ours, theirs, mine, other)


def _alike_again(
    ours: list[tokenize.TokenInfo], theirs: list[tokenize.TokenInfo], mine: int, other: int
) -> tuple[int, int]:
    """Where both sides go on alike, skipping as little as possible; the ends if they do not."""
    for skipped in range(1, len(ours) - mine + len(theirs) - other):
        for at in range(mine, mine + skipped + 1):
            ahead = ours[at : at + _ALIKE_AGAIN]
            there = other + mine + skipped - at
            counterparts = theirs[there : there + _ALIKE_AGAIN]
            if ahead and len(ahead) == len(counterparts) and all(map(_same, ahead, counterparts)):
                return at, there
    return len(ours), len(theirs)


def _same(ours: tokenize.TokenInfo, theirs: tokenize.TokenInfo) -> bool:
    if ours.type != theirs.type:
        return False
    return ours.type in _BLACKS_WAY or ours.string == theirs.string
