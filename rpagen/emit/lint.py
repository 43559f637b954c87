"""What emitted code must not look like, checked on its syntax tree before anything is written.

A template decides which statements exist, so an emitted module never asks again: no branch on a
constant, no name that nothing uses, no line a reader would skip. Names that start with `_` are
exempt from the rules about use; names in `__all__` and `EXPORTED` count as used.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeGuard

from rpagen.emit.format import LINE_LENGTH

EXPORTED = frozenset({"VARIANT", "ragged_paged_attention"})
KERNEL_LINES = 60

# A nested function is the body of a branch or a loop, or it is made into something by one of
# these decorators. Nothing else may hide a function within a function.
BODY_DECORATORS = frozenset({"pl.when", "pl.loop", "jax.custom_jvp", "jax.custom_vjp"})
LOOPS = frozenset({"fori_loop", "while_loop"})

_PURE_BUILTINS = frozenset({"all", "any", "bool", "int", "isinstance", "len", "max", "min", "sum"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_NAMES_A_VARIANT = re.compile(r' *(name=|NAME = )"\w+",?')
_CAPITALS = re.compile(r"_?[A-Z][A-Z0-9_]*")
_SHAPE = re.compile(r"\s*,?\s*#.*\[.*\]")


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """One place of a module that breaks one rule."""

    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.line}: {self.message} [{self.rule}]"


@dataclasses.dataclass(frozen=True)
class Scope:
    """The module, a function or a lambda, and what is in it.

    own: its nodes in the order of the text, without what is inside the functions in it.
    inner: the functions in it.
    """

    node: ast.Module | _Function | ast.Lambda
    own: list[ast.AST]
    inner: list[Scope]

    def walk(self) -> Iterator[Scope]:
        """This scope and all inside it."""
        yield self
        for scope in self.inner:
            yield from scope.walk()

    def uses(self) -> set[str]:
        """The names that are read, or spent with `del`, anywhere inside."""
        own = {
            node.id
            for node in self.own
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
        }
        return own.union(*(scope.uses() for scope in self.inner))


@dataclasses.dataclass(frozen=True)
class Source:
    """An emitted module as the rules see it."""

    lines: list[str]
    module: Scope
    scopes: list[Scope]  # the module's first

    @classmethod
    def of(cls, code: str) -> Source:
        """`code`, parsed; SyntaxError if it is not Python."""
        module = _scope(ast.parse(code))
        return cls(code.splitlines(), module, list(module.walk()))

    def nodes(self) -> Iterator[ast.AST]:
        """Every node of the module."""
        return (node for scope in self.scopes for node in scope.own)

    def bindings(self) -> Iterator[tuple[str, ast.stmt]]:
        """The names that the module's own statements define, in order, with the statement."""
        assert isinstance(self.module.node, ast.Module)
        for node in self.module.node.body:
            for name in _bound(node):
                yield name, node

    def exported(self) -> set[str]:
        """The names in `__all__`."""
        return {
            part.value
            for name, statement in self.bindings()
            if name == "__all__"
            for part in ast.walk(statement)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        }

    def kernels(self) -> Iterator[_Function]:
        """The functions that a launch runs."""
        for scope in self.scopes:
            if isinstance(scope.node, _Function) and scope.node.name.endswith("_kernel"):
                yield scope.node


def _scope(node: ast.Module | _Function | ast.Lambda) -> Scope:
    scope = Scope(node, [], [])
    waiting: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else [*node.body[::-1]]
    while waiting:
        part = waiting.pop()
        scope.own.append(part)
        if isinstance(part, _Function | ast.Lambda):
            scope.inner.append(_scope(part))
            # Decorators, defaults and annotations are evaluated outside.
            waiting += _header_parts(part)[::-1]
        else:
            waiting += list(ast.iter_child_nodes(part))[::-1]
    return scope


def _header_parts(function: _Function | ast.Lambda) -> list[ast.AST]:
    """What a function has beside its body."""
    if isinstance(function, ast.Lambda):
        return [function.args]
    returns = [function.returns] if function.returns else []
    return [*function.decorator_list, function.args, *returns]


def _bound(statement: ast.stmt) -> list[str]:
    """The names that a statement defines where it stands."""
    match statement:
        case ast.ImportFrom(module="__future__"):
            return []
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name.partition(".")[0] for alias in names]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            nodes = [node for target in targets for node in ast.walk(target)]
            return [node.id for node in nodes if _is_store(node)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


Found = Iterator[tuple[int, str]]
Rule = Callable[[Source], Found]


def lint(code: str) -> list[Finding]:
    """Everything that is wrong with `code`, in the order of its lines.

    Raises:
        SyntaxError: `code` is not Python.
    """
    source = Source.of(code)
    return sorted(
        Finding(line, name, message)
        for name, rule in RULES.items()
        for line, message in rule(source)
    )


# --- branches ------------------------------------------------------------------------------------


def constant_condition(source: Source) -> Found:
    """A branch whose outcome is known when the module is emitted."""
    bound = dict(source.bindings())
    constants = frozenset(name for name in bound if _CAPITALS.fullmatch(name)) - {"TYPE_CHECKING"}
    libraries = frozenset(
        name for name, node in bound.items() if isinstance(node, ast.Import | ast.ImportFrom)
    )
    for node in source.nodes():
        for test in _tests(node):
            for part in _operands(test):
                kinds = _kinds(part, constants, libraries)
                # What a library holds is a question to the release at hand, unless a constant of
                # the module is compared with it.
                if "varying" not in kinds and ("constant" in kinds or "library" not in kinds):
                    yield part.lineno, f"branch on the constant `{ast.unparse(part)}`"


def _tests(node: ast.AST) -> list[ast.expr]:
    """The expressions on which `node` branches."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            return [test]
        case ast.comprehension(ifs=ifs):
            return ifs
        case ast.Match(subject=subject):
            return [subject]
    return []


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    """What decides a test: one constant operand of and/or/not is enough to decide it."""
    match test:
        case ast.BoolOp(values=values):
            for value in values:
                yield from _operands(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _operands(operand)
        case _:
            yield test


def _kinds(
    expression: ast.expr, constants: frozenset[str], libraries: frozenset[str]
) -> frozenset[str]:
    """What an expression is made of: literal, constant, library or varying parts."""

    def of(*parts: ast.expr) -> frozenset[str]:
        found = [_kinds(part, constants, libraries) for part in parts]
        return frozenset[str]().union(*found) if found else frozenset({"varying"})

    match expression:
        case ast.Constant():
            return frozenset({"literal"})
        case ast.Name(id=name):
            kind = "constant" if name in constants else "library" if name in libraries else None
            return frozenset({kind or "varying"})
        case ast.Attribute(value=owner, attr=attribute):
            owned = of(owner)
            is_constant = owned == {"library"} and _CAPITALS.fullmatch(attribute)
            return frozenset({"constant"}) if is_constant else owned
        case ast.Call(func=ast.Name(id=name), args=args) if name in _PURE_BUILTINS:
            return of(*args)
        case ast.Call(func=ast.Attribute(value=owner), args=args) if of(owner) != {"library"}:
            return of(owner, *args)
        case ast.Call():
            return frozenset({"varying"})
    return of(*(part for part in ast.iter_child_nodes(expression) if isinstance(part, ast.expr)))


# --- names ---------------------------------------------------------------------------------------


def unused_name(source: Source) -> Found:
    """A name of the module that nothing in it uses."""
    used = source.module.uses() | source.exported() | EXPORTED
    for name, node in source.bindings():
        if name not in used and not name.startswith("_"):
            yield node.lineno, f"`{name}` is not used here, nor is it in __all__"


def unused_local(source: Source) -> Found:
    """A parameter or a local variable that its function never reads.

    A parameter that a signature must have is spent with `del`, next to the reason.
    """
    for scope in source.scopes[1:]:
        used = scope.uses() | {"self", "cls"}
        for name, node, kind in _locals(scope):
            if name not in used and not name.startswith("_"):
                yield node.lineno, f"{kind} `{name}` is never used"


def duplicate_name(source: Source) -> Found:
    """A name that the module defines twice, so that the first definition is dead."""
    counts = Counter(name for name, _ in source.bindings())
    seen: set[str] = set()
    for name, node in source.bindings():
        if counts[name] > 1 and name in seen:
            yield node.lineno, f"`{name}` is defined more than once"
        seen.add(name)


def wildcard_import(source: Source) -> Found:
    """An import that does not say what it brings in."""
    for node in source.nodes():
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            yield node.lineno, f"`from {node.module} import *`"


def _locals(scope: Scope) -> Iterator[tuple[str, ast.arg | ast.Name, str]]:
    """The names that a function binds, without those of the functions inside it."""
    assert not isinstance(scope.node, ast.Module)
    args = scope.node.args
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if arg is not None:
            yield arg.arg, arg, "parameter"
    seen: set[str] = set()
    for node in scope.own:
        if _is_store(node) and node.id not in seen:
            seen.add(node.id)
            yield node.id, node, "local variable"


def _is_store(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


# --- functions -----------------------------------------------------------------------------------


def nested_function(source: Source) -> Found:
    """A function within a function that is not the body of a branch or a loop."""
    for scope in source.scopes[1:]:
        bodies = _loop_bodies(scope)
        for node in (inner.node for inner in scope.inner):
            if not isinstance(node, _Function) or node.name in bodies:
                continue
            if not any(_dotted(decorator) in BODY_DECORATORS for decorator in node.decorator_list):
                yield node.lineno, f"`{node.name}` is a function within a function"


def _loop_bodies(scope: Scope) -> set[str]:
    """The names that a function hands to a loop as its body or its condition."""
    return {
        arg.id
        for call in scope.own
        if isinstance(call, ast.Call) and _dotted(call).rpartition(".")[2] in LOOPS
        for arg in call.args
        if isinstance(arg, ast.Name)
    }


def _dotted(expression: ast.expr) -> str:
    """The dotted name of an expression, or of what it calls."""
    target = expression.func if isinstance(expression, ast.Call) else expression
    return ast.unparse(target)


def ref_without_shape(source: Source) -> Found:
    """A ref of a kernel without the comment that says its shape, such as `# [pages, 128]`."""
    for kernel in source.kernels():
        args = kernel.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs):
            rest = source.lines[arg.end_lineno - 1][arg.end_col_offset :]  # type: ignore[operator]
            if arg.arg.endswith("_ref") and not _SHAPE.match(rest):
                yield arg.lineno, f"`{arg.arg}` has no comment with its shape on its line"


def long_kernel(source: Source) -> Found:
    """A kernel that does not read as an outline any more."""
    for kernel in source.kernels():
        has_docstring = ast.get_docstring(kernel) is not None
        body = kernel.body[1:] if has_docstring else kernel.body
        if body:
            lines = source.lines[body[0].lineno - 1 : body[-1].end_lineno]
            count = sum(1 for line in lines if line.strip())
            if count > KERNEL_LINES:
                yield kernel.lineno, f"`{kernel.name}` has {count} lines, over {KERNEL_LINES}"


def long_line(source: Source) -> Found:
    """A line that black could not bring under the limit: a comment or a string, usually.

    The name of a variant is as long as its spec makes it, and has no place to be broken at.
    """
    for number, line in enumerate(source.lines, start=1):
        if len(line) > LINE_LENGTH and not _NAMES_A_VARIANT.fullmatch(line):
            yield number, f"{len(line)} columns, over {LINE_LENGTH}"


RULES: dict[str, Rule] = {
    "constant-condition": constant_condition,
    "unused-name": unused_name,
    "unused-local": unused_local,
    "duplicate-name": duplicate_name,
    "wildcard-import": wildcard_import,
    "nested-function": nested_function,
    "ref-without-shape": ref_without_shape,
    "long-kernel": long_kernel,
    "long-line": long_line,
}
