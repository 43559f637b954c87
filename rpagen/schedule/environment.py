"""The throw-away environment in which public kernels, and ours beside them, are compiled.

The public kernels want a newer Python and jax than rpagen itself, and one compiler has to compile
all that is compared. So there is an environment of its own below `.peers/`, which git ignores, and
what was compiled in it is kept there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rpagen.emit.resources import PACKAGE
from rpagen.errors import RpagenError
from rpagen.evidence import libtpu, records
from rpagen.schedule import kept

ROOT = PACKAGE.parent
FOLDER = ROOT / ".peers"
REQUIREMENTS = ("jax==0.11.2", "libtpu==0.0.48", "pyyaml==6.0.4")
LEAST_PYTHON = (3, 12)
VARIABLE = "PYTHON312"

_PROGRAM = "rpagen.schedule.aot"
_NAMES = ("python3.12", "python3.13", "python3.14", "python3")
_VARIABLES = {"JAX_PLATFORMS": "cpu", **libtpu.VARIABLES}

OURS = "ours"
"""The kernel of a request that is one of ours."""
_SOURCES = ("schedule/aot.py", "evidence/ahead.py", "evidence/libtpu.py")
_SOURCES_OF_OURS = ("evidence/compile.py", "evidence/emitted.py", "evidence/shapes.py")

_OF_COMPILER = re.compile(
    r"[\w.]*(Jax|Xla)RuntimeError: (?!ABORTED|CANCELLED|DEADLINE_EXCEEDED|UNAVAILABLE)"
)
"""An exception of XLA, but for those after which the same call may be compiled another time."""


class CompileError(RpagenError):
    """A kernel, or the compiler, has something against a call."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment that can compile. folder: of what was compiled and why something was not."""

    python: Path
    folder: Path

    def compile(self, request: Mapping[str, object], sources: Sequence[Path] = ()) -> Path:
        """The folder with the compiler's schedule of a call, from before if it was compiled then.

        request: of `rpagen.schedule.aot`. sources: files and folders that it is compiled from.

        Raises:
            CompileError: it cannot be compiled. What the compiler itself refused is known from
                before, too, and the message names the file that says so.
            RpagenError: the compiler was ended by a signal.
        """
        name = self.name(request, sources)
        folder, refusal = self.folder / name, self.folder / f"{name}.refused"
        if refusal.is_file():
            raise _refused(refusal)
        if not folder.is_dir():
            with kept.workplace(self.folder) as workplace:
                dumped, made = workplace / "dumped", workplace / "made"
                dumped.mkdir()
                problem = self._run(request, dumped)
                if _OF_COMPILER.match(problem):
                    records.write_text(refusal, problem)
                    raise _refused(refusal)
                if problem:
                    raise CompileError(problem)
                kept.copy(dumped, made)
                (made / "request.json").write_text(json.dumps(request, indent=1), encoding="utf-8")
                kept.name(made, folder)
        return folder

    def name(self, request: Mapping[str, object], sources: Sequence[Path] = ()) -> str:
        """Under which a call is kept: it follows from all that its schedule follows from."""
        digest = hashlib.sha256(json.dumps([request, REQUIREMENTS], sort_keys=True).encode())
        own = (*_SOURCES, *(_SOURCES_OF_OURS if request["kernel"] == OURS else ()))
        for path in (*(PACKAGE / each for each in own), *sources):
            digest.update(path.read_bytes())
        return "-".join([str(request["device"]), str(request["kernel"]), digest.hexdigest()[:16]])

    def _run(self, request: Mapping[str, object], dumped: Path) -> str:
        """Compiles; returns what there is against it."""
        file = dumped.with_name("request.json")
        file.write_text(json.dumps(request), encoding="utf-8")
        ran = subprocess.run(
            [self.python, "-m", _PROGRAM, file],
            env={
                **os.environ,
                **_VARIABLES,
                "LIBTPU_INIT_ARGS": libtpu.dump_flags(dumped),
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if ran.returncode < 0:
            raise RpagenError(f"the compiler was ended by signal {-ran.returncode}: try it again")
        return reason(ran.stderr) if ran.returncode else ""


def _refused(refusal: Path) -> CompileError:
    problem = refusal.read_text(encoding="utf-8")
    return CompileError(f"{problem}\n  kept in {refusal}\n  next: remove that file to try it again")


def environment(folder: Path = FOLDER) -> Environment:
    """The environment, made if it is not there.

    Raises:
        RpagenError: there is no Python for it, or pip cannot install what it needs.
    """
    made = folder / "environment"
    python, stamp = made / "bin" / "python", made / "made-from"
    needed = "\n".join(REQUIREMENTS)
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == needed):
        base = find_python()
        print(f"making {made} with {base} and {', '.join(REQUIREMENTS)}", flush=True)
        shutil.rmtree(made, ignore_errors=True)
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        for command in ((base, "-m", "venv", made), (*pip, *REQUIREMENTS)):
            if subprocess.run(command, check=False).returncode:
                raise RpagenError(
                    f"`{' '.join(map(str, command))}` failed, see above: with a network, and in"
                    f" another Python than {base} ({VARIABLE}=), try it again"
                )
        stamp.write_text(needed, encoding="utf-8")
    kept.remove_left(folder / "schedules")
    return Environment(python, folder / "schedules")


def find_python() -> str:
    """A Python that jax 0.11.2 runs on.

    Raises:
        RpagenError: there is none, or the one that is named is too old.
    """
    least = ".".join(map(str, LEAST_PYTHON))
    named = os.environ.get(VARIABLE)
    for name in [named] if named else _NAMES:
        if _is_new_enough(name):
            return name
    found = f"{named} is none" if named else f"none of {', '.join(_NAMES)} is one"
    raise RpagenError(
        f"the public kernels want {REQUIREMENTS[0]}, which wants Python {least} or newer, and"
        f" {found}: install one and name it, as in"
        f" `make bench-peers {VARIABLE}=/usr/bin/python3.12`"
    )


def _is_new_enough(python: str) -> bool:
    test = f"import sys, venv; sys.exit(sys.version_info < {LEAST_PYTHON})"
    try:
        ran = subprocess.run([python, "-c", test], capture_output=True, check=False)
    except OSError:
        return False
    return ran.returncode == 0


def reason(output: str) -> str:
    """Why a program failed: the last exception in what it wrote, on one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    text = errors[-1] if errors else (lines[-1] if lines else "it said nothing")
    return text if len(text) <= 300 else f"{text[:297]}..."


def versions() -> str:
    """What compiles, for a record."""
    return f"{', '.join(REQUIREMENTS[:2])} (Python {'.'.join(map(str, LEAST_PYTHON))} or newer)"
