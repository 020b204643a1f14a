"""Compiles many tasks in worker processes.

Knows processes. Keeps true: a worker gets shapes and options, never a tensor; the first failure
stops the rest; what compilers leave in the folder for temporary files is gone in the end.
"""

import multiprocessing
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import spawn
from pathlib import Path

from graphs.compile.compiler import Compiler, EagerCompiler
from graphs.compile.program import Task
from graphs.compile.worker import start_worker
from graphs.disk import scratch_folder, writing


def compile_all(
    compiler: Compiler,
    tasks: Sequence[Task],
    folder: Path,
    *,
    jobs: int | None = None,
    each: Callable[[str], object] | None = None,
) -> dict[str, Path]:
    """Files by program key; none for the eager compiler, which needs no process.

    `each` hears of every program; `jobs` processes, by default one a processor. Raises DiskError.
    """
    files: dict[str, Path] = {}
    if compiler.name == EagerCompiler.name:
        return files
    context = multiprocessing.get_context("spawn")
    workers = min(jobs or os.cpu_count() or 1, len(tasks))
    with (
        scratch_folder() as scratch,
        ProcessPoolExecutor(
            workers, mp_context=context, initializer=start_worker, initargs=(scratch,)
        ) as pool,
    ):
        try:
            running = {pool.submit(_compile, compiler, task, folder): task for task in tasks}
            for done in as_completed(running):
                task = running[done]
                files[task.key] = done.result()
                if each is not None:
                    each(task.name)
        except BaseException:
            # What runs is waited for: it writes to folders that are about to go.
            pool.shutdown(cancel_futures=True)
            raise
    return files


def check_main() -> None:
    """Raises RuntimeError, with what to do, in a worker that imports a script which builds engines
    wherever it is imported: it would wait for its own builder."""
    spawn.get_preparation_data("worker")


# In a worker, which Ctrl-C reaches as well: it has been given its next program by then.
_interrupted = threading.Event()


def _compile(compiler: Compiler, task: Task, folder: Path) -> Path:
    if _interrupted.is_set():
        raise KeyboardInterrupt
    try:
        return _compile_one(compiler, task, folder)
    except KeyboardInterrupt:
        _interrupted.set()
        raise


def _compile_one(compiler: Compiler, task: Task, folder: Path) -> Path:
    # Here, where the error is whole: what comes back from a process has lost its causes. The folder
    # is gone when its user reads of it.
    with writing(folder.parent):
        path = compiler.compile(task, Path(tempfile.gettempdir()))
        assert path is not None
        # Written where it belongs, a program that finds no room would end the process.
        for part in path.parent.glob(f"{task.key}.*"):
            shutil.move(part, folder)
        return folder / path.name
