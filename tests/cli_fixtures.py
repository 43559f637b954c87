"""Running a command in this process, or one that is interrupted in a process of its own.

A test module gets the fixture with `from cli_fixtures import run as run`.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rpagen import cli


@pytest.fixture
def run(capsys):
    """Run a command in this process: its exit status, standard output and standard error."""

    def run_command(*arguments) -> tuple[int, str, str]:
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as leaving:  # argparse
            status = leaving.code
        return status, *capsys.readouterr()

    return run_command


def interrupted(*words: str, children: int, seconds: float) -> tuple[int, str, str]:
    """What is left of a command that hears Ctrl-C, some seconds after it has so many processes."""
    # A shell starts what is to run in the background with interrupts ignored, and so all that it
    # starts in turn. What a process handles, those that it starts hear.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "rpagen", *words],
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(found.read_text().split()) < children:
        time.sleep(0.05)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err
