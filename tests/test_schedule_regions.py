"""Where the cycles of a kernel go, by what its values come from and go to."""

from __future__ import annotations

import pytest
from schedule_fixtures import TINY
from test_schedule_run import schedule

from rpagen.schedule import regions, run

# One step of attention, an operation a bundle: keys, first matmul, scale, exponential, second
# matmul, adding up, and a spill in between.
ATTENTION = {
    "%v1_v1 = vld [vmem:[#allocation1] sm:$0xff]": "unpack",
    "%v2_v2 = vpack.c.b32.b16 %v1_v1, %v1_v1": "unpack",
    "%3 = vmatpush3.bf16.xpose.msra.mxu0 %v2_v2": "scores",
    "%v4_v4 = vld [vmem:[#allocation2] sm:$0xff]": "unpack",
    "%5 = vmatmul.mubr.bf16.gmra.mxu0 %v4_v4": "scores",
    "%v6_v6 = vpop.f32.mrf.mxu0": "scores",
    "%v7_v7 = vmul.f32 %v6_v6, %v20_v20": "softmax",
    "%8 = vst [vmem:[#allocation9_spill] sm:$0xff] %v7_v7": "spills",
    "%v9_v9 = vld [vmem:[#allocation9_spill] sm:$0xff]": "spills",
    "%v10_v10 = vsub.f32 %v9_v9, %v21_v21": "softmax",
    "%11 = vexp2.f32 %v10_v10": "softmax",
    "%v12_v12 = vpop.erf %11": "softmax",
    "%v13_v13 = vpack.c.f32.bf16 %v12_v12, %v12_v12": "softmax",
    "%14 = vmatpush3.bf16.msra.mxu0 %v22_v22": "values",
    "%15 = vmatmul.mubr.bf16.gmra.mxu0 %v13_v13": "values",
    "%v16_v16 = vpop.f32.mrf.mxu0": "values",
    "%v17_v17 = vadd.f32 %v16_v16, %v23_v23": "values",
    "%18 = vst [vmem:[#allocation3] sm:$0xff] %v17_v17": "store",
    "": "store",  # the latency of what came before
    "%s30_s1 = smov.u32 3": "glue",
    "%s31_s2 = sshll.u32 7, 4": "issue",
    "%32 = dma.hbm_to_vmem %s33_s3, 8, %s31_s2, [#allocation4]": "issue",
    "%34 = dma.done.wait [#allocation4], 8": "waits",
    "%35 = vsyncadd [#allocation4], 4294967288": "waits",
}


@pytest.fixture
def done() -> run.Run:
    operand = "%s33_s3 = inlined_call_operand.hbm [shape: bf16[8], index: 0, kind: input]"
    made = schedule(operand, *ATTENTION)
    return run.Program(made, TINY).run(run.Operands())


def test_each_operation_has_its_region(done):
    weights = regions._of_bundles(done.program.schedule)
    found = [max(each, key=lambda name: each[name]) for each in weights[1:]]
    assert dict(zip(ATTENTION, found, strict=True)) == ATTENTION


def test_regions_add_up_to_the_run(done):
    spent = regions.of_run(done)
    assert tuple(spent) == tuple(regions.REGIONS)
    assert sum(spent.values()) == pytest.approx(done.cycles)
    stalled = sum(stall.ended - stall.begun for stall in done.stalls)
    assert stalled > 0
    assert spent["waits"] == pytest.approx(2 + stalled)


def test_a_bundle_is_divided_among_its_operations():
    made = schedule(
        "%v1_v1 = vpop.f32.mrf.mxu0",
        "%v2_v2 = vsub.f32 %v1_v1, %v9_v9 ;; %3 = vst [vmem:[#allocation3] sm:$0xff] %v8_v8",
        "%4 = vexp2.f32 %v2_v2",
    )
    assert regions._of_bundles(made)[1] == {"softmax": 0.5, "store": 0.5}


def test_what_the_matrix_unit_holds_back_goes_to_the_matmuls():
    from test_schedule_run import MULTIPLY, UNITS

    made = schedule(MULTIPLY.format(0), MULTIPLY.format(0))
    spent = regions.of_run(run.Program(made, UNITS).run(run.Operands()))
    assert spent["scores"] == 2 + 7  # two bundles, and the second waits for 7 cycles
