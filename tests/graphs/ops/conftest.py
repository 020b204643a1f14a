"""The CPU kernels, built once into the user's cache and loaded once a process."""

from collections.abc import Iterator

import pytest

from graphs.cache import cache_folder
from graphs.ops.build import ISAS, build_kernels, current_isa, load_kernels, set_isa, set_threads


@pytest.fixture(scope="session")
def kernels() -> None:
    """Kernels in place of the references, one thread."""
    load_kernels(build_kernels(cache_folder() / "kernels"))
    set_threads(1)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, kernels: None) -> Iterator[str]:
    """Each instruction set this machine has."""
    best = current_isa()
    try:
        set_isa(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    yield request.param
    set_isa(best)
