"""The digest of everything that decides the body of a module, so that no clock is asked.

It covers the module's part of the specs, all templates, the sources of rpagen that make text, and
the versions of rpagen and black. Which sources those are follows from what they import: a change
to, say, the loader of specs stales nothing, since what it loads is covered itself.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import rpagen
from rpagen.emit import header, resources
from rpagen.emit.format import black_version

# What makes the text of a module, or refuses it.
_MAKERS = ("emit/render.py", "emit/format.py", "emit/header.py", "emit/lint.py")


def digest(inputs: str) -> str:
    """The digest that a module has whose part of the specs is `inputs`."""
    versions = f"rpagen {rpagen.__version__}, black {black_version()}"
    return header.digest("\0".join([versions, _generator_digest(), inputs]))


@functools.cache
def _generator_digest() -> str:
    """The digest of the templates and of the sources that make text of them."""
    # Names as they are both in a checkout and in a wheel.
    templates = resources.templates_dir().rglob("*.j2")
    files = {path.relative_to(resources.root()).as_posix(): path for path in templates}
    files |= {path.relative_to(resources.PACKAGE.parent).as_posix(): path for path in sources()}
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        text = path.read_text(encoding="utf-8")  # line ends as \n, whatever git made of them
        total.update(f"{name}\0{len(text)}\0{text}".encode())
    return total.hexdigest()


def sources() -> set[Path]:
    """The sources of rpagen that make text, and those that they import."""
    found: set[Path] = set()
    waiting = [resources.PACKAGE / name for name in _MAKERS]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imported(path)
    return found


def _imported(path: Path) -> Iterator[Path]:
    """The files of rpagen that a source imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                modules = [module, *(f"{module}.{alias.name}" for alias in names)]
            case _:
                continue
        for module in modules:
            file = resources.PACKAGE.parent / (module.replace(".", "/") + ".py")
            if module.partition(".")[0] == resources.PACKAGE.name and file.exists():
                yield file
