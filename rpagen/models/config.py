"""What a model's configuration says of its attention: facts, checked, before any tensor parallel.

Fields and words are those of Hugging Face's `config.json`. What the file does not say and its type
implies is in `known`. Nothing is guessed in silence: every assumption is a note.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from rpagen.errors import escaped, listed, quoted
from rpagen.models import document, known
from rpagen.models.document import Document
from rpagen.models.known import CHUNKED, CROSS, FULL, SLIDING, ModelType
from rpagen.spec import budget

MOST_HEADS = 1 << 12
MOST_LAYERS = 1 << 12
MOST_WIDTH = 1 << 20
"""Bounds of what is taken for a real model: heads, layers, and values of a token's hidden state."""

NESTED = ("text_config", "llm_config", "language_config")
"""Where a model that also sees images or hears has its language model."""

OLD_NAMES = {
    "hidden_size": ("n_embd", "d_model", "dim"),
    "max_position_embeddings": ("n_positions", "seq_length", "max_seq_len", "max_seq_length"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_key_value_heads": (
        *("num_kv_heads", "n_head_kv", "multi_query", "multi_query_group_num", "num_query_groups"),
    ),
}
"""How older files call the fields that are read here."""

OTHER_PATTERNS = (
    *("attention_window", "attn_layer_indices", "attn_layer_period", "attn_type_list"),
    *("block_configs", "block_types", "cross_layer_interval", "dense_attention_every_n_layers"),
    *("full_attention_interval", "full_attn_idxs", "global_attn_every_n_layers"),
    *("global_attn_idx", "hybrid_layer_ids", "hybrid_layer_pattern", "hybrid_override_pattern"),
    *("layer_block_type", "layers_block_type", "mamba_step", "sparse_config", "use_cla"),
)
"""Fields that say in ways of their own which layers have which attention, or none."""

OTHER_SHAPES = (
    *("global_head_dim", "num_global_key_value_heads"),
    *("num_key_value_heads_per_layer", "num_kv_heads_per_layer"),
    *("swa_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads"),
)
"""Fields that give some layers other heads than the rest."""

RELATIVE_BIASES = ("relative_attention", "relative_attention_num_buckets")
"""Fields that ask for a bias by how far apart a query and a key are."""

SINKS = ("attention_sink", "attn_sink")
"""Parts of the names of fields that ask for attention sinks."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """What decides the kernel of a layer; layers that are equal here are served alike.

    attention: a word of `layer_types`.
    size: keys that a query sees, of a window or a chunk.
    kv_from: the layer whose keys and values it reads; None if it has its own.
    """

    attention: str
    size: int | None = None
    kv_from: int | None = None


@dataclasses.dataclass(frozen=True)
class Heads:
    """The attention heads of every layer.

    scale: what multiplies the scores, as an expression.
    dtype: of queries; a word of the kernels.
    """

    query_heads: int
    kv_heads: int
    head_dim: int
    scale: str
    soft_cap: float | None
    is_causal: bool
    dtype: str


@dataclasses.dataclass(frozen=True)
class Model:
    """The facts of a model.

    layers: in order. max_tokens: of a sequence; None where the file does not say.
    missing: what every layer needs and no kernel here computes. Where that makes the model all
        different, nothing else is read: heads is None, and there are no layers.
    notes: what was assumed, and what a user has to know.
    """

    file: str
    model_type: str
    layers: tuple[Layer, ...]
    heads: Heads | None
    max_tokens: int | None
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def load(path: Path) -> Model:
    """The facts of the model whose config.json is at `path`.

    Raises:
        InputError: if there is none, or a field that is needed is missing or wrong.
    """
    outer = document.read(path)
    inner = next((found for found in map(outer.inner, NESTED) if found is not None), outer)
    own_type = inner.word("model_type") or outer.word("model_type") or ""
    name, known_type = known.find(own_type)
    fields, notes = _with_defaults(inner, name, known_type or _by_architecture(outer))
    if known_type is None:
        notes.append(
            f"model_type {quoted(own_type)} is not one that rpagen knows: what it implies beyond"
            " its fields is not taken into account; compare layers, window and scale with the"
            " model's own code"
            if own_type
            else "the file has no model_type: compare layers, window and scale with the model's own"
            " code"
        )
    elif known_type.image_note and inner is not outer:
        notes.append(known_type.image_note)
    different = tuple(_different(outer, fields, own_type))
    if different:
        return Model(fields.file, escaped(own_type), (), None, None, different, ())
    heads = _heads(outer, fields, known_type, notes)
    return Model(
        file=fields.file,
        model_type=escaped(own_type),
        layers=_layers(fields, known_type, notes),
        heads=heads,
        max_tokens=fields.whole("max_position_embeddings", budget.MOST_TOKENS),
        missing=tuple(_missing(fields, name, known_type, heads)),
        notes=tuple(notes),
    )


def _by_architecture(outer: Document) -> ModelType:
    """What is implied for an unknown type by the names of the classes that hold it."""
    names = outer.fields.get("architectures")
    is_masked = isinstance(names, list) and any(str(each).endswith("ForMaskedLM") for each in names)
    return known.ENCODER if is_masked else ModelType()


def _with_defaults(inner: Document, name: str, known_type: ModelType) -> tuple[Document, list[str]]:
    """The fields with those that transformers fills in, and a note of them."""
    absent = {field: value for field, value in known_type.defaults.items() if not inner.has(field)}
    if not absent:
        return inner, []
    said = ", ".join(f"{field} {str(value).lower()}" for field, value in absent.items())
    note = f"not in the file, so as transformers has it for {name}: {said}"
    return dataclasses.replace(inner, fields={**inner.fields, **absent}), [note]


def _different(outer: Document, fields: Document, model_type: str) -> Iterator[str]:
    """What makes a model so different that its other fields mean something else."""
    if fields.whole("kv_lora_rank", MOST_WIDTH):
        rank = fields.fields["kv_lora_rank"]
        yield (
            f"multi-head latent attention (kv_lora_rank {rank}): its cache holds one compressed row"
            " for all heads of a token, which no kernel here reads yet"
        )
    of_attention = fields.inner("attn_config") or Document(fields.file, "", {})
    flags = (fields.flag("alibi"), of_attention.flag("alibi"))
    is_named = fields.word("position_embedding_type") == "alibi"
    if any(flags) or is_named or model_type == "bloom":
        yield "ALiBi: it adds a bias to the scores by position, which no kernel here does yet"
    biases = [name for name in RELATIVE_BIASES if fields.fields.get(name)]
    if biases:
        yield (
            f"relative positions ({', '.join(biases)}): they add a bias to the scores, which no"
            " kernel here does yet"
        )
    if outer.flag("is_encoder_decoder") or fields.flag("is_encoder_decoder"):
        yield (
            "cross attention (is_encoder_decoder true): the keys of a decoder's queries come from"
            " an encoder, which no kernel here does yet"
        )


# --- heads ---------------------------------------------------------------------------------------


def _heads(
    outer: Document, fields: Document, known_type: ModelType | None, notes: list[str]
) -> Heads:
    query_heads = _needed(fields, "num_attention_heads", MOST_HEADS)
    kv_heads = fields.whole("num_key_value_heads", MOST_HEADS)
    if kv_heads is None:
        _refuse_old_name(fields, "num_key_value_heads")
        notes.append("num_key_value_heads is not in the file: as many as num_attention_heads")
        kv_heads = query_heads
    if query_heads % kv_heads:
        fields.refuse(
            "num_key_value_heads",
            f"is {kv_heads}, and num_attention_heads is {query_heads}",
            "a divisor of num_attention_heads",
        )
    head_dim = fields.whole("head_dim", MOST_WIDTH)
    if head_dim is None:
        hidden_size = _needed(fields, "hidden_size", MOST_WIDTH)
        head_dim = hidden_size // query_heads
        if hidden_size % query_heads:
            fields.refuse(
                "hidden_size",
                f"is {hidden_size}, which {query_heads} heads do not divide, and there is no"
                " head_dim",
                "a multiple of num_attention_heads, or a head_dim",
            )
    return Heads(
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=_scale(fields, known_type, head_dim),
        soft_cap=fields.positive("attn_logit_softcapping"),
        is_causal=_is_causal(fields),
        dtype=_dtype(outer, fields, notes),
    )


def _scale(fields: Document, known_type: ModelType | None, head_dim: int) -> str:
    if known_type is not None and known_type.scale:
        return known_type.scale
    scalar = fields.positive("query_pre_attn_scalar")
    if scalar is not None:
        return f"{scalar}**-0.5"
    multiplier = fields.positive("attention_multiplier")
    return str(multiplier) if multiplier is not None else f"{head_dim}**-0.5"


def _is_causal(fields: Document) -> bool:
    if fields.flag("is_decoder"):  # an encoder's type, used as a decoder
        return True
    bidirectional = fields.fields.get("use_bidirectional_attention")
    if isinstance(bidirectional, str):  # "all", or "vision" for the tokens of images alone
        return bidirectional != "all"
    return not fields.flag("use_bidirectional_attention") and fields.flag("is_causal") is not False


def _dtype(outer: Document, fields: Document, notes: list[str]) -> str:
    """The dtype of queries: that of the weights where kernels have it."""
    names = ("dtype", "torch_dtype")
    said = [(each, name) for each in (fields, outer) for name in names if each.word(name)]
    if not said:
        notes.append("the file has no torch_dtype: bfloat16 was taken; --dtype says another")
        return "bfloat16"
    place, name = said[0]
    dtype = str(place.word(name)).removeprefix("torch.")
    if dtype == "float16":
        notes.append("float16 weights: kernels compute in bfloat16, so convert them")
        return "bfloat16"
    if dtype not in ("bfloat16", "float32"):
        place.refuse(
            name,
            f"is {quoted(dtype)}",
            "bfloat16, float16 or float32",
            "give the dtype of the queries there",
        )
    return dtype


def _needed(fields: Document, name: str, most: int, least: int = 1) -> int:
    """A whole number without which there is no answer."""
    value = fields.whole(name, most, least)
    if value is not None:
        return value
    _refuse_old_name(fields, name)
    fields.refuse(
        name,
        "is null" if fields.has(name) else "is missing",
        f"a whole number from {least} to {most}",
        "name the config.json of a language model, or write the field in",
    )


def _refuse_old_name(fields: Document, name: str) -> None:
    """Refuses a file that says under an older name what is read under this one."""
    old = next((old for old in OLD_NAMES.get(name, ()) if fields.has(old)), None)
    if old is not None:
        fields.refuse(
            name,
            f"is missing, and there is {old}, an older name or sense of it",
            f"{', '.join(OLD_NAMES)}, as a llama has them",
            f"write {name} in",
        )


# --- layers --------------------------------------------------------------------------------------


def _layers(fields: Document, known_type: ModelType | None, notes: list[str]) -> tuple[Layer, ...]:
    """Every layer of the model."""
    count = _needed(fields, "num_hidden_layers", MOST_LAYERS)
    types = fields.several("layer_types", count, str, "texts")
    if types is None:
        types = _implied_types(fields, known_type, count, notes)
    types = _with_cross_attention(fields, types)
    size_fields = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
    sizes = {
        attention: _needed(fields, name, budget.MOST_TOKENS)
        for attention, name in size_fields.items()
        if attention in types
    }
    words = [FULL if attention == "attention" else attention for attention in types]
    layers = [Layer(escaped(attention), sizes.get(attention)) for attention in words]
    return _with_shared_kv(fields, layers)


def _with_cross_attention(fields: Document, types: list[str]) -> list[str]:
    """The attention of every layer, where some are said to read the tokens of an image."""
    name = "cross_attention_layers"
    crossing = fields.fields.get(name) or []
    if not isinstance(crossing, list) or not all(each in range(len(types)) for each in crossing):
        fields.refuse(
            name,
            "names layers that there are not",
            f"a list of numbers from 0 to {len(types) - 1}, below num_hidden_layers",
        )
    return [CROSS if at in crossing else attention for at, attention in enumerate(types)]


def _implied_types(
    fields: Document, known_type: ModelType | None, count: int, notes: list[str]
) -> list[str]:
    """The attention of every layer where the file does not list it."""
    window = fields.whole("sliding_window", budget.MOST_TOKENS)
    chunk = fields.whole("attention_chunk_size", budget.MOST_TOKENS)
    if fields.flag("use_sliding_window") is False and window is not None:
        notes.append(f"sliding_window {window} is not used: use_sliding_window is false")
        window = None
    if known_type is None:
        known_type = _pattern_of_unknown(fields, window, chunk, notes)
    elif known_type.most == FULL and window is not None:
        notes.append(f"sliding_window {window} is not used by models of this type")
    most = known_type.most
    if (most == SLIDING and window is None) or (most == CHUNKED and chunk is None):
        return [FULL] * count
    if most == CHUNKED:
        has_rope = _rope_of_layers(fields, known_type.period, count)
        return [CHUNKED if rope else FULL for rope in has_rope]
    first = 0
    if known_type.begins_late:
        first = _needed(fields, "max_window_layers", MOST_LAYERS, least=0)
    period = known_type.period and (_period(fields) or known_type.period)
    return [
        FULL if layer < first or (period and (layer + 1) % period == 0) else most
        for layer in range(count)
    ]


def _pattern_of_unknown(
    fields: Document, window: int | None, chunk: int | None, notes: list[str]
) -> ModelType:
    """What the fields of a model of unknown type suggest, with a note of it."""
    if chunk is not None:
        return ModelType(CHUNKED, fields.whole("no_rope_layer_interval", MOST_LAYERS) or 0)
    if window is None:
        return ModelType()
    period = _period(fields) or 0
    begins_late = fields.whole("max_window_layers", MOST_LAYERS, least=0) is not None
    which = (
        f"all layers but one in {period}, by sliding_window_pattern"
        if period
        else "the layers from max_window_layers on"
        if begins_late
        else "all layers"
    )
    notes.append(f"the sliding window was taken to be in {which}")
    return ModelType(SLIDING, period, begins_late=begins_late and not period)


def _period(fields: Document) -> int | None:
    """Every how many layers one is full."""
    if isinstance(fields.fields.get("sliding_window_pattern"), str):
        fields.refuse(
            "sliding_window_pattern",
            f"is the text {quoted(fields.fields['sliding_window_pattern'])}",
            f"a whole number from 1 to {MOST_LAYERS}",
            "give layer_types instead, a word for each layer",
        )
    return fields.whole("sliding_window_pattern", MOST_LAYERS)


def _rope_of_layers(fields: Document, period: int, count: int) -> list[int]:
    """Of each layer of llama-4, whether it has rotary positions: those are the chunked ones."""
    if fields.fields.get("no_rope_layers"):  # an empty list is like none
        said = fields.several("no_rope_layers", count, int, "numbers, 0 or 1")
        return said or []
    period = fields.whole("no_rope_layer_interval", MOST_LAYERS) or period
    return [int(period == 0 or (layer + 1) % period != 0) for layer in range(count)]


def _missing(
    fields: Document, model_type: str, known_type: ModelType | None, heads: Heads
) -> Iterator[str]:
    """What all layers need and no kernel here computes."""
    asking = [name for name in fields.fields if any(sink in name.lower() for sink in SINKS)]
    asking = [escaped(name) for name in asking if fields.fields[name]]
    if asking or (known_type is not None and known_type.has_sinks):
        said = listed(asking) or f"model_type {model_type}"
        yield (
            f"attention sinks ({said}): the softmax of each head counts one more score, without a"
            " key, which no kernel here does yet"
        )
    if heads.head_dim > budget.MOST_HEAD_DIM:
        yield (
            f"a head dim of {heads.head_dim}: no kernel here has more than {budget.MOST_HEAD_DIM}"
        )
    value_dim = fields.whole("v_head_dim", MOST_WIDTH)
    if value_dim is not None and value_dim != heads.head_dim:
        yield (
            f"values with another head dim than keys (v_head_dim {value_dim}, head_dim"
            f" {heads.head_dim}), which no kernel here has"
        )
    others = [name for name in OTHER_SHAPES if fields.fields.get(name) is not None]
    if others:
        yield f"layers with heads of their own ({', '.join(others)}), which are not read here"
    patterns = [name for name in OTHER_PATTERNS if fields.fields.get(name)]
    if patterns and fields.fields.get("layer_types") is None:
        yield (
            f"{', '.join(patterns)}: it says what attention layers have, and is not read here;"
            " give layer_types instead"
        )


def _with_shared_kv(fields: Document, layers: list[Layer]) -> tuple[Layer, ...]:
    """The layers, of which the last num_kv_shared_layers read the KV of the last alike before."""
    shared = fields.whole("num_kv_shared_layers", MOST_LAYERS, least=0) or 0
    if shared >= len(layers) and shared:
        fields.refuse(
            "num_kv_shared_layers",
            f"is {shared}, and num_hidden_layers is {len(layers)}",
            "fewer than num_hidden_layers",
        )
    own, sharing = layers[: len(layers) - shared], layers[len(layers) - shared :]
    last = {layer: at for at, layer in enumerate(own)}
    for layer in sharing:
        if layer not in last:
            fields.refuse(
                "num_kv_shared_layers",
                f"is {shared}, but no layer before those has attention of type {layer.attention}",
                "a layer of each type that has keys and values of its own",
            )
    return (*own, *(dataclasses.replace(layer, kv_from=last[layer]) for layer in sharing))
