"""A matrix product on several devices: the rows of A and C are divided, and B goes to all of them.

The matrices are on the first device, and the result is wanted there. Each device gets its rows of A and all of B, and
sends its rows of C back.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpukit._host.arrays import as_device_array, check_array, configure_quietly
from gpukit.backend import cuda
from gpukit.launching import prepare
from gpukit.matmul import matmul
from gpukit.multi.devices import choose_devices, connect, on_device, rows_of, synchronize
from gpukit.streams.pipeline import prepare_copy, split_rows
from gpukit.streams.schedule import Schedule
from gpukit.streams.timeline import PEER_COPY
from warpstep.integers import ceil_div
from warpstep.values import check_choice, check_int, type_name

__all__ = ["WAYS", "Product", "copy_plate", "product"]

#: How A, B and C get there and back, in the order of the chapter.
WAYS = ("host", "peer_copy", "peer_load", "overlap")
BLOCK = (64, 4)
MAX_ROWS = 2048  # of blocks: each thread copies several rows
#: Of an H200: operations and bytes over a link, per second. Rows of a tile of the product.
SPEED, LINK, TILE = 54e12, 350e9, 128


@cuda.jit
def copy_plate(source, target):
    """target = source, for parts of matrices, of which either may be in another device's memory."""
    col, row = cuda.grid(2)
    while row < target.shape[0]:
        if col < target.shape[1]:
            target[row, col] = source[row, col]
        row += cuda.gridDim.y * cuda.blockDim.y


class Product:
    """C = A B on several devices, to be run and measured.

    Parameters
    ----------
    a, b, out : device arrays on the first device, float32, C-contiguous
        Of shapes (M, K), (K, N) and (M, N).
    devices : int, sequence of int or None
    variant : {"overlap", "peer_load", "peer_copy", "host"}
        How the other devices get A and B: "overlap" copies B in panels of columns, each multiplied while the next ones
        are in flight; "peer_load" copies nothing, the kernels access the first device's memory; "peer_copy" copies
        from device to device before the product; "host" copies through the host.
    panels : int
        Panels of B, for "overlap".

    Attributes
    ----------
    schedule : Schedule
    """

    def __init__(
        self,
        a: Any,
        b: Any,
        out: Any,
        devices: int | Sequence[int] | None = None,
        variant: str = "overlap",
        panels: int = 4,
    ) -> None:
        self.a, self.b, self.out = (_checked(name, x) for name, x in (("a", a), ("b", b), ("out", out)))
        _check_shapes(self.a.shape, self.b.shape, self.out.shape)
        (m, k), n = self.a.shape, self.b.shape[1]
        self.variant = check_choice("variant", variant, WAYS)
        self.panels = min(check_int("panels", panels, 1, 1024), n)
        self.devices = choose_devices(devices)[:m]
        if variant != "host" and not connect(self.devices):
            raise ValueError(f"variant is {variant!r}; these devices cannot reach each other's memory, so take 'host'")
        self.schedule = Schedule()
        self.parts = self._divide(m, 4 * k * (m // len(self.devices) + n / self.panels), 2 * k * n)
        ready = self._through_host() if variant == "host" and len(self.devices) > 1 else None
        for d, part in reversed(list(enumerate(self.parts))):  # the others first: the first device has all it needs
            if d == 0:
                self._multiply(d, self.a[part], self.b, self.out[part], [], part, "all")
            elif variant == "peer_load":
                self._multiply(d, self.a[part], self.b, self.out[part], [], part, "all", peer=True)
            elif variant == "overlap":
                self._by_panels(d, part)
            else:
                self._by_copies(d, part, ready)

    def run(self, record: bool = False) -> Any:
        """Multiply, and wait; with ``record`` return the timeline, as `Schedule.run` does."""
        synchronize(self.devices)
        return self.schedule.run(record)

    def _divide(self, m, late, row):
        """Divide the rows of A. With panels the first device gets more: the others begin ``late`` bytes later.

        ``row`` is the operations of a row of C.
        """
        count = len(self.devices)
        lead = round(late / LINK / (row / SPEED) / TILE) * TILE if self.variant == "overlap" and count > 1 else 0
        lead = lead if lead < m // count else 0
        others = [slice(part.start + lead, part.stop + lead) for part in rows_of(m - lead, count)]
        return [slice(0, others[0].stop), *others[1:]]

    # -- ways ---------------------------------------------------------------------------------------------------------

    def _through_host(self):
        """Queue the copies of A and B to the host; returns their operations."""
        self.staged = [cuda.pinned_array(x.shape, x.dtype) for x in (self.a, self.b, self.out)]
        return [self._copy("copy out", 0, self.staged[i], x, "ab"[i]) for i, x in enumerate((self.a, self.b))]

    def _by_copies(self, d, part, ready):
        a, b, c = self._own(d, self.a[part].shape), self._own(d, self.b.shape), self._own(d, self.out[part].shape)
        if ready is None:
            copied = [self._push(0, d, a, self.a[part], "a"), self._push(0, d, b, self.b, "b")]
        else:
            a_host, b_host, _ = self.staged
            copied = [
                self._copy("copy in", d, x, host, what, ready)
                for x, host, what in ((a, a_host[part], "a"), (b, b_host, "b"))
            ]
        done = self._multiply(d, a, b, c, copied, part, "all")
        if ready is None:
            self._push(d, 0, self.out[part], c, "c", [done])
        else:
            host = self.staged[2][part]
            self._copy("copy in", 0, self.out[part], host, "c", [self._copy("copy out", d, host, c, "c", [done])], 1)

    def _by_panels(self, d, part):
        a, rows = self._own(d, self.a[part].shape), part.stop - part.start
        copied = [self._push(0, d, a, self.a[part], "a")]
        ends = np.cumsum((0, *split_rows(self.panels, self.b.shape[1]))).tolist()
        for number, (left, right) in enumerate(zip(ends, ends[1:], strict=False)):
            b, c = self._own(d, (self.b.shape[0], right - left)), self._own(d, (rows, right - left))
            got = self._plate(d, self.b[:, left:right], b, 1, f"b, panel {number}")
            done = self._multiply(d, a, b, c, [*copied, got], part, number)
            self._plate(d, c, self.out[part, left:right], 2, f"c, panel {number}", [done])

    # -- operations ---------------------------------------------------------------------------------------------------

    def _own(self, d, shape):
        with on_device(self.devices[d]):
            return cuda.device_array(shape, np.float32)

    def _multiply(self, d, a, b, c, after, part, what, peer=False):
        device = self.devices[d]
        over = {"peer": self.devices[0], "peer_bytes": a.nbytes + b.nbytes * ceil_div(a.shape[0], 128)} if peer else {}
        flops = 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return self.schedule.add(
            "kernel",
            lambda stream: matmul(a, b, out=c, stream=stream),
            name=f"rows {part.start} to {part.stop - 1}, {what}",
            task=d,
            after=after,
            seconds=flops / SPEED,
            device=device,
            **over,
        )

    def _plate(self, d, source, target, stream, what, after=()):
        """Queue a kernel that copies part of a matrix from or to the first device."""
        rows, columns = target.shape
        grid = ceil_div(columns, BLOCK[0]), min(ceil_div(rows, BLOCK[1]), MAX_ROWS)
        device = self.devices[d]
        with on_device(device):
            launch = configure_quietly(copy_plate, grid, BLOCK, self.schedule.stream(stream, device))
            launch = prepare(launch, source, target)
        over = {"nbytes": target.nbytes, "peer": self.devices[0], "peer_bytes": target.nbytes, "share": 0.0}
        return self.schedule.add(
            "kernel", lambda _: launch(), stream, name=what, task=d, after=after, device=device, **over
        )

    def _push(self, d, to, target, source, what, after=()):
        # The first device has a stream for each of the others.
        stream = to if d == 0 else 0
        device = self.devices[d]
        action = prepare_copy(target, source, self.schedule.stream(stream, device))
        over = {"nbytes": source.nbytes, "device": device, "peer": self.devices[to]}
        return self.schedule.add(PEER_COPY, action, stream, name=what, task=max(d, to), after=after, **over)

    def _copy(self, engine, d, target, source, what, after=(), stream=0):
        device = self.devices[d]
        action = prepare_copy(target, source, self.schedule.stream(stream, device))
        over = {"nbytes": source.nbytes, "device": device}
        return self.schedule.add(engine, action, stream, name=f"{engine} {what}", task=d, after=after, **over)


def _checked(name, array):
    check_array(name, array, 2, (np.float32,))
    if not cuda.is_cuda_array(array):
        raise TypeError(f"{name} is {type_name(array)}; it must be a device array")
    return as_device_array(array)


def _check_shapes(a, b, out):
    if a[1] != b[0] or out != (a[0], b[1]) or 0 in (*a, *b):
        raise ValueError(
            f"a, b and out have shapes {a}, {b} and {out}; "
            "they must be (M, K), (K, N) and (M, N), with an element or more"
        )


def product(
    a: np.ndarray, b: np.ndarray, devices: int | Sequence[int] | None = None, variant: str = "overlap"
) -> np.ndarray:
    """Multiply two matrices on several devices.

    Parameters
    ----------
    a : ndarray, shape (M, K), float32
    b : ndarray, shape (K, N), float32
    devices, variant
        As for `Product`.

    Returns
    -------
    ndarray, shape (M, N), float32

    Examples
    --------
    >>> product(np.eye(3, dtype=np.float32), np.full((3, 2), 7, np.float32), devices=1)
    array([[7., 7.],
           [7., 7.],
           [7., 7.]], dtype=float32)
    """
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, np.ndarray):
            raise TypeError(f"{name} is {type_name(x)}; it must be a NumPy array")
        check_array(name, x, 2, (np.float32,))
    chosen = choose_devices(devices)
    _check_shapes(a.shape, b.shape, (a.shape[0], b.shape[1]))
    with cuda.gpus[chosen[0]]:
        left, right = (cuda.to_device(np.ascontiguousarray(x)) for x in (a, b))
        out = cuda.device_array((a.shape[0], b.shape[1]), np.float32)
        Product(left, right, out, chosen, variant).run()
        return out.copy_to_host()
