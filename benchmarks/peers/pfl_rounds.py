"""A workload on pfl-research (PyPI: pfl): prints seconds per round as JSON; see compare_peers.py."""

from __future__ import annotations

import itertools
import json
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from plain_loop import network
from workloads import distance, workload


class Shuffled(Dataset):
    """A client's samples in a new order every epoch, as everybody else sees them."""

    def iter(self, batch_size):
        x, y = self.raw_data
        for batch in torch.randperm(len(y)).split(batch_size or len(y)):
            yield x[batch], y[batch]


class Net(torch.nn.Module):
    """The workload's model with the loss pfl asks for."""

    def __init__(self, load):
        super().__init__()
        self.net = network(load)

    def loss(self, x, y):
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x, y):
        return {}


class Clock(TrainingProcessCallback):
    """When each round ended, and where the model was after the fourth."""

    def __init__(self, load):
        self.load, self.times, self.moved = load, [time.perf_counter()], 0.0

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.times.append(time.perf_counter())
        if central_iteration == 3:
            leaves = [leaf.detach().numpy() for leaf in model.pytorch_model.parameters()]
            self.moved = distance(self.load.start(), leaves)
        return False, Metrics()


def main() -> None:
    name, per_round, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    load = workload(name, per_round)
    order = itertools.chain.from_iterable(load.cohort(number) for number in itertools.count())
    rows = [load.rows(k) for k in range(len(load.sizes))]
    data = [(torch.from_numpy(load.x[own]), torch.from_numpy(load.y[own])) for own in rows]
    federated = FederatedDataset(lambda k: Shuffled(raw_data=data[k], user_id=str(k)), lambda: next(order))
    net = Net(load)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    clock = Clock(load)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds, 10**9, per_round, None),
        backend=SimulatedBackend(federated, None, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(load.batch_size, load.epochs, load.lr),
        callbacks=[clock],
    )
    print(json.dumps({"peer": "pfl", "seconds": float(np.diff(clock.times)[1:].min()), "moved": clock.moved}))


if __name__ == "__main__":
    main()
