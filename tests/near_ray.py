"""As much of Ray as the engine on clusters needs, in this process: what the laws say is about frames, not about Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any


class Lost(Exception):
    """An actor is gone."""


class Actor:
    """Carries out calls in their order, whether anybody reads what they yield or not."""

    def __init__(self, holder: Any):
        self.holder, self.thread, self.waiting = holder, ThreadPoolExecutor(1), list[SimpleQueue[Any]]()
        self.dead = False
        self.ready, self.take = SimpleNamespace(remote=holder.ready), SimpleNamespace(remote=self._take)

    def _take(self, frame: Any) -> Iterator[Any]:
        found: SimpleQueue[Any] = SimpleQueue()
        self.waiting.append(found)
        if not self.dead:
            self.thread.submit(self._carry_out, frame, found)
        return iter(lambda: self._checked(found.get()), StopIteration)

    def _carry_out(self, frame: Any, found: SimpleQueue[Any]) -> None:
        for answer in self.holder.take(frame):
            found.put(answer)
        found.put(StopIteration)

    def _checked(self, answer: Any) -> Any:
        if self.dead:
            raise Lost("The actor died.\nMore is known.")
        return answer

    def kill(self) -> None:
        self.dead = True
        for found in self.waiting:
            found.put(StopIteration)


class NearRay:
    """Some machines of a cluster, by their processors and GPUs."""

    exceptions = SimpleNamespace(RayError=Lost)

    def __init__(self, *machines: dict[str, float]):
        self.machines, self.actors, self.stored = [*machines], list[Actor](), 0

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": one} for one in self.machines]

    def remote(self, **_: object) -> Callable[[Any], Any]:
        return lambda kind: SimpleNamespace(remote=lambda *given: self._start(kind(*given)))

    def _start(self, holder: Any) -> Actor:
        self.actors.append(Actor(holder))
        return self.actors[-1]

    def wait(self, found: list[Any], num_returns: int = 1, timeout: float = 0.0) -> tuple[list[Any], list[Any]]:
        return found, []

    def get(self, found: Any) -> Any:
        return found

    def put(self, value: Any) -> Any:
        self.stored += 1
        return value

    def kill(self, actor: Actor) -> None:
        actor.kill()
