"""The checked-in specs, and a small family to change in tests."""

from __future__ import annotations

import pathlib

SPECS = pathlib.Path(__file__).parent.parent / "specs"

PLAIN = """\
family: plain
doc: A family for tests.
defaults:
  layout: head_interleaved
  query: {dtype: bfloat16}
  kv: {dtype: bfloat16}
  quantization: none
  features: []
  numerics: exact
  pipelining:
    kv_slots: 2
    attention: {depth: 1}
    dma_wait: aggregate
    new_kv_fetch: select
  launches: {decode: {}, prefill: {}, mixed: {}}
"""
END = PLAIN.count("\n") + 1
"""The line that follows it."""


ALIAS_BOMB = "\n".join(
    [
        "a0: &a0 [x, x]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 40)),
    ]
)


def write(folder: pathlib.Path, text: str | bytes, name: str = "plain.yaml") -> pathlib.Path:
    path = folder / "specs" / "families" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def changed(old: str, new: str) -> str:
    assert PLAIN.count(old) == 1
    return PLAIN.replace(old, new)
