"""FedAvg as anybody would write it in torch, without any library: what every engine is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from workloads import Workload


def network(load: Workload) -> torch.nn.Module:
    """The model of a workload, with its initial parameters."""
    if load.model == "linear":
        net: torch.nn.Module = torch.nn.Linear(load.x.shape[1], load.classes, bias=load.bias)
    else:
        net = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, 5, padding=2),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(32, 64, 5, padding=2),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(3136, 512),
            torch.nn.ReLU(),
            torch.nn.Linear(512, load.classes),
        )
    with torch.no_grad():
        for leaf, value in zip(net.parameters(), load.start().values(), strict=True):
            leaf.copy_(torch.from_numpy(value))
    return net


class PlainLoop:
    """One model, one optimiser, client after client."""

    def __init__(self, load: Workload):
        self.load, self.model = load, network(load)
        self.params = list(self.model.parameters())
        self.server = [leaf.detach().clone() for leaf in self.params]
        self.optimiser = torch.optim.SGD(self.params, lr=load.lr)
        rows = [load.rows(k) for k in range(len(load.sizes))]
        self.data = [(torch.from_numpy(load.x[own]), torch.from_numpy(load.y[own])) for own in rows]

    def round(self, clients: Sequence[int], seeds: Sequence[int]) -> None:
        """Every client from the server's model; then the mean, weighted by samples."""
        sums = [torch.zeros_like(leaf) for leaf in self.server]
        total = 0
        for k, seed in zip(clients, seeds, strict=True):
            x, y = self.data[k]
            with torch.no_grad():
                for leaf, start in zip(self.params, self.server, strict=True):
                    leaf.copy_(start)
            self._train(x, y, torch.Generator().manual_seed(seed))
            with torch.no_grad():
                for one, leaf in zip(sums, self.params, strict=True):
                    one.add_(leaf, alpha=len(y))
            total += len(y)
        self.server = [one / total for one in sums]

    def _train(self, x: torch.Tensor, y: torch.Tensor, rng: torch.Generator) -> None:
        for _ in range(self.load.epochs):
            order = torch.randperm(len(y), generator=rng)
            for batch in order.split(self.load.batch_size):
                self.optimiser.zero_grad()
                F.cross_entropy(self.model(x[batch]), y[batch]).backward()
                self.optimiser.step()
