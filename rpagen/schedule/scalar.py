"""The scalar core of a schedule, as a Python function for each basic block.

What a kernel does with its vectors does not decide which bundles are executed, or what is copied:
its scalar operations alone do. They are translated to Python once, and then run as fast as Python
does. Values are Python integers between -2^31 and 2^31, predicates are booleans.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType

from rpagen.schedule import faults, slots
from rpagen.schedule.blocks import BRANCH, Block
from rpagen.schedule.faults import FROM_VECTOR, NEVER_WRITTEN
from rpagen.schedule.generations import Generation
from rpagen.schedule.machine import (
    ALLOCATION_SPACING,
    OPERAND_SPACING,
    ROW,
    address_of,
    kind_of,
)
from rpagen.schedule.read import Bundle, Operation, Predicate, Schedule

_ALLOCATION = re.compile(r"#(allocation\d+(?:_spill)?)")
_ADDRESS = re.compile(r"\[(?:(?P<space>[a-z]+):)?\[?(?P<terms>[^\[\]]+)\]?\]")
_SHAPE = re.compile(r"index: (\d+), kind: (\w+)(?:, shape index: \{[\d, ]*\})?")
_ALIASES = re.compile(r"may-alias: \{([\d,]+)\}")

_SIGNED = "(({0} + 0x80000000 & 0xffffffff) - 0x80000000)"
_IS_ADDRESS = f"{{0}} >= {OPERAND_SPACING >> 8}"
_UNSIGNED = "({0} & 0xffffffff)"

_EXPRESSIONS: dict[str, str] = {
    "smov": "{0}",  # of libtpu 0.0.48
    "smov.u32": "{0}",
    "int_to_ptr.hbm": "{0}",
    "int_to_ptr.smem": "{0}",
    "int_to_ptr.vmem": "{0}",
    "int_to_ptr.sflag": "{0}",
    "scalar_lea.hbm": "{0} + {1}",
    "scalar_lea.smem": "{0} + {1}",
    "scalar_lea.vmem": "{0} + {1}",
    "scalar_lea.sflag": "{0} + {1}",
    "sadd.s32": _SIGNED.format("{0} + {1}"),
    "ssub.s32": _SIGNED.format("{0} - {1}"),
    "smul.u32": _SIGNED.format("{0} * {1}"),
    "smulhi.u32": _SIGNED.format(f"({_UNSIGNED} * {_UNSIGNED.replace('0}', '1}')} >> 32)"),
    "sand.u32": "{0} & {1}",
    "sor.u32": "{0} | {1}",
    "sxor.u32": "{0} ^ {1}",
    # An address in HBM has more bits here than there.
    "sshll.u32": f"{{0}} << {{1}} if {_IS_ADDRESS} else {_SIGNED.format('({0} << ({1} & 31))')}",
    "sshrl.u32": _SIGNED.format(f"({_UNSIGNED} >> ({{1}} & 31))"),
    "sshra.s32": "{0} >> ({1} & 31)",
    "smin.u32": _SIGNED.format(f"min({_UNSIGNED}, {_UNSIGNED.replace('0}', '1}')})"),
    "smax.u32": _SIGNED.format(f"max({_UNSIGNED}, {_UNSIGNED.replace('0}', '1}')})"),
    "spop": "FROM_VECTOR",
    "spop.drf": "{0}",  # what a division left
    "spop.sfrf": "{0}",  # what `vsyncmov` found
    "vsyncmov": "machine.count({0})",
    "scalar_select": "{1} if {0} else {2}",
    "pand": "{0} and {1}",
    "pmov": "{0}",
    "pnand": "not ({0} and {1})",
    "por": "{0} or {1}",
    "pnor": "not ({0} or {1})",
    "pxor": "{0} != {1}",
    "pneg": "not {0}",
    "sc.u32": f"{_UNSIGNED} + {_UNSIGNED.replace('0}', '1}')} > 0xffffffff",
    **{
        f"scmp.{name}.s32.totalorder": f"{{0}} {sign} {{1}}"
        for name, sign in (
            ("eq", "=="),
            ("ne", "!="),
            ("lt", "<"),
            ("le", "<="),
            ("gt", ">"),
            ("ge", ">="),
        )
    },
    **{
        f"scmp.{name}.u32.totalorder": f"{_UNSIGNED} {sign} {_UNSIGNED.replace('0}', '1}')}"
        for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))
    },
}
"""What each operation makes of its operands."""

_LOGIC = ("pand", "pnand", "por", "pnor")
"""Operations of truth values that `faults` has, for where one is not known."""

_TESTED = {
    "sshll.u32": 1,
    "smin.u32": 2,
    "smax.u32": 2,
    "scalar_select": 1,
    "pneg": 1,
} | dict.fromkeys(_LOGIC, 2)
"""Operations whose expression tests operands, and how many, from the first on."""

_WITHOUT_EFFECT = {
    "sfence",
    "shalt.err",  # a check; a kernel that fails it is none to be timed
    "compiler-scheduling-barrier",
    "vtrace",
    "vsettm",
    "vdelay",
    "vsyncpa",  # all flags begin with 0, and are left with it
    "vsyncset.done",
    "vsyncset.notdone",
    "inlined_call",
    "vphi",
}
"""Operations that change nothing of what decides the time."""

_COPIES = (
    "hbm_to_vmem",
    "vmem_to_hbm",
    "hbm_to_smem",
    "smem_to_hbm",
    "vmem_to_smem",
    "smem_to_vmem",
)

_INSTEAD = "an operation that rpagen/schedule/scalar.py knows"


class Translation:
    """The functions of a schedule's blocks.

    source: what they are in Python: for each block `block_FIRST(machine) -> next block`.
    """

    def __init__(self, schedule: Schedule, blocks: Sequence[Block], generation: Generation) -> None:
        """Translates.

        Raises:
            InputError: an operation is not known, or has another form.
        """
        self._schedule = schedule
        self._generation = generation
        self._bases: dict[str, int] = {}
        self.in_vmem: dict[int, int] = {}
        """Operands that XLA put into VMEM, by the address at which a copy reads them."""
        self.in_smem: dict[int, int] = {}
        """Operands that it put into SMEM, by their address."""
        self._phis = _phis(schedule)
        self._shared = _shared(schedule, blocks) | {
            _latest(phi) for each in self._phis.values() for phi in each
        }
        lines = [line for block in blocks for line in self._function(block)]
        self.source = "\n".join(lines) + "\n"
        self._code: CodeType = compile(self.source, f"<{schedule.name}>", "exec")

    def functions(
        self, blocks: Sequence[Block], scalars: Mapping[int, int]
    ) -> dict[int, Callable[..., int]]:
        """A function for each block, by address, that share the values of one run.

        scalars: operands that are given by value, by number, all of them.
        """
        namespace: dict[str, object] = dict.fromkeys(self._shared, NEVER_WRITTEN)
        namespace |= {
            "scalars": scalars,
            "faults": faults,
            "kind_of": kind_of,
            "FROM_VECTOR": FROM_VECTOR,
            "NEVER_WRITTEN": NEVER_WRITTEN,
        }
        exec(self._code, namespace)
        return {block.first: namespace[_name(block)] for block in blocks}  # type: ignore[misc]

    def _function(self, block: Block) -> Iterator[str]:
        body = [
            line
            for address in range(block.first, block.last + 1)
            for line in self._bundle(self._schedule.bundles[address], address - block.first, block)
        ]
        written = {name for line in body for name in re.findall(r"(\w+) = ", line)}
        shared = sorted(written & self._shared)
        yield f"def {_name(block)}(machine):"
        if shared:
            yield f"    global {', '.join(shared)}"
        yield "    start = machine.now"
        for line in body:
            yield f"    {line}"
        yield f"    machine.now = start + {block.length}"
        if block.branch is None:
            yield f"    return {block.next}"
        else:
            yield f"    return {block.taken} if taken else {block.next}"

    def _bundle(self, bundle: Bundle, offset: int, block: Block) -> Iterator[str]:
        phis, effects = [], []
        pure: dict[str, list[str]] = {}
        reads: dict[str, set[str]] = {}
        for operation in bundle.operations:
            if slots.is_vector(operation.name):
                if slots.of(operation.name) is None:
                    raise self._schedule.error(
                        bundle,
                        f"{operation.name!r} is not known",
                        expected="an operation that rpagen/schedule/slots.py knows",
                    )
            elif operation.name == "sphi":
                phis.append(operation)
            elif operation.name in _WITHOUT_EFFECT:
                continue
            elif operation.name == BRANCH:
                if bundle.address == block.branch:
                    effects.append(f"taken = {_condition(_predicate(operation))}")
            else:
                lines = list(self._operation(bundle, operation, offset))
                if operation.result and _defines(operation):
                    name = _variable(operation.result)
                    pure[name] = lines
                    reads[name] = {_variable(each) for each in _reads(operation)}
                else:
                    effects += lines
        for phi in phis:
            yield from self._define(phi, _latest(phi.result))
        done: set[str] = set()
        for name in pure:
            yield from _in_order(name, pure, reads, done)
        yield from effects

    def _operation(self, bundle: Bundle, operation: Operation, offset: int) -> Iterator[str]:
        name, operands = operation.name, operation.operands
        expression = _EXPRESSIONS.get(name)
        try:
            if expression is not None:
                terms = [self._term(each) for each in operands]
                if name != "spop" and f"{{{len(terms) - 1}}}" not in expression:
                    raise ValueError(operands)  # there are more than it takes
                tested = terms[: _TESTED.get(name, 0)]
                instead = f"faults.{name}({', '.join(terms)})" if name in _LOGIC else ""
                made = _unless(tested, expression.format(*terms), instead or "NEVER_WRITTEN")
                yield from self._define(operation, made)
            elif name == "sld":
                yield from self._define(
                    operation, f"machine.smem.get({self._address(operands[0])}, NEVER_WRITTEN)"
                )
            elif name == "sst":
                address, _, value = operands[0].rpartition("]")
                line = f"machine.smem[{self._address(address + ']')}] = {self._term(value)}"
                yield _where(operation, line)
            elif name.startswith("dma.") and name[4:] in _COPIES:
                terms = [self._term(each) for each in operands[:4]]
                yield _where(
                    operation,
                    f"machine.copy({name[4:]!r}, {bundle.address}, start + {offset},"
                    f" {', '.join(terms)})",
                )
            elif name == "dma.general":  # with a stride for each of several dimensions
                source, granules, target, flag = (self._term(each) for each in operands[:4])
                yield _where(
                    operation,
                    f"machine.copy(kind_of({source}, {target}), {bundle.address}, start + {offset},"
                    f" {source}, {granules}, {target}, {flag})",
                )
            elif name == "dma.done.wait":
                flag, least = (self._term(each) for each in operands)
                yield _where(
                    operation,
                    f"start = machine.wait({flag}, {least}, {bundle.address}, start + {offset})"
                    f" - {offset}",
                )
            elif name == "vsyncadd":
                flag, amount = (self._term(each) for each in operands)
                yield _where(operation, f"machine.add({flag}, {_SIGNED.format(amount)})")
            elif name == "sdivrem.u32":
                sign = {"kRem": "%", "kDiv": "//"}[operation.comment]
                terms = [self._term(each) for each in operands]
                a, b = map(_UNSIGNED.format, terms)
                divided = f"{a} {sign} {b} if {b} else 0"
                yield from self._define(operation, _unless(terms, divided))
            elif name.startswith("inlined_call_operand."):
                yield from self._define(operation, self._operand(operation))
            else:
                raise KeyError(name)
        except (KeyError, ValueError, IndexError):
            shown = f"{name} {', '.join(operands)}".strip()
            raise self._schedule.error(
                bundle, f"{shown!r} is not known", expected=_INSTEAD
            ) from None

    def _define(self, operation: Operation, expression: str) -> Iterator[str]:
        name = _variable(operation.result)
        predicate = operation.predicate
        latest = "".join(f"{_latest(each)} = " for each in self._phis.get(operation.result, ()))
        line = f"{name} = {latest}"
        if predicate is None:
            yield f"{line}{expression}"
        elif operation.otherwise:
            # The operand in the parentheses is the result where the predicate holds not.
            chosen = f"({expression}) if {_condition(predicate)} else"
            chosen += f" {self._term(operation.otherwise)}"
            yield line + _unless([_variable(predicate.value)], chosen)
        else:
            unwritten = f"{_variable(predicate.value)} is NEVER_WRITTEN"
            yield f"if {unwritten}: {line}NEVER_WRITTEN"
            yield f"elif {_condition(predicate)}: {line}{expression}"

    def _term(self, operand: str) -> str:
        operand = operand.strip()
        if match := re.fullmatch(r"%(\w+)", operand):
            return _variable(match[1])
        if re.fullmatch(r"-?\d+", operand):
            value = int(operand)
            return str(value - (1 << 32) if value >= 1 << 31 else value)
        if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?|-?inf|nan", operand):
            return str(struct.unpack("<i", struct.pack("<f", float(operand)))[0])
        if match := re.fullmatch(r"(%\w+|\d+) \[#allocation\w+\]", operand):
            return self._term(match[1])  # an address, and the allocation that it lies in
        return self._address(operand)

    def _address(self, text: str) -> str:
        match = _ADDRESS.fullmatch(text.strip())
        if match is None:
            raise ValueError(text)
        terms = []
        for term in match["terms"].split("+"):
            term = term.strip().removeprefix("$")
            if found := _ALLOCATION.fullmatch(term):
                terms.append(str(self._base(found[1])))
            elif value := re.fullmatch(r"%(\w+)", term):
                terms.append(_variable(value[1]))
            else:
                terms.append(str(int(term, 0)))
        return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]

    def _operand(self, operation: Operation) -> str:
        """The address of an operand, or its value."""
        match = _SHAPE.search(operation.operands[0])
        if match is None:
            raise ValueError(operation.operands)
        number = int(match[1])
        aliases = _ALIASES.search(operation.operands[0])
        first = min(map(int, aliases[1].split(","))) if aliases else number
        if operation.name.endswith(".hbm"):
            return str(address_of(first) // self._generation.hbm_unit)
        if operation.name.endswith(".vmem"):
            row = self._base(f"operand {first}")
            self.in_vmem[row * ROW] = first  # copies count in granules
            return str(row)
        if operation.name.endswith(".smem"):
            address = self._base(f"operand {first}")
            self.in_smem[address] = first
            return str(address)
        if operation.name.endswith(".<no memory space>"):
            return f"scalars[{number}]"
        raise ValueError(operation.name)

    def _base(self, allocation: str) -> int:
        # An address means nothing outside of its memory: one numbering does for all of them.
        return self._bases.setdefault(allocation, len(self._bases) + 1) * ALLOCATION_SPACING


def _defines(operation: Operation) -> bool:
    return operation.name not in ("sst", "vsyncadd", "vsyncpa", "dma.done.wait") and (
        not operation.name.startswith("dma.")
    )


def _in_order(
    name: str, pure: Mapping[str, list[str]], reads: Mapping[str, set[str]], done: set[str]
) -> Iterator[str]:
    """The lines that define a value, those of the values that it reads before."""
    if name in done:
        return
    done.add(name)
    for other in reads[name]:
        if other in pure:
            yield from _in_order(other, pure, reads, done)
    yield from pure[name]


def _reads(operation: Operation) -> list[str]:
    return operation.values + ([operation.predicate.value] if operation.predicate else [])


def _phis(schedule: Schedule) -> dict[str, list[str]]:
    """For each value: the phis that take it, if it is the one that was defined last."""
    found: dict[str, list[str]] = {}
    for bundle in schedule.bundles:
        for operation in bundle.operations:
            if operation.name == "sphi":
                for value in operation.values:
                    found.setdefault(value, []).append(operation.result)
    return found


def _shared(schedule: Schedule, blocks: Sequence[Block]) -> set[str]:
    """The values that another block reads, or that may not be defined before they are read."""
    shared: set[str] = set()
    for block in blocks:
        defined: set[str] = set()
        for bundle in schedule.bundles[block.first : block.last + 1]:
            scalar = [each for each in bundle.operations if not slots.is_vector(each.name)]
            always = {
                each.result
                for each in scalar
                if each.result and (each.predicate is None or each.otherwise)
            }
            for operation in scalar:
                shared |= {each for each in _reads(operation) if each not in defined | always}
            defined |= always
    return {_variable(each) for each in shared}


def _predicate(operation: Operation) -> Predicate:
    assert operation.predicate is not None
    return operation.predicate


def _condition(predicate: Predicate) -> str:
    return f"{'not ' if predicate.is_negated else ''}{_variable(predicate.value)}"


def _where(operation: Operation, line: str) -> str:
    if operation.predicate is None:
        return line
    return f"if {_condition(operation.predicate)}: {line}"


def _unless(tested: Sequence[str], expression: str, instead: str = "NEVER_WRITTEN") -> str:
    """An expression that tests terms, and what it is where one of these is not known."""
    variables = [term for term in tested if term.isidentifier()]
    if not variables:
        return expression
    unwritten = " or ".join(f"{each} is NEVER_WRITTEN" for each in variables)
    return f"({instead} if {unwritten} else {expression})"


def _variable(value: str) -> str:
    return f"n{value}" if value[0].isdigit() else value


def _latest(phi: str) -> str:
    return f"latest_{_variable(phi)}"


def _name(block: Block) -> str:
    return f"block_{block.first}"
