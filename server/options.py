"""Options that several commands have, and the shipped checkpoint.

Knows names and help texts; imports nothing that takes long, so that help answers at once.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

NANO = Path(__file__).parents[1] / "models" / "step5-nano"


class PrecisionName(StrEnum):
    bf16 = "bf16"
    fp32 = "fp32"


class CompilerName(StrEnum):
    inductor = "inductor"
    eager = "eager"


Precision = Annotated[PrecisionName, typer.Option(help="Activation precision.")]
Pin = Annotated[
    str | None,
    typer.Option("--artifact-sha256", metavar="DIGEST", help="Refuse any other artifact."),
]
CheckpointFolder = Annotated[Path, typer.Argument(file_okay=False, help="Checkpoint folder.")]
AnyCheckpoint = Annotated[
    Path,
    typer.Argument(
        file_okay=False, help="Checkpoint folder.", show_default="the shipped step5-nano"
    ),
]
# Of what measures.
Plots = Annotated[Path | None, typer.Option(metavar="DIR", help="Write plots as PNG files.")]
AsNumbers = Annotated[bool, typer.Option("--json", help="The numbers as one JSON object.")]
