"""Formatting piece by piece gives what black gives for the whole."""

import pytest

from rpagen.emit.format import formatted, whole

PARTS = {
    "imports": "import jax\nfrom jax import lax\n",
    "constants": "A = 1\n\n\n\nB = {'a':1,\n  'b':2}\n",
    "function": "def stage(a,b):\n    '''Contract.'''\n    return a,b\n",
    "decorated": "@functools.partial(jax.jit, inline=True)\ndef stage(\n  a, b,):\n  return a\n",
    "class": "class Tables(NamedTuple):\n    a: int\n    def f(self): return 1\n",
    "comment": "# What follows is about scores.\n",
    "rule": "# --- scores ---\n\n",
    "ends in a comment": "def stage(a):\n    return a\n    # the end\n",
    "one line": "def stage(a): return a  # short\n",
    "string": "X = '''\ndef f():\n    pass\n'''\n",
    "branch": "if X:\n    def f(): pass\nelse:\n    g = 1\n",
}


@pytest.mark.parametrize("gap", ["", "\n", "\n\n\n\n"])
@pytest.mark.parametrize("first", PARTS)
def test_pieces_and_whole_are_formatted_alike(first, gap):
    for second in PARTS:
        code = gap.join(['"""A module."""\n', PARTS[first], PARTS[second]])
        assert formatted(code) == whole(code), second


def test_what_is_no_python_is_refused():
    with pytest.raises(SyntaxError):
        formatted("def f(:\n")
