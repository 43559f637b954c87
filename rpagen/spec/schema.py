"""The JSON Schema of a family spec, for editors to complete and underline with.

It is built from the same tables the loader checks with. What spans several fields (rules, names
given twice, a dispatch key without a default) a schema cannot see: that is `expand`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rpagen.spec import axes, grammar
from rpagen.spec.axes import Axis
from rpagen.spec.model import GENERATIONS, TIERS

Schema = dict[str, Any]

# Draft 7 ignores what stands beside a reference, such as a description, except through allOf.
_CHOICES: Schema = {"allOf": [{"$ref": "#/definitions/choices"}]}


def text() -> str:
    """The schema as the checked-in file holds it."""
    return json.dumps(build(), indent=2) + "\n"


def build() -> Schema:
    """The schema of a family spec (draft 7, which editors know best)."""
    how = {path: axis for path, axis in axes.BY_PATH.items() if not axis.in_key}
    shapes: Mapping[str, Schema] = {
        "family": {
            "type": "string",
            "pattern": f"^{grammar.NAME_PATTERN}$",
            "maxLength": grammar.NAME_LENGTH,
            "not": {"enum": sorted(grammar.NAMES_TAKEN)},
        },
        "doc": {"type": "string", "pattern": r"\S", "not": {"pattern": grammar.DOC_REFUSED}},
        "generations": _set(GENERATIONS),
        "defaults": _nested(axes.BY_PATH, "defaults"),
        "axes": _CHOICES,
        "combos": {"type": "array", "minItems": 1, "items": _combo()},
        "exclude": {"type": "array", "minItems": 1, "items": _exclusion()},
        "targets": _object(
            {
                generation: {
                    "description": f"Defaults that differ on {generation}.",
                    **_object({path: _reference(path) for path in how}),
                }
                for generation in GENERATIONS
            }
        ),
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "rpagen family spec",
        "description": "A family of kernels: defaults, and the variants made from them.",
        **_described(grammar.FAMILY_FIELDS, shapes, grammar.REQUIRED_FAMILY_FIELDS),
        "definitions": {
            "choices": _object({path: _choices(axis) for path, axis in axes.BY_PATH.items()}),
            **{path: _axis(axis) for path, axis in axes.BY_PATH.items()},
        },
    }


def _combo() -> Schema:
    shapes: Mapping[str, Schema] = {
        "each": _CHOICES,
        "tier": {"enum": list(TIERS)},
        "generations": _set(GENERATIONS),
    }
    combo = _described(grammar.COMBO_FIELDS, shapes)
    combo["properties"] |= {path: _reference(path) for path in axes.BY_PATH}
    return {"description": "Values that go together.", **combo}


def _exclusion() -> Schema:
    shapes: Mapping[str, Schema] = {
        "when": {
            **_object({path: _condition(axis) for path, axis in axes.BY_PATH.items()}),
            "minProperties": 1,
        },
        "reason": {"type": "string", "pattern": r"\S"},
    }
    exclusion = _described(grammar.EXCLUSION_FIELDS, shapes, tuple(grammar.EXCLUSION_FIELDS))
    return {"description": "Variants that are not offered, and why.", **exclusion}


def _nested(table: Mapping[str, Axis], field: str) -> Schema:
    """The mapping at `field` of the defaults, as `load` walks it."""
    properties = {
        head: (
            _reference(rest[""].path)
            if "" in rest
            else {"description": grammar.GROUPS[head], **_nested(rest, f"{field}.{head}")}
        )
        for head, rest in axes.by_head(table).items()
    }
    return _object(properties, tuple(properties) if grammar.needs_every_key(field) else ())


def _axis(axis: Axis) -> Schema:
    meanings = [f"{value.name}: {value.doc}." for value in axis.values]
    shape = _set(axis.names, least=0) if axis.is_set else {"enum": list(axis.names)}
    return {"description": "\n".join([axis.doc, *meanings]), **shape}


def _choices(axis: Axis) -> Schema:
    return {
        "description": f"Values to make variants of. {axis.doc}",
        "type": "array",
        "minItems": 1,
        "uniqueItems": True,
        "items": _reference(axis.path),
    }


def _condition(axis: Axis) -> Schema:
    if axis.is_set:
        return {"description": f"All of these. {axis.doc}", **_set(axis.names)}
    return {
        "description": f"This, or any of these. {axis.doc}",
        "anyOf": [{"enum": list(axis.names)}, _set(axis.names)],
    }


def _set(words: Sequence[str | int], least: int = 1) -> Schema:
    return {
        "type": "array",
        "minItems": least,
        "uniqueItems": True,
        "items": {"enum": list(words)},
    }


def _reference(path: str) -> Schema:
    return {"$ref": f"#/definitions/{path}"}


def _described(
    docs: Mapping[str, str], shapes: Mapping[str, Schema], required: Sequence[str] = ()
) -> Schema:
    """An object whose fields are those of a table in `grammar`."""
    return _object(
        {field: {"description": doc, **shapes[field]} for field, doc in docs.items()}, required
    )


def _object(properties: Mapping[str, Schema], required: Sequence[str] = ()) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        **({"required": list(required)} if required else {}),
        "properties": dict(properties),
    }
