"""The release of numba-cuda, for tests of what some releases cannot type: there they must fail, as on a GPU."""

from importlib import metadata

import pytest

#: (major, minor)
NUMBA_CUDA = tuple(map(int, metadata.version("numba-cuda").split(".")[:2]))


def fails_before(release: tuple, error: type | tuple, why: str):
    """Mark a test, or a case of one, that earlier releases of numba-cuda refuse with this error."""
    return pytest.mark.xfail(NUMBA_CUDA < release, raises=error, reason=why, strict=True)
