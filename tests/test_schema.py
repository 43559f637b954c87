"""The JSON Schema: it is the checked-in one, and says of specs what the loader says."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
import yaml
from spec_fixtures import PLAIN, SPECS
from test_spec_expand import REFUSED as REFUSED_LATER
from test_spec_load import REFUSED

from rpagen.spec import axes, schema

FAMILIES = sorted((SPECS / "families").glob("*.yaml"))

UNSEEN = {
    # A duplicate key is gone, and an anchor resolved, before a schema is asked.
    "duplicate key",
    "duplicate key below",
    "another way to write a number",
    "anchor",
    "set and listed",
    "value twice",
    "doc with a control character",
    "target of a generation not served",
}
"""What the loader refuses and a schema cannot see, apart from what is no YAML to begin with."""

NO_YAML = {
    "merge key",
    "alias",
    "Python object",
    "key that is a list",
    "nested deeply",
    "tab",
    "not UTF-8",
    "UTF-16",
    "control character",
    "syntax",
    "two documents",
    "escape out of range",
    "very many values",
    "very long number",
}


def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema.build())


def subschemas(node: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema of a property, with its path."""
    if isinstance(node, Mapping):
        for name, child in node.get("properties", {}).items():
            yield f"{path}/{name}", child
        for key, child in node.items():
            yield from subschemas(child, f"{path}/{key}")


def test_checked_in_schema_is_current() -> None:
    text = (SPECS / "schema.json").read_text(encoding="utf-8")
    assert text == schema.text(), "type: rpagen schema"


def test_schema_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(schema.build())


def test_every_field_has_a_description() -> None:
    built = schema.build()
    fields = list(subschemas(built))
    assert len(fields) > 100
    for path, field in fields:
        reference = field.get("$ref")
        if reference:
            field = built["definitions"][reference.removeprefix("#/definitions/")]
        assert field.get("description"), path


def test_every_value_is_explained() -> None:
    definitions = schema.build()["definitions"]
    for path, axis in axes.BY_PATH.items():
        for value in axis.values:
            assert f"{value.name}: {value.doc}" in definitions[path]["description"]


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.stem)
def test_checked_in_specs_are_valid(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8")
    validator().validate(yaml.safe_load(text))


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.stem)
def test_specs_name_their_schema(path: pathlib.Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    prefix, _, relative = first.partition("$schema=")
    assert prefix == "# yaml-language-server: "
    assert (path.parent / relative).resolve() == (SPECS / "schema.json").resolve()


@pytest.mark.parametrize("name", sorted(REFUSED.keys() - NO_YAML))
def test_schema_refuses_what_it_can_see(name: str) -> None:
    text = REFUSED[name][0]
    assert isinstance(text, str)
    assert validator().is_valid(yaml.safe_load(text)) == (name in UNSEEN)


@pytest.mark.parametrize("name", REFUSED_LATER)
def test_what_spans_fields_is_left_to_expansion(name: str) -> None:
    validator().validate(yaml.safe_load(PLAIN + REFUSED_LATER[name][0]))


@pytest.mark.parametrize("name", ["../plain", "Plain", "class", "registry", "a" * 41])
def test_schema_refuses_names(name: str) -> None:
    assert not validator().is_valid({**yaml.safe_load(PLAIN), "family": name})
