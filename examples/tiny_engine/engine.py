"""The engine: a cache, a scheduler, and the one function that runs on the TPU."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import rpa_kernels

from .batch import Batch, make_batch
from .model import Config, Weights, forward, logits_of
from .scheduler import Limits, Schedule, Scheduler


def kernel_mode() -> contextlib.AbstractContextManager[None]:
    """Where to run an engine: nothing special on a TPU, rpagen's interpreter anywhere else."""
    if jax.default_backend() == "tpu":
        return contextlib.nullcontext()
    from rpagen.evidence.interpreter import tpu_interpret_mode

    return tpu_interpret_mode()


class Engine:
    """Continues requests, several at once, greedily."""

    def __init__(self, config: Config, weights: Weights, limits: Limits):
        self.config, self.weights, self.limits = config, weights, limits
        self.scheduler = Scheduler(limits)
        self.shape = rpa_kernels.get_kv_cache_shape(
            limits.pages, limits.page_size, config.kv_heads, config.head_dim, config.dtype
        )
        # One cache for each layer. Each is a buffer of its own, so that each can be donated.
        self.caches = [jnp.zeros(self.shape, config.dtype) for _ in range(config.layers)]
        # Donated caches are updated in place; if they were not, every step would copy them all.
        self.compiled_step = jax.jit(self._step, donate_argnames="caches")
        # For the report:
        self.compiled_sizes: list[int] = []
        self.chosen_by: dict[int, list[np.ndarray]] = {}  # logits f32[vocabulary], by request

    def step(self) -> Schedule:
        """Computes one step of the requests at hand."""
        schedule = self.scheduler.schedule()
        batch = make_batch(schedule, self.limits)
        self._validate(batch)
        tokens, logits, self.caches = self.compiled_step(self.weights, self.caches, batch)
        logits = np.asarray(logits)
        for row, share in enumerate(schedule.shares):
            if share.is_last:
                self.chosen_by.setdefault(share.request.name, []).append(logits[row])
        self.scheduler.finish(schedule, np.asarray(tokens)[: len(schedule.shares)].tolist())
        return schedule

    def _step(
        self, weights: Weights, caches: list[jax.Array], batch: Batch
    ) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
        """The next token i32[rows], the logits f32[rows, vocabulary] and the caches."""
        self.compiled_sizes.append(batch.tokens.shape[0])  # once for each compilation
        caches = list(caches)

        def attend(layer: int, queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
            # Writes keys and values to the pages, then attends to all that is in them.
            output, caches[layer] = rpa_kernels.ragged_paged_attention(
                queries,
                keys,
                values,
                caches[layer],
                batch.kv_lens,
                batch.page_indices,
                batch.cu_q_lens,
                batch.distribution,
                sm_scale=self.config.sm_scale,
                chunk_prefill_size=self.limits.chunk,
            )
            return output

        hidden = forward(self.config, weights, batch.tokens, batch.positions, attend)
        # One token of each row goes through the head, which is large in a real model. Padding
        # tokens, for which attention returns anything, end here.
        logits = logits_of(weights, hidden[batch.last_tokens])
        return logits.argmax(-1), logits, caches

    def _validate(self, batch: Batch) -> None:
        """Checks what the kernel takes for granted: a wrong page would corrupt other sequences."""
        config, tokens = self.config, batch.tokens.shape[0]

        def form(heads: int) -> jax.ShapeDtypeStruct:
            # Queries, keys and values exist within the step alone. Only their form is checked.
            shape = (tokens, heads, config.head_dim)
            return jax.ShapeDtypeStruct(shape, config.dtype)  # type: ignore[no-untyped-call]

        rpa_kernels.validate_inputs(
            form(config.query_heads),
            form(config.kv_heads),
            form(config.kv_heads),
            self.caches[0],
            batch.kv_lens,
            batch.page_indices,
            batch.cu_q_lens,
            batch.distribution,
            chunk_prefill_size=self.limits.chunk,
        )
