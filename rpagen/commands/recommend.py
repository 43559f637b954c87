"""`rpagen recommend`: which variants serve a model, what they take, and how to call them."""

from __future__ import annotations

import argparse
import dataclasses

from rpagen.commands import shared
from rpagen.emit import resources
from rpagen.models.recommend import Kind, Recommendation, Request

DOES = "tell which variants serve a model, what they take and how to call them"
EXAMPLE = "rpagen recommend tests/data/hf_configs/llama-3.1-8b.json --tp 8 --device v6e"


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Add what the verb takes."""
    shared.add_model(verb)
    verb.add_argument(
        "--page-size",
        type=shared.size,
        metavar="N",
        help="tokens of a page (default: the smallest from 64 up whose page table fits SMEM)",
    )
    verb.add_argument(
        "--max-sequences",
        type=shared.size,
        default=64,
        metavar="N",
        help="sequences of one call (default: %(default)s)",
    )
    verb.add_argument(
        "--max-model-len",
        type=shared.size,
        metavar="N",
        help="tokens of a sequence (default: the model's max_position_embeddings)",
    )
    verb.add_argument(
        "--tokens",
        type=shared.size,
        default=2048,
        metavar="N",
        help="new tokens of one call (default: %(default)s)",
    )
    verb.add_argument(
        "--chunk-prefill-size",
        type=shared.size,
        metavar="N",
        help="new tokens of a prefill sequence; without it, prefill is part of mixed",
    )
    shared.add_specs(verb)
    shared.add_json(verb)


def run(options: argparse.Namespace) -> int:
    """Print the answer for every kind of layer; 1 where some are not served."""
    from rpagen.models import config, recommend, text
    from rpagen.tune import rows

    request = Request(
        generation=options.device,
        devices=options.tp,
        sequences=options.max_sequences,
        tokens=options.tokens,
        max_tokens=options.max_model_len,
        page_size=options.page_size,
        chunk_prefill_size=options.chunk_prefill_size,
        query_dtype=options.dtype,
        kv_dtype=options.kv_dtype,
    )
    known = rows.read(options.specs / rows.FOLDER, options.device)
    answer = recommend.recommend(config.load(options.config), request, options.specs, known)
    if options.json:
        shared.print_json(_record(answer))
    else:
        is_usual = options.specs == resources.specs_dir()
        print(text.report(answer, () if is_usual else ("--specs", str(options.specs))))
    return shared.ALL_WELL if answer.is_served else shared.FELL_SHORT


def _record(answer: Recommendation) -> dict[str, object]:
    """The answer as `--json` prints it."""
    return {
        "model_type": answer.model.model_type,
        "heads": dataclasses.asdict(answer.model.heads) if answer.model.heads else None,
        "device": answer.request.generation,
        "tp": answer.request.devices,
        "max_model_len": answer.max_tokens,
        "max_sequences": answer.request.sequences,
        "tokens": answer.request.tokens,
        "per_device": dataclasses.asdict(answer.share) if answer.share else None,
        "pages": dataclasses.asdict(answer.pages) if answer.pages else None,
        "cache_bytes_per_token": answer.cache_bytes,
        "kinds": [_of_kind(answer, kind) for kind in answer.kinds],
        "notes": list(answer.notes),
    }


def _of_kind(answer: Recommendation, kind: Kind) -> dict[str, object]:
    from rpagen.models import text

    record: dict[str, object] = {
        "layers": list(kind.layers),
        "attention": kind.layer.attention,
        "size": kind.layer.size,
        "kv_from": kind.layer.kv_from,
        "features": list(kind.features),
        "missing": list(kind.missing),
        "variant": None,
    }
    if kind.serving is None:
        return record
    serving = kind.serving
    return {
        **record,
        "variant": serving.variant.name,
        "tier": serving.variant.tier,
        "kv_dtype": answer.kv_dtype,
        "page_shape": list(serving.page_shape),
        "token_bytes": serving.token_bytes,
        "padding_bytes": serving.padding_bytes,
        "launches": [dataclasses.asdict(each) for each in serving.launches],
        "tuned": list(serving.tuned),
        "better_blocks": {
            launch: {"blocks": found.blocks.argument, "gain": round(found.gain, 3)}
            for launch, found in serving.better.items()
        },
        "call": text.call(answer, kind),
    }
