"""Every lint rule against a module that breaks it, and one that only seems to."""

import textwrap
from pathlib import Path

import pytest

from rpagen.emit import lint

HEAD = "from jax.experimental import pallas as pl\n"


def broken(code: str) -> list[tuple[int, str]]:
    """The lines and rules of what lint finds in `code`."""
    return [(finding.line, finding.rule) for finding in lint.lint(textwrap.dedent(code))]


def test_a_good_module_passes():
    assert (
        broken(
            '''\
            """Doc."""

            from __future__ import annotations

            import jax
            from jax.experimental import pallas as pl

            __all__ = ["helper"]

            KV_SLOTS = 2
            VARIANT = "rpa"


            def wait(kv_ref, slot):
                """Contract."""
                kv_ref[slot % KV_SLOTS].wait()


            def decode_kernel(
                kv_ref,  # [kv slots, kv rows, 2 * kv heads, head dim]
                tables: tuple[int, ...],
                *,
                page_size,
            ):
                """Outline."""
                if page_size % KV_SLOTS:
                    raise ValueError(page_size)

                @pl.loop(0, tables[0])
                def block_loop(block):
                    @pl.when(block > 0)
                    def _():
                        wait(kv_ref, block)


            def ragged_paged_attention(x, mask_value=None):
                del mask_value  # a hint that changes no result
                return jax.jit(decode_kernel)(x)


            def helper(_unused, n):
                return [i for i in range(n)]
            '''
        )
        == []
    )


# --- constant-condition --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "test",
    [
        "True",
        "0",
        "not 1",
        "'int8' == 'int8'",
        "KV_DTYPE == 'int8'",
        "KV_DTYPE in ('int8', 'float8_e5m2')",
        "KV_DTYPE == jnp.int8",
        "x > 0 and KV_DTYPE == 'int8'",
        "x > 0 or (x < 3 and not KV_DTYPE)",
        "len(KV_DTYPE) + 1 > 2",
        "KV_DTYPE.startswith('int')",
        "support.LANES == 128",
        "KV_DTYPE[0] == 'i'",
        "(KV_DTYPE if x else 'int8') and False",
    ],
)
@pytest.mark.parametrize(
    "branch", ["if {}:\n        x = 1", "x = 1 if {} else 2", "x = [i for i in x if {}]"]
)
def test_a_branch_on_a_constant_is_found(test, branch):
    code = (
        "import jax.numpy as jnp\nfrom . import support\nKV_DTYPE = 'int8'\n"
        "__all__ = ['jnp', 'support', 'KV_DTYPE', 'f']\n"
        f"def f(x):\n    {branch.format(test)}\n    return x\n"
    )
    assert (6, "constant-condition") in broken(code)


@pytest.mark.parametrize(
    "test",
    [
        "x.shape[0] == 1",
        "x % KV_SLOTS",
        "x.dtype == jnp.int8",
        "x is None",
        "x and x > KV_SLOTS",
        "jax.default_backend() == 'tpu'",
        "jax.__version_info__ < (0, 11)",
        "decides(KV_SLOTS)",
        "x.T",
        "pl.num_programs(0) > KV_SLOTS",
        "any(feature == x for feature in KV_SLOTS)",
    ],
)
def test_a_branch_on_what_varies_is_not(test):
    code = (
        "import jax\nimport jax.numpy as jnp\nfrom jax.experimental import pallas as pl\n"
        "KV_SLOTS = 2\n__all__ = ['jax', 'jnp', 'pl', 'KV_SLOTS', 'f', 'decides']\n"
        f"def decides(x):\n    return x\ndef f(x):\n    if {test}:\n        x = 1\n    return x\n"
    )
    assert broken(code) == []


def test_type_checking_is_no_constant():
    code = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax\n"
    assert broken(code) == []


def test_a_match_on_a_constant_is_found():
    code = "MODE = 1\nmatch MODE:\n    case 1:\n        pass\n"
    assert broken(code) == [(2, "constant-condition")]


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import os\n",
        "import jax.numpy as jnp\n",
        "from jax import lax\n",
        "LANES = 128\n",
        "LANES: int = 128\n",
        "a, _b = 1, 2\n",
        "def stage():\n    pass\n",
        "class Tables:\n    pass\n",
    ],
)
def test_an_unused_name_of_the_module_is_found(code):
    assert broken(code) == [(1, "unused-name")]


@pytest.mark.parametrize(
    "code",
    [
        "_LANES = 128\n",
        "VARIANT = 1\n",
        "def ragged_paged_attention():\n    pass\n",
        "LANES = 128\n__all__ = ['LANES']\n",
        "import jax\nVARIANT = jax.numpy.int8\n",
        "from __future__ import annotations\n",
    ],
)
def test_a_used_private_or_exported_name_is_not(code):
    assert broken(code) == []


@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("def f(a, b):\n    return a\n", 1),
        ("def f(a, *rest):\n    return a\n", 1),
        ("def f(a, **options):\n    return a\n", 1),
        ("def f(a, *, b=1):\n    return a\n", 1),
        ("f = lambda i, j: i\n", 1),
        ("def f(a):\n    b = a\n", 2),
        ("def f(a):\n    b = a\n    b = a\n", 2),
        ("def f(a):\n    b: int = a\n", 2),
        ("def f(a):\n    b, _ = a\n", 2),
        ("def f(a):\n    for b in a:\n        pass\n", 2),
        ("def f(a):\n    with a as b:\n        pass\n", 2),
        ("def f(a):\n    return [1 for b in a]\n", 2),
        ("def f(a):\n    if (b := a):\n        return a\n", 2),
    ],
)
def test_an_unused_parameter_or_local_is_found(function, line):
    assert broken(function + "__all__ = ['f']\n") == [(line, "unused-local")]


@pytest.mark.parametrize(
    "function",
    [
        "def f(a):\n    del a\n",
        "def f(_a, *_, **_options):\n    pass\n",
        "def f(a):\n    def g():\n        return a\n    return fori_loop(0, 1, g)\n",
        "class C:\n    def m(self):\n        pass\nf = C()\n",
        "def f(a):\n    for _ in a:\n        pass\n",
    ],
)
def test_a_read_or_spent_parameter_is_not(function):
    code = "from jax.lax import fori_loop\n" + function + "__all__ = ['f', 'fori_loop']\n"
    assert broken(code) == []


@pytest.mark.parametrize(
    "second", ["def stage():\n    pass\n", "stage = 2\n", "from jax import stage\n"]
)
def test_a_name_defined_twice_is_found(second):
    code = "def stage():\n    pass\n" + second + "__all__ = ['stage']\n"
    assert broken(code) == [(3, "duplicate-name")]


def test_a_wildcard_import_is_found():
    assert broken("from jax import *\n__all__ = ['*']\n") == [(1, "wildcard-import")]


# --- functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nested",
    [
        "def inner():\n        pass\n    inner()",
        "@functools.cache\n    def inner():\n        pass\n    inner()",
        "@pl.program_id(0)\n    def inner():\n        pass",
    ],
)
def test_a_nested_function_is_found(nested):
    code = f"{HEAD}import functools\n__all__ = ['f', 'pl', 'functools']\ndef f():\n    {nested}\n"
    assert [rule for _, rule in broken(code)] == ["nested-function"]


@pytest.mark.parametrize(
    "nested",
    [
        "@pl.when(x > 0)\n    def _():\n        pass",
        "@pl.loop(0, x)\n    def block_loop(block):\n        block.start()",
        "@pl.loop(0, x, init_carry=0)\n    def total(i, carry):\n        return i + carry\n"
        "    return total",
        "@jax.custom_jvp\n    def primal(y):\n        return y\n    return primal(x)",
        "def body(i, carry):\n        return i + carry\n    return lax.fori_loop(0, x, body, 0)",
    ],
)
def test_the_body_of_a_branch_or_a_loop_is_not(nested):
    code = (
        f"{HEAD}import jax\nfrom jax import lax\n__all__ = ['f', 'pl', 'jax', 'lax']\n"
        f"def f(x):\n    {nested}\n    return x\n"
    )
    assert broken(code) == []


@pytest.mark.parametrize(
    "parameter",
    [
        "kv_ref,",
        "kv_ref,  # the cache",
        "kv_ref: object,",
        "*, kv_ref,",
        "kv_ref, x,  # [pages, 128]",
    ],
)
def test_a_ref_without_its_shape_is_found(parameter):
    body = "return kv_ref" if ", x" not in parameter else "return kv_ref, x"
    code = f"def decode_kernel(\n    {parameter}\n):\n    {body}\n__all__ = ['decode_kernel']\n"
    assert broken(code) == [(2, "ref-without-shape")]


@pytest.mark.parametrize(
    "code",
    [
        "def decode_kernel(\n    kv_ref,  # [pages, 128]\n):\n    return kv_ref\n",
        "def decode_kernel(\n    kv_ref: object,  # i32[4]; SMEM\n):\n    return kv_ref\n",
        "def stage(\n    kv_ref,\n):\n    return kv_ref\ndecode_kernel = stage\n",
    ],
)
def test_a_ref_with_its_shape_or_outside_a_kernel_is_not(code):
    assert broken(code + "__all__ = ['decode_kernel']\n") == []


def test_a_long_kernel_is_found_and_its_docstring_does_not_count():
    def kernel(lines: int) -> str:
        doc = '    """Outline.\n' + "    More.\n" * 90 + '    """\n'
        body = "\n".join("    x.start()\n" for _ in range(lines))  # with blank lines between
        return f"def decode_kernel(x):\n{doc}{body}__all__ = ['decode_kernel']\n"

    assert broken(kernel(lint.KERNEL_LINES)) == []
    assert broken(kernel(lint.KERNEL_LINES + 1)) == [(1, "long-kernel")]


def test_a_long_line_is_found():
    assert broken("VARIANT = 1\n# " + "x" * 98 + "\n") == []
    assert broken("VARIANT = 1\n# " + "x" * 99 + "\n") == [(2, "long-line")]


def test_the_name_of_a_variant_may_be_as_long_as_its_spec_makes_it():
    assert broken('NAME = "' + "x" * 99 + '"\nVARIANT = NAME\n') == []


def test_findings_come_in_the_order_of_lines_and_say_the_rule():
    found = lint.lint("LANES = 1\nimport os\n")
    assert [str(finding) for finding in found] == [
        "1: `LANES` is not used here, nor is it in __all__ [unused-name]",
        "2: `os` is not used here, nor is it in __all__ [unused-name]",
    ]


def test_every_rule_is_tried_here():
    here = Path(__file__).read_text()
    assert all(f'"{name}"' in here for name in lint.RULES)
