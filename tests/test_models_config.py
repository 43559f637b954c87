"""What is read of a model's config.json: facts of real models by hand, and every wrong file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rpagen.errors import InputError
from rpagen.models import config
from rpagen.models.config import Heads, Layer, Model
from rpagen.models.known import CHUNKED, CROSS, FULL, SLIDING

CONFIGS = Path(__file__).parent / "data/hf_configs"

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def read(tmp_path, monkeypatch):
    """The model of a configuration, in a file config.json of the working directory."""
    monkeypatch.chdir(tmp_path)

    def read_config(content: dict[str, Any] | str | bytes) -> Model:
        if isinstance(content, dict):
            content = json.dumps(content)
        if isinstance(content, str):
            content = content.encode()
        Path("config.json").write_bytes(content)
        return config.load(Path("config.json"))

    return read_config


def changed(**fields: Any) -> dict[str, Any]:
    """A llama with other fields; what is ... is left out."""
    return {name: value for name, value in {**LLAMA, **fields}.items() if value is not ...}


# --- the twelve ----------------------------------------------------------------------------------


def heads(query_heads, kv_heads, head_dim, scale=None, soft_cap=None):
    return Heads(
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=scale or f"{head_dim}**-0.5",
        soft_cap=soft_cap,
        is_causal=True,
        dtype="bfloat16",
    )


EVEN_WINDOWED = range(0, 100, 2)

# By hand, from what is published of the models: heads, tokens, layers, which layers are bounded
# and how.
TWELVE = {
    "gemma-2-27b": (heads(32, 16, 128, "144**-0.5", 50.0), 8192, 46, EVEN_WINDOWED, SLIDING, 4096),
    "gemma-3-27b": (
        *(heads(32, 16, 128, "168**-0.5"), 131072, 62),
        *({*range(62)} - {5, 11, 17, 23, 29, 35, 41, 47, 53, 59}, SLIDING, 1024),
    ),
    "gpt-oss-120b": (heads(64, 8, 64), 131072, 36, EVEN_WINDOWED, SLIDING, 128),
    "llama-3.1-8b": (heads(32, 8, 128), 131072, 32, (), "", None),
    "llama-3.2-1b": (heads(32, 8, 64), 131072, 16, (), "", None),
    "llama-3.3-70b": (heads(64, 8, 128), 131072, 80, (), "", None),
    "llama-4-scout": (
        *(heads(40, 8, 128), 10485760, 48),
        *({*range(48)} - {3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47}, CHUNKED, 8192),
    ),
    "mistral-7b-v0.1": (heads(32, 8, 128), 32768, 32, range(32), SLIDING, 4096),
    "phi-3-mini-4k": (heads(32, 32, 96), 4096, 32, range(32), SLIDING, 2047),
    "qwen2.5-0.5b": (heads(14, 2, 64), 32768, 24, (), "", None),
    "qwen3-32b": (heads(64, 8, 128), 40960, 64, (), "", None),
}


@pytest.mark.parametrize("name", TWELVE)
def test_the_facts_of_real_models(name):
    of_heads, max_tokens, count, bounded, attention, size = TWELVE[name]
    model = config.load(CONFIGS / f"{name}.json")
    assert model.heads == of_heads
    assert model.max_tokens == max_tokens
    assert len(model.layers) == count
    for number, layer in enumerate(model.layers):
        assert layer == (Layer(attention, size) if number in bounded else Layer(FULL)), number
    assert bool(model.missing) == (name == "gpt-oss-120b")


def test_the_twelfth_is_all_different():
    model = config.load(CONFIGS / "deepseek-v3.json")
    assert (model.heads, model.layers) == (None, ())
    (missing,) = model.missing
    assert missing.startswith("multi-head latent attention (kv_lora_rank 512): ")


# --- what types and fields imply -----------------------------------------------------------------


def bounded(model: Model) -> list[int]:
    return [number for number, layer in enumerate(model.layers) if layer.attention != FULL]


QWEN = changed(model_type="qwen2", sliding_window=100, max_window_layers=3, num_hidden_layers=5)


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({}, []),
        ({"sliding_window": 100}, []),  # which llama does not use
        ({"model_type": "mistral", "sliding_window": 100}, [0, 1, 2, 3]),
        ({"model_type": "mistral", "sliding_window": None}, []),
        ({"model_type": "mistral"}, [0, 1, 2, 3]),  # 4096, which transformers takes
        ({"model_type": "mixtral"}, []),
        ({**QWEN}, []),
        ({**QWEN, "use_sliding_window": False}, []),
        ({**QWEN, "use_sliding_window": True}, [3, 4]),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 0}, [0, 1, 2, 3, 4]),
        ({**QWEN, "use_sliding_window": True, "max_window_layers": 28}, []),
        ({**QWEN, "use_sliding_window": True, "sliding_window": None}, []),
        ({**QWEN, "model_type": "qwen3_moe", "use_sliding_window": True}, [0, 1, 2, 3, 4]),
        ({"model_type": "gemma3_text", "num_hidden_layers": 13}, [*range(5), *range(6, 11), 12]),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, [0, 2]),
        ({"model_type": "cohere2"}, [0, 1, 2]),
        ({"model_type": "llama4_text", "no_rope_layers": [0, 1, 1, 0]}, [1, 2]),
        ({"model_type": "llama4_text", "no_rope_layers": []}, [0, 1, 2]),
        ({"model_type": "llama4_text", "no_rope_layer_interval": 2}, [0, 2]),
        ({"model_type": "llama4_text", "attention_chunk_size": None}, []),
        # layer_types has the last word.
        ({"layer_types": ["sliding_attention"] * 4, "sliding_window": 7}, [0, 1, 2, 3]),
        ({"model_type": "gemma2", "layer_types": ["full_attention"] * 4}, []),
        ({"model_type": "new", "layer_types": ["attention", "mamba"] * 2}, [1, 3]),
    ],
)
def test_which_layers_are_bounded(read, fields, numbers):
    assert bounded(read(changed(**fields))) == numbers


@pytest.mark.parametrize(
    ("fields", "numbers", "note"),
    [
        ({}, [], None),
        ({"sliding_window": 9}, [0, 1, 2, 3], "all layers"),
        ({"sliding_window": 9, "use_sliding_window": False}, [], None),
        (
            {"sliding_window": 9, "sliding_window_pattern": 2},
            [0, 2],
            "all layers but one in 2, by sliding_window_pattern",
        ),
        (
            {"sliding_window": 9, "max_window_layers": 3},
            [3],
            "the layers from max_window_layers on",
        ),
        ({"attention_chunk_size": 9}, [0, 1, 2, 3], None),
    ],
)
def test_an_unknown_type_is_read_by_its_fields_and_says_so(read, fields, numbers, note):
    model = read(changed(model_type="new", **fields))
    assert bounded(model) == numbers
    assert (
        'model_type "new" is not one that rpagen knows: what it implies beyond its fields is not'
        " taken into account; compare layers, window and scale with the model's own code"
    ) in model.notes
    said = [each for each in model.notes if each.startswith("the sliding window was taken to be")]
    assert said == ([f"the sliding window was taken to be in {note}"] if note else [])


def test_known_models_have_no_notes_but_of_what_was_assumed(read):
    assert read(LLAMA).notes == ()
    assert read(changed(torch_dtype="float16")).notes == (
        "float16 weights: kernels compute in bfloat16, so convert them",
    )
    assert read(changed(torch_dtype=None)).notes == (
        "the file has no torch_dtype: bfloat16 was taken; --dtype says another",
    )
    assert read(changed(num_key_value_heads=...)).notes == (
        "num_key_value_heads is not in the file: as many as num_attention_heads",
    )
    assert read(changed(max_position_embeddings=..., model_type="gemma")).notes == (
        "not in the file, so as transformers has it for gemma: head_dim 256,"
        " max_position_embeddings 8192",
    )
    assert read({**LLAMA, **QWEN, "use_sliding_window": False}).notes == (
        "sliding_window 100 is not used: use_sliding_window is false",
    )
    assert read(changed(sliding_window=5)).notes == (
        "sliding_window 5 is not used by models of this type",
    )
    assert read(changed(model_type=...)).notes == (
        "the file has no model_type: compare layers, window and scale with the model's own code",
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"head_dim": None}, {"head_dim": 128}),
        ({"head_dim": 80}, {"head_dim": 80, "scale": "80**-0.5"}),
        ({"model_type": "qwen3"}, {"head_dim": 128}),
        ({"model_type": "gemma", "hidden_size": 3072}, {"head_dim": 256, "scale": "256**-0.5"}),
        ({"num_key_value_heads": None}, {"kv_heads": 32}),
        ({"query_pre_attn_scalar": 224, "model_type": "gemma2"}, {"scale": "224**-0.5"}),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 0}, {"scale": "1.0"}),
        ({"model_type": "granite", "attention_multiplier": 0.0078125}, {"scale": "0.0078125"}),
        ({"attn_scale": 0.1, "model_type": "llama4_text"}, {"scale": "128**-0.5"}),
        ({"final_logit_softcapping": 30.0}, {"soft_cap": None}),
        ({"model_type": "gemma2"}, {"soft_cap": 50.0, "scale": "256**-0.5"}),
        ({"model_type": "gemma2", "attn_logit_softcapping": None}, {"soft_cap": None}),
        ({"model_type": "new", "attn_logit_softcapping": 30}, {"soft_cap": 30}),
        ({"torch_dtype": "float32"}, {"dtype": "float32"}),
        ({"torch_dtype": "float16"}, {"dtype": "bfloat16"}),
        ({"torch_dtype": "torch.float32"}, {"dtype": "float32"}),
        ({"torch_dtype": ..., "dtype": "float32"}, {"dtype": "float32"}),
        ({"is_causal": False}, {"is_causal": False}),
        ({"use_bidirectional_attention": True}, {"is_causal": False}),
        ({"use_bidirectional_attention": "all"}, {"is_causal": False}),
        ({"use_bidirectional_attention": "vision"}, {"is_causal": True}),
        ({"use_bidirectional_attention": False}, {"is_causal": True}),
        ({"model_type": "bert"}, {"is_causal": False}),
    ],
)
def test_what_heads_are_like(read, fields, expected):
    found = read(changed(**fields)).heads
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize("name", ["text_config", "llm_config", "language_config"])
def test_a_language_model_may_be_inside_another(read, name):
    inner = changed(torch_dtype=...)
    outer = {"model_type": "seeing", "torch_dtype": "float32", "num_attention_heads": 5}
    model = read({**outer, name: inner})
    assert model.heads.query_heads == 32 and model.heads.dtype == "float32"
    assert model.model_type == "llama"
    # Without a type of its own it has that of the model around it.
    nested = {"model_type": "gemma3", name: changed(model_type=..., num_hidden_layers=6)}
    assert bounded(read(nested)) == [0, 1, 2, 3, 4]
    assert any(note.startswith("text alone is served: ") for note in read(nested).notes)
    assert read({"model_type": "llama", name: None, **LLAMA}).heads.query_heads == 32


def test_layers_that_share_keys_and_values(read):
    model = read(
        changed(
            model_type="gemma3n_text",
            num_hidden_layers=10,
            num_kv_shared_layers=5,
            sliding_window=512,
        )
    )
    own = [Layer(SLIDING, 512)] * 4 + [Layer(FULL)]
    shared = [Layer(SLIDING, 512, kv_from=3)] * 4 + [Layer(FULL, kv_from=4)]
    assert model.layers == (*own, *shared)


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        ({"model_type": "gpt_oss"}, "attention sinks (model_type gpt_oss): "),
        ({"add_swa_attention_sink_bias": True}, "attention sinks (add_swa_attention_sink_bias): "),
        ({"head_dim": 512}, "a head dim of 512: no kernel here has more than 256"),
        (
            {"v_head_dim": 64},
            "values with another head dim than keys (v_head_dim 64, head_dim 128)",
        ),
        ({"global_head_dim": 512}, "layers with heads of their own (global_head_dim), "),
        ({"attn_layer_period": 8}, "attn_layer_period: it says what attention layers have, "),
        ({"block_configs": [{"attention": {"no_op": True}}]}, "block_configs: "),
        ({"global_attn_every_n_layers": 3}, "global_attn_every_n_layers: "),
        ({"num_key_value_heads_per_layer": [4]}, "layers with heads of their own ("),
        ({"relative_attention": True}, "relative positions (relative_attention): "),
        ({"alibi": True}, "ALiBi: "),
        ({"attn_config": {"alibi": True}}, "ALiBi: "),
        ({"position_embedding_type": "alibi"}, "ALiBi: "),
        ({"model_type": "bloom"}, "ALiBi: "),
        ({"is_encoder_decoder": True}, "cross attention (is_encoder_decoder true): "),
    ],
)
def test_what_no_layer_is_served_for(read, fields, begins):
    (missing,) = read(changed(**fields)).missing
    assert missing.startswith(begins)


@pytest.mark.parametrize(
    "fields",
    [
        {"add_swa_attention_sink_bias": False},
        {"head_dim": 256},
        {"v_head_dim": 128},
        {"global_head_dim": None},
        {"attn_layer_period": 8, "layer_types": ["full_attention"] * 4},
        {"alibi": False},
        {"attn_config": {"alibi": False}},
        {"position_embedding_type": "absolute"},
        {"relative_attention": False},
        {"use_cla": False},
        {"full_attn_idxs": []},
        {"cross_attention_layers": []},
        {"is_encoder_decoder": False},
        {"kv_lora_rank": None},
    ],
)
def test_what_is_not_in_the_way(read, fields):
    assert read(changed(**fields)).missing == ()


def test_layers_that_read_an_image(read):
    """llama-3.2-vision: num_hidden_layers counts them."""
    model = read(changed(model_type="mllama_text_model", cross_attention_layers=[1, 3]))
    assert [layer.attention for layer in model.layers] == [FULL, CROSS, FULL, CROSS]


@pytest.mark.parametrize("layers", [3, [4], [-1], ["1"], [[]]])
def test_layers_that_there_are_not(read, layers):
    said = text_of(read, changed(cross_attention_layers=layers))
    assert said.startswith("config.json: cross_attention_layers: names layers that there are not\n")


@pytest.mark.parametrize(
    ("fields", "is_causal"),
    [
        ({"model_type": "new", "architectures": ["NewForMaskedLM"]}, False),
        ({"model_type": "new", "architectures": ["NewForCausalLM"]}, True),
        ({"model_type": "new", "architectures": [7]}, True),
        ({"model_type": "new", "architectures": "NewForMaskedLM"}, True),
        ({"model_type": "bert"}, False),
        ({"model_type": "bert", "is_decoder": True}, True),
        ({"model_type": "bert", "is_decoder": False}, False),
    ],
)
def test_encoders_are_told_from_decoders(read, fields, is_causal):
    assert read(changed(**fields)).heads.is_causal is is_causal


# --- wrong files ---------------------------------------------------------------------------------

NO_CONFIG = (
    "\n  expected: a JSON object, the config.json of a model"
    "\n  next: take the file from the model's own page again, or name another one"
)
WRONG_PATH = "\n  expected: the config.json of a model\n  next: correct the path"


def text_of(function, *arguments) -> str:
    with pytest.raises(InputError) as caught:
        function(*arguments)
    assert caught.value.exit_status == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "config.json:1:1: expecting value" + NO_CONFIG),
        ("{", "config.json:1:2: expecting property name enclosed in double quotes" + NO_CONFIG),
        ('{\n "a": 1,}', None),
        ("[1, 2]", "config.json: it holds a list of 2" + NO_CONFIG),
        ("null", "config.json: it holds null" + NO_CONFIG),
        ("NaN", "config.json: it holds NaN" + NO_CONFIG),
        ('"llama"', 'config.json: it holds the text "llama"' + NO_CONFIG),
        (b'{"a": "\xff"}', "config.json: it is not UTF-8: byte 7 is wrong" + NO_CONFIG),
        ("\ufeff{}", None),
        (b'{"a": "' + b"x" * (1 << 22), "config.json: it has more than 4 MiB" + NO_CONFIG),
        ("[" * 100_000, "config.json: it is nested too deeply" + NO_CONFIG),
        (
            '{"hidden_size": ' + "9" * 5000 + "}",
            "config.json: a number in it has thousands of digits" + NO_CONFIG,
        ),
        (
            '{"model_type": "llama", "model_type": "mistral"}',
            'config.json: the key "model_type" is there twice'
            "\n  expected: every key once in its object"
            "\n  next: remove one of the two",
        ),
        (
            '{"text_config": {"a": 1, "a": 1}}',
            'config.json: the key "a" is there twice'
            "\n  expected: every key once in its object"
            "\n  next: remove one of the two",
        ),
    ],
)
def test_files_that_are_no_configuration(read, content, text):
    said = text_of(read, content)
    if text is None:  # Python versions word it differently
        assert said.startswith("config.json:") and said.endswith(NO_CONFIG)
    else:
        assert said == text


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert text_of(config.load, Path("nowhere.json")) == (
        "nowhere.json: it cannot be read: No such file or directory" + WRONG_PATH
    )
    Path("model").mkdir()
    assert text_of(config.load, Path("model")) == (
        "model: it is a folder"
        "\n  expected: the config.json of a model"
        "\n  next: name the file in it: model/config.json"
    )
    assert text_of(config.load, Path("a\0b")).startswith("a\\x00b: it cannot be read: ")
    assert text_of(config.load, Path("n" * 300)).startswith(f"{'n' * 300}: it cannot be read: ")
    if os.geteuid():  # root reads all
        Path("closed.json").touch(mode=0)
        assert "Permission denied" in text_of(config.load, Path("closed.json"))
    if Path("/dev/zero").exists():
        assert text_of(config.load, Path("/dev/zero")) == (
            "/dev/zero: it has more than 4 MiB" + NO_CONFIG
        )


AGAIN = "\n  next: correct the file: take it from the model's own page again"
WRITE_IN = "\n  next: name the config.json of a language model, or write the field in"
HEADS = "\n  expected: a whole number from 1 to 4096"
SHARED_NAMES = (
    "\n  expected: hidden_size, max_position_embeddings, num_attention_heads, num_hidden_layers,"
    " num_key_value_heads, as a llama has them"
)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads: is 0" + HEADS + AGAIN),
        ({"num_attention_heads": -32}, "num_attention_heads: is -32" + HEADS + AGAIN),
        ({"num_attention_heads": True}, "num_attention_heads: is true" + HEADS + AGAIN),
        ({"num_attention_heads": "32"}, 'num_attention_heads: is the text "32"' + HEADS + AGAIN),
        (
            {"num_attention_heads": 1e9},
            "num_attention_heads: is the number 1000000000.0" + HEADS + AGAIN,
        ),
        ({"num_attention_heads": 10**9}, "num_attention_heads: is 1000000000" + HEADS + AGAIN),
        (
            {"num_attention_heads": 10**30},
            "num_attention_heads: is a number of more than 63 bits" + HEADS + AGAIN,
        ),
        ({"num_attention_heads": float("nan")}, "num_attention_heads: is NaN" + HEADS + AGAIN),
        ({"num_attention_heads": float("inf")}, "num_attention_heads: is infinite" + HEADS + AGAIN),
        ({"num_attention_heads": 32.0}, "num_attention_heads: is the number 32.0" + HEADS + AGAIN),
        ({"num_attention_heads": [32]}, "num_attention_heads: is a list of 1" + HEADS + AGAIN),
        (
            {"num_attention_heads": {}},
            "num_attention_heads: is an object with nothing in it" + HEADS + AGAIN,
        ),
        ({"num_attention_heads": None}, "num_attention_heads: is null" + HEADS + WRITE_IN),
        ({"num_attention_heads": ...}, "num_attention_heads: is missing" + HEADS + WRITE_IN),
        (
            {"num_attention_heads": ..., "n_head": 32},
            "num_attention_heads: is missing, and there is n_head, an older name or sense of it"
            + SHARED_NAMES
            + "\n  next: write num_attention_heads in",
        ),
        (
            {"num_key_value_heads": ..., "multi_query": True},
            "num_key_value_heads: is missing, and there is multi_query, an older name or sense of"
            " it" + SHARED_NAMES + "\n  next: write num_key_value_heads in",
        ),
        (
            {"num_key_value_heads": 7},
            "num_key_value_heads: is 7, and num_attention_heads is 32"
            "\n  expected: a divisor of num_attention_heads" + AGAIN,
        ),
        (
            {"num_key_value_heads": 64},
            "num_key_value_heads: is 64, and num_attention_heads is 32"
            "\n  expected: a divisor of num_attention_heads" + AGAIN,
        ),
        ({"num_key_value_heads": [8, 4]}, "num_key_value_heads: is a list of 2" + HEADS + AGAIN),
        (
            {"hidden_size": 4097},
            "hidden_size: is 4097, which 32 heads do not divide, and there is no head_dim"
            "\n  expected: a multiple of num_attention_heads, or a head_dim" + AGAIN,
        ),
        (
            {"hidden_size": ...},
            "hidden_size: is missing\n  expected: a whole number from 1 to 1048576" + WRITE_IN,
        ),
        ({"num_hidden_layers": ...}, "num_hidden_layers: is missing" + HEADS + WRITE_IN),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers: is 1000000" + HEADS + AGAIN),
        (
            {"max_position_embeddings": 0},
            "max_position_embeddings: is 0\n  expected: a whole number from 1 to 1073741824"
            + AGAIN,
        ),
        (
            {"torch_dtype": "int4"},
            'torch_dtype: is "int4"\n  expected: bfloat16, float16 or float32'
            "\n  next: give the dtype of the queries there",
        ),
        ({"torch_dtype": 16}, "torch_dtype: is 16\n  expected: a text" + AGAIN),
        ({"model_type": 5}, "model_type: is 5\n  expected: a text" + AGAIN),
        (
            {"model_type": "new", "attn_logit_softcapping": 0},
            "attn_logit_softcapping: is 0\n  expected: a number above zero" + AGAIN,
        ),
        (
            {"attn_logit_softcapping": True},
            "attn_logit_softcapping: is true\n  expected: a number above zero" + AGAIN,
        ),
        (
            {"query_pre_attn_scalar": float("nan")},
            "query_pre_attn_scalar: is NaN\n  expected: a number above zero" + AGAIN,
        ),
        (
            {"sliding_window": 0},
            "sliding_window: is 0\n  expected: a whole number from 1 to 1073741824" + AGAIN,
        ),
        (
            {"use_sliding_window": "no"},
            'use_sliding_window: is the text "no"\n  expected: true or false' + AGAIN,
        ),
        (
            {"model_type": "new", "sliding_window": 8, "sliding_window_pattern": "LLLG"},
            'sliding_window_pattern: is the text "LLLG"\n  expected: a whole number from 1 to 4096'
            "\n  next: give layer_types instead, a word for each layer",
        ),
        (
            {**QWEN, "use_sliding_window": True, "max_window_layers": ...},
            "max_window_layers: is missing\n  expected: a whole number from 0 to 4096" + WRITE_IN,
        ),
        (
            {"layer_types": "full_attention"},
            'layer_types: is the text "full_attention"'
            "\n  expected: a list of 4 texts, one for each of num_hidden_layers" + AGAIN,
        ),
        (
            {"layer_types": ["full_attention"]},
            "layer_types: has 1 items"
            "\n  expected: a list of 4 texts, one for each of num_hidden_layers" + AGAIN,
        ),
        (
            {"layer_types": ["full_attention", None, "full_attention", "full_attention"]},
            "layer_types[1]: is null"
            "\n  expected: a list of 4 texts, one for each of num_hidden_layers" + AGAIN,
        ),
        (
            {"layer_types": ["sliding_attention"] * 4},
            "sliding_window: is missing\n  expected: a whole number from 1 to 1073741824"
            + WRITE_IN,
        ),
        (
            {"model_type": "llama4_text", "no_rope_layers": [True] * 4},
            "no_rope_layers[0]: is true"
            "\n  expected: a list of 4 numbers, 0 or 1, one for each of num_hidden_layers" + AGAIN,
        ),
        (
            {"num_kv_shared_layers": 4},
            "num_kv_shared_layers: is 4, and num_hidden_layers is 4"
            "\n  expected: fewer than num_hidden_layers" + AGAIN,
        ),
        (
            {"num_kv_shared_layers": 1, "model_type": "llama4_text"},
            "num_kv_shared_layers: is 1, but no layer before those has attention of type"
            " full_attention"
            "\n  expected: a layer of each type that has keys and values of its own" + AGAIN,
        ),
        (
            {"text_config": [1]},
            "text_config: is a list of 1\n  expected: an object" + AGAIN,
        ),
        (
            {"text_config": {"num_attention_heads": 0}},
            "text_config.num_attention_heads: is 0" + HEADS + AGAIN,
        ),
    ],
)
def test_fields_that_are_wrong(read, fields, text):
    assert text_of(read, changed(**fields)) == f"config.json: {text}"


def test_the_parts_of_an_error(read):
    with pytest.raises(InputError) as caught:
        read(changed(num_attention_heads=0))
    assert caught.value.parts() == {
        "place": "config.json",
        "field": "num_attention_heads",
        "problem": "is 0",
        "expected": "a whole number from 1 to 4096",
        "next_step": "correct the file: take it from the model's own page again",
        "notes": [],
    }


def test_fields_that_are_not_needed_may_be_anything(read):
    assert read(changed(time_step_limit=[0.0, float("inf")], vocab_size="many")).notes == ()


def test_control_characters_of_a_file_are_not_printed(read):
    model = read(changed(model_type="a\x1b[31m", layer_types=["\x1b[2J"] * 4))
    assert "\x1b" not in repr(model) and "\x1b" not in "".join(model.notes) + model.model_type
