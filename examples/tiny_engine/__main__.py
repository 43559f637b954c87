"""Runs the engine on requests that arrive over time, and compares every token it generates."""

from __future__ import annotations

import argparse
import sys

import jax
import numpy as np

from .engine import Engine, kernel_mode
from .model import Config, generate_plainly, random_weights, with_head_for
from .scheduler import Limits, Request

# (the step before which it arrives, tokens of the prompt, tokens to generate)
ARRIVALS = [(0, 14, 10), (0, 40, 8), (1, 1, 6), (3, 23, 12), (4, 50, 6), (6, 7, 12), (9, 33, 8)]


def main() -> int:
    """The exit status: 0 if the engine generates what plain attention does."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_engine", description=__doc__)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    config, limits = Config(dtype=parser.parse_args().dtype), Limits()
    numbers = np.random.default_rng(0)
    texts = [
        (
            numbers.integers(config.vocabulary, size=prompt).tolist(),
            numbers.integers(config.vocabulary, size=wanted).tolist(),
        )
        for _, prompt, wanted in ARRIVALS
    ]
    weights = with_head_for(config, random_weights(config, seed=0), texts)
    requests = [
        Request(name, prompt, len(continuation))
        for name, (prompt, continuation) in enumerate(texts)
    ]
    engine = Engine(config, weights, limits)
    serve(engine, requests)
    return compare(engine, requests)


def serve(engine: Engine, requests: list[Request]) -> None:
    """Steps until all requests are finished, with a line for each step."""
    scheduler = engine.scheduler
    backend = jax.default_backend()
    how = "compiled" if backend == "tpu" else "in interpret mode"
    print(f"{engine.config.dtype}, kernels {how} on {backend}")
    arriving = list(zip((step for step, *_ in ARRIVALS), requests, strict=False))
    step = 0
    with kernel_mode():
        while arriving or scheduler.waiting or scheduler.running:
            while arriving and arriving[0][0] <= step:
                scheduler.add(arriving.pop(0)[1])
            schedule = engine.step()
            tokens = sum(share.count for share in schedule.shares)
            print(
                f"step {step:2}: {len(schedule.decode)} decode, {len(schedule.prefill)} prefill,"
                f" {len(schedule.mixed)} mixed; {tokens:2} tokens",
                flush=True,
            )
            step += 1


def compare(engine: Engine, requests: list[Request]) -> int:
    equal = 0
    smallest, largest = np.inf, 0.0
    for request in requests:
        tokens, logits = generate_plainly(
            engine.config, engine.weights, request.prompt, request.wanted
        )
        best = np.sort(logits, axis=-1)
        smallest = min(smallest, float((best[:, -1] - best[:, -2]).min()))
        largest = max(largest, float(np.abs(logits - engine.chosen_by[request.name]).max()))
        is_equal = tokens == request.generated
        equal += is_equal
        print(request.name, len(request.prompt), request.generated, is_equal, request.pages)
    print(smallest, largest, engine.compiled_sizes)
    return 0 if equal == len(requests) else 1


if __name__ == "__main__":
    sys.exit(main())
