"""Runs the tests of the interpreter, and one kernel, with every release of jax that it is for.

The interpreter replaces private functions of jax, which no release promises to keep.  Type
`make interpreter-matrix`; the environments stay below `.matrix`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".matrix"
# Each release with the oldest Python that it runs on; "" is the newest one.
RELEASES = {"0.10.2": (3, 11), "0.11.2": (3, 12), "": (3, 12)}
TESTS = ("tests/test_interpreter.py", "tests/test_interpreter_faults.py", "tests/test_kernels.py")
CHOSEN = "test_interpreter or rpa-gqa3"


def find_pythons(named: list[str]) -> dict[str, tuple[int, ...]]:
    """The Pythons that were named, then those at hand, with their versions."""
    found = {}
    for python in (*named, sys.executable, "python3.11", "python3.12", "python3.13", "python3.14"):
        show = "import sys; print(*sys.version_info[:3])"
        try:
            shown = subprocess.run([python, "-c", show], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            if python in named:
                sys.exit(f"error: {python} is no Python that runs")
            continue
        found[python] = tuple(map(int, shown.stdout.split()))
    return found


def environment(python: str, version: tuple[int, ...], release: str) -> Path:
    """The Python of an environment with a release of jax, which is made if it is not there."""
    folder = ENVIRONMENTS / f"jax-{release or 'newest'}"
    # All other packages as they are pinned.
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith(("jax==", "jaxlib==", "libtpu==", "pip=="))
    ]
    packages = [
        f"jax=={release}" if release else "jax",
        "pytest",
        "pytest-xdist",
        "hypothesis",
        "pyyaml",
    ]
    stamp, made_from = folder / "made-from", "\n".join([str(version), *packages, *pins])
    if not stamp.exists() or stamp.read_text() != made_from:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", folder], check=True)
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(pins))
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet"]
        options = ["--disable-pip-version-check", "--constraint", constraints]
        subprocess.run([*pip, *options, *packages], check=True)
        stamp.write_text(made_from)
    return folder / "bin/python"


def run_tests(python: Path) -> tuple[str, bool]:
    """What jax calls itself and what the tests came to; and whether they passed."""
    show = "import jax; print(jax.__version__)"
    name = subprocess.check_output([python, "-c", show], text=True).strip()
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n2", "--dist=loadgroup"]
    command = [*pytest, "-k", CHOSEN, *TESTS]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stdout)
    return f"{name:10} {done.stdout.rstrip().rpartition(chr(10))[2]}", done.returncode == 0


def main(named: list[str]) -> int:
    """Prints a table, and returns the exit status."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    pythons = find_pythons(named)
    lines, all_passed = [], True
    for release, oldest in RELEASES.items():
        fitting = sorted(
            (version, python) for python, version in pythons.items() if version >= oldest
        )
        if not fitting:
            lines.append(
                f"{release or 'newest':10} skipped: it needs Python {oldest[0]}.{oldest[1]} or"
                " newer; name one with PYTHONS=, a path or a command"
            )
            all_passed = False
            continue
        version, python = fitting[0]
        print(f"jax {release or 'newest'}, with {python}", flush=True)
        line, passed = run_tests(environment(python, version, release))
        lines.append(line)
        all_passed &= passed
    print("\njax        tests", *lines, sep="\n")
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
