"""Runs the engine on requests that arrive over time, and compares every token it generates."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence

import jax
import numpy as np

from .engine import Engine, kernel_mode
from .model import Config, generate_plainly, random_weights, with_head_for
from .scheduler import Limits, Request

# Each: the step before which it arrives, the tokens of its prompt, the tokens that it wants. There
# is a prompt of one token and some of several chunks, and a decode that crosses into a new page.
ARRIVALS = ((0, 14, 10), (0, 40, 8), (1, 1, 6), (3, 23, 12), (4, 50, 6), (6, 7, 12), (9, 33, 8))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if the engine generates what plain attention does."""
    parser = argparse.ArgumentParser(prog="python -m examples.tiny_engine", description=__doc__)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    config = Config(dtype=parser.parse_args(arguments).dtype)
    engine, requests = prepare(config, Limits(), ARRIVALS)
    serve(engine, requests, [step for step, *_ in ARRIVALS])
    return compare(engine, requests)


def prepare(
    config: Config, limits: Limits, arrivals: Sequence[tuple[int, int, int]]
) -> tuple[Engine, list[Request]]:
    """An engine, and requests with random prompts that its model continues in random ways."""
    numbers = np.random.default_rng(0)

    def random_tokens(count: int) -> list[int]:
        return [int(token) for token in numbers.integers(config.vocabulary, size=count)]

    texts = [(random_tokens(prompt), random_tokens(wanted)) for _, prompt, wanted in arrivals]
    weights = with_head_for(config, random_weights(config, seed=0), texts)
    requests = [
        Request(name, prompt, len(continuation))
        for name, (prompt, continuation) in enumerate(texts)
    ]
    return Engine(config, weights, limits), requests


def serve(engine: Engine, requests: Sequence[Request], arrival_steps: Sequence[int]) -> None:
    """Steps until all requests are finished; says what each step does."""
    scheduler, pool = engine.scheduler, engine.scheduler.pool
    backend = jax.default_backend()
    how = "compiled" if backend == "tpu" else "in interpret mode"
    print(f"a {engine.config.dtype} model, kernels {how} on {backend}")
    arriving = list(zip(arrival_steps, requests, strict=True))
    with kernel_mode():
        for step in itertools.count():
            while arriving and arriving[0][0] <= step:
                scheduler.add(arriving.pop(0)[1])
            if not (arriving or scheduler.waiting or scheduler.running):
                break
            schedule = engine.step()
            print(
                f"step {step:2}: {len(schedule.decode)} decode, {len(schedule.prefill)} prefill,"
                f" {len(schedule.mixed)} mixed; {schedule.tokens:2} tokens;"
                f" {schedule.pages_in_use:2} of {pool.total} pages in use;"
                f" {len(scheduler.waiting)} waiting"
                + "".join(f"; request {each.name} preempted" for each in schedule.preempted),
                flush=True,
            )


def compare(engine: Engine, requests: Sequence[Request]) -> int:
    """Says for each request whether it is equal to what plain attention generates."""
    unequal = 0
    margin, difference = np.inf, 0.0
    for request in requests:
        tokens, logits = generate_plainly(
            engine.config, engine.weights, request.prompt, request.wanted
        )
        second, best = np.sort(logits)[:, -2:].T
        margin = min(margin, float((best - second).min()))
        of_engine = np.stack(engine.chosen_by[request.name])
        difference = max(difference, float(np.abs(logits - of_engine).max()))
        unequal += tokens != request.generated
        print(
            f"request {request.name}: {len(request.prompt):2} tokens of prompt,"
            f" pages {listed(request.pages)}, generated {listed(request.generated)}:"
            f" {'equal' if tokens == request.generated else f'NOT equal to {listed(tokens)}'}"
        )
    print(f"compiled for {' and '.join(map(str, engine.compiled_sizes))} tokens")
    print(f"smallest margin of a best logit {margin:.3f}, largest difference {difference:.1e}")
    if unequal:
        print(f"{unequal} of {len(requests)} requests NOT equal")
        return 1
    # Logits that are off by less than half of the margin cannot change places. Far less is what
    # rounding accounts for; more is a fault that was lucky.
    if difference > margin / 10:
        print("all tokens equal, but by luck: the logits are NOT close enough")
        return 1
    print(f"all {len(requests)} requests equal")
    return 0


def listed(numbers: Sequence[int]) -> str:
    """Numbers for a line of output."""
    return " ".join(map(str, numbers))


if __name__ == "__main__":
    sys.exit(main())
