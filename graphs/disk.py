"""A full disk told in one line, whoever notices it: this process, a library or a compiler.

Knows the folders that are written to and how a user chooses others. Does not know what is written.
Libraries in C++ say it in words of their own or not at all, so the folders themselves are asked.
Keeps true: an error that a full folder does not explain stays what it was.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphs.cache import cache_folder
from graphs.errors import DiskError

_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_SCRATCH = "fourstep-build-"
_SHARED = Path("/dev/shm")
_PIECE = 4 << 20  # bytes that a folder which is not full takes: more than most files of a build


@contextmanager
def writing(*folders: Path) -> Iterator[None]:
    """What runs inside writes to these folders and to the one for temporary files.

    Raises DiskError, naming the folder, for whatever fails because one of them is full.
    """
    try:
        yield
    except DiskError:
        raise
    except Exception as error:
        if _is_something_else(error):
            raise
        asked = dict.fromkeys((*map(_existing, folders), _temporary()))
        full = [folder for folder in (*asked, *_shared()) if not _takes_more(folder)]
        # A compiler removes what it could not finish, so there may be room again.
        if not full and _says_full(error):
            full = sorted(asked, key=_free)[:1]
        if not full:
            raise
        raise DiskError(_advice(full[0])) from error


@contextmanager
def scratch_folder() -> Iterator[str]:
    """For compilers' temporary files; what a compiler that was cut off still writes may stay."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True) as folder:
        yield folder


def _is_something_else(error: Exception) -> bool:
    """The system or we ourselves say what it is, and it is not that."""
    if isinstance(error, OSError):
        return error.errno not in _ERRORS
    return isinstance(error, ValueError)


def _temporary() -> Path:
    """As the user named it. Python passes over one that is full, and does not say where it looks
    if all are; compilers and torch do not."""
    named = os.environ.get("TMPDIR")
    folder = Path(named if named and Path(named).is_dir() else tempfile.tempdir or "/tmp")
    return folder.parent if folder.name.startswith(_SCRATCH) else folder


def _shared() -> Iterator[Path]:
    """Where processes have their locks."""
    if _SHARED.is_dir():
        yield _SHARED


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def _takes_more(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PIECE))
    except OSError as error:
        return error.errno not in _ERRORS
    return True


def _says_full(error: BaseException | None) -> bool:
    """It or what it came from is such an error, or holds the words that a compiler had for one."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _ERRORS:
            return True
        if any(os.strerror(number) in str(error) for number in _ERRORS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _advice(folder: Path) -> str:
    if folder == _temporary():
        what, other = "temporary files", "set TMPDIR to a folder with more"
    elif folder == _SHARED:
        what, other = "locks of processes", "let this container have more shared memory"
    elif folder.absolute().is_relative_to(cache_folder()):
        what, other = "the cache of engines", "set XDG_CACHE_HOME to a folder with more"
    else:
        what, other = "engines", "name another folder"
    return (
        f"no space left in {folder} for {what} ({_free(folder) / 1e6:.0f} MB free). "
        f"Make room there, or {other}; then run this again"
    )
