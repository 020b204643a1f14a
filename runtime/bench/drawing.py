"""matplotlib made ready to write PNG files into a folder.

Knows that it is an extra. Does not know plots, nor torch, so that a client can draw too. Keeps
true: where it is missing the user is told what to install.
"""

from pathlib import Path

DPI = 120


def ready(folder: Path) -> None:
    """Makes the folder if need be. Raises ValueError when matplotlib is missing."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("plots need an extra: pip install -e '.[bench]' in the clone") from error
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
