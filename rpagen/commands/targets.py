"""What the verbs take that compile for TPUs which are not here."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import re
from collections.abc import Callable, Sequence

from rpagen import errors
from rpagen.errors import RpagenError
from rpagen.spec import budget, launches


def require_compiler() -> None:
    """Refuse where there is no TPU compiler.

    Raises:
        RpagenError: says what is missing.
    """
    here = f"{platform.system()} {platform.machine()}"
    if here != "Linux x86_64":
        raise RpagenError(f"the TPU compiler, libtpu, is for Linux x86_64 only, and this is {here}")
    for name in ("jax", "libtpu"):
        if importlib.util.find_spec(name) is None:
            raise RpagenError(f"{name} is not installed: pip install 'rpagen[compile]'")


def devices(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """What reads a list of TPU generations, as `--device` takes them."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                near = errors.nearest(name, known)
                hint = f"did you mean {near}?" if near else f"choose from {', '.join(known)}"
                raise argparse.ArgumentTypeError(
                    f"there is no device {errors.quoted(name)} ({hint})"
                )
        return names

    return read


def heads(text: str) -> tuple[int, int, int]:
    """Query heads, kv heads and head dim, as `--shape` takes them."""
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})x(\d{1,3})", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{errors.quoted(text)} is not query heads, kv heads and head dim, such as 32x8x128"
        )
    query_heads, kv_heads, head_dim = (int(each) for each in match.groups())
    if not kv_heads or not query_heads or query_heads % kv_heads:
        raise argparse.ArgumentTypeError(
            f"{kv_heads} kv heads cannot share {query_heads} query heads"
        )
    if not 1 <= head_dim <= budget.MOST_HEAD_DIM:
        raise argparse.ArgumentTypeError(f"the head dim is from 1 to {budget.MOST_HEAD_DIM}")
    return query_heads, kv_heads, head_dim


def blocks(text: str) -> tuple[str, tuple[int, int, int, int]]:
    """A launch and its block sizes, in tokens, as `--blocks` takes them.

    Raises:
        ArgumentTypeError: it is no such thing.
    """
    launch, _, sizes = text.partition("=")
    size = r"([1-9]\d{0,6})"
    match = re.fullmatch(",".join([size] * 4), sizes, re.ASCII)
    if launch not in launches.WITHOUT_PREFILL or match is None:
        raise argparse.ArgumentTypeError(
            f"{errors.quoted(text)} is not like mixed=128,512,128,512: one of"
            f" {', '.join(launches.WITHOUT_PREFILL)}, and its query block, KV block, query tile and"
            " compute block"
        )
    query_block, kv_block, query_tile, compute_block = (int(each) for each in match.groups())
    return launch, (query_block, kv_block, query_tile, compute_block)
