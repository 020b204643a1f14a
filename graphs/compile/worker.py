"""How a compile worker begins, before it imports torch.

Knows processes and the environment. Does not know compilers. Keeps true: no worker outlives its
builder, however that ends; what torch's compiler reads of the environment as it is imported is not
there any more, so that what is compiled is what we say.
"""

import multiprocessing
import os
import tempfile
import threading

_TOLD = "TORCHINDUCTOR_", "TORCH_COMPILE_", "AOT_INDUCTOR_"


def start_worker(scratch: str) -> None:
    """The compilers' temporary files go where the builder removes them, whatever becomes of us."""
    for name in [name for name in os.environ if name.startswith(_TOLD)]:
        del os.environ[name]
    os.environ.update(TMPDIR=scratch, LC_ALL="C")
    tempfile.tempdir = scratch
    threading.Thread(target=_end_with_builder, daemon=True).start()
    import torch

    torch.set_num_threads(1)


def _end_with_builder() -> None:
    builder = multiprocessing.parent_process()
    assert builder is not None
    builder.join()
    os._exit(1)  # in the middle of a program: nobody wants it any more
