"""Words that a core's scalar unit moves between its memories and a kernel's operands."""

from schedule_fixtures import TINY

from rpagen.schedule.faults import NEVER_WRITTEN
from rpagen.schedule.machine import ALLOCATION_SPACING, ROW, Machine, address_of, kind_of

IN_VMEM = 5 * ALLOCATION_SPACING * ROW  # the address of an operand that XLA put there
WORDS = [11, 12, 13, 14, 15, 16, 17, 18]  # of a granule


def test_words_that_a_kernel_leaves_in_an_operand_in_vmem():
    machine = Machine(TINY, {}, {IN_VMEM: 3}, {})
    machine.smem = dict(enumerate(WORDS, 100))
    machine.copy("smem_to_vmem", 0, 0, 100, 1, IN_VMEM + 2, flag=1)  # to its third granule
    assert machine.hbm == {3: [NEVER_WRITTEN] * 16 + WORDS}
    assert machine.wait(1, 1, site=1, at=0) == 5  # it does not wait for HBM


def test_words_that_a_kernel_reads_of_an_operand_in_vmem():
    machine = Machine(TINY, {3: [0] * 8 + WORDS}, {IN_VMEM: 3}, {})
    machine.copy("vmem_to_smem", 0, 0, IN_VMEM + 1, 1, 200, flag=1)
    assert machine.smem == dict(enumerate(WORDS, 200))
    assert machine.unknown == set()


def test_scratch_in_vmem_is_no_operand():
    machine = Machine(TINY, {}, {IN_VMEM: 3}, {})
    scratch = IN_VMEM + ALLOCATION_SPACING * ROW
    machine.smem = dict(enumerate(WORDS, 100))
    machine.copy("smem_to_vmem", 0, 0, 100, 1, scratch, flag=1)
    machine.copy("vmem_to_smem", 0, 0, scratch, 1, 200, flag=1)
    assert machine.hbm == {}
    assert [machine.smem[200 + index] for index in range(8)] == WORDS


def test_operands_that_are_read_and_not_given():
    machine = Machine(TINY, {0: WORDS}, {IN_VMEM: 3}, {})
    machine.copy("hbm_to_smem", 0, 0, address_of(0), 1, 0, flag=1)
    assert machine.unknown == set()
    machine.copy("hbm_to_smem", 0, 0, address_of(1), 1, 0, flag=1)
    machine.copy("vmem_to_smem", 0, 0, IN_VMEM, 1, 0, flag=1)
    assert machine.unknown == {1, 3}


def test_a_copy_within_vmem_does_not_wait_for_hbm():
    machine = Machine(TINY, {}, {}, {})
    kind = kind_of(5, 7)
    assert kind == "vmem_to_vmem"
    machine.copy(kind, 0, 0, 5, 100, 7, flag=1)
    assert machine.free_at == 0
    assert machine.wait(1, 100, site=1, at=0) == 5
    (copy,) = machine.copies
    assert (copy.read, copy.written) == (0, 0)


def test_a_copy_within_hbm_goes_through_it_twice():
    machine = Machine(TINY, {}, {}, {})
    machine.copy(kind_of(address_of(0), address_of(1)), 0, 0, address_of(0), 4, address_of(1), 1)
    assert machine.free_at == 8
    (copy,) = machine.copies
    assert (copy.read, copy.written) == (128, 128)
