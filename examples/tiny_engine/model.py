"""A tiny Llama-shaped model in plain jax, and the plain generation that the engine must equal.

`forward` leaves attention to its caller: the engine passes the paged kernel, `plain_forward` passes
textbook attention. All the rest treats every token by itself, so it does not matter to a token
which others share its step.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Weights = dict[str, Any]
# From the layer, its queries [tokens, query heads, head dim] and its keys and values [tokens,
# kv heads, head dim] to an output like the queries.
Attend = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Config:
    """The sizes of a model. Query head h reads kv head h // (query heads / kv heads): GQA."""

    dtype: str = "bfloat16"
    layers: int = 2
    vocabulary: int = 64
    width: int = 128
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    mlp_width: int = 256

    @property
    def sm_scale(self) -> float:
        """What multiplies the scores; the kernel takes it as an argument and assumes none."""
        return 1 / math.sqrt(self.head_dim)


def random_weights(config: Config, seed: int) -> Weights:
    """Weights that keep the size of what they multiply, but for the embedding.

    It is small next to what attention adds to it, so that what comes next depends on all tokens
    before, and a wrong page changes it.
    """
    numbers = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> jax.Array:
        return jnp.asarray(numbers.normal(0.0, rows**-0.5, (rows, columns)), config.dtype)

    query_width = config.query_heads * config.head_dim
    kv_width = config.kv_heads * config.head_dim
    return {
        "embedding": matrix(config.vocabulary, config.width),
        "layers": [
            {
                "query": matrix(config.width, query_width),
                "key": matrix(config.width, kv_width),
                "value": matrix(config.width, kv_width),
                "output": matrix(query_width, config.width),
                "gate": matrix(config.width, config.mlp_width),
                "up": matrix(config.width, config.mlp_width),
                "down": matrix(config.mlp_width, config.width),
            }
            for _ in range(config.layers)
        ],
        "head": matrix(config.width, config.vocabulary),
    }


def forward(
    config: Config, weights: Weights, tokens: jax.Array, positions: jax.Array, attend: Attend
) -> jax.Array:
    """The final hidden state [tokens, width] of tokens i32[tokens] at positions i32[tokens]."""
    count = tokens.shape[0]
    hidden = weights["embedding"][tokens]  # [tokens, width]
    for layer, matrices in enumerate(weights["layers"]):
        normed = rms_norm(hidden)
        query, key, value = (  # [tokens, heads, head dim]
            (normed @ matrices[name]).reshape(count, -1, config.head_dim)
            for name in ("query", "key", "value")
        )
        attended = attend(layer, rotate(query, positions), rotate(key, positions), value)
        hidden += attended.reshape(count, -1) @ matrices["output"]
        normed = rms_norm(hidden)
        gated = jax.nn.silu(normed @ matrices["gate"]) * (normed @ matrices["up"])
        hidden += gated @ matrices["down"]
    return rms_norm(hidden)


def logits_of(weights: Weights, hidden: jax.Array) -> jax.Array:
    """f32[tokens, vocabulary]; in bfloat16, two of them would often be the same number."""
    return jnp.dot(hidden, weights["head"], preferred_element_type=jnp.float32)


def rms_norm(hidden: jax.Array) -> jax.Array:
    """RMSNorm; its learnt weights would all be 1 here."""
    wide = hidden.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(hidden.dtype)


def rotate(heads: jax.Array, positions: jax.Array) -> jax.Array:
    """RoPE of queries or keys [tokens, heads, head dim]."""
    half = heads.shape[-1] // 2
    frequencies = 10_000.0 ** (-jnp.arange(half) / half)
    angles = positions[:, None, None] * frequencies  # [tokens, 1, head dim / 2]
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(rotated, axis=-1).astype(heads.dtype)


# --- without an engine ---------------------------------------------------------------------------


def plain_attention(
    config: Config, queries: jax.Array, keys: jax.Array, values: jax.Array
) -> jax.Array:
    """Causal attention within one whole sequence, in float32."""
    count, group = queries.shape[0], config.query_heads // config.kv_heads
    wide_queries, wide_keys, wide_values = (  # f32[tokens, query heads, head dim]
        jnp.repeat(heads.astype(jnp.float32), repeats, axis=1)
        for heads, repeats in ((queries, 1), (keys, group), (values, group))
    )
    scores = jnp.einsum("qhd,khd->hqk", wide_queries, wide_keys, precision="highest")
    is_seen = jnp.tril(jnp.ones((count, count), bool))
    masked = jnp.where(is_seen, scores * config.sm_scale, -jnp.inf)
    probabilities = jax.nn.softmax(masked, axis=-1)  # [query heads, tokens, tokens]
    output = jnp.einsum("hqk,khd->qhd", probabilities, wide_values, precision="highest")
    return output.astype(queries.dtype)


@functools.partial(jax.jit, static_argnums=0)
def plain_forward(config: Config, weights: Weights, tokens: jax.Array) -> jax.Array:
    """The final hidden state [tokens, width] of one whole sequence, i32[tokens]."""
    positions = jnp.arange(tokens.shape[0])

    def attend(_layer: int, *heads: jax.Array) -> jax.Array:
        return plain_attention(config, *heads)

    return forward(config, weights, tokens, positions, attend)


def plain_states(config: Config, weights: Weights, tokens: Sequence[int]) -> jax.Array:
    """The same of any number of tokens, compiled once for many."""
    # A token does not see those after it, so padding changes nothing.
    padded = np.zeros(-(-len(tokens) // 64) * 64, np.int32)
    padded[: len(tokens)] = tokens
    states: jax.Array = plain_forward(config, weights, padded)
    return states[: len(tokens)]


def generate_plainly(
    config: Config, weights: Weights, prompt: Sequence[int], count: int
) -> tuple[list[int], np.ndarray]:
    """`count` greedy tokens, and the logits that chose them, f32[count, vocabulary].

    Every token is computed from the whole sequence before it, with nothing kept in between.
    """
    tokens, chosen_by = list(prompt), []
    for _ in range(count):
        last = plain_states(config, weights, tokens)[-1]
        chosen_by.append(np.asarray(logits_of(weights, last)))
        tokens.append(int(chosen_by[-1].argmax()))
    return tokens[len(prompt) :], np.stack(chosen_by)


def with_head_for(
    config: Config, weights: Weights, texts: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Weights:
    """The weights with a head that continues each prompt of (prompt, continuation) as given.

    With a random head the two best logits come as near to each other as chance has it, and then
    bfloat16 decides between them, not the cache. A head fitted by least squares gives the token
    that comes next a logit near 1 and all others one near 0, as long as the texts have no more
    tokens to predict than the model is wide.
    """
    states, following = [], []
    for prompt, continuation in texts:
        hidden = plain_states(config, weights, [*prompt, *continuation])
        states.append(np.asarray(hidden, np.float32)[len(prompt) - 1 : -1])
        following.append(np.eye(config.vocabulary, dtype=np.float32)[list(continuation)])
    head, *_ = np.linalg.lstsq(np.concatenate(states), np.concatenate(following))
    return weights | {"head": jnp.asarray(head, config.dtype)}  # [width, vocabulary]
