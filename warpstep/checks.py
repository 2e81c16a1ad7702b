"""Check the launches of kernels. Each message names the value and what is allowed."""

import math
from collections.abc import Sequence

from warpstep import device
from warpstep.errors import LaunchError
from warpstep.integers import ceil_div
from warpstep.values import check_int, describe, is_int

__all__ = ["as_dim3", "check_cooperative", "check_limits", "check_optin", "format_dim3"]


def as_dim3(name: str, value, positive: bool = True) -> tuple[int, int, int]:
    """Return the size of a grid or block, an int or 1 to 3 of them, as (x, y, z); TypeError or ValueError otherwise.

    Unless ``positive``, sizes below 1 are left for `check_limits` to refuse.
    """
    sizes = value if isinstance(value, tuple | list) else (value,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{name} is {describe(value)}; it must have 1 to 3 dimensions")
    if all(size.__class__ is int and 0 < size < 2**63 for size in sizes):
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z
    if not all(map(is_int, sizes)):
        raise TypeError(f"{name} is {describe(value)}; it must be an int or 1 to 3 of them")
    for axis, size in enumerate(sizes):
        one = name if sizes is not value else f"{name}[{axis}]"
        check_int(one, size, 1 if positive else -(2**63))
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z


def format_dim3(sizes: Sequence[int]) -> str:
    """64 x 64 x 1"""
    return " x ".join(map(str, sizes))


# -- launches ----------------------------------------------------------------------------------------------------------


def check_limits(
    name: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared: int,
    static_shared: int = 0,
    launch_bounds=None,
    allowed_shared: int = 0,
    limits: device.Limits | None = None,
) -> None:
    """Raise LaunchError if a device could not launch this: the one emulated now, or one with the ``limits`` given.

    The amounts of shared memory are bytes; ``allowed_shared`` is the kernel's ``dynamic_shared``.
    """
    limits = limits or device.current()
    which = "compute capability {}.{}".format(*limits.compute_capability)
    for what, sizes, allowed in (("grid", grid, limits.max_grid_dim), ("block", block, limits.max_block_dim)):
        for axis, asked, limit in zip("xyz", sizes, allowed, strict=True):
            if asked < 1:
                raise LaunchError(
                    f"{name}: a {what} of {format_dim3(sizes)} asked for, but {what} dimension {axis} must be at least "
                    "1. Skip the launch where there is nothing to do"
                )
            if asked > limit:
                blocks = "use more blocks" if axis == "x" else "put more of the threads along x, or use more blocks"
                raise LaunchError(
                    f"{name}: {what} dimension {axis} of {asked:,} asked for ({format_dim3(sizes)}); {which} allows "
                    f"{limit:,}: {'use a grid-stride loop' if what == 'grid' else blocks}"
                )
    threads = math.prod(block)
    asked = f"{name}: {threads} threads per block ({format_dim3(block)}) asked for"
    if threads > limits.max_threads_per_block:
        raise LaunchError(
            f"{asked}; this device allows {limits.max_threads_per_block}: use a block of at most "
            f"{_largest_block(block, limits.max_threads_per_block)}"
        )
    if launch_bounds is not None:
        most = launch_bounds[0] if isinstance(launch_bounds, tuple | list) else launch_bounds
        if threads > most:
            raise LaunchError(f"{asked}; the kernel's launch_bounds allow {most}")
    if static_shared + shared > limits.max_shared_memory_per_block:
        _check_large_shared(name, static_shared, shared, allowed_shared, limits)


def _largest_block(block, limit):
    """A block of the same number of dimensions within the limit, as near to a square (cube) as powers of two allow."""
    used = max(1, sum(n > 1 for n in block))
    exponent = limit.bit_length() - 1
    parts = [1 << ceil_div(exponent - i, used) for i in range(used)]
    return format_dim3(parts) + ("" if used > 1 else " threads")


def _check_large_shared(name, static, dynamic, allowed, limits):
    """Raise LaunchError unless more shared memory than any kernel may have is allowed to this one."""
    most, optin = limits.max_shared_memory_per_block, limits.max_shared_memory_per_block_optin
    asked = (
        f"{name}: {static + dynamic:,} bytes of shared memory per block asked for ({static:,} static, {dynamic:,} "
        "dynamic); "
    )
    cure = "use a smaller tile or fewer threads per block"
    if static > most or static + dynamic > optin:
        raise LaunchError(f"{asked}this device allows {most if static > most else optin:,}: {cure}")
    if dynamic > allowed:
        limit = f"this kernel was allowed {allowed:,} dynamic" if allowed else f"this device allows {most:,}"
        raise LaunchError(
            f"{asked}{limit}: {cure}, or call gpukit.intrinsics.allow_dynamic_shared(kernel, {dynamic}) before the "
            "launch"
        )


def check_optin(name: str, static: int, dynamic: int, optin: int) -> None:
    """Raise LaunchError if a kernel asks for more shared memory than any may have, ``optin`` bytes."""
    if static + dynamic > optin:
        raise LaunchError(
            f"{name}: {dynamic:,} bytes of dynamic shared memory asked for beside {static:,} static; this device "
            f"allows {optin:,} together"
        )


def check_cluster(name: str, grid: tuple[int, int, int], cluster: int) -> None:
    """Raise LaunchError unless the grid consists of whole clusters of so many blocks along x."""
    if grid[0] % cluster:
        raise LaunchError(
            f"{name}: a grid of {format_dim3(grid)} asked for; its clusters have {cluster} blocks along x: make grid "
            "dimension x a multiple of that"
        )


def check_cooperative(name: str, blocks: int, most: int) -> None:
    """Raise LaunchError if a device that holds ``most`` blocks of a kernel at once is asked for more that must meet."""
    if blocks > most:
        raise LaunchError(
            f"{name}: a cooperative grid of {blocks:,} blocks asked for; this device can hold {most:,} blocks of this "
            "kind at once: use fewer blocks and a grid-stride loop"
        )
