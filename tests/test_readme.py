"""Every command and example of the README, as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def commands() -> list[str]:
    lines = "".join(blocks("sh")).splitlines()
    return [line.split("#")[0].strip() for line in lines if line.strip()]


@pytest.mark.parametrize("command", [each for each in commands() if each.startswith("make ")])
def test_continuous_integration_runs_the_make_commands(command: str):
    assert command in (ROOT / ".ci/run").read_text().splitlines()


@pytest.mark.parametrize("command", [each for each in commands() if not each.startswith("make ")])
def test_other_commands_run(command: str, tmp_path: Path):
    rpagen = f"{shlex.quote(sys.executable)} -m rpagen"
    command = command.replace("/tmp", shlex.quote(str(tmp_path)))
    words = shlex.split(command.replace(".venv/bin/rpagen", rpagen))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_python_example_runs():
    (example,) = blocks("python")
    (said,) = re.findall(r"`(\S+ PYTHONPATH=\S+) \.venv/bin/python example\.py`", README)
    environment = os.environ | dict(pair.split("=") for pair in said.split())
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "(6, 8, 128) bfloat16\n", done.stderr


def test_the_spec_example_adds_the_variant_it_says(tmp_path: Path):
    (line,) = blocks("yaml")
    shutil.copytree(ROOT / "specs", tmp_path / "specs")
    family = tmp_path / "specs/families/rpa.yaml"
    spec = family.read_text()
    assert "\ncombos:\n" in spec
    if line not in spec:  # unless somebody did as the README says
        family.write_text(spec.replace("\ncombos:\n", f"\ncombos:\n{line}"))
    done = subprocess.run(
        [sys.executable, "-m", "rpagen", "generate", "--specs", "specs", "-o", "generated"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (name,) = re.findall(r"generated/rpa_kernels/(\w+_bidirectional)\.py", README)
    assert (tmp_path / f"generated/rpa_kernels/{name}.py").exists()
