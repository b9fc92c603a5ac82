"""The notebooks, executed: every cell runs, in an empty folder.

`python tests/test_notebooks.py` writes what the cells print into the notebooks.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "docs" / "notebooks").glob("*.ipynb"))
NEEDS = {"own-tables": "pandas", "pretrained-pictures": "efficientnet_lite_pytorch"}


class Kernel:
    """One process for all notebooks, which imports torch once; each begins with nothing, in a folder of its own."""

    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()

    def execute(self, path: Path, folder: Path) -> Any:
        """Return the notebook with its outputs; a cell that fails raises."""
        import nbformat
        from nbclient import NotebookClient

        here = f"import os; os.chdir({str(folder)!r}); os.environ['HANSA_CACHE'] = {str(folder / 'cache')!r}\n%reset -f"
        before = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(here)])
        NotebookClient(before, km=self.manager, timeout=120).execute(reset_kc=True, cleanup_kc=False)
        found = nbformat.read(path, as_version=4)
        NotebookClient(found, km=self.manager, timeout=120).execute(reset_kc=True, cleanup_kc=False)
        return found

    def close(self) -> None:
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    pytest.importorskip("nbclient")
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_its_output_is_kept(path: Path, kernel: Kernel, tmp_path: Path) -> None:
    if (needed := NEEDS.get(path.stem)) and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    import nbformat

    kept = nbformat.read(path, as_version=4)
    nbformat.validate(kept)
    done = kernel.execute(path, tmp_path)
    for before, now in zip(kept.cells, done.cells, strict=True):
        kinds = [[one["output_type"] for one in cell.get("outputs", [])] for cell in (before, now)]
        assert kinds[0] == kinds[1], f"{path.name} was changed: python {Path(__file__).name}"


def write() -> None:
    """Execute the notebooks and keep what they print."""
    import nbformat

    kernel = Kernel()
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            done = kernel.execute(path, Path(folder))
            for number, cell in enumerate(done.cells):
                cell["id"] = f"cell-{number}"
                cell.get("metadata", {}).pop("execution", None)
            nbformat.write(done, path)
    kernel.close()


if __name__ == "__main__":
    write()
