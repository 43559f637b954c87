"""The front door: `rpagen VERB`.

Exit status: 0 all well, 1 the thing checked fell short, 2 wrong usage or bad input.
"""

from __future__ import annotations

import argparse
import contextlib
import io
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
    predict,
    recommend,
    report,
    schema,
    shared,
    tune,
    validate,
)
from rpagen.errors import RpagenError

VERBS = (
    generate,
    check,
    list,
    explain,
    diff,
    emit,
    recommend,
    validate,
    compile,
    predict,
    tune,
    report,
    schema,
)

# What a shell reports for a process that a signal ended.
INTERRUPTED = 130
PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit status."""
    _mend_streams()
    words = sys.argv[1:] if arguments is None else [*arguments]
    # Until the words are understood, this is all that is known of how errors are to be printed.
    options = argparse.Namespace(json="--json" in words)
    try:
        options = _parser().parse_args(words, options)
        status: int = options.run(options)
        sys.stdout.flush()  # so that a reader that left is noticed here
        return status
    except RpagenError as error:
        return _failed(error, options.json)
    except BrokenPipeError:
        # The interpreter flushes once more when it ends; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        return _failed(RpagenError(str(error)), options.json)
    except KeyboardInterrupt:
        return INTERRUPTED


def _mend_streams() -> None:
    """Let closed streams take what is printed, and others any character, in a way of their own."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # as long as the process
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _failed(error: RpagenError, as_json: bool) -> int:
    """Print an error, and return the exit status."""
    if as_json:
        with contextlib.suppress(OSError):  # of a full disk, say, which may be what is wrong
            shared.print_json({"error": error.parts()})
            sys.stdout.flush()
    shared.complain(str(error))
    return error.exit_status


class UsageError(RpagenError):
    """The words of the command line are wrong. next_step: where to look."""

    def __init__(self, problem: str, next_step: str) -> None:
        super().__init__(problem)
        self.next_step = next_step

    def parts(self) -> dict[str, object]:
        """What the error says, by part, as `--json` prints it."""
        return {**super().parts(), "next_step": self.next_step}

    def __str__(self) -> str:
        return f"{self.problem}\nsee: {self.next_step}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong as every other error does, and where to look."""
        raise UsageError(message, f"{self.prog} --help")

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
