"""Tuned blocks on disk: `specs/tuning/GENERATION.yaml`, a row for each shape of heads.

A row says what it is for, and of each launch the blocks, what they and the default ones take, and
on which workloads that was found. Its versions are those that the times were predicted with.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rpagen.emit import resources, write
from rpagen.errors import SpecError
from rpagen.schedule.workloads import Configuration
from rpagen.spec import nodes
from rpagen.spec.model import BIT_WIDTHS, LAUNCHES
from rpagen.spec.nodes import Node, Scalar
from rpagen.tune.blocks import Blocks


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    """What a row is for. sliding_window: 0 for none."""

    query_heads: int
    kv_heads: int
    head_dim: int
    query_dtype: str
    kv_dtype: str
    page_size: int
    sliding_window: int

    @classmethod
    def of(cls, configuration: Configuration, page_size: int) -> Key:
        """That of the heads and dtypes of a model."""
        return cls(
            configuration.query_heads,
            configuration.kv_heads,
            configuration.head_dim,
            configuration.query_dtype,
            configuration.kv_dtype,
            page_size,
            configuration.sliding_window or 0,
        )


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Of one launch: its best blocks, and the microseconds in each workload, by its name.

    default: with the blocks that are chosen without a row.
    """

    blocks: Blocks
    microseconds: Mapping[str, float]
    default: Mapping[str, float]

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


def default_folder() -> Path:
    """Where the rows are that rpagen comes with."""
    return resources.specs_dir() / "tuning"


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
                expected="one row for each shape, dtypes, page size and window",
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
# of that launch alone in a workload of specs/workloads.yaml; default_us: with the default blocks.
rows:
"""


def _text(row: Row) -> str:
    key = row.key
    window = f", sliding_window: {key.sliding_window}" if key.sliding_window else ""
    versions = ", ".join(f"{name}: {version}" for name, version in row.versions.items())
    lines = [
        f"  - heads: {key.query_heads}x{key.kv_heads}x{key.head_dim}",
        f"    cache: {{query: {key.query_dtype}, kv: {key.kv_dtype}, page: {key.page_size}"
        f"{window}}}",
        f"    versions: {{{versions}}}",
    ]
    for launch, tuned in row.launches.items():
        lines.append(f"    {launch}:")
        lines.append(f"      blocks: [{', '.join(map(str, tuned.blocks.argument))}]")
        for name, times in (("us", tuned.microseconds), ("default_us", tuned.default)):
            said = ", ".join(f"{workload}: {each:.1f}" for workload, each in times.items())
            lines.append(f"      {name}: {{{said}}}")
    return "\n".join(lines) + "\n"


def _row(node: Node) -> Row:
    fields = node.entries(
        ("heads", "cache", "versions", *LAUNCHES), required=("heads", "cache", "versions")
    )
    launches = {name: _tuned(fields[name]) for name in LAUNCHES if name in fields}
    versions = fields["versions"].entries(("jax", "libtpu"), required=("jax", "libtpu"))
    return Row(
        _key(fields["heads"], fields["cache"]),
        launches,
        {name: _scalar(each) for name, each in versions.items()},
    )


def _key(heads: Node, cache: Node) -> Key:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})x(\d{1,3})", _scalar(heads), re.ASCII)
    if match is None:
        raise SpecError(
            f"found {heads.content}",
            mark=heads.mark,
            field=heads.field,
            expected="query heads, kv heads and head dim, such as 32x8x128",
            next_step="write them so",
        )
    fields = cache.entries(
        ("query", "kv", "page", "sliding_window"), required=("query", "kv", "page")
    )
    dtypes = list(BIT_WIDTHS)
    window = fields.get("sliding_window")
    return Key(
        query_heads=int(match[1]),
        kv_heads=int(match[2]),
        head_dim=int(match[3]),
        query_dtype=str(fields["query"].one_of(dtypes)),
        kv_dtype=str(fields["kv"].one_of(dtypes)),
        page_size=fields["page"].size(),
        sliding_window=window.size() if window else 0,
    )


def _tuned(node: Node) -> Tuned:
    names = ("blocks", "us", "default_us")
    fields = node.entries(names, required=names)
    sizes = [each.size() for each in fields["blocks"].items("block sizes")]
    times, default = (_times(fields[name]) for name in ("us", "default_us"))
    if len(sizes) != 4 or set(times) != set(default):
        raise SpecError(
            f"found {len(sizes)} block sizes, and times of {', '.join(times) or 'nothing'}",
            mark=node.mark,
            field=node.field,
            expected="four block sizes, and times of the same workloads twice",
            next_step="run `rpagen tune` for this shape anew",
        )
    return Tuned(Blocks(*sizes), times, default)


def _times(node: Node) -> dict[str, float]:
    content = node.content if isinstance(node.content, Mapping) else {}
    times = {}
    for name, each in node.entries(content).items():
        text = _scalar(each)
        if not re.fullmatch(r"\d{1,9}\.\d", text, re.ASCII) or float(text) == 0:
            raise SpecError(
                f"found {each.content}",
                mark=each.mark,
                field=each.field,
                expected="microseconds with one digit behind the point, more than none",
                next_step="run `rpagen tune` for this shape anew",
            )
        times[name] = float(text)
    return times


def _scalar(node: Node) -> str:
    """What a scalar of any kind says; of anything else, nothing."""
    return node.content.text if isinstance(node.content, Scalar) else ""
