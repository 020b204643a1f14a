"""Where these sources are, for tests that start processes of their own.

Keeps true: such a process runs these sources, whatever is installed beside them.
"""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(**variables: str) -> dict[str, str]:
    """This process's, with more variables, for a process in ROOT."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    return {**os.environ, "PYTHONPATH": path, **variables}
