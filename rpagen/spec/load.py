"""Reading a family spec: from a file to a checked `Family`, every value with its place.

What YAML may contain at all is `nodes`; the fields are in `grammar` and the axes in `axes`.
Whether values may be combined is not decided here but in `expand`.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Iterable, Mapping

from rpagen import errors
from rpagen.errors import SpecError
from rpagen.spec import axes, grammar, nodes
from rpagen.spec.axes import Axis, AxisValue
from rpagen.spec.model import (
    GENERATIONS,
    TIERS,
    Choices,
    Combo,
    Exclusion,
    Family,
    Mark,
    Setting,
    Settings,
)
from rpagen.spec.nodes import Node

FAMILIES = "families"
"""The folder of the specs root that holds the family specs."""


def load_families(specs_dir: str | os.PathLike[str]) -> tuple[Family, ...]:
    """Every family below the specs root, in the order of the file names.

    Raises:
      SpecError: there are none, or one is wrong.
    """
    folder = pathlib.Path(specs_dir, FAMILIES)
    paths = _spec_files(folder)
    if not paths:
        raise SpecError(
            "no family spec",
            mark=Mark(_shown_path(folder), 1, 1),
            field="",
            expected=f"files such as {FAMILIES}/rpa.yaml below the specs folder",
            next_step="give the folder that holds families/, or write a spec there",
        )
    return tuple(load_family(path) for path in paths)


def _spec_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The spec files in a folder; hidden files, such as the locks of editors, are none."""
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise SpecError(
            f"cannot be read: {error.strerror}",
            mark=Mark(_shown_path(folder), 1, 1),
            field="",
            expected="a folder that can be read",
            next_step="check the path and its permissions",
        ) from error
    paths = [folder / name for name in names if name.lower().endswith((".yaml", ".yml"))]
    for path in paths:
        if path.suffix != ".yaml":
            raise SpecError(
                "the name does not end in .yaml, so the file would not be read",
                mark=Mark(_shown_path(path), 1, 1),
                field="",
                expected=f"names such as {FAMILIES}/rpa.yaml",
                next_step=f"rename it to {errors.escaped(path.stem)}.yaml, or move it away",
            )
    return paths


def load_family(path: str | os.PathLike[str]) -> Family:
    """The family that the spec file at `path` describes.

    Raises:
      SpecError: the file cannot be read or is wrong; the error names the place, what was
        expected and what to do.
    """
    return _family(nodes.read(pathlib.Path(path), _shown_path(pathlib.Path(path))))


def _shown_path(path: pathlib.Path) -> str:
    """The path as errors and marks show it: from the specs root, never the machine's own."""
    absolute = pathlib.Path(os.path.abspath(path))
    root = absolute.parent
    if absolute.name == FAMILIES:
        root = absolute.parent.parent
    elif absolute.parent.name == FAMILIES:
        root = absolute.parent.parent.parent
    return errors.printable(absolute.relative_to(root).as_posix())


def _family(root: Node) -> Family:
    fields = root.entries(grammar.FAMILY_FIELDS, grammar.REQUIRED_FAMILY_FIELDS)
    generations = _generations(fields, GENERATIONS)
    product = fields.get("axes")
    combos = fields.get("combos")
    exclusions = fields.get("exclude")
    return Family(
        name=_name(fields["family"]),
        doc=_doc(fields["doc"]),
        generations=generations,
        defaults=_defaults(fields["defaults"]),
        axes=_choices(product) if product else {},
        combos=(
            Combo({}, TIERS[0], generations, (product or fields["family"]).key_mark),
            *(_combo(node, generations) for node in (combos.items("combos") if combos else ())),
        ),
        exclusions=tuple(
            _exclusion(node) for node in (exclusions.items("exclusions") if exclusions else ())
        ),
        targets=_targets(fields["targets"], generations) if "targets" in fields else {},
        mark=fields["family"].key_mark,
    )


def _name(node: Node) -> str:
    name = node.text()
    if (
        len(name) > grammar.NAME_LENGTH
        or not re.fullmatch(grammar.NAME_PATTERN, name)
        or name in grammar.NAMES_TAKEN
    ):
        raise SpecError(
            f"{errors.quoted(name)} is no name for a family",
            mark=node.mark,
            field=node.field,
            expected=(
                f"a lower-case identifier of at most {grammar.NAME_LENGTH} characters that is"
                " neither a Python keyword nor a name of rpa_kernels itself"
            ),
            next_step="write a name such as rpa_head_major",
        )
    return name


def _doc(node: Node) -> str:
    text = node.text()
    if re.search(grammar.DOC_REFUSED, text):
        raise SpecError(
            "a backslash, three quotes in a row, or a quote at the end",
            mark=node.mark,
            field=node.field,
            expected="a sentence that can stand in a docstring",
            next_step="reword it",
        )
    return text


def _generations(fields: Mapping[str, Node], served: tuple[str, ...]) -> tuple[str, ...]:
    """The generations a family or a combo is limited to, out of those `served` around it."""
    node = fields.get("generations")
    if node is None:
        return served
    return _word_set(node, served)


def _word_set(node: Node, allowed: Iterable[str | int]) -> tuple[str, ...]:
    """A list of words, each at most once, in the order of `allowed`."""
    allowed = tuple(allowed)
    items = node.items(errors.listed(allowed))
    words = [item.one_of(allowed) for item in items]
    _refuse_repetition(items, words)
    return tuple(str(word) for word in allowed if word in words)


def _refuse_repetition(items: tuple[Node, ...], values: list[AxisValue] | list[str | int]) -> None:
    for index, (item, value) in enumerate(zip(items, values, strict=True)):
        if value in values[:index]:
            raise SpecError(
                "the same value twice",
                mark=item.mark,
                field=item.field,
                expected="every value once",
                next_step="remove one of the two",
            )


def _value(node: Node, axis: Axis) -> AxisValue:
    if not axis.is_set:
        return node.one_of(axis.names)
    if node.content == ():
        return ()
    return _word_set(node, axis.names)


def setting(path: str, text: str) -> Setting:
    """The setting of the axis `path` to the value that `text` says, as a spec would say it.

    Raises:
      SpecError: it is none of the axis's values.
    """
    return _setting(dataclasses.replace(nodes.parse(text, path), field=path), axes.BY_PATH[path])


def _setting(node: Node, axis: Axis) -> Setting:
    return Setting(_value(node, axis), node.field, node.mark)


def _choices(node: Node) -> Choices:
    """Lists of values by axis path."""
    choices: dict[str, tuple[Setting, ...]] = {}
    for path, values in node.entries(axes.BY_PATH).items():
        axis = axes.BY_PATH[path]
        items = values.items("lists" if axis.is_set else errors.listed(axis.names))
        settings = tuple(_setting(item, axis) for item in items)
        _refuse_repetition(items, [setting.value for setting in settings])
        choices[path] = settings
    return choices


def _combo(node: Node, served: tuple[str, ...]) -> Combo:
    fields = node.entries((*grammar.COMBO_FIELDS, *axes.BY_PATH))
    choices = {
        path: (_setting(value, axes.BY_PATH[path]),)
        for path, value in fields.items()
        if path in axes.BY_PATH
    }
    each = _choices(fields["each"]) if "each" in fields else {}
    for path in each:
        if path in choices:
            raise SpecError(
                f"{path} is set in the combo and listed in its each",
                mark=fields[path].key_mark,
                field=node.field,
                expected="every axis once",
                next_step="keep one of the two",
            )
    tier = str(fields["tier"].one_of(TIERS)) if "tier" in fields else TIERS[0]
    return Combo({**choices, **each}, tier, _generations(fields, served), node.mark)


def _exclusion(node: Node) -> Exclusion:
    fields = node.entries(grammar.EXCLUSION_FIELDS, grammar.EXCLUSION_FIELDS)
    when = fields["when"]
    conditions = {
        path: _condition(value, axes.BY_PATH[path])
        for path, value in when.entries(axes.BY_PATH).items()
    }
    if not conditions:
        raise SpecError(
            "no condition, so that everything would be excluded",
            mark=when.mark,
            field=when.field,
            expected="at least one axis and its value",
            next_step="say which variants are meant, such as {kv.dtype: int8}",
        )
    return Exclusion(conditions, fields["reason"].text(), node.mark)


def _condition(node: Node, axis: Axis) -> tuple[AxisValue, ...]:
    """The values an exclusion speaks of: one, or a list of which any one will do."""
    if axis.is_set:
        # One condition: the variant has all of these.
        return (_word_set(node, axis.names),)
    items = node.items(errors.listed(axis.names)) if isinstance(node.content, tuple) else (node,)
    return tuple(item.one_of(axis.names) for item in items)


def _targets(node: Node, served: tuple[str, ...]) -> Mapping[str, Settings]:
    targets = node.entries(served)
    return {
        generation: _target(targets[generation]) for generation in served if generation in targets
    }


def _target(node: Node) -> Settings:
    settings = {}
    for path, value in node.entries(axes.BY_PATH).items():
        axis = axes.BY_PATH[path]
        if axis.in_key:
            raise SpecError(
                f"{path} is decided by the call, whatever the generation",
                mark=value.key_mark,
                field=node.field,
                expected="axes that say how a kernel runs, such as pipelining.kv_slots",
                next_step="remove the key, or limit a combo with generations",
            )
        settings[path] = _setting(value, axis)
    return settings


def _defaults(node: Node, table: Mapping[str, Axis] = axes.BY_PATH) -> Settings:
    """The defaults, nested as a reader would say them: `kv: {dtype: int8}`.

    Every axis needs one, and every launch its key; what a launch overrides is free.
    """
    below = axes.by_head(table)
    required = below if grammar.needs_every_key(node.field) else ()
    why = grammar.WHY_ALL_LAUNCHES if node.field == "defaults.launches" else ""
    settings: dict[str, Setting] = {}
    for head, value in node.entries(below, required, why).items():
        axis = below[head].get("")
        if axis:
            settings[axis.path] = _setting(value, axis)
        else:
            settings |= _defaults(value, below[head])
    return settings
