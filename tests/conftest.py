"""What every test needs: one thread a worker, so that parallel workers do not fight over cores, and
a folder for what is left behind.

Knows processes. Does not know tests. Both are set before torch is imported, and inherited by the
workers and by the programs that tests start.
"""

import os
import shutil
import tempfile

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
_LEFT = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """What compilers have among the temporary files stays if the test kills them."""
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # tmp_path stays
        config.stash[_LEFT] = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="fourstep-tests-")
        tempfile.tempdir = None  # what Python found before


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.stash[_LEFT])
