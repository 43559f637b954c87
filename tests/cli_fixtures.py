"""Running a command in this process.

A test module gets the fixture with `from cli_fixtures import run as run`.
"""

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
