"""Where processes of ours look for modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def search_path() -> str:
    """Return where this process finds modules, for one that shall find the same and nothing else.

    Of itself a new process would also look in the current folder, which may be anybody's.
    """
    return os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
