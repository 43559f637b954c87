"""The fields of a family spec, and what each is for.

The loader's checks and the JSON Schema both derive from these tables; the axes are in `axes`.
"""

from __future__ import annotations

import keyword

FAMILY_FIELDS = {
    "family": "The name of the family, which begins the name of each of its variants.",
    "doc": "What the family computes, in a sentence; it opens the emitted modules' docstrings.",
    "generations": "The TPU generations served; all of them where this is left out.",
    "defaults": "The value of every axis in the family's plainest variant.",
    "axes": "The values to make variants of: the product of all lists.",
    "combos": "Values that go together, each crossed with the axes that it does not name.",
    "exclude": "Variants that are not offered, and why.",
    "targets": "Defaults that differ by TPU generation.",
}
REQUIRED_FAMILY_FIELDS = ("family", "doc", "defaults")

COMBO_FIELDS = {
    "each": "Axes with several values: one combo for each of the product of the lists.",
    "tier": "core: emitted and checked in. extended: emitted on demand. core if left out.",
    "generations": "The TPU generations served; those of the family where this is left out.",
}

EXCLUSION_FIELDS = {
    "when": "The axis values that together are not offered.",
    "reason": "Why not, for whoever asks for such a variant.",
}

WHY_ALL_LAUNCHES = ": without one, the sequences of its range would get no output"

GROUPS = {
    "query": "The queries.",
    "kv": "The KV cache.",
    "pipelining": "How a launch overlaps its work.",
    "attention": "How the two steps of attention overlap.",
    "launches": (
        "The kernels of a module, one for each range of the distribution; each may override the"
        f" pipelining. All three are required{WHY_ALL_LAUNCHES}."
    ),
    "decode": "For sequences with one new token.",
    "prefill": "For sequences with as many new tokens as a static chunk has.",
    "mixed": "For sequences with any number of new tokens.",
}
"""The keys of the defaults that hold other keys."""

NAME_PATTERN = "[a-z][a-z0-9_]*"
NAME_LENGTH = 40
NAMES_TAKEN = (
    *keyword.kwlist,
    # The modules and functions of the emitted package, beside which variants are modules too.
    "registry",
    "support",
    "ragged_paged_attention",
    "get_kv_cache_shape",
    "load",
    "validate_inputs",
    "variants",
)

DOC_REFUSED = r'"""|\\|"\s*$'
"""What a docstring cannot hold as it is."""


def needs_every_key(field: str) -> bool:
    """Whether the mapping at `field` of the defaults needs all its keys.

    What a launch overrides is free; everything else is said, so that names have a firm ground.
    """
    return not field.startswith("defaults.launches.")
