"""What stands between `hansa run` and its first round: imports, mostly.  CPU time, as a ratio to importing torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

UNWANTED = ("torch._dynamo", "torch._inductor", "sympy", "sklearn", "scipy", "transformers", "matplotlib", "flwr")
TELL = f"""
import json, sys, time
print(json.dumps([time.process_time(), [name for name in {UNWANTED} if name in sys.modules]]))
"""
RUN = f"""
import sys
from hansa.cli import main
main()
{TELL}
"""


def tell(code: str, *arguments: str) -> tuple[float, list[str]]:
    """CPU seconds of a fresh Python, and which heavy modules it loaded."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    seconds, loaded = json.loads(done.stdout.splitlines()[-1])
    return seconds, loaded


def test_a_run_starts_soon(tmp_path: Path) -> None:
    """Measured: 1.5 times as long as importing torch; loading the compiler and scikit-learn would make it 3.5."""
    torch_alone = min(tell(f"import torch{TELL}")[0] for _ in range(2))
    arguments = ("run", "digits-fedavg", "--set", "phases.0.rounds=1", "--out")
    found = [tell(RUN, *arguments, str(tmp_path / str(number))) for number in range(2)]
    assert found[0][1] == []
    ratio = min(seconds for seconds, _ in found) / torch_alone
    print(f"{ratio:.2f}")
    assert ratio <= 2.5
