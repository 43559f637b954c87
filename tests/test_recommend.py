"""`rpagen recommend`: the right variants for real models, and what the emitted package says too."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import math
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rpa_kernels
from cli_fixtures import run as run_command  # noqa: F401  # a fixture
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from rpa_kernels import registry, support

from rpagen import cli
from rpagen.emit import resources
from rpagen.errors import InputError
from rpagen.models import config, known, text
from rpagen.models.recommend import Kind, Recommendation, Request, recommend
from rpagen.spec import budget, expand
from rpagen.spec.model import GENERATIONS, LAUNCHES
from rpagen.tune import row, rows
from rpagen.tune.blocks import Blocks
from rpagen.tune.rows import Key, Row, Tuned

ROOT = Path(__file__).parent.parent
CONFIGS = Path("tests/data/hf_configs")
SPECS = resources.specs_dir()
DEVICE_KINDS = {generation: kind for kind, generation in support.DEVICE_KINDS.items()}

# By hand: what serves the kinds of layers of a model on one device, in the order of their layers.
ANSWERS = {
    "deepseek-v3": [None],
    "gemma-2-27b": ["rpa_sliding_window_soft_cap", "rpa_soft_cap"],
    "gemma-3-27b": ["rpa_sliding_window", "rpa"],
    "gpt-oss-120b": [None, None],
    "llama-3.1-8b": ["rpa"],
    "llama-3.2-1b": ["rpa"],
    "llama-3.3-70b": ["rpa"],
    "llama-4-scout": [None, "rpa"],
    "mistral-7b-v0.1": ["rpa_sliding_window"],
    "phi-3-mini-4k": ["rpa_sliding_window"],
    "qwen2.5-0.5b": ["rpa"],
    "qwen3-32b": ["rpa"],
}
# By hand: words of a page and head dim of its rows, without tensor parallel and shared by 8.
PAGES = {
    "gemma-2-27b": ((16, 2, 128), (2, 2, 128)),
    "gemma-3-27b": ((16, 2, 128), (2, 2, 128)),
    "llama-3.1-8b": ((8, 2, 128), (1, 2, 128)),
    "llama-3.2-1b": ((8, 2, 128), (1, 2, 128)),
    "llama-3.3-70b": ((8, 2, 128), (1, 2, 128)),
    "llama-4-scout": ((8, 2, 128), (1, 2, 128)),
    "mistral-7b-v0.1": ((8, 2, 128), (1, 2, 128)),
    "phi-3-mini-4k": ((32, 2, 128), (4, 2, 128)),
    "qwen2.5-0.5b": ((2, 2, 128), None),
    "qwen3-32b": ((8, 2, 128), (1, 2, 128)),
}
load_catalogue = functools.cache(expand.load_catalogue)


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(expand, "load_catalogue", load_catalogue)  # the same specs, many times


@pytest.fixture
def write(tmp_path):
    """Writes a llama-3.1-8b with other fields; what is ... is left out."""

    def write_config(**fields: Any) -> Path:
        content = json.loads((CONFIGS / "llama-3.1-8b.json").read_text()) | fields
        kept = {name: value for name, value in content.items() if value is not ...}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(kept))
        return path

    return write_config


@pytest.fixture
def run(run_command):
    """Run the verb in this process: its exit status, standard output and standard error."""
    return functools.partial(run_command, "recommend")


def answer(name: str, generation: str = "v6e", **request: Any) -> Recommendation:
    model = config.load(CONFIGS / f"{name}.json")
    return recommend(model, Request(generation, **request), SPECS)


def tpu_mesh(generation: str) -> Any:
    """The context of a trace for a device of that generation."""
    device = AbstractDevice(device_kind=DEVICE_KINDS[generation], num_cores=1, platform="tpu")
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


# --- the twelve answers --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ANSWERS)
def test_the_variants_for_real_models(name):
    found = answer(name)
    names = [kind.serving.variant.name if kind.serving else None for kind in found.kinds]
    assert names == ANSWERS[name]
    assert found.is_served == (None not in names)
    numbers = sorted(number for kind in found.kinds for number in kind.layers)
    assert numbers == [*range(len(found.model.layers))]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("at", "devices"), [(0, 1), (1, 8)])
def test_the_cache_of_real_models(name, at, devices):
    row = PAGES[name][at]
    if row is None:
        with pytest.raises(InputError, match="8 devices cannot share 14 query heads and 2 kv"):
            answer(name, devices=devices)
        return
    for kind in answer(name, devices=devices).kinds:
        if kind.serving is not None:
            assert kind.serving.page_shape[1:] == row
            assert kind.serving.token_bytes == 2 * math.prod(row)


@pytest.mark.parametrize(
    ("name", "padding"),
    [("llama-3.2-1b", 0.5), ("qwen2.5-0.5b", 0.5), ("phi-3-mini-4k", 0.25), ("qwen3-32b", 0)],
)
def test_what_of_the_cache_is_padding(name, padding):
    found = answer(name)
    (kind,) = found.kinds
    assert kind.serving.padding_bytes == padding * kind.serving.token_bytes
    said = [note for note in found.notes if note.startswith("head dim ")]
    head_dim = found.model.heads.head_dim
    assert said == (
        [
            f"head dim {head_dim} is padded to 128, whole registers of 128 lanes: {padding:.0%} of"
            " the cache, and of what is read of it, is padding"
        ]
        if padding
        else []
    )


# --- generator and emitted package agree ---------------------------------------------------------


def operands(found: Recommendation, kind: Kind, pages: int = 3) -> dict[str, np.ndarray]:
    """Operands of the call recommended; of one number each, so they take no memory."""
    share, serving, request = found.share, kind.serving, found.request
    head_dim = found.model.heads.head_dim
    sequences = request.sequences
    shapes = {
        "queries": ((request.tokens, share.query_heads, head_dim), found.query_dtype),
        "keys": ((request.tokens, share.kv_heads, head_dim), found.query_dtype),
        "values": ((request.tokens, share.kv_heads, head_dim), found.query_dtype),
        "kv_cache": ((pages, *serving.page_shape), found.kv_dtype),
        "kv_lens": ((sequences,), "int32"),
        "page_indices": ((sequences * found.pages.pages_per_sequence,), "int32"),
        "cu_q_lens": ((sequences + 1,), "int32"),
        "distribution": ((3,), "int32"),
    }
    return {
        name: np.broadcast_to(np.zeros((), jnp.dtype(dtype)), shape)
        for name, (shape, dtype) in shapes.items()
    }


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("devices", [1, 4, 8])
@pytest.mark.parametrize("name", [name for name in PAGES if name != "qwen2.5-0.5b"])
@pytest.mark.parametrize(("kv_dtype", "chunk"), [(None, None), ("float8_e4m3fn", 300)])
def test_the_emitted_package_agrees(name, devices, generation, kv_dtype, chunk):
    _assert_agrees(
        answer(name, generation, devices=devices, kv_dtype=kv_dtype, chunk_prefill_size=chunk)
    )


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("devices", [1, 2, 14])
def test_the_emitted_package_agrees_on_odd_groups(devices, generation):
    _assert_agrees(answer("qwen2.5-0.5b", generation, devices=devices))


@pytest.mark.parametrize(
    "request_",
    [
        {"page_size": 1000, "chunk_prefill_size": 3},
        {"query_dtype": "float32", "max_tokens": 100},
        {"tokens": 3, "sequences": 1, "chunk_prefill_size": 1},
        {"sequences": 1, "kv_dtype": "int8", "devices": 16},
    ],
)
def test_the_emitted_package_agrees_on_odd_requests(request_):
    _assert_agrees(answer("llama-3.3-70b", **request_))


def _assert_agrees(found: Recommendation) -> None:
    assert any(kind.serving for kind in found.kinds)
    for kind in found.kinds:
        if kind.serving is None:
            continue
        serving, pages, heads = kind.serving, found.pages, found.model.heads
        assert (3, *serving.page_shape) == rpa_kernels.get_kv_cache_shape(
            3, pages.page_size, found.share.kv_heads, heads.head_dim, found.kv_dtype
        )
        variant = rpa_kernels.load(serving.variant.name).VARIANT
        problem = support.check_operands(variant, **operands(found, kind))
        assert dataclasses.asdict(problem) == dataclasses.asdict(serving.problem)
        support.check_smem(problem)
        assert pages.smem_bytes == support.smem_bytes(problem.sequences, problem.pages_per_sequence)
        assert pages.smem_bytes <= support.SMEM_BYTES

        planned: list[support.Launch] = []
        options = {
            "kv_slots": {name: plan.kv_slots for name, plan in variant.launches},
            "chunk_prefill_size": found.request.chunk_prefill_size,
            "block_sizes": dict.fromkeys(LAUNCHES),
            "vmem_limit_bytes": None,
        }
        with tpu_mesh(found.request.generation):
            jax.eval_shape(  # so that no launch is known to be empty
                lambda ends, problem=problem, options=options, planned=planned: planned.extend(
                    support.plan_launches(support.Launch, problem, distribution=ends, **options)
                ),
                np.zeros(3, np.int32),
            )
        assert [
            (each.name, each.query_block, each.kv_block, each.query_tile, each.compute_block)
            for each in planned
        ] == [(each.launch, *each.blocks) for each in serving.launches]
        for launch, each in zip(planned, serving.launches, strict=True):
            needed = support.vmem_bytes(
                kv_heads=launch.kv_heads,
                group=launch.group,
                head_dim=launch.head_dim,
                query_bytes=problem.query_bytes,
                kv_row_bytes=problem.widths["kv_row_bytes"],
                kv_slots=launch.kv_slots,
                query_slots=launch.query_slots,
                query_block=launch.query_block,
                kv_block=launch.kv_block,
                compute_block=launch.compute_block,
            )
            assert each.vmem_bytes == needed <= launch.vmem_limit_bytes


# --- the call ------------------------------------------------------------------------------------


def traced(found: Recommendation, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> str:
    """Traces the call printed, for the device it is for; the variant that it runs."""
    ran = []
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda name: ran.append(name) or load(name))

    def call(arrays: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        namespace = {"jnp": jnp, "rpa_kernels": rpa_kernels, "pages": 3, **arrays}
        exec(text.call(found, kind), namespace)
        return namespace["out"], namespace["kv_cache"]

    arrays = operands(found, kind)
    cache = arrays["kv_cache"]  # of another layer, where a layer has none of its own
    structs = {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in arrays.items()}
    scales = dict.fromkeys(("k_scale", "v_scale"), jax.ShapeDtypeStruct((), jnp.float32))
    with tpu_mesh(found.request.generation):
        out, updated = jax.eval_shape(call, structs | scales)
    assert (out.shape, out.dtype) == (arrays["queries"].shape, arrays["queries"].dtype)
    assert (updated.shape, updated.dtype) == (cache.shape, cache.dtype)
    (variant,) = ran
    return str(variant)


@pytest.mark.parametrize("name", PAGES)
def test_the_call_traces_to_the_variant_it_is_for(name, monkeypatch):
    found = answer(name, devices=2, chunk_prefill_size=512)
    for kind in found.kinds:
        if kind.serving is not None:
            with monkeypatch.context() as patch:
                assert traced(found, kind, patch) == kind.serving.variant.name


@pytest.mark.parametrize(
    ("name", "request_", "variants"),
    [
        (
            "gemma-2-27b",
            {"kv_dtype": "int8"},
            ["rpa_int8_sliding_window_soft_cap", "rpa_int8_soft_cap"],
        ),
        ("phi-3-mini-4k", {"kv_dtype": "float8_e4m3fn"}, ["rpa_float8_e4m3fn_sliding_window"]),
        ("llama-3.1-8b", {"query_dtype": "float32", "generation": "v5e"}, ["rpa_float32"]),
        ("qwen2.5-0.5b", {"devices": 14, "generation": "v7x"}, ["rpa"]),
        ("llama-4-scout", {"max_tokens": 8192}, ["rpa"]),
    ],
)
def test_the_call_traces_with_other_dtypes_and_devices(name, request_, variants, monkeypatch):
    found = answer(name, **request_)
    assert found.is_served
    ran = []
    for kind in found.kinds:
        with monkeypatch.context() as patch:
            ran.append(traced(found, kind, patch))
    assert ran == variants == [kind.serving.variant.name for kind in found.kinds]


@pytest.mark.parametrize(
    ("fields", "variant"),
    [({"is_causal": False}, "rpa_bidirectional"), ({"num_kv_shared_layers": 2}, "rpa_kv_share")],
)
def test_the_call_of_other_features_traces(fields, variant, write, monkeypatch):
    found = recommend(config.load(write(**fields)), Request("v6e"), SPECS)
    assert traced(found, found.kinds[-1], monkeypatch) == variant


# --- what it prints ------------------------------------------------------------------------------


def test_the_whole_answer_for_one_model(run):
    assert run(CONFIGS / "gemma-3-27b.json", "--tp", 8, "--device", "v6e") == (
        0,
        """\
tests/data/hf_configs/gemma-3-27b.json: gemma3_text, 62 layers, 32 query heads, 16 kv heads, \
head dim 128, bfloat16
v6e x 8, on each device 4 query heads and 2 kv heads; up to 64 sequences a call, 131072 tokens \
each, 2048 new ones in all
pages of 64 tokens, 2048 for each sequence: the smallest from 64 up whose page table fits SMEM; \
SMEM 524 of 1024 KiB
KV cache on each device: 63488 bytes a token in 62 layers
  496.0 GiB, 131072 pages a layer, with all sequences at their longest; with fewer pages, some \
wait: make as many as fit the HBM that weights leave free

52 layers (0-4, 6-10, 12-16, ..., 60-61): sliding window 1024
  variant: rpa_sliding_window (bfloat16 queries, bfloat16 cache, sliding window)
  cache: [pages, 64, 2, 2, 128] bfloat16; 1024 bytes a token and layer
  default blocks, in tokens:
    launch  query block  KV block  query tile  compute block  VMEM
    decode  1            2048      1           512            12.1 of 128 MiB
    mixed   512          2048      512         512            17.5 of 128 MiB
  they were not tuned for these heads; to search for better ones, for some minutes:
    rpagen tune tests/data/hf_configs/gemma-3-27b.json --tp 8 --device v6e --page-size 64 \
--max-model-len 131072
  call:
    shape = rpa_kernels.get_kv_cache_shape(pages, 64, 2, 128, jnp.bfloat16)
    kv_cache = jnp.zeros(shape, jnp.bfloat16)
    out, kv_cache = rpa_kernels.ragged_paged_attention(
        queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution,
        sm_scale=168**-0.5,
        sliding_window=1024,
    )

10 layers (5, 11, 17, ..., 59): full attention
  variant: rpa (bfloat16 queries, bfloat16 cache, no features)
  cache: [pages, 64, 2, 2, 128] bfloat16; 1024 bytes a token and layer
  default blocks, in tokens:
    launch  query block  KV block  query tile  compute block  VMEM
    decode  1            2048      1           512            12.1 of 128 MiB
    mixed   512          2048      512         512            17.5 of 128 MiB
  they were not tuned for these heads; to search for better ones, for some minutes:
    rpagen tune tests/data/hf_configs/gemma-3-27b.json --tp 8 --device v6e --page-size 64 \
--max-model-len 131072
  call:
    shape = rpa_kernels.get_kv_cache_shape(pages, 64, 2, 128, jnp.bfloat16)
    kv_cache = jnp.zeros(shape, jnp.bfloat16)
    out, kv_cache = rpa_kernels.ragged_paged_attention(
        queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution,
        sm_scale=168**-0.5,
    )

notes:
  - not in the file, so as transformers has it for gemma3_text: max_position_embeddings 131072
  - text alone is served: the tokens of an image see each other in both directions, which no kernel
    here computes
""",
        "",
    )


MLA = """\
tests/data/hf_configs/deepseek-v3.json: deepseek_v3

all layers
  not served: multi-head latent attention (kv_lora_rank 512): its cache holds one compressed row for
    all heads of a token, which no kernel here reads yet
"""
SINKS = """\
tests/data/hf_configs/gpt-oss-120b.json: gpt_oss, 36 layers, 64 query heads, 8 kv heads, head dim \
64, bfloat16
v6e x 1, on each device 64 query heads and 8 kv heads; up to 64 sequences a call, 131072 tokens \
each, 2048 new ones in all

18 layers (0, 2, 4, ..., 34): sliding window 128
  not served: attention sinks (model_type gpt_oss): the softmax of each head counts one more score,
    without a key, which no kernel here does yet

18 layers (1, 3, 5, ..., 35): full attention
  not served: attention sinks (model_type gpt_oss): the softmax of each head counts one more score,
    without a key, which no kernel here does yet
"""


@pytest.mark.parametrize(("name", "said"), [("deepseek-v3", MLA), ("gpt-oss-120b", SINKS)])
def test_models_that_are_not_served(run, name, said):
    assert run(CONFIGS / f"{name}.json") == (1, said, "")


def test_a_model_that_is_served_in_part(run):
    status, out, err = run(CONFIGS / "llama-4-scout.json", "--tp", 8)
    assert (status, err) == (1, "")
    _, chunked, full, _ = out.split("\n\n")
    assert chunked == (
        "36 layers (0-2, 4-6, 8-10, ..., 44-46): chunks of 8192\n"
        "  not served: chunked attention (attention_chunk_size 8192): a query sees the keys of its"
        " own chunk\n"
        "    only, which no kernel here does yet; sequences of up to 8192 tokens have one chunk and"
        " are\n"
        "    served: --max-model-len 8192"
    )
    assert full.startswith(
        "12 layers (3, 7, 11, ..., 47): full attention\n  variant: rpa (bfloat16 queries,"
    )


def test_in_short_sequences_no_chunk_and_no_window_hides_anything(run):
    status, out, _ = run(CONFIGS / "llama-4-scout.json", "--max-model-len", 8192)
    assert status == 0 and "48 layers (0-47): full attention\n  variant: rpa (" in out
    assert (
        "  - a chunk of 8192 tokens hides nothing in sequences of at most 8192: its layers are full"
        " attention\n"
    ) in out
    status, out, _ = run(CONFIGS / "gemma-2-27b.json", "--max-model-len", 4096)
    assert status == 0 and "46 layers (0-45): full attention\n  variant: rpa_soft_cap (" in out
    assert "sliding_window" not in out
    # The last of 4097 tokens does not see the first one.
    status, out, _ = run(CONFIGS / "gemma-2-27b.json", "--max-model-len", 4097)
    assert "23 layers (0, 2, 4, ..., 44): sliding window 4096" in out


def test_json_says_the_same(run):
    status, out, err = run(CONFIGS / "llama-4-scout.json", "--tp", 8, "--json")
    assert (status, err) == (1, "")
    record = json.loads(out)
    chunked, full = record["kinds"]
    assert chunked["variant"] is None and chunked["layers"][:4] == [0, 1, 2, 4]
    assert chunked["missing"][0].startswith("chunked attention")
    assert full["variant"] == "rpa" and full["missing"] == []
    assert full["page_shape"] == [4096, 1, 2, 128] and full["token_bytes"] == 512
    assert [launch["launch"] for launch in full["launches"]] == ["decode", "mixed"]
    assert full["call"].endswith("    sm_scale=128**-0.5,\n)")
    assert record["per_device"] == {"query_heads": 5, "kv_heads": 1, "copies": 1}
    assert record["pages"]["pages_per_sequence"] == 2560
    assert record["heads"]["scale"] == "128**-0.5"

    status, out, _ = run(CONFIGS / "deepseek-v3.json", "--json")
    record = json.loads(out)
    assert (status, record["heads"], record["max_model_len"]) == (1, None, None)


def test_it_needs_no_jax():
    command = (
        "import sys; from rpagen import cli; cli.main(sys.argv[1:])\n"
        "assert not {'jax', 'numpy'} & set(sys.modules)"
    )
    config_file = str(CONFIGS / "llama-3.1-8b.json")
    subprocess.run([sys.executable, "-c", command, "recommend", config_file], cwd=ROOT, check=True)


# --- tensor parallel -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "query_heads", "kv_heads", "copies"),
    [(1, 32, 8, 1), (2, 16, 4, 1), (8, 4, 1, 1), (16, 2, 1, 2), (32, 1, 1, 4)],
)
def test_devices_share_the_heads(devices, query_heads, kv_heads, copies):
    found = answer("llama-3.1-8b", devices=devices)
    assert dataclasses.astuple(found.share) == (query_heads, kv_heads, copies)
    said = "there are more devices than kv heads: each of the 8, with its cache, is on"
    assert [note for note in found.notes if note.startswith(said)] == (
        [f"{said} {copies} devices"] if copies > 1 else []
    )


@pytest.mark.parametrize(
    ("name", "devices", "text"),
    [
        (
            "llama-3.1-8b",
            3,
            "3 devices cannot share 32 query heads and 8 kv heads\n"
            "  expected: one of 1, 2, 4, 8, 16, 32\n",
        ),
        (
            "llama-3.1-8b",
            64,
            "64 devices cannot share 32 query heads and 8 kv heads\n"
            "  expected: one of 1, 2, 4, 8, 16, 32\n",
        ),
        (
            "llama-4-scout",  # whose 40 query heads 5 devices could share, but not the 8 kv heads
            5,
            "5 devices cannot share 40 query heads and 8 kv heads\n"
            "  expected: one of 1, 2, 4, 8, 40\n",
        ),
        (
            "qwen2.5-0.5b",
            7,
            "7 devices cannot share 14 query heads and 2 kv heads\n  expected: one of 1, 2, 14\n",
        ),
    ],
)
def test_devices_that_cannot_share_the_heads(run, name, devices, text):
    assert run(CONFIGS / f"{name}.json", "--tp", devices) == (
        2,
        "",
        f"error: --tp: {text}  next: give one of these numbers of devices\n",
    )


@pytest.mark.parametrize(
    ("name", "options", "note"),
    [
        (
            "llama-4-scout",
            {"devices": 8},
            "5 query heads for each kv head padded to 6, to fill words of 32 bits with bfloat16",
        ),
        (
            "llama-3.1-8b",
            {"devices": 8, "kv_dtype": "int8"},
            "K and V of 1 kv head on a device are 2 rows of a token, padded to 4 to fill words of"
            " 32 bits: an odd number of kv heads takes as much as the next even one, with 8 bits a"
            " value",
        ),
        (
            "llama-3.1-8b",
            {"max_tokens": 200000},
            "200000 tokens are more than the model's max_position_embeddings, 131072",
        ),
    ],
)
def test_what_is_noted(name, options, note):
    assert note in answer(name, **options).notes
    assert note not in answer("llama-3.3-70b").notes


# --- pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequences", "max_tokens", "page_size"),
    [(1, 131072, 64), (64, 131072, 64), (128, 131072, 128), (64, 10485760, 4096), (64, 5, 64)],
)
def test_pages_are_the_smallest_whose_table_fits(sequences, max_tokens, page_size):
    pages = answer("llama-3.1-8b", sequences=sequences, max_tokens=max_tokens).pages
    assert pages.page_size == page_size
    assert pages.smem_bytes <= budget.SMEM_BYTES
    assert pages.pages_per_sequence * page_size >= max_tokens
    if page_size > 64:
        assert budget.smem_bytes(sequences, 2 * pages.pages_per_sequence) > budget.SMEM_BYTES


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ["--page-size", 16],
            "--page-size: 64 sequences of up to 131072 tokens in pages of 16: the table of 64 x"
            " 8192 pages needs 2109952 bytes of SMEM\n"
            "  expected: at most 1048576 bytes, what a core has\n"
            "  next: give --page-size 64 or more, or --max-sequences 31 or fewer, or"
            " --max-model-len 64736 or less\n",
        ),
        (
            ["--max-sequences", 100000],
            "--max-sequences: 100000 sequences of up to 131072 tokens in pages of 131072: the"
            " table of 100000 x 1 pages needs 1212928 bytes of SMEM\n"
            "  expected: at most 1048576 bytes, what a core has\n"
            "  next: give --max-sequences 86399 or fewer\n",
        ),
        (
            ["--max-model-len", 1 << 30],
            "--max-sequences: the decode launch of rpa needs 4834963456 bytes of VMEM even with"
            " blocks of one page, of 524288 tokens\n"
            "  expected: at most 134217728 bytes, what a core of v6e has\n"
            "  next: give fewer --max-sequences or a smaller --max-model-len, for smaller pages\n",
        ),
        (
            ["--page-size", 131072],
            "--page-size: the decode launch of rpa needs 1211084800 bytes of VMEM even with blocks"
            " of one page, of 131072 tokens\n"
            "  expected: at most 134217728 bytes, what a core of v6e has\n"
            "  next: give a smaller --page-size\n",
        ),
    ],
)
def test_pages_that_do_not_fit(run, options, text):
    assert run(CONFIGS / "llama-3.1-8b.json", *options) == (2, "", f"error: {text}")


@settings(max_examples=50)
@given(st.integers(1, 4096), st.integers(1, 1 << 20), st.integers(1, 1024))
@example(64, 131072, 16)
def test_what_an_error_of_pages_says_to_do_helps(sequences, max_tokens, page_size):
    from rpagen.models import recommend as module

    request = Request("v6e", sequences=sequences, page_size=page_size)
    try:
        pages = module._pages(request, max_tokens)
    except InputError as error:
        words = error.next_step.replace(",", "").split()
        pairs = itertools.pairwise(words)
        ways = {name: int(value) for name, value in pairs if name.startswith("--")}
        assert ways
        for name, value in ways.items():
            changed = {
                "--page-size": (dataclasses.replace(request, page_size=value), max_tokens),
                "--max-sequences": (dataclasses.replace(request, sequences=value), max_tokens),
                "--max-model-len": (request, value),
            }[name]
            module._pages(*changed)
    else:
        assert pages.smem_bytes <= budget.SMEM_BYTES


# --- variants ------------------------------------------------------------------------------------


def test_a_variant_that_is_not_checked_in_says_how_to_have_it(run):
    status, out, _ = run(CONFIGS / "mistral-7b-v0.1.json", "--kv-dtype", "float8_e5m2")
    assert status == 0
    assert (
        "  variant: rpa_float8_e5m2_sliding_window (bfloat16 queries, float8_e5m2 cache, sliding"
        " window)\n"
        "    it is not among the checked-in kernels; to have it alone, or in a package of all\n"
        "    variants, whose dispatch the call below needs:\n"
        "      rpagen emit rpa_float8_e5m2_sliding_window -o DIR\n"
        "      rpagen generate --tier all -o DIR\n"
    ) in out


def test_commands_to_type_are_for_the_same_specs(run, tmp_path):
    specs = specs_with(tmp_path / "my specs", {})
    name = CONFIGS / "mistral-7b-v0.1.json"
    out = run(name, "--kv-dtype", "float8_e5m2", "--specs", specs)[1]
    assert f"      rpagen generate --tier all --specs '{specs}' -o DIR\n" in out


def test_rules_that_refuse_a_variant_are_quoted(run):
    status, out, _ = run(CONFIGS / "llama-3.1-8b.json", "--kv-dtype", "float32")
    assert status == 1
    assert "  not served: a float32 cache is offered with float32 queries only, so far\n" in out
    status, out, _ = run(CONFIGS / "llama-3.1-8b.json", "--dtype", "float32", "--kv-dtype", "int8")
    assert status == 1
    assert "  not served: float32 queries are offered with a float32 cache only\n" in out


def specs_with(tmp_path: Path, changes: dict[str, str]) -> Path:
    spec = (SPECS / "families/rpa.yaml").read_text()
    for old, new in changes.items():
        assert old in spec
        spec = spec.replace(old, new)
    (tmp_path / "specs/families").mkdir(parents=True)
    (tmp_path / "specs/families/rpa.yaml").write_text(spec)
    return tmp_path / "specs"


def test_a_variant_that_no_spec_makes_says_what_to_add(run, write, tmp_path):
    arguments = (write(is_causal=False), "--kv-dtype", "float8_e5m2")
    status, out, _ = run(*arguments)
    assert status == 1
    said = " ".join(out.partition("not served: ")[2].split())
    assert said == (
        "no spec makes this variant: add to the combos of its family: - {layout: head_interleaved,"
        " query.dtype: bfloat16, kv.dtype: float8_e5m2, quantization: per_tensor, features:"
        " [bidirectional]}"
    )
    # Added, it is served.
    combo = said.partition("its family: ")[2]
    specs = specs_with(tmp_path, {"combos:\n": f"combos:\n  {combo}\n"})
    status, out, _ = run(*arguments, "--specs", specs)
    assert status == 0 and "variant: rpa_float8_e5m2_bidirectional (" in out


def test_a_variant_of_other_generations_says_what_to_change(run, tmp_path):
    specs = specs_with(tmp_path, {"family: rpa\n": "family: rpa\ngenerations: [v5e, v6e]\n"})
    arguments = (CONFIGS / "llama-3.1-8b.json", "--specs", specs)
    assert run(*arguments)[0] == 0
    status, out, _ = run(*arguments, "--device", "v7x")
    assert status == 1
    assert "  not served: rpa is not emitted for v7x: add that to its generations, at " in out


@pytest.mark.parametrize(
    ("fields", "title", "variant"),
    [
        ({"is_causal": False}, "32 layers (0-31): full attention", "rpa_bidirectional"),
        (
            {"model_type": "gemma3n_text", "num_kv_shared_layers": 12, "sliding_window": 512},
            "2 layers (24, 29): full attention, over the keys and values of layer 19",
            "rpa_kv_share",
        ),
        (
            {"model_type": "gemma3n_text", "num_kv_shared_layers": 12, "sliding_window": 512},
            "10 layers (20-23, 25-28, 30-31): sliding window 512, over the keys and values of layer"
            " 18",
            "rpa_sliding_window_kv_share",
        ),
    ],
)
def test_other_features(run, write, fields, title, variant):
    status, out, _ = run(write(**fields))
    assert status == 0
    assert f"\n\n{title}\n  variant: {variant} (" in out
    if "kv_share" in variant:
        assert "update_kv_cache=False," in out and "  cache: that of layer 19\n" in out
        assert "KV cache on each device: 163840 bytes a token in 20 layers\n" in out
    else:
        assert "use_causal_mask=False," in out


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        (
            {"use_bidirectional_attention": True, "model_type": "gemma3_text", "sliding_window": 9},
            "a window in both directions: without the causal mask, kernels here bound the past"
            " only",
        ),
        (
            {"layer_types": ["linear_attention"] * 31 + ["full_attention"]},
            'layers of type "linear_attention": no kernel here computes them',
        ),
    ],
)
def test_layers_that_are_not_served_beside_those_that_are(run, write, fields, missing):
    status, out, _ = run(write(**fields))
    assert status == 1
    assert f"not served: {missing}" in " ".join(out.split())
    assert "  variant: rpa" in out


# --- wrong usage ---------------------------------------------------------------------------------


def test_the_length_of_sequences_must_be_known(run, write):
    path = write(max_position_embeddings=..., model_type="new")
    assert run(path) == (
        2,
        "",
        f"error: {path}: max_position_embeddings: is missing\n"
        "  expected: the most tokens of a sequence\n"
        "  next: say it with --max-model-len\n",
    )
    assert run(path, "--max-model-len", 1000)[0] == 0


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "9" * 5000, "", "\u0663"])
def test_sizes_that_are_none(run, value):
    status, out, err = run(CONFIGS / "llama-3.1-8b.json", f"--tp={value}")
    assert (status, out) == (2, "")
    assert err.startswith("error: argument --tp: ") and "is no whole number from 1 to" in err


def test_a_wrong_file_with_json_is_json(run, write):
    status, out, err = run(write(num_attention_heads=0), "--json")
    assert status == 2 and err.startswith("error: ")
    error = json.loads(out)["error"]
    assert (error["field"], error["problem"]) == ("num_attention_heads", "is 0")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 64)
    | st.sampled_from([128, 4096, 1 << 20, 10**9, 10**30])
    | st.floats()
    | st.sampled_from(["llama", "bfloat16", "sliding_attention", "full_attention", "x\x1b"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        *("model_type", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
        *("num_hidden_layers", "max_position_embeddings", "sliding_window", "layer_types"),
        *("use_sliding_window", "max_window_layers", "sliding_window_pattern", "text_config"),
        *("attention_chunk_size", "no_rope_layers", "no_rope_layer_interval", "kv_lora_rank"),
        *("query_pre_attn_scalar", "attn_logit_softcapping", "attention_multiplier", "alibi"),
        *("attn_config", "torch_dtype", "dtype", "is_causal", "use_bidirectional_attention"),
        *("num_kv_shared_layers", "v_head_dim", "is_encoder_decoder", "attention_sink", "n_head"),
        *("position_embedding_type", "global_head_dim", "attn_layer_period"),
    ]
)
TYPES = st.sampled_from([*known.KNOWN, "new"])
OPTIONS_TRIED = st.lists(
    st.sampled_from(
        [
            *("--tp=2", "--tp=7", "--tp=64", "--device=v7x", "--kv-dtype=int8", "--dtype=float32"),
            *("--page-size=1", "--page-size=3000", "--max-sequences=1", "--max-model-len=77"),
            *("--tokens=1", "--chunk-prefill-size=33", "--json", "--max-sequences=1000000"),
        ]
    ),
    max_size=4,
)


@settings(max_examples=400)
@given(TYPES, st.dictionaries(FIELDS, VALUES, max_size=5), st.booleans(), OPTIONS_TRIED)
def test_no_configuration_is_too_much(model_type, fields, is_nested, options):
    small = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 4,
        "max_position_embeddings": 4096,
        "model_type": model_type,
    }
    content = {"text_config": small | fields} if is_nested else small | fields
    _ends_well(json.dumps(content).encode(), options)


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda each: each.encode("utf-8")))
def test_no_file_is_too_much(content):
    _ends_well(content, [])


def _ends_well(content: bytes, options: list[str]) -> None:
    """With an exit status of its own, and where it is an error, in the form of all errors."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        path = Path(folder) / "config.json"
        path.write_bytes(content)
        status = cli.main(["recommend", str(path), *options])
    said = out.getvalue() + err.getvalue()
    assert "\x1b" not in said
    if status == 2:
        assert err.getvalue().startswith("error: ")
        assert "\n  expected: " in err.getvalue() and "\n  next: " in err.getvalue()
    else:
        assert status in (0, 1) and not err.getvalue()
        assert ("not served" in said or '"variant": null' in said) == (status == 1)


TUNED = Tuned(
    Blocks(512, 2048, 256, 512),
    {"prefill-2k": 40.0, "append-512": 30.0},
    Blocks(256, 4096, 256, 512),
    {"prefill-2k": 44.0, "append-512": 33.0},
)
KEY = Key("rpa", 8, 1, 128, 64, 0)


BETTER = "    mixed   512          2048      256         512            1.10 times as fast\n"
NOT_TUNED = """\
  they were not tuned for these heads; to search for better ones, for some minutes:
    rpagen tune tests/data/hf_configs/llama-3.3-70b.json --tp 8 --device v6e --page-size 64 --"""


@pytest.mark.parametrize(
    ("key", "options", "said", "is_better"),
    [
        (KEY, (), BETTER + "  decode: a search found none that are better\n", True),
        (KEY, ("--chunk-prefill-size", 16), "\n  prefill: not tuned\n", True),
        # Blocks of such calls are smaller ones, with which nothing was compared.
        (KEY, ("--tokens", 64), "\n  mixed: tuned where other blocks are the default\n", False),
        (KEY, ("--max-model-len", 1024), "  decode, mixed: tuned where other blocks", False),
        (dataclasses.replace(KEY, page_size=128), (), NOT_TUNED, False),
        (dataclasses.replace(KEY, sliding_window=64), (), NOT_TUNED, False),
    ],
)
def test_tuned_blocks_are_told_and_passed(key, options, said, is_better, run, tmp_path):
    specs = tmp_path / "specs"
    shutil.copytree(SPECS, specs)
    decode = Tuned(Blocks(1, 4096, 1, 512), {"w": 9.0}, Blocks(1, 4096, 1, 512), {"w": 9.0})
    versions = {"jax": "0.10.2", "libtpu": "0.0.52"}
    launches = {"decode": decode, "mixed": TUNED}
    rows.write_rows(specs / rows.FOLDER, "v6e", [Row(key, launches, versions)])
    arguments = (CONFIGS / "llama-3.3-70b.json", "--tp", 8, "--page-size", 64, "--specs", specs)
    status, out, _ = run(*arguments, *options)
    assert status == 0 and said in out
    assert ("        m_block_sizes=(512, 2048, 256, 512),\n" in out) == is_better
    assert "d_block_sizes" not in out
    (kind,) = json.loads(run(*arguments, *options, "--json")[1])["kinds"]
    assert kind["tuned"] == (["decode", "mixed"] if key == KEY else [])
    found = {"mixed": {"blocks": [512, 2048, 256, 512], "gain": 1.1}}
    assert kind["better_blocks"] == (found if is_better else {})


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama-3.1-8b", ("--dtype", "float32")),
        ("llama-3.1-8b", ("--kv-dtype", "int8")),
        # A window that holds all tokens is none.
        ("mistral-7b-v0.1", ("--max-model-len", "4096")),
        ("mistral-7b-v0.1", ("--max-model-len", "16384")),
        ("gemma-3-27b", ("--tp", "8", "--device", "v7x")),
    ],
)
def test_the_search_that_is_advised_is_for_the_same(model, options, run, tmp_path, monkeypatch):
    specs = tmp_path / "specs"
    shutil.copytree(SPECS, specs, ignore=shutil.ignore_patterns(rows.FOLDER))  # no row is there
    arguments = (CONFIGS / f"{model}.json", *options, "--specs", specs)
    status, out, _ = run(*arguments)
    advised = {line for line in out.splitlines() if line.startswith("    rpagen tune ")}
    assert status == 0 and len(advised) == 1

    def tuned(request: row.Request, *_: object) -> Row:
        blocks = Blocks(1, 128, 1, 128)
        found = Tuned(blocks, {"w": 1.0}, blocks, {"w": 1.0})
        return Row(request.key, {"decode": found, "mixed": found}, {"jax": "0", "libtpu": "0"})

    monkeypatch.setattr(row, "tuned", tuned)
    _, _, *words = shlex.split(advised.pop())
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main(["tune", *words]) == 0
    _, out, _ = run(*arguments)
    assert "not tuned" not in out and "tuned where other blocks" in out
