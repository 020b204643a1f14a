"""The library text: source files of the running interpreter's standard library.

Knows which files count, their order and which of them are held out (by a hash of the name, so a
file never changes sides). Does not know tokens. Keeps true: the same interpreter gives the same
bytes, and the digest recorded in RECORDED tells whether this one matches the shipped weights'.
"""

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

SKIPPED_FOLDERS = frozenset(
    {
        "test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__",
        "pydoc_data", "encodings", "lib2to3", "turtledemo",
    }
)  # fmt: skip
# sha256 of the corpus that trained the shipped weights (CPython 3.11.7)
RECORDED = "333af9caae01e32dfde20ab3c31fd8c6c97dd146a6b3bfe08448e55a984f8fc0"
HELD_OUT_OF_256 = 8  # about 3 % of the files


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """File texts by name, in name order; `digest` is the sha256 over names and texts."""

    train: dict[str, str]
    held_out: dict[str, str]
    digest: str

    @property
    def matches_recorded(self) -> bool:
        return self.digest == RECORDED


def is_held_out(name: str) -> bool:
    """True for the names whose hash falls into the held-out share."""
    return hashlib.sha256(name.encode()).digest()[0] < HELD_OUT_OF_256


def library_files(root: Path) -> list[Path]:
    """Every source file below `root` that counts, in the order of its POSIX name."""
    files = []
    for path in root.rglob("*.py"):
        inner = path.relative_to(root)
        # the build-time configuration differs from machine to machine
        if SKIPPED_FOLDERS.isdisjoint(inner.parts) and not inner.name.startswith("_sysconfigdata"):
            files.append(path)
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def read_corpus(root: Path | None = None) -> Corpus:
    """Read the library below `root` (the running interpreter's own when None).

    Raises ValueError when no file is found. Files that are not UTF-8 are left out.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    digest = hashlib.sha256()
    train: dict[str, str] = {}
    held_out: dict[str, str] = {}
    for path in library_files(root):
        raw = path.read_bytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            continue  # a handful of files carry another encoding on purpose
        text = text.replace("\r\n", "\n")
        name = path.relative_to(root).as_posix()
        digest.update(name.encode() + b"\0" + text.encode() + b"\0")
        (held_out if is_held_out(name) else train)[name] = text
    if not train:
        raise ValueError(f"no library source found below {root}")
    return Corpus(train=train, held_out=held_out, digest=digest.hexdigest())
