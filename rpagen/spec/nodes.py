"""YAML text to nodes that know their place, with nothing in them that can run or explode.

Only mappings with plain keys, lists and scalars come through. Anchors, aliases and tags are
refused while the text is being composed, and so are files that are large or deeply nested, so
that no input costs more than a few seconds.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import stat
from collections.abc import Iterable, Mapping, Sequence

import yaml

from rpagen import errors
from rpagen.errors import SpecError
from rpagen.spec.axes import AxisValue
from rpagen.spec.model import Mark

LARGEST_FILE = 1 << 20
LARGEST_SIZE = 1 << 30
DEEPEST_NESTING = 16
MOST_NODES = 10_000

_TAG_PREFIX = "tag:yaml.org,2002:"
_KINDS = {
    "int": "number",
    "float": "number",
    "bool": "truth value",
    "timestamp": "date",
}


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A word, a number or the like: its text as written, and the YAML type it resolves to."""

    text: str
    kind: str

    def __str__(self) -> str:
        if self.kind == "null":
            return "nothing"
        if self.kind in _KINDS:
            return f"the {_KINDS[self.kind]} {errors.escaped(self.text)}"
        return f"the text {errors.quoted(self.text)}"


@dataclasses.dataclass(frozen=True)
class Node:
    """A value in a spec file.

    field: its dotted path. mark: its place. key_mark: the place of its key, else its own.
    """

    field: str
    mark: Mark
    key_mark: Mark
    content: Scalar | tuple[Node, ...] | Mapping[str, Node]

    def entries(
        self, known: Iterable[str], required: Iterable[str] = (), why: str = ""
    ) -> Mapping[str, Node]:
        """The mapping's values by key; `why` says what the required keys are required for.

        Raises:
          SpecError: not a mapping, an unknown key, or a required key is missing.
        """
        known = list(known)
        if not isinstance(self.content, Mapping):
            raise self._wrong_type(
                f"a mapping (keys: {errors.listed(known)})",
                "write it as {key: value}" if self.field else "begin with family: NAME",
            )
        for key, node in self.content.items():
            if key not in known:
                raise SpecError(
                    f"unknown key {errors.quoted(key)}",
                    mark=node.key_mark,
                    field=self.field,
                    expected=f"one of {errors.listed(known)}",
                    next_step=did_you_mean(key, known) or "remove the key",
                )
        for key in required:
            if key not in self.content:
                raise SpecError(
                    f"the key {key} is missing",
                    mark=self.mark,
                    field=self.field,
                    expected=f"the keys {errors.listed(required)}{why}",
                    next_step=f"add the key {key}",
                )
        return self.content

    def items(self, what: str) -> tuple[Node, ...]:
        """The list's values, at least one; `what` says what it lists.

        Raises:
          SpecError: not a list, or an empty one.
        """
        if not isinstance(self.content, tuple):
            single = isinstance(self.content, Scalar) and self.content.text
            value = errors.escaped(single) if single else "value, value"
            raise self._wrong_type(f"a list of {what}", f"write it in brackets: [{value}]")
        if not self.content:
            raise SpecError(
                "the list is empty",
                mark=self.mark,
                field=self.field,
                expected=f"a list of {what}",
                next_step="add a value, or remove the key",
            )
        return self.content

    def text(self) -> str:
        """The text of a scalar that is not empty.

        Raises:
          SpecError: not a text, an empty one, or one that cannot be printed.
        """
        if not isinstance(self.content, Scalar) or self.content.kind != "str":
            raise self._wrong_type("a text", "write words, in quotes if need be")
        if not self.content.text.strip():
            raise SpecError(
                "the text is empty",
                mark=self.mark,
                field=self.field,
                expected="a text",
                next_step="write it",
            )
        text = self.content.text.strip()
        if not text.replace("\n", " ").isprintable():
            raise SpecError(
                "the text has characters that cannot be printed",
                mark=self.mark,
                field=self.field,
                expected="a text that can stand in source code",
                next_step="write it without escapes",
            )
        return text

    def size(self) -> int:
        """A whole number from 1 on.

        Raises:
          SpecError: not one, or one that 32 bits may not hold.
        """
        content = self.content
        if isinstance(content, Scalar) and content.kind == "int" and content.text.isdecimal():
            value = int(content.text)
            if 1 <= value <= LARGEST_SIZE:
                return value
        raise SpecError(
            f"found {content if isinstance(content, Scalar) else 'no number'}",
            mark=self.mark,
            field=self.field,
            expected=f"a whole number from 1 to {LARGEST_SIZE}",
            next_step="write one",
        )

    def one_of(self, allowed: Sequence[str | int]) -> str | int:
        """The scalar's value, which is one of `allowed`.

        Raises:
          SpecError: not a scalar, of the wrong type, or none of the allowed values.
        """
        expected = f"one of {errors.listed(allowed)}"
        # Compared as written: 0x2 and 02 are not how anyone else writes 2.
        by_text = {str(value): value for value in allowed}
        kinds = {"int" if isinstance(value, int) else "str" for value in allowed}
        if not isinstance(self.content, Scalar) or self.content.kind not in kinds:
            quoted = isinstance(self.content, Scalar) and self.content.text in by_text
            raise self._wrong_type(
                expected, "remove the quotes" if quoted else "write one of these"
            )
        if self.content.text not in by_text:
            is_word = self.content.kind == "str"
            question = did_you_mean(self.content.text, by_text) if is_word else None
            raise SpecError(
                f"{self.content} is not allowed here",
                mark=self.mark,
                field=self.field,
                expected=expected,
                next_step=question or "write one of these",
            )
        return by_text[self.content.text]

    def _wrong_type(self, expected: str, next_step: str) -> SpecError:
        if isinstance(self.content, Scalar):
            found = str(self.content)
        else:
            found = "a mapping" if isinstance(self.content, Mapping) else "a list"
        return SpecError(
            f"found {found}",
            mark=self.mark,
            field=self.field,
            expected=expected,
            next_step=next_step,
        )


def as_yaml(value: AxisValue) -> str:
    """An axis value as a spec writes it."""
    return f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The question to ask about a misspelt word, if a known one is near."""
    known = list(known)
    head, _, rest = word.partition(".")
    if rest and head in known:
        return f"did you mean {head}: {{{rest}: ...}}?"
    begun = (each for each in known if each.startswith(f"{word}."))
    near = next(begun, None) or errors.nearest(word, known)
    return f"did you mean {near}?" if near else None


def read(path: pathlib.Path, shown: str) -> Node:
    """The root node of the YAML file at `path`, which marks and errors call `shown`.

    Raises:
      SpecError: the file cannot be read, is too large, or `parse` refuses its text.
    """
    start = Mark(shown, 1, 1)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise _file_error("not a file", start, "give the path of a spec file")
        if status.st_size > LARGEST_FILE:
            raise _file_error(
                f"the file has {status.st_size:,} bytes", start, "split it into several families"
            )
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise _file_error(problem, start, "check the path and its permissions") from error
    return parse(_decode(data, shown), shown)


def parse(text: str, shown: str) -> Node:
    """The root node of YAML `text`, which marks and errors call `shown`.

    Raises:
      SpecError: not YAML, or YAML with anything but plain mappings, lists and scalars; a
        duplicate key; a tab; nothing at all.
    """
    _refuse_tabs(text, shown)
    composer: _Composer | None = None
    try:
        composer = _Composer(text, shown)
        root = composer.get_single_node()
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        mark = _mark(place, shown) if place else Mark(shown, 1, 1)
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise _syntax_error(said, mark) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        raise _syntax_error(
            f"the character U+{ord(text[error.position]):04X} is not printable",
            _text_mark(before, shown),
        ) from error
    except (ValueError, OverflowError) as error:
        # PyYAML does not look before it converts escapes such as \U99999999.
        mark = _mark(composer.get_mark(), shown) if composer else Mark(shown, 1, 1)
        raise _syntax_error("an escape or a number out of range", mark) from error
    if root is None:
        raise _file_error("the file says nothing", Mark(shown, 1, 1), "begin with family: NAME")
    return _convert(root, "", None, shown)


def _file_error(problem: str, mark: Mark, next_step: str) -> SpecError:
    return SpecError(
        problem,
        mark=mark,
        field="",
        expected=f"a YAML file of at most {LARGEST_FILE:,} bytes in UTF-8",
        next_step=next_step,
    )


def _syntax_error(problem: str, mark: Mark) -> SpecError:
    return SpecError(
        f"not YAML: {problem}",
        mark=mark,
        field="",
        expected="YAML as in specs/families/rpa.yaml",
        next_step="look at this line and the one above it",
    )


def _decode(data: bytes, shown: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _file_error(
            f"the byte 0x{data[error.start]:02x} is not UTF-8",
            _text_mark(data[: error.start].decode("utf-8"), shown),
            "save the file as UTF-8",
        ) from error


def _refuse_tabs(text: str, shown: str) -> None:
    position = text.find("\t")
    if position >= 0:
        raise SpecError(
            "a tab",
            mark=_text_mark(text[:position], shown),
            field="",
            expected="spaces: YAML does not indent with tabs",
            next_step="replace every tab with spaces",
        )


def _text_mark(before: str, shown: str) -> Mark:
    """The place that follows the text `before`."""
    return Mark(shown, before.count("\n") + 1, len(before) - before.rfind("\n"))


def _mark(place: yaml.Mark, shown: str) -> Mark:
    return Mark(shown, place.line + 1, place.column + 1)


class _Composer(yaml.SafeLoader):
    """Composes nodes, and refuses what a spec has no use for before it costs anything."""

    def __init__(self, text: str, shown: str) -> None:
        super().__init__(text)
        self._shown = shown
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs have no type
        mark = _mark(event.start_mark, self._shown)
        if event.anchor is not None:
            is_alias = isinstance(event, yaml.AliasEvent)
            name = errors.quoted(("*" if is_alias else "&") + event.anchor)
            raise _refusal(
                f"{name} is an {'alias' if is_alias else 'anchor'}",
                mark,
                "write the value out at each place",
            )
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _refusal(
                f"{errors.quoted(tag.replace(_TAG_PREFIX, '!!'))} is a tag", mark, "remove the tag"
            )
        self._depth += 1
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise _refusal(f"more than {MOST_NODES:,} values", mark, "split it into families")
        if self._depth > DEEPEST_NESTING:
            raise _refusal(
                f"nested more than {DEEPEST_NESTING} deep", mark, "remove the needless nesting"
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _refusal(problem: str, mark: Mark, next_step: str) -> SpecError:
    return SpecError(
        problem,
        mark=mark,
        field="",
        expected="plain mappings, lists, words and numbers",
        next_step=next_step,
    )


def _convert(node: yaml.Node, field: str, key_mark: Mark | None, shown: str) -> Node:
    mark = _mark(node.start_mark, shown)
    content: Scalar | tuple[Node, ...] | Mapping[str, Node]
    if isinstance(node, yaml.MappingNode):
        content = _convert_entries(node, field, shown)
    elif isinstance(node, yaml.SequenceNode):
        content = tuple(_convert(item, field, None, shown) for item in node.value)
    else:
        content = Scalar(node.value, node.tag.removeprefix(_TAG_PREFIX))
    return Node(field, mark, key_mark or mark, content)


def _convert_entries(mapping: yaml.MappingNode, field: str, shown: str) -> Mapping[str, Node]:
    entries: dict[str, Node] = {}
    for key_node, value_node in mapping.value:
        mark = _mark(key_node.start_mark, shown)
        if not isinstance(key_node, yaml.ScalarNode):
            raise _refusal("a key that is a list or a mapping", mark, "quote it if it is a word")
        key = key_node.value
        if key in entries:
            raise SpecError(
                f"the key {errors.quoted(key)} is a duplicate of line {entries[key].key_mark.line}",
                mark=mark,
                field=field,
                expected="every key once",
                next_step="keep one of the two",
            )
        entries[key] = _convert(value_node, f"{field}.{key}" if field else key, mark, shown)
    return entries
