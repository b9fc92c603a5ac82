"""The channel of a plan against its phases: what cannot go through it is told before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from hansa.channels.channel import Channel, Compression
from hansa.channels.secure_sum import SecureSum
from hansa.contract import Algorithm
from hansa.errors import Problems
from hansa.lazy import torch
from hansa.models.dense import Linear
from hansa.payload import Role
from hansa.running.experiment import Phase
from hansa.task import ClientData, Model, Task
from hansa.tree import Tree

INSTEAD = "or leave out the channel"


def check_channel(channel: Channel | None, phases: Sequence[Phase], task: Task) -> None:
    """Refuse phases that the plan's channel cannot carry, on a task of so many clients."""
    problems: list[str] = []
    if isinstance(channel, SecureSum):
        channel.require_library()
        problems = [f"Phase '{phase.name}': {why}." for phase in phases if (why := _not_summed(channel, phase, task))]
    if isinstance(channel, Compression):
        problems = _not_compressed(phases, task)
    if problems:
        raise Problems(problems)


def _not_summed(channel: SecureSum, phase: Phase, task: Task) -> str:
    """Return why a phase's uploads cannot be summed securely; empty where they can, or there are none."""
    algorithm, scale = phase.algorithm, phase.orchestration.scale(task.population)
    name, roles = type(algorithm).__name__, set(algorithm.uplink.values())
    if not roles:
        return ""
    if Role.EACH in roles:
        says = f"the server of {name} needs every client's own upload, which a secure sum never opens"
        return f"{says}; use an algorithm that averages or sums, {INSTEAD}"
    if scale.longest > 1 or scale.window > 1:
        says = "clients train one after the other, so that the server hands on what each of them did"
        return f"{says}, and a secure sum hides it; use the orchestration 'star' or 'sweep', {INSTEAD}"
    if phase.remember != "nothing":
        says = f"remember = '{phase.remember}' asks for every client's upload, which a secure sum never opens"
        return f"{says}; set remember = 'nothing', {INSTEAD}"
    if algorithm.partial or task.networks:
        says = "clients may lack leaves that others have, and a secure sum needs the same layout of all"
        return f"{says}; use an algorithm and a model that are the same for everyone, {INSTEAD}"
    if scale.visits < channel.needed(scale.visits):
        says = f"a round visits {scale.visits} clients, and a secure sum is opened by no fewer than {channel.fewest}"
        return f"{says}; visit more of them, lower the channel's 'fewest', {INSTEAD}"
    if _grows_with_samples(algorithm, task.model):
        says = f"an upload of {name} is as long as its client has samples, and a secure sum needs the same of all"
        return f"{says}; use another 'upload', {INSTEAD}"
    return ""


def _grows_with_samples(algorithm: Algorithm, model: Model) -> bool:
    """Tell whether what a client sends depends on how many samples it has, as two made-up ones of four classes show."""
    rng = torch.Generator()

    def shapes(task: Task, samples: int) -> dict[str, torch.Size]:
        down = algorithm.broadcast(task, algorithm.server_init(task), rng)
        places = torch.arange(samples) % 4
        data = ClientData(torch.randn(samples, 16, generator=rng.manual_seed(0)), places)
        up, _ = algorithm.client_step(task, down, algorithm.client_init(task, data), data, rng.manual_seed(0))
        wire: Tree = algorithm.encode(up.sums)
        return {key: leaf.shape for key, leaf in wire.items()}

    for one in (Linear(), model):
        try:
            task = Task(one, (16,), 4)
            return shapes(task, 4) != shapes(task, 8)
        except Exception:  # an algorithm may ask for another model, other targets or more samples: nobody can tell
            continue
    return False


def _not_compressed(phases: Sequence[Phase], task: Task) -> list[str]:
    """Return what a compression cannot do for these phases."""
    steps = [phase for phase in phases if Role.STEP in phase.algorithm.uplink.values()]
    if not steps:
        says = "The plan's channel compresses displacements of a model that clients train, and no phase uploads any"
        return [f"{says}: leave out the channel."]
    private = [phase.name for phase in steps if phase.algorithm.releases(task, {})]
    says = "has privacy, and an upload that was clipped may be longer once it is compressed"
    return [f"Phase '{name}' {says}: leave out the channel." for name in private]
