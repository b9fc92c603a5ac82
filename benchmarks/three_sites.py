"""A federation of three sites on this machine, each with a share of the digits: for the benchmark and the tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from hansa.deploy import federation
from hansa.deploy.flower_tools import free_port
from hansa.deploy.identity import own_key

SITES = ("a", "b", "c")
SITE = """classes = {classes}
fewest = 2
[data]
source = {{ name = "npz", path = "data.npz" }}
partition = "natural"
test = {{ kind = "local" }}
[node]
superlink = "127.0.0.1:{port}"
certificates = "ca.crt"
key = "node.key"
[members]
{members}
"""


def write_sites(folder: Path, samples: int | None = None) -> dict[str, np.ndarray]:
    """Write the folder of a federation and its sites' files and data; return the data of all sites together."""
    digits, port = load_digits(), free_port()
    x, y = (digits.data[:samples] / 16).astype(np.float32), digits.target[:samples]
    place = np.arange(len(y))
    whole = {"x": x, "y": y, "client": np.array(SITES)[place % 3], "is_test": place % 15 >= 12}
    paths = federation.init(folder, SITES, "127.0.0.1", port)
    members = "\n".join(f'{path.name} = "{own_key(path / "identity.key")}"' for path in paths)
    for path in paths:
        own, classes = whole["client"] == path.name, [str(one) for one in range(10)]
        np.savez(path / "data.npz", **{key: column[own] for key, column in whole.items()})
        (path / "site.toml").write_text(SITE.format(classes=classes, port=port, members=members))
    return whole
