"""Every error a user of rpagen can see.

Each says what is wrong and where, what was expected, and what to do next; the parts are kept
apart, so that `--json` and tests need not parse a sentence.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rpagen.spec.model import Mark

SHOWN_LENGTH = 60
"""Characters of a user's own text that an error repeats."""

LISTED_LENGTH = 160
"""Characters of the words that an error lists."""


def reason(error: Exception) -> str:
    """What an error says, or its name where it says nothing."""
    return str(error).strip() or type(error).__name__


class RpagenError(Exception):
    """Something the user can put right. The base of every error of rpagen.

    exit_status: what the command ends with; 2 is wrong usage or bad input.
    notes: what was under way, innermost first, added by `context`.
    """

    exit_status = 2

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.notes: list[str] = []

    def parts(self) -> dict[str, object]:
        """What the error says, by part, as `--json` prints it."""
        return {"problem": self.problem, "notes": list(self.notes)}

    def __str__(self) -> str:
        return "\n".join([self.problem, *(f"  {note}" for note in self.notes)])


class InputError(RpagenError):
    """A file or an option is wrong.

    place: the file, with line and column where they are known, or the option. field: the dotted
    path of what is wrong there; empty for all of it.
    expected: what would have been right. next_step: what to type or change.
    """

    def __init__(
        self, problem: str, *, place: str, field: str = "", expected: str, next_step: str
    ) -> None:
        super().__init__(problem)
        self.place = place
        self.field = field
        self.expected = expected
        self.next_step = next_step

    def parts(self) -> dict[str, object]:
        """What the error says, by part, as `--json` prints it."""
        return {
            **self._place_parts(),
            "field": self.field,
            "problem": self.problem,
            "expected": self.expected,
            "next_step": self.next_step,
            "notes": list(self.notes),
        }

    def _place_parts(self) -> dict[str, object]:
        return {"place": self.place}

    def __str__(self) -> str:
        where = f"{self.place}: {self.field}" if self.field else self.place
        lines = [
            f"{where}: {self.problem}",
            f"  expected: {self.expected}",
            f"  next: {self.next_step}",
            *(f"  {note}" for note in self.notes),
        ]
        return "\n".join(lines)


class SpecError(InputError):
    """A spec is wrong; `mark` is the place."""

    def __init__(
        self, problem: str, *, mark: Mark, field: str, expected: str, next_step: str
    ) -> None:
        super().__init__(
            problem, place=str(mark), field=field, expected=expected, next_step=next_step
        )
        self.mark = mark

    def _place_parts(self) -> dict[str, object]:
        return {"file": self.mark.file, "line": self.mark.line, "column": self.mark.column}


@contextlib.contextmanager
def context(note: str) -> Iterator[None]:
    """Add `note` (such as 'while expanding family rpa') to any rpagen error raised inside."""
    try:
        yield
    except RpagenError as error:
        error.notes.append(note)
        raise


def quoted(text: str) -> str:
    """A user's own text in quotes, safe to print."""
    return f'"{escaped(text)}"'


def escaped(text: str) -> str:
    """A user's own text, safe to print: without control characters, and cut where it is long."""
    return printable(text if len(text) <= SHOWN_LENGTH else text[:SHOWN_LENGTH] + "...")


def printable(text: str) -> str:
    """All of a user's own text, such as a path, without control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def listed(words: Iterable[object]) -> str:
    """Words as an error lists them; the first of very many."""
    every = [str(word) for word in words]
    ends = itertools.accumulate(len(word) for word in every)
    some = [word for word, end in zip(every, ends, strict=True) if end <= LISTED_LENGTH]
    more = len(every) - len(some)
    return ", ".join(some) + (f" and {more} more" if more else "")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be, if any is near."""
    # A long text is no misspelt word, and comparing it would cost time.
    if len(word) > SHOWN_LENGTH:
        return None
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)
