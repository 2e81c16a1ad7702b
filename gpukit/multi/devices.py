"""Several devices of one process: which ones, what may reach whose memory, and how rows are divided among them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpukit._numba import enable_peer
from gpukit.backend import cuda
from gpukit.streams.pipeline import MAX_CHUNKS, split_rows
from gpukit.streams.schedule import on_device
from warpstep.values import check_int, check_items, is_int

__all__ = ["choose_devices", "connect", "copy_to_devices", "on_device", "rows_of", "synchronize"]


def choose_devices(devices: int | Sequence[int] | None = None) -> tuple[int, ...]:
    """List device numbers: all devices for None, the first ones for an int, or those given.

    Examples
    --------
    >>> choose_devices(1)
    (0,)
    """
    count = len(cuda.gpus)
    if devices is None:
        return tuple(range(count))
    if is_int(devices):
        return tuple(range(check_int("devices", devices, 1, count)))
    items = check_items("devices", devices, f"None, a number of devices, or their numbers, 0 to {count - 1}", 64)
    chosen = tuple(check_int(f"devices[{i}]", number, 0, count - 1) for i, number in enumerate(items))
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"devices is {list(chosen)}; it must name one device or more, each once")
    return chosen


def connect(devices: Sequence[int], cuda: Any = cuda) -> bool:
    """Let kernels of each device access the memory of the others; return False, and do nothing, if some pair cannot.

    ``cuda`` is `gpukit.cuda`, or that of the emulator.

    Examples
    --------
    >>> connect([0])
    True
    """
    pairs = [(here, there) for here in devices for there in devices if here != there]
    for here, there in pairs:
        with cuda.gpus[here]:
            if not cuda.current_context().can_access_peer(there):
                return False
    for here, there in pairs:
        with cuda.gpus[here]:
            enable_peer(cuda.current_context(), cuda.gpus[there].get_primary_context())
    return True


def synchronize(devices: Sequence[int]) -> None:
    """Wait for all work of some devices.

    Examples
    --------
    >>> synchronize([0])
    """
    for device in devices:
        with cuda.gpus[device]:
            cuda.synchronize()


def rows_of(rows: int, count: int) -> list[slice]:
    """Divide rows among devices, as evenly as possible.

    Examples
    --------
    >>> rows_of(7, 3)
    [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
    """
    rows, count = check_int("rows", rows, 0), check_int("count", count, 1, MAX_CHUNKS)
    ends = np.cumsum((0, *split_rows(count, rows))).tolist()
    return [slice(start, end) for start, end in zip(ends, ends[1:], strict=False)]


def copy_to_devices(parts: Sequence[np.ndarray], devices: Sequence[int]) -> list[Any]:
    """Copy part i of the host arrays to device i; raise ValueError unless there is one for each.

    Examples
    --------
    >>> [array.shape for array in copy_to_devices([np.zeros(3)], [0])]
    [(3,)]
    """
    arrays, parts, devices = [], check_items("parts", parts, "an array for each device"), choose_devices(devices)
    if len(parts) != len(devices):
        raise ValueError(f"parts has {len(parts)} arrays; devices names {len(devices)}")
    for part, device in zip(parts, devices, strict=True):
        with cuda.gpus[device]:
            arrays.append(cuda.to_device(np.ascontiguousarray(part)))
    return arrays
