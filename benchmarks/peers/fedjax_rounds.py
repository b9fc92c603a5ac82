"""A workload on fedjax: prints seconds per round as JSON; see compare_peers.py.

Batches are padded to powers of two and masked, so that jax compiles a few shapes only; compiling is not timed.
"""

from __future__ import annotations

import json
import sys
import time

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

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


class Samples:
    """A client's data set as far as fedjax's algorithm asks for it, with the batches everybody else sees."""

    def __init__(self, load, k, rng):
        self.load, self.k, self.rng = load, k, rng

    def __len__(self):
        return int(self.load.sizes[self.k])

    def shuffle_repeat_batch(self, _):
        return batches(self.load, self.k, self.rng)


def averaging(load):
    """fedjax's own federated averaging."""

    def loss(params, batch, _):
        likely = jax.nn.log_softmax(logits(load, params, batch["x"]))
        own = -jnp.take_along_axis(likely, batch["y"][:, None], 1)[:, 0]
        return (own * batch["mask"]).sum() / batch["mask"].sum()

    hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=load.batch_size)
    local, server = fedjax.optimizers.sgd(load.lr), fedjax.optimizers.sgd(1.0)
    return fedjax.algorithms.fed_avg.federated_averaging(jax.grad(loss), local, server, hparams)


def main() -> None:
    name, per_round, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    load = workload(name, per_round)
    algorithm, rng, seconds, moved = averaging(load), np.random.default_rng(0), [], 0.0
    state = algorithm.init({key: jnp.asarray(leaf) for key, leaf in load.start().items()})
    keys = jax.random.split(jax.random.PRNGKey(0), per_round)
    for number in [0, *range(rounds)]:  # the first to compile, then from the start
        began = time.perf_counter()
        cohort = [(k, Samples(load, k, rng), key) for k, key in zip(load.cohort(number), keys, strict=True)]
        new, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(new.params)
        seconds.append(time.perf_counter() - began)
        state = new if len(seconds) > 1 else state
        if len(seconds) == 5:
            moved = distance(load.start(), [np.asarray(new.params[key]) for key in load.start()])
    print(json.dumps({"peer": "fedjax", "seconds": min(seconds[2:]), "moved": moved}))


if __name__ == "__main__":
    main()
