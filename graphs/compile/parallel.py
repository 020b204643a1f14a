"""Compiles many tasks in worker processes.

Knows processes. Keeps true: a worker gets shapes and options, never a tensor; the first failure
stops the rest and is raised with the program's name.
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from graphs.compile.compiler import Compiler, EagerCompiler
from graphs.compile.program import Task


def compile_all(
    compiler: Compiler,
    tasks: Sequence[Task],
    folder: Path,
    *,
    jobs: int | None = None,
    each: Callable[[str], object] | None = None,
) -> dict[str, Path]:
    """Files by program key; none for the eager compiler, which needs no process.

    `each` hears of every program; `jobs` processes, by default one a processor.
    """
    files: dict[str, Path] = {}
    if compiler.name == EagerCompiler.name:
        return files
    context = multiprocessing.get_context("spawn")
    workers = min(jobs or os.cpu_count() or 1, len(tasks))
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        running = {pool.submit(_compile, compiler, task, folder): task for task in tasks}
        try:
            for done in as_completed(running):
                task = running[done]
                files[task.key] = done.result()
                if each is not None:
                    each(task.name)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return files


def _start_worker() -> None:
    torch.set_num_threads(1)


def _compile(compiler: Compiler, task: Task, folder: Path) -> Path:
    path = compiler.compile(task, folder)
    assert path is not None
    return path
