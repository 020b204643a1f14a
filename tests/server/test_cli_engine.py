"""What an engine leaves behind: nothing, once its process has ended."""

import subprocess
import sys
from pathlib import Path

from tests.runtime.compiled import inductor_artifact
from tests.sources import ROOT, environment

# A scheduler and its service hold each other; so does this.
RUN = """
from server.cli_engine import settle
from tests.runtime.compiled import new_engine, programs

def run():
    engine = new_engine(programs.__wrapped__("compiled"))
    engine.itself = engine
    settle()

run()
"""


def test_programs_leave_nothing_on_disk(tmp_path: Path) -> None:
    """Some hundred folders a start would fill what a worker has for temporary files."""
    inductor_artifact()  # here, so that the process below does not build it
    variables = environment(TMPDIR=str(tmp_path))
    subprocess.run([sys.executable, "-c", RUN], cwd=ROOT, env=variables, check=True)
    assert [one.name for one in tmp_path.iterdir()] == []
