"""Puts staged files in their places, in a process that outlives the run it belongs to.

`write` starts it as a script, in a session of its own, and stages files in a folder that this
makes. If the run dies, however it dies, the input ends without an order: the folder goes, and the
tree is as it was. Once the order is here, it is carried out whatever happens to the run.

It needs nothing but the standard library, so that it starts in a few milliseconds.
"""

import contextlib
import json
import os
import shutil
import sys


def main() -> None:
    """Make the folder named by the argument, wait for an order, carry it out, and answer."""
    stage = sys.argv[1]
    made: list[str] = []
    try:
        _make_folders(stage, made)
        _answer({})
        order = _order()
        if order is None:
            return
        moves, removals = order
        for _, target in moves:
            _make_folders(os.path.dirname(target), made)
        _carry_out(moves, removals, stage)
        _answer({})
    except OSError as error:
        path = error.filename2 or error.filename or stage
        # The folder of staged files is nothing that a user knows of.
        shown = os.path.dirname(stage) if path.startswith(stage) else path
        _answer({"errno": error.errno, "path": shown})
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        for folder in reversed(made):  # those of them that hold nothing
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _order() -> tuple[list[list[str]], list[str]] | None:
    """What to move (from, to) and what to remove; None if the run died before it said it all."""
    try:
        order = json.loads(sys.stdin.readline())
    except ValueError:
        return None
    return order["moves"], order["removals"]


def _carry_out(moves: list[list[str]], removals: list[str], stage: str) -> None:
    """Move and remove all of it, or nothing.

    Raises:
        OSError: one could not be moved or removed; those before it are as they were.
    """
    kept: dict[str, str] = {}
    for path in (*(target for _, target in moves), *removals):
        if os.path.lexists(path):
            kept[path] = os.path.join(stage, f"old-{len(kept)}")
            shutil.copy2(path, kept[path], follow_symlinks=False)
    done = []
    try:
        for source, target in moves:
            os.replace(source, target)
            done.append(target)
        for path in removals:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                done.append(path)
    except OSError:
        for path in done:
            with contextlib.suppress(OSError):
                if path in kept:
                    os.replace(kept[path], path)
                else:
                    os.unlink(path)
        raise


def _make_folders(path: str, made: list[str]) -> None:
    """Make a folder and those above it, noting which were not there."""
    if path and not os.path.isdir(path):
        _make_folders(os.path.dirname(path), made)
        os.mkdir(path)
        made.append(path)


def _answer(answer: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # nobody may be there to hear it
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
