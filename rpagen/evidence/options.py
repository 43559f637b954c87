"""The keyword arguments of a call that is compiled or timed: which there are, with usual values."""

from __future__ import annotations

from collections.abc import Collection

SOFT_CAP = 30.0
KV_SCALE = 0.5
"""Of keys, and of values."""
QUERY_SCALE = 0.1


def usual(
    *,
    features: Collection[str] = (),
    quantization: str = "none",
    sliding_window: int | None = None,
    head_dim: int | None = None,
) -> dict[str, object]:
    """The options that a call is asked for.

    features, quantization: of the variant. sliding_window: in tokens; None for none.
    head_dim: whose softmax scale is given; None leaves the scale to the kernel.
    """
    options: dict[str, object] = {}
    if head_dim is not None:
        options["sm_scale"] = head_dim**-0.5
    if sliding_window is not None:
        options["sliding_window"] = sliding_window
    if "soft_cap" in features:
        options["soft_cap"] = SOFT_CAP
    if quantization != "none":
        options |= {"k_scale": KV_SCALE, "v_scale": KV_SCALE}
    if quantization == "per_tensor_with_query":
        options["q_scale"] = QUERY_SCALE
    return options
