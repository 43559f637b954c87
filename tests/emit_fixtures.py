"""A small package to emit: modules whose text a test can change at will.

A test module gets the fixture with `from emit_fixtures import emitted as emitted`.
"""

import dataclasses
from pathlib import Path

import pytest

from rpagen.emit import check, generate, inputs, plan, render, trace
from rpagen.emit.render import Module
from rpagen.spec.model import Catalogue

ONE = "rpa_kernels/one.py"
TWO = "rpa_kernels/two.py"
BODY = '"""A module."""\n\nVARIANT = {number}\n'


@dataclasses.dataclass
class Emitted:
    """What the stand-in for the specs and templates asks for, and where it is emitted to.

    texts: the body of each module as rendered. inputs: what its digest is made of, its text
    when not said otherwise. origins: where it comes from. rendered: the modules rendered so far.
    """

    root: Path
    texts: dict[str, str]
    inputs: dict[str, str] = dataclasses.field(default_factory=dict)
    origins: dict[str, str] = dataclasses.field(default_factory=dict)
    rendered: list[str] = dataclasses.field(default_factory=list)

    def generate(self, **options) -> generate.Report:
        self.rendered.clear()
        return generate.generate(self.root, Path("specs"), jobs=1, **options)

    def check(self) -> dict[str, str]:
        faults = check.check(self.root, Path("specs"), plan.DEFAULT_TIER, "make generate")
        assert all(fault.next_step for fault in faults)
        return {fault.path.relative_to(self.root).as_posix(): fault.state.value for fault in faults}

    def path(self, name: str) -> Path:
        return self.root / name

    def snapshot(self) -> dict[str, tuple[bytes, int]]:
        """The bytes of every file, and its inode, which changes when it is written."""
        return {
            path.relative_to(self.root).as_posix(): (path.read_bytes(), path.stat().st_ino)
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def emitted(tmp_path, monkeypatch) -> Emitted:
    state = Emitted(tmp_path / "out", {ONE: BODY.format(number=1), TWO: BODY.format(number=2)})

    def modules(catalogue):
        return tuple(
            Module(path, state.origins.get(path, "specs/families/rpa.yaml:1"))
            for path in sorted(state.texts)
        )

    def rendered(module, catalogue, environment=None):
        if environment is None:
            state.rendered.append(module.path)
            return state.texts[module.path]
        # All of it from the first line of a template of its own.
        return trace._mark(f"{Path(module.path).stem}.py.j2", 1) + state.texts[module.path]

    monkeypatch.setattr(plan.expand, "load_catalogue", lambda specs, tiers: Catalogue((), ()))
    monkeypatch.setattr(render, "modules", modules)
    monkeypatch.setattr(
        render, "inputs", lambda module, _: state.inputs.get(module.path, state.texts[module.path])
    )
    monkeypatch.setattr(render, "render", rendered)
    # The real one is remembered, which must not happen while a test has replaced the templates.
    monkeypatch.setattr(inputs, "_generator_digest", lambda: "templates and sources")
    return state
