"""Public kernels of ragged paged attention: where they are published, and how each is called.

Their wheels are fetched from the package index when they are asked for; nothing of them is in here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from rpagen.evidence import options, upstream
from rpagen.evidence.upstream import Wheel
from rpagen.schedule.workloads import Configuration, Workload

PARTS = ("tpu_inference/kernels/",)
SCHEDULE_KERNEL = "rpa_metadata_schedule"
"""How the kernels of batched and stacked begin that plan the work of the others."""

_WHEELS = {
    suite.wheel.version: dataclasses.replace(suite.wheel, parts=PARTS) for suite in upstream.SUITES
}


@dataclasses.dataclass(frozen=True)
class Peer:
    """A public kernel.

    kernel: its name in `rpagen.schedule.aot`. page_size: the only one that it is called with.
    smem_bytes: see `rpagen.schedule.aot.Request`. options: keyword arguments of its call, by device
    and configuration, where what it chooses by itself cannot be compiled.
    """

    name: str
    kernel: str
    wheel: Wheel
    page_size: int = 64
    smem_bytes: int = 0
    options: Mapping[tuple[str, str], Mapping[str, object]] = dataclasses.field(
        default_factory=dict
    )

    def request(
        self, folder: Path, device: str, configuration: Configuration, workload: Workload
    ) -> dict[str, object]:
        """What `rpagen.schedule.aot` compiles of it. folder: with the unpacked wheel."""
        chosen = self.options.get((device, configuration.name), {})
        return {
            **sizes(device, configuration, workload, self.page_size),
            "kernel": self.kernel,
            "source": str(folder),
            "smem_bytes": self.smem_bytes,
            "options": {**usual_options(configuration), **chosen},
        }


# In 8-bit configurations too: blocks that are chosen for v7x by default take more VMEM than it has.
_SMALLER_BLOCKS = {"m_block_sizes": (256, 1024, 128, 512)}

# Those that batched chooses for one kv head make a plan that is larger than SMEM; of these, several
# sequences are in flight too.
_SMALLER_PLAN = {
    "decode_block_sizes": {
        "bq_sz": 1,
        "bq_c_sz": 1,
        "bkv_sz": 1024,
        "batch_size": 8,
        "n_buffer": 3,
    }
}

PEERS = (
    Peer("v3 0.13.2", "v3", _WHEELS["0.13.2"]),
    Peer(
        "v3 0.32.0",
        "v3",
        _WHEELS["0.32.0"],
        options={("v7x", name): _SMALLER_BLOCKS for name in "ACE"},
    ),
    # It fills SMEM with its plan, and libtpu then has to put scalars into HBM, of which the
    # published times show nothing. Half of SMEM is enough for all workloads here.
    Peer(
        "batched 0.32.0",
        "batched",
        _WHEELS["0.32.0"],
        smem_bytes=524_288,
        options={(device, "B"): _SMALLER_PLAN for device in ("v5e", "v6e", "v7x")},
    ),
    Peer("stacked 0.32.0", "stacked", _WHEELS["0.32.0"], page_size=128),
)


def named(name: str) -> Peer:
    """A peer, by name or by the first word of it if only one has that.

    Raises:
        KeyError: there is none.
    """
    found = [each for each in PEERS if name in (each.name, each.name.split()[0])]
    if len(found) != 1:
        raise KeyError(name)
    return found[0]


def sizes(
    device: str, configuration: Configuration, workload: Workload, page_size: int
) -> dict[str, object]:
    """Of a call, as `rpagen.schedule.aot` takes them."""
    return {
        "device": device,
        **dataclasses.asdict(configuration.shape(workload, page_size)),
        "query_dtype": configuration.query_dtype,
        "kv_dtype": configuration.kv_dtype,
    }


def usual_options(configuration: Configuration) -> dict[str, object]:
    """The keyword arguments that a configuration asks every kernel for, ours too."""
    return options.usual(
        quantization=configuration.quantization,
        sliding_window=configuration.sliding_window,
        head_dim=configuration.head_dim,
    )
