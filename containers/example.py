"""Give the sites of a federation's folder data to try it with: handwritten digits, of which each site writes its own.

python containers/example.py federation
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from sklearn.datasets import load_digits

PLAN = """# The plan of the example; what the sites hold stands in for its data.
[data]
source = "digits"
partition = { name = "iid", clients = 3 }

[[phases]]
algorithm = "fed3r"

[[phases]]
algorithm = { name = "fedavg", local = { lr = 0.01 } }
orchestration = { name = "star", fraction = 1.0 }
rounds = 2
"""


def main(folder: Path) -> None:
    """Write every site's rows and its file, and a plan beside them."""
    digits, sites = load_digits(), sorted((folder / "sites").iterdir())
    classes = [f"digit {name}" for name in digits.target_names]
    for place, site in enumerate(sites):
        with (site / "data.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*(f"p{pixel}" for pixel in range(digits.data.shape[1])), "label"])
            for x, y in list(zip(digits.data, digits.target, strict=True))[place :: len(sites)]:
                table.writerow([*(int(value) for value in x), classes[y]])
        text = (site / "site.toml").read_text()
        agreed = next(line for line in text.splitlines() if line.startswith("# classes"))
        (site / "site.toml").write_text(text.replace(agreed, f"classes = {classes}"))
    (folder / "plan.toml").write_text(PLAN)
    print(f"{len(sites)} sites have data. The plan is {folder / 'plan.toml'}.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
