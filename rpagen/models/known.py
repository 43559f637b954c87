"""What a type of model implies and its fields do not say: a row of the table for each type.

Checked against the classes of transformers 5.24. A type that is not here is read by its fields
alone, and the recommendation says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# The words of `layer_types`.
FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
CROSS = "cross_attention"


@dataclasses.dataclass(frozen=True)
class ModelType:
    """What is implied by one `model_type`.

    most: the attention of all layers but every `period`-th one, which is full; with a period of 0,
        of all layers.
    begins_late: whether those before max_window_layers are full.
    defaults: what transformers takes for fields that are absent.
    scale: the score scale, where it is neither said by a field nor head_dim**-0.5.
    has_sinks: whether the softmax of every head counts an attention sink.
    image_note: what a user has to know of a model that has this one inside and sees images.
    """

    most: str = FULL
    period: int = 0
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scale: str = ""
    begins_late: bool = False
    has_sinks: bool = False
    image_note: str = ""


ENCODER = ModelType(defaults={"is_causal": False})
"""A model of which every token sees all others."""

KNOWN = {
    "bert": ENCODER,
    "cohere2": ModelType(SLIDING, 4, {"max_position_embeddings": 8192, "sliding_window": 4096}),
    "gemma": ModelType(
        defaults={"head_dim": 256, "max_position_embeddings": 8192, "num_key_value_heads": 16}
    ),
    "gemma2": ModelType(
        SLIDING,
        2,
        {
            "attn_logit_softcapping": 50.0,
            "head_dim": 256,
            "max_position_embeddings": 8192,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        },
    ),
    "gemma3_text": ModelType(
        SLIDING,
        6,
        {
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        },
        image_note="text alone is served: the tokens of an image see each other in both directions,"
        " which no kernel here computes",
    ),
    "gemma3n_text": ModelType(
        SLIDING,
        5,
        {
            "head_dim": 256,
            "max_position_embeddings": 32768,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "num_kv_shared_layers": 15,
            "sliding_window": 512,
        },
        scale="1.0",
    ),
    "gpt_oss": ModelType(
        SLIDING,
        2,
        {
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "sliding_window": 128,
        },
        has_sinks=True,
    ),
    "granite": ModelType(defaults={"attention_multiplier": 1.0, "max_position_embeddings": 2048}),
    "llama": ModelType(defaults={"max_position_embeddings": 2048}),
    "llama4_text": ModelType(
        CHUNKED,
        4,
        {
            "attention_chunk_size": 8192,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
        },
    ),
    "mistral": ModelType(
        SLIDING,
        0,
        {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    ),
    "mixtral": ModelType(SLIDING, 0, {"max_position_embeddings": 131072, "num_key_value_heads": 8}),
    "olmo2": ModelType(defaults={"max_position_embeddings": 2048}),
    "olmo3": ModelType(SLIDING, 4, {"max_position_embeddings": 2048, "sliding_window": 4096}),
    "phi3": ModelType(SLIDING, 0, {"max_position_embeddings": 4096}),
    "qwen2": ModelType(
        SLIDING,
        0,
        {"max_position_embeddings": 32768, "num_key_value_heads": 32, "use_sliding_window": False},
        begins_late=True,
    ),
    "qwen3": ModelType(
        SLIDING,
        0,
        {
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "num_key_value_heads": 32,
            "use_sliding_window": False,
        },
        begins_late=True,
    ),
    "qwen3_moe": ModelType(
        SLIDING,
        0,
        {"max_position_embeddings": 32768, "num_key_value_heads": 4, "use_sliding_window": False},
    ),
    "roberta": ENCODER,
    "starcoder2": ModelType(
        SLIDING, 0, {"max_position_embeddings": 4096, "num_key_value_heads": 2}
    ),
    "xlm-roberta": ENCODER,
}


def find(model_type: str) -> tuple[str, ModelType | None]:
    """A type by its name, or by that of the model around it: gemma3 has a gemma3_text inside."""
    for name in (model_type, f"{model_type}_text"):
        if name in KNOWN:
            return name, KNOWN[name]
    return model_type, None
