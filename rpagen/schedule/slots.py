"""Which slot of a bundle a vector operation takes, by its name.

Found by laying the operations of bundles beside what libtpu counts for them, as a test does again.
"""

from __future__ import annotations

import functools
import re

_CONTROL = re.compile(r"vsync(add|mov|pa|set\.\w+)|vtrace|vsettm|vdelay|vwait\..*|vphi")
"""Operations of the core's control, which are named like those of vectors, and what is none: the
vector that was defined last of those that a `vphi` names."""

_NAMES = {
    "MATMUL": r"vmatmul\.[\w.\[\]]+",
    "MATPUSH": r"vmatpush\d?\.[\w.]+|vmatprep\.[\w.]+",
    "VPOP": r"vpop\.[\w.\[\]]+",
    "XLU": r"v[\w.]+\.xlu\d[\w.]*",
    "EUP": r"v(exp2|pow2|pow|rcp|rsqrt|log2|tanh)\.\w+",
    "VLOAD": r"vld[\w.]*",
    "VSTORE": r"vst(\.(msk|sshfl))*|vset(iar|rngseed)[\w.]*|vpush",
    "VALU": r"v(add|sub|mul|max|min|and|or|xor|shll|shrl|shra|sel|cmp|cmask|nez|weird|clamp[as]?"
    r"|clz|mov|mmov|mand|mor|mxor|mneg|mpackc|pack|unpack|cvt|combine|rot\.slane|perm\.slane"
    r"|laneseq|stv|rng|round|floor|ceil)(\.[\w.]+)?",
}
_PATTERNS = {slot: re.compile(names) for slot, names in _NAMES.items()}


def is_vector(name: str) -> bool:
    """Whether an operation is one of the vector units, which decide nothing of what is executed."""
    return name.startswith("v") and not _is_control(name)


@functools.lru_cache(maxsize=4096)
def _is_control(name: str) -> bool:
    return _CONTROL.fullmatch(name) is not None


@functools.lru_cache(maxsize=4096)
def of(name: str) -> str | None:
    """The slot that a vector operation takes; None for a name that is not known."""
    return next((slot for slot, names in _PATTERNS.items() if names.fullmatch(name)), None)
