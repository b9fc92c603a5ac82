"""The node's side: hands every letter to the site's own process, which alone reads data, states and letters."""

from __future__ import annotations

import socket
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .frames import receive, send

app = ClientApp()


@app.query()
def forward(message: Message, context: Context) -> Message:
    """Return the site's answer to a letter."""
    records: dict[str, Any] = dict(message.content)
    try:
        with socket.socket(socket.AF_UNIX) as site:
            site.connect(str(context.node_config["socket"]))
            send(site, {}, [records["letter"]["0"].data])
            _, (answer,) = receive(site)
    except (OSError, EOFError) as error:
        raise ConnectionError("its process does not answer: see that 'hansa site serve' runs there") from error
    content: dict[str, Any] = {"letter": ArrayRecord({"0": Array("uint8", (len(answer),), "hansa.letter", answer)})}
    return Message(RecordDict(content), reply_to=message)
