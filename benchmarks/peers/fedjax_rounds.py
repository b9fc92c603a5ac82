"""A workload on fedjax: `python fedjax_rounds.py W1 10 8` prints seconds per round as JSON.

Batches are padded to powers of two and masked, so that jax compiles a few shapes only; compiling is not timed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from workloads import distance, workload


def logits(load, params, x):
    """The workload's model."""
    if load.model == "linear":
        out = x @ params["head.weight"].T
        return out + params["head.bias"] if load.bias else out
    for layer in ("features.0", "features.3"):
        x = jax.lax.conv_general_dilated(
            x, params[f"{layer}.weight"], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        x = jax.nn.relu(x + params[f"{layer}.bias"][:, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = jax.nn.relu(x.reshape(len(x), -1) @ params["features.7.weight"].T + params["features.7.bias"])
    return x @ params["head.weight"].T + params["head.bias"]


def batches(load, k, rng):
    """A client's batches, each padded to a power of two."""
    x, y = load.x[load.rows(k)], load.y[load.rows(k)]
    for _ in range(load.epochs):
        order = rng.permutation(len(y))
        for first in range(0, len(y), load.batch_size):
            own = order[first : first + load.batch_size]
            width = min(load.batch_size, 1 << (len(own) - 1).bit_length())
            padded = np.concatenate([own, np.zeros(width - len(own), dtype=own.dtype)])
            yield {"x": x[padded], "y": y[padded], "mask": (np.arange(width) < len(own)).astype(np.float32)}


def averaging(load):
    """Federated averaging from fedjax's own parts."""

    def loss(params, batch):
        likely = jax.nn.log_softmax(logits(load, params, batch["x"]))
        own = -jnp.take_along_axis(likely, batch["y"][:, None], 1)[:, 0]
        return (own * batch["mask"]).sum() / batch["mask"].sum()

    def step(params, batch):
        slopes = jax.grad(loss)(params, batch)
        return jax.tree_util.tree_map(lambda p, g: p - load.lr * g, params, slopes)

    def final(shared, params):
        return jax.tree_util.tree_map(lambda a, b: b - a, shared, params)

    return fedjax.for_each_client(lambda shared, _: shared, step, final)


def main() -> None:
    name, per_round, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    load = workload(name, per_round)
    params = {key: jnp.asarray(leaf) for key, leaf in load.start().items()}
    train, rng, seconds, moved = averaging(load), np.random.default_rng(0), [], 0.0
    for number in [0, *range(rounds)]:  # the first to compile, then from the start
        began = time.perf_counter()
        cohort = load.cohort(number)
        total, weight = fedjax.tree_util.tree_zeros_like(params), 0.0
        for k, delta in train(params, [(k, batches(load, k, rng), None) for k in cohort]):
            size = float(load.sizes[k])
            total = fedjax.tree_util.tree_add(total, fedjax.tree_util.tree_weight(delta, size))
            weight += size
        new = fedjax.tree_util.tree_add(params, fedjax.tree_util.tree_inverse_weight(total, weight))
        jax.block_until_ready(new)
        seconds.append(time.perf_counter() - began)
        params = new if len(seconds) > 1 else params
        if len(seconds) == 5:
            moved = distance(load.start(), [np.asarray(leaf) for leaf in params.values()])
    print(json.dumps({"peer": "fedjax", "seconds": min(seconds[2:]), "moved": moved}))


if __name__ == "__main__":
    main()
