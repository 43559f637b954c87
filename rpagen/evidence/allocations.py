"""What the TPU compiler allocated for each launch of a call, read from its own dump.

libtpu writes the text of its passes where flags ask for it. The last one before the final bundles
lists every allocation of a kernel: its size, its offset in the kernel's part of VMEM or SMEM, and
what it is for. The end of the furthest is what the compiler compares with the limit: it accepts a
kernel with `vmem_limit_bytes` at just that, and refuses it with 512 bytes less. libtpu 0.0.52 and
0.0.50.1 write the list alike.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from rpagen.console import counted
from rpagen.errors import InputError
from rpagen.evidence import libtpu
from rpagen.spec.axes import LAUNCHES

_LAST_PASS = "post-delay-converter"

_KERNEL = re.compile(rf"_({'|'.join(LAUNCHES)})_p\d+_q.*-{_LAST_PASS}\.txt")  # from profile_name
_ALLOCATION = re.compile(
    r"^ *#allocation\d+(?P<spill>_spill)? \[.*\bspace=(?P<space>\w+), size = (?P<size>\w+),"
    r"(?: offset = (?P<offset>\w+),)? scoped, tag = '(?P<tag>.*)'",
    re.MULTILINE,
)
_OF_KERNEL = re.compile(r"scratch operand|prefetched SMEM operand \d+")


@dataclasses.dataclass(frozen=True)
class Taken:
    """Bytes of one memory: what a kernel asks for, and what the compiler takes besides.

    The latter is where it puts registers that did not suffice, and scratch of its own.
    """

    of_kernel: int
    of_compiler: int


@dataclasses.dataclass(frozen=True)
class Allocated:
    """What one launch takes of a core.

    hbm_spills: scalar registers that go to HBM and back, each time with a copy to wait for, since
        the compiler finds SMEM too full.
    """

    vmem: Taken
    smem: Taken
    hbm_spills: int


def with_dump(flags: str, folder: Path) -> str:
    """Flags of libtpu, and those by which it writes into `folder` what `read` reads.

    The final bundles come with it, which `rpagen/schedule` reads.
    """
    return f"{flags} {libtpu.dump_flags(folder, f'({_LAST_PASS}|{libtpu.FINAL})')}"


def without_dump(flags: str) -> str:
    """What `with_dump` was given."""
    return flags.partition(f" {libtpu.DUMP_TO}")[0]


def read(folder: Path, planned: Collection[str]) -> dict[str, Allocated]:
    """What each launch of the one call that was dumped into `folder` takes, in order.

    planned: the launches of that call.

    Raises:
        InputError: something else than just these was read.
    """
    paths = sorted(folder.iterdir())
    found = {
        match[1]: _allocated(path.read_text(encoding="utf-8", errors="replace"))
        for path in paths
        if (match := _KERNEL.search(path.name))
    }
    wrong = not_as_planned(found, planned)
    if wrong:
        raise InputError(
            f"what libtpu says of {', '.join(wrong)} is missing, not understood or not planned"
            f" (it wrote {counted(len(paths), 'file')})",
            place=str(folder),
            expected=f"a file *_LAUNCH_p*_q*-{_LAST_PASS}.txt of libtpu's for each of"
            f" {', '.join(planned)}, that lists what its kernel takes of VMEM and SMEM",
            next_step="run `rpagen compile` in a process in which libtpu was not loaded before,"
            " since it reads LIBTPU_INIT_ARGS once; if it is so again, this libtpu writes another"
            " form: install 0.0.52, or mend rpagen/evidence/allocations.py",
        )
    return {launch: found[launch] for launch in LAUNCHES if launch in found}


def not_as_planned(found: Mapping[str, Allocated], planned: Collection[str]) -> list[str]:
    """The launches of which nothing was read, or not all, and those that are not planned.

    No kernel does without scratch in either memory: where none was read, the list of allocations
    was not understood.
    """
    return [
        launch
        for launch in dict.fromkeys([*planned, *found])
        if launch not in planned
        or launch not in found
        or not (found[launch].vmem.of_kernel > 0 and found[launch].smem.of_kernel > 0)
    ]


def _allocated(dump: str) -> Allocated:
    allocations = list(_ALLOCATION.finditer(dump))
    in_hbm = [each for each in allocations if each["space"] == "hbm" and each["spill"]]
    return Allocated(_taken(allocations, "vmem"), _taken(allocations, "smem"), len(in_hbm))


def _taken(allocations: list[re.Match[str]], space: str) -> Taken:
    own = [each for each in allocations if each["space"] == space]
    if not all(each["offset"] for each in own):
        return Taken(0, 0)  # this is another form, which `read` refuses
    of_kernel = end = 0
    for each in own:
        size = int(each["size"], 0)
        end = max(end, int(each["offset"], 0) + size)
        of_kernel += size if _OF_KERNEL.fullmatch(each["tag"]) else 0
    return Taken(of_kernel, end - of_kernel)
