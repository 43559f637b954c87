"""The front door: `rpagen VERB`.

Exit status: 0 all well, 1 the thing checked fell short, 2 wrong usage or bad input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import rpagen
from rpagen import errors
from rpagen.commands import (
    check,
    compile,
    diff,
    emit,
    explain,
    generate,
    list,
    recommend,
    schema,
    shared,
)
from rpagen.errors import RpagenError

VERBS = (generate, check, list, explain, diff, emit, recommend, compile, schema)

BAD_INPUT = 2
# What a shell reports for a process that a signal ended.
INTERRUPTED = 130
PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status."""
    options = argparse.Namespace(json=False)
    try:
        options = _parser().parse_args(arguments, options)
        status: int = options.run(options)
        sys.stdout.flush()  # so that a reader that left is noticed here
        return status
    except RpagenError as error:
        if options.json:
            shared.print_json({"error": error.parts()})
        shared.complain(str(error))
        return error.exit_status
    except BrokenPipeError:
        # The interpreter flushes once more when it ends; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        shared.complain(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong as every other error does, and where to look."""
        self.exit(BAD_INPUT, f"error: {message}\nsee: {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse what is not among an argument's choices, and say which was probably meant."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            near = errors.nearest(str(value), known)
            hint = f"did you mean {near}?" if near else f"choose from {', '.join(known)}"
            raise argparse.ArgumentError(action, f"invalid choice: {str(value)!r} ({hint})")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rpagen",
        description="Specs in, specialised ragged paged attention kernels for TPUs out.",
        epilog="Exit status: 0 all well, 1 the thing checked fell short, 2 wrong usage or input.",
    )
    parser.add_argument("--version", action="version", version=f"rpagen {rpagen.__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for command in VERBS:
        verb = verbs.add_parser(
            command.__name__.rpartition(".")[2],
            help=command.DOES,
            description=f"{command.DOES[0].upper()}{command.DOES[1:]}.",
            epilog=f"Example: {command.EXAMPLE}",
        )
        command.add_arguments(verb)
        verb.set_defaults(run=command.run)
    return parser
