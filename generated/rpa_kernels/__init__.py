"""Ragged paged attention kernels for TPUs, one module per variant, emitted by rpagen.

`ragged_paged_attention` picks the variant that a call's arguments and the TPU generation ask for;
`load(name)` gives one variant's own module.
"""

from .registry import (
    UnsupportedVariantError,
    get_kv_cache_shape,
    load,
    ragged_paged_attention,
    variants,
)
from .support import validate_inputs

__all__ = [
    "UnsupportedVariantError",
    "get_kv_cache_shape",
    "load",
    "ragged_paged_attention",
    "validate_inputs",
    "variants",
]
