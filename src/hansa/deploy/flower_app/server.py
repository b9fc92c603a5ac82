"""The server's side: takes letters from a socket that runs connect to, and brings back what nodes answer."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from .frames import receive, send

GLANCE = 0.1  # seconds between two looks for answers
GLANCES = 2.0  # … and for the process that started this one
GRACE = 10.0  # seconds that a message outlives those who wait for its answer, to whom it would look lost otherwise
ALONE = threading.Lock()  # with which one at a time speaks to the SuperLink
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve runs as long as the SuperLink's side, which started this process, is there.

    A ServerApp outlives a SuperLink that was killed; left alone it would answer for one that nobody hears.
    """
    parent = os.getppid()
    path = Path(str(context.run_config["socket"]))
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as link:
        before = os.umask(0o177)  # a socket that this account alone can open
        link.bind(str(path))
        os.umask(before)
        link.listen()
        link.settimeout(GLANCES)
        while os.getppid() == parent:
            try:
                asking, _ = link.accept()
            except TimeoutError:
                continue
            threading.Thread(target=_hear, args=(grid, asking), daemon=True).start()


def _hear(grid: Grid, asking: socket.socket) -> None:
    """Serve one who asks, while others may: who is connected can be seen during a trip that takes long."""
    with asking:
        try:
            _serve(grid, asking)
        except (OSError, EOFError, ValueError, KeyError) as error:
            print(f"hansa: a run went away: {type(error).__name__}: {error}", flush=True)


def _serve(grid: Grid, asking: socket.socket) -> None:
    head, letters = receive(asking)
    with ALONE:
        nodes = {node.name: node.node_id for node in grid.get_nodes()}
    if head["kind"] == "nodes":
        send(asking, {"nodes": sorted(nodes)}, [])
        return
    sent = dict(zip(head["sites"], letters, strict=True))
    for site in [site for site in sent if site not in nodes]:
        send(asking, {"site": site, "error": "it is not connected"}, [])
        del sent[site]
    _ask(grid, asking, {nodes[site]: (site, letter) for site, letter in sent.items()}, head["patience"])
    send(asking, {"end": True}, [])


def _ask(grid: Grid, asking: socket.socket, letters: dict[int, tuple[str, bytes]], patience: float) -> None:
    """Push one message to every node, and pass its answer on as soon as it is there."""
    messages = [_message(node, letter, patience) for node, (_, letter) in letters.items()]
    names = [site for site, _ in letters.values()]
    with ALONE:
        waiting = dict(zip(grid.push_messages(messages), names, strict=True)) if messages else {}
    until = time.monotonic() + patience
    while waiting and time.monotonic() < until and not _gone(asking):
        with ALONE:
            replies = list(grid.pull_messages(list(waiting)))
        for reply in replies:
            site = waiting.pop(reply.metadata.reply_to_message_id)
            answer = _answer(reply)
            if isinstance(answer, str):
                send(asking, {"site": site, "error": answer}, [])
            else:
                send(asking, {"site": site}, [answer])
        time.sleep(GLANCE if waiting else 0)


def _answer(reply: Message) -> bytes | str:
    """Return a node's answer, or in words why it has none: what a node sends must not end the relay for the others."""
    if reply.has_error():
        reason = str(reply.error.reason)  # of an app's error its class and, in quotes, what it says
        return reason.partition(":<'")[2].removesuffix("'>") or f"{reply.error.code}: {reason}"
    try:
        records: dict[str, Any] = dict(reply.content)
        return bytes(records["letter"]["0"].data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"its node sent no letter: {type(error).__name__}: {error}"


def _gone(asking: socket.socket) -> bool:
    """Tell whether whoever asked has hung up, such as a run that was killed: then nobody waits for its answers."""
    return bool(select.select([asking], [], [], 0)[0]) and not asking.recv(1, socket.MSG_PEEK)


def _message(node: int, letter: bytes, patience: float) -> Message:
    content: dict[str, Any] = {"letter": ArrayRecord({"0": Array("uint8", (len(letter),), "hansa.letter", letter)})}
    return Message(RecordDict(content), dst_node_id=node, message_type="query", ttl=patience + GRACE)
