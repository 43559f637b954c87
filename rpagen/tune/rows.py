"""Tuned blocks on disk: `specs/tuning/GENERATION.yaml`, a row for each variant, heads and pages.

A row says what it is for, and of each launch the blocks, what they and the default ones take, and
on which workloads that was found. Its versions are those that the times were predicted with.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rpagen.emit import write
from rpagen.errors import SpecError
from rpagen.spec import nodes
from rpagen.spec.budget import Problem
from rpagen.spec.model import LAUNCHES, Variant
from rpagen.spec.nodes import Node, Scalar
from rpagen.tune.blocks import Blocks


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    """What a row is for. variant: its name. sliding_window: 0 for none."""

    variant: str
    query_heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    sliding_window: int

    @classmethod
    def of(cls, variant: Variant, problem: Problem, sliding_window: int | None) -> Key:
        """That of the calls of a variant."""
        return cls(
            variant.name,
            problem.query_heads,
            problem.kv_heads,
            problem.head_dim,
            problem.page_size,
            sliding_window or 0,
        )


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Of one launch: its best blocks, and the microseconds in each workload, by its name.

    default_blocks, default: those that are chosen without a row, and what they take.
    """

    blocks: Blocks
    microseconds: Mapping[str, float]
    default_blocks: Blocks
    default: Mapping[str, float]

    @property
    def gain(self) -> float:
        """How many times as long the default blocks take, in the geometric mean."""
        return statistics.geometric_mean(
            self.default[name] / each for name, each in self.microseconds.items()
        )

    @property
    def worst_default(self) -> float:
        """How many times as long the default blocks take in the workload where they do worst."""
        return max(self.default[name] / each for name, each in self.microseconds.items())


@dataclasses.dataclass(frozen=True)
class Row:
    """The tuned blocks for a key. versions: of jax and libtpu."""

    key: Key
    launches: Mapping[str, Tuned]
    versions: Mapping[str, str]


FOLDER = "tuning"
"""In the folder of specs."""


def read(folder: Path, generation: str) -> tuple[Row, ...]:
    """The rows for a generation, in the order of their keys; none where there is no file.

    Raises:
        SpecError: a row is wrong.
    """
    path = folder / f"{generation}.yaml"
    if not path.exists():
        return ()
    root = nodes.read(path, str(path)).entries(("rows",), required=("rows",))
    rows: dict[Key, Row] = {}
    for node in root["rows"].items("rows"):
        row = _row(node)
        if row.key in rows:
            raise SpecError(
                "there are two rows for this",
                mark=node.mark,
                field=node.field,
                expected="one row for each variant, heads, page size and window",
                next_step="remove one of them, or run `rpagen tune` for it anew",
            )
        rows[row.key] = row
    return tuple(rows[key] for key in sorted(rows))


def write_rows(folder: Path, generation: str, rows: Iterable[Row]) -> Path:
    """Writes the rows for a generation, whole or not at all; returns the file.

    Raises:
        InputError: it cannot be written.
    """
    name = f"{generation}.yaml"
    text = _HEADER.format(generation=generation) + "".join(
        _text(row) for row in sorted(rows, key=lambda row: row.key)
    )
    write.write_changed(folder, {name: text})
    return folder / name


def merged(rows: Sequence[Row], new: Row) -> tuple[Row, ...]:
    """The rows with a new one, in the place of one for the same."""
    return (*(row for row in rows if row.key != new.key), new)


_HEADER = """\
# Block sizes for {generation}, written by `rpagen tune`. blocks: query block, KV block, query tile
# and compute block, in tokens, as d_block_sizes and the like take them. us: predicted microseconds
# of that launch alone in a workload of specs/workloads.yaml. default, default_us: of the blocks
# that a call takes that gives none.
rows:
"""


def _text(row: Row) -> str:
    key = row.key
    window = [f"    sliding_window: {key.sliding_window}"] if key.sliding_window else []
    versions = ", ".join(f"{name}: {version}" for name, version in row.versions.items())
    lines = [
        f"  - variant: {key.variant}",
        f"    heads: {key.query_heads}x{key.kv_heads}x{key.head_dim}",
        f"    page_size: {key.page_size}",
        *window,
        f"    versions: {{{versions}}}",
    ]
    for launch, tuned in row.launches.items():
        lines.append(f"    {launch}:")
        for names, blocks, times in (
            (("blocks", "us"), tuned.blocks, tuned.microseconds),
            (("default", "default_us"), tuned.default_blocks, tuned.default),
        ):
            said = ", ".join(f"{workload}: {each:.1f}" for workload, each in times.items())
            lines.append(f"      {names[0]}: [{', '.join(map(str, blocks.argument))}]")
            lines.append(f"      {names[1]}: {{{said}}}")
    return "\n".join(lines) + "\n"


def _row(node: Node) -> Row:
    required = ("variant", "heads", "page_size", "versions")
    fields = node.entries((*required, "sliding_window", *LAUNCHES), required=required)
    launches = {name: _tuned(fields[name]) for name in LAUNCHES if name in fields}
    versions = fields["versions"].entries(("jax", "libtpu"), required=("jax", "libtpu"))
    return Row(
        _key(fields),
        launches,
        {name: _scalar(each) for name, each in versions.items()},
    )


def _key(fields: Mapping[str, Node]) -> Key:
    heads, window = fields["heads"], fields.get("sliding_window")
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})x(\d{1,3})", _scalar(heads), re.ASCII)
    if match is None:
        raise SpecError(
            f"found {heads.content}",
            mark=heads.mark,
            field=heads.field,
            expected="query heads, kv heads and head dim, such as 32x8x128",
            next_step="write them so",
        )
    return Key(
        variant=fields["variant"].text(),
        query_heads=int(match[1]),
        kv_heads=int(match[2]),
        head_dim=int(match[3]),
        page_size=fields["page_size"].size(),
        sliding_window=window.size() if window else 0,
    )


def _tuned(node: Node) -> Tuned:
    names = ("blocks", "us", "default", "default_us")
    fields = node.entries(names, required=names)
    blocks, default_blocks = (_blocks(fields[name]) for name in ("blocks", "default"))
    times, default = (_times(fields[name]) for name in ("us", "default_us"))
    if set(times) != set(default):
        raise _wrong(
            fields["default_us"],
            f"found times of {', '.join(default) or 'nothing'}",
            f"times of the workloads that `us` has: {', '.join(times)}",
        )
    return Tuned(blocks, times, default_blocks, default)


def _blocks(node: Node) -> Blocks:
    sizes = [each.size() for each in node.items("block sizes")]
    if len(sizes) != 4:
        raise _wrong(
            node,
            f"found {len(sizes)} block sizes",
            "four: query block, KV block, query tile and compute block",
        )
    return Blocks(*sizes)


def _times(node: Node) -> dict[str, float]:
    if not isinstance(node.content, Mapping) or not node.content:
        raise _wrong(node, "found no times", "microseconds by workload, such as {decode-1k: 25.7}")
    times = {}
    for name, each in node.entries(node.content).items():
        text = _scalar(each)
        if not re.fullmatch(r"\d{1,9}\.\d", text, re.ASCII) or float(text) == 0:
            raise _wrong(
                each,
                f"found {each.content}",
                "microseconds with one digit behind the point, more than none",
            )
        times[name] = float(text)
    return times


def _wrong(node: Node, found: str, expected: str) -> SpecError:
    return SpecError(
        found,
        mark=node.mark,
        field=node.field,
        expected=expected,
        next_step="run `rpagen tune` for this row anew",
    )


def _scalar(node: Node) -> str:
    """What a scalar of any kind says; of anything else, nothing."""
    return node.content.text if isinstance(node.content, Scalar) else ""
