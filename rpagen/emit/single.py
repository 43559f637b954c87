"""Emitting kernels into somebody's own tree: their modules, and the one that these import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rpagen.emit import bodies, header, plan, render, write
from rpagen.emit.mistakes import EmitError
from rpagen.spec.model import Catalogue, Variant

_SHARED = ("support.py",)
"""The files that a kernel's module imports."""


def emit(folder: Path, variants: Sequence[Variant], command: str, force: bool = False) -> list[str]:
    """Write the modules of variants, and what they import, and return the names of all files.

    command: what to type to emit them again. force: overwrite what was edited by hand.

    Raises:
        EmitError: a template is wrong, or a file that is not to be overwritten is in the way.
        InputError: the folder cannot be written. After either no file has changed.
    """
    catalogue = Catalogue(tuple(variants), ())
    modules = {
        Path(module.path).name: module
        for module in render.modules(catalogue)
        if module.variant or Path(module.path).name in _SHARED
    }
    _refuse_package(folder)
    for name in modules:
        _refuse_overwriting(folder / name, force)
    made = bodies.make(list(modules.values()), catalogue)
    texts = {}
    for name, module in modules.items():
        # All kernels share those files, whatever asked for them.
        asked = command if module.variant else "rpagen emit"
        body = made[module.path]
        texts[name] = plan.expected_header(module, catalogue, asked).sign(body).text() + body
    write.write_changed(folder, texts)
    return list(texts)


def _refuse_package(folder: Path) -> None:
    """Refuse a folder in which `generate` would remove what it does not know."""
    registry = folder / Path(render.REGISTRY).name
    if header.is_ours(write.read(registry) or ""):
        raise EmitError(
            f"{folder} is a package of `rpagen generate`, which would remove a kernel that no spec"
            " asks for: emit into a folder of its own, or add the variant to a spec"
        )


def _refuse_overwriting(path: Path, force: bool) -> None:
    text = write.read(path)
    if text is None:
        return
    if not header.is_ours(text):
        raise EmitError(f"{path} is not rpagen's: emit into another folder, or move it away")
    found, body = header.split(text)
    if not force and (found is None or found.body != header.digest(body)):
        raise EmitError(f"{path} was edited by hand: move it away, or overwrite it with --force")
