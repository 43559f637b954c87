"""A small kernel as libtpu would write it down, whose times are easily counted by hand.

A loop that runs three times reads 256 bytes, runs a loop twice that multiplies, and waits for what
it read. On `TINY` a cycle is a nanosecond, and HBM moves 32 bytes in it.
"""

from __future__ import annotations

from pathlib import Path

from rpagen.schedule import call, read
from rpagen.schedule.generations import Generation

TINY = Generation(
    name="tiny",
    clock=1e9,
    bandwidth=3.2e10,
    efficiency=1.0,
    read_latency=10e-9,
    write_latency=5e-9,
    launch=20e-9,
    peak=2.56e11,  # 256 operations a cycle
    array=4,
    hbm_unit=1,
    delay_slots=1,
    trims_delay_slots=False,
    matrix_unit=None,
)

BUNDLES = """\
= control target key start
LB: loop body
= control target key end

     0   :  { %s1_s0 = smov.u32 0  ;;  %s20_s5 = inlined_call_operand.hbm [shape: bf16[8], index: 0, kind: input, shape index: {}] /* operand 0 */ }
   0x1 LB: > { %s2_s0 = sphi %s1_s0, %s3_s0 /* phi copy */  ;;  %40 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s20_s5, /*size_in_granules=*/8, /*vmem=*/[#allocation2], /*dst_syncflagno=*/[#allocation3] } /* Start region 1 */
   0x2   : > { %s10_s1 = smov.u32 0 }
   0x3 LB: >> { %s11_s1 = sphi %s10_s1, %s12_s1 /* phi copy */  ;;  %41 = vmatmul.mubr.bf16.gmra.mxu0 %v1_v1 } /* Start region 2 */
   0x4   : >> { %s12_s1 = sadd.s32 1, %s11_s1 }
   0x5   : >> { %p1_p0 = scmp.ge.s32.totalorder %s12_s1, 2 }
   0x6   : >> { %42 = sbr.rel (!%p1_p0) target = $region2 }
   0x7   : >> { }
   0x8   : > { %43 = dma.done.wait [#allocation3], 8 }
   0x9   : > { %44 = vsyncadd [#allocation3], 4294967288  ;;  %s3_s0 = sadd.s32 1, %s2_s0 }
   0xa   : > { %p2_p1 = scmp.ge.s32.totalorder %s3_s0, 3 }
   0xb   : > { %45 = sbr.rel (!%p2_p1) target = $region1 }
   0xc   : > { }
   0xd   :  { }
"""  # noqa: E501

SLOTS = """\
== CAPACTIY:
MATMUL, VALU, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, SALU
    1     4     3     3     2     2     2
== UTILIZATION:
0 0 0 0 0 0 1
0 0 0 0 0 0 1
0 0 0 0 0 0 1
1 0 0 0 0 0 0
0 2 0 0 0 0 1
0 0 1 1 0 0 1
0 0 0 0 1 1 0
0 0 0 0 0 0 0
0 0 0 0 0 0 0
0 0 0 0 0 0 2
0 0 0 0 0 0 1
0 0 0 0 0 0 0
0 0 0 0 0 0 0
0 0 0 0 0 0 0
"""

MODULE = """\
HloModule tiny

ENTRY %main (p: bf16[8]) -> bf16[8] {
  %p.1 = bf16[8]{0} parameter(0)
  ROOT %tiny.1 = bf16[8]{0} custom-call(%p.1), custom_call_target="tpu_custom_call"
}
"""


def schedule(text: str = BUNDLES) -> read.Schedule:
    """Of the kernel, or one like it."""
    return read.schedule(text, "tiny.1", "tiny")


def slots(text: str = SLOTS) -> read.Slots:
    """That it takes."""
    return read.slots(text, "tiny")


def dumped(folder: Path, generation: Generation = TINY) -> call.Call:
    """The call of the kernel alone, as it is read from a folder where it is written first."""
    (folder / "1-tiny.1-03-final_bundles.txt").write_text(BUNDLES)
    (folder / f"1-tiny.1-01{read.UTILIZATION}").write_text(SLOTS)
    (folder / "1-TLP-hlo.txt").write_text(MODULE)
    return call.Call(folder, generation)
