"""The files of the emitted package that are no Python: how it installs, and what is in it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import rpagen
from rpagen.emit import render
from rpagen.emit.format import black_version
from rpagen.emit.header import Header
from rpagen.emit.render import Module

MANIFEST = "MANIFEST.json"
TEMPLATES = {
    ".gitattributes": "package/gitattributes.j2",
    "pyproject.toml": "package/pyproject.toml.j2",
}


def files(entries: Sequence[tuple[Module, Header]]) -> dict[str, str]:
    """The text of every such file, by its name, the manifest last."""
    environment = render.environment()
    texts = {
        name: environment.get_template(template).render(version=rpagen.__version__)
        for name, template in TEMPLATES.items()
    }
    return {**texts, MANIFEST: _manifest(entries)}


def _manifest(entries: Sequence[tuple[Module, Header]]) -> str:
    """Every module with its variant, its origin and its digests."""
    modules = [
        {
            "path": module.path,
            "variant": module.variant.name if module.variant else None,
            "origin": header.origin,
            "inputs": header.inputs,
            "body": header.body,
        }
        for module, header in sorted(entries, key=lambda entry: entry[0].path)
    ]
    manifest = {"generator": rpagen.__version__, "black": black_version(), "modules": modules}
    return json.dumps(manifest, indent=2) + "\n"
