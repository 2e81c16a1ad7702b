"""Heat that spreads over a plate, its rows divided among devices: the stencil, and four ways to exchange the edges.

In each time step a point moves towards the mean of its four neighbours. The rim of the plate keeps its temperature. A
device holds its own rows and, above and below them, a copy of a neighbour's row: the halo.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpukit._host.arrays import check_array, configure_quietly
from gpukit.backend import cuda, float32
from gpukit.launching import prepare
from gpukit.multi.devices import choose_devices, connect, on_device, rows_of
from gpukit.streams.pipeline import prepare_copy
from gpukit.streams.schedule import Schedule
from gpukit.streams.timeline import PEER_COPY
from warpstep.integers import ceil_div
from warpstep.values import check_choice, check_int, check_number, check_type

__all__ = ["VARIANTS", "Heat", "heat", "heat_edges", "heat_reaching", "heat_rows"]

#: Threads of a block, along a row, and the rows that each of them computes.
BLOCK, TALL = 128, 4
MAX_STEPS = 100_000


@cuda.jit(device=True)
def warmed(mid, up, down, left, right, rate):
    return mid + rate * (up + down + left + right - float32(4) * mid)


@cuda.jit
def heat_rows(u, new, first, last, rate):
    """One time step of rows ``first`` to ``last`` - 1. Reads 4 bytes of a point from memory, and writes 4.

    A thread goes down a column, so two of the three rows that it needs are in registers already.
    """
    col, row = cuda.grid(1), first + TALL * cuda.blockIdx.y
    if 0 < col < u.shape[1] - 1:
        up, mid = u[row - 1, col], u[row, col]
        for _ in range(TALL):
            if row < last:
                down = u[row + 1, col]
                new[row, col] = warmed(mid, up, down, u[row, col - 1], u[row, col + 1], rate)
                up, mid = mid, down
                row += 1


@cuda.jit
def heat_edges(u, new, first, last, rate):
    """One time step of rows ``first`` and ``last`` - 1 only: those that the neighbours wait for."""
    col, edge = cuda.grid(1), cuda.blockIdx.y
    row = first if edge == 0 else last - 1
    if 0 < col < u.shape[1] - 1:
        new[row, col] = warmed(u[row, col], u[row - 1, col], u[row + 1, col], u[row, col - 1], u[row, col + 1], rate)


@cuda.jit
def heat_reaching(u, above, below, new, first, last, rate):
    """One time step without a halo: ``above`` and ``below`` are rows in the neighbours' memory."""
    col, row = cuda.grid(1), first + TALL * cuda.blockIdx.y
    if 0 < col < u.shape[1] - 1:
        up, mid = u[row - 1, col] if row > 1 else above[col], u[row, col]
        for _ in range(TALL):
            if row < last:
                down = u[row + 1, col] if row < u.shape[0] - 2 else below[col]
                new[row, col] = warmed(mid, up, down, u[row, col - 1], u[row, col + 1], rate)
                up, mid = mid, down
                row += 1


def check_plate(u: np.ndarray, rate: float) -> None:
    """Check the temperatures and the rate; TypeError or ValueError for what cannot spread."""
    check_type("u", u, np.ndarray, "a NumPy array of float32 with two dimensions")
    check_array("u", u, 2, (np.float32,))
    if min(u.shape) < 3:
        raise ValueError(f"u has shape {u.shape}; it must have 3 rows and 3 columns at least")
    if check_number("rate", rate, 0) > 0.25:
        raise ValueError(f"rate is {rate}; it must be at most 0.25: more, and the temperatures swing")


class Heat:
    """The plate on its devices, to be stepped and measured.

    Parameters
    ----------
    u : ndarray, shape (rows, columns), float32
        The temperatures, at least 3 x 3.
    devices : int, sequence of int or None
        How many devices, or which; all of them unless given. At most one for each row that changes.
    variant : {"overlap", "peer_load", "peer_copy", "host"}
        How the edges get to the neighbours: with "overlap" they are computed first, and copied while the inside is
        computed; with "peer_load" the neighbour's kernel reads them; with "peer_copy" they are copied from device to
        device after the kernel; with "host" they are copied through the host.
    rate : float
        How much of the difference a step evens out, from 0 to 0.25.

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.

    Examples
    --------
    >>> plate = np.zeros((5, 4), np.float32)
    >>> plate[0] = 1
    >>> h = Heat(plate, devices=1, rate=0.25)
    >>> h.schedule(steps=1).run()
    >>> h.result(steps=1)[1]
    array([0.  , 0.25, 0.25, 0.  ], dtype=float32)
    """

    def __init__(
        self, u: np.ndarray, devices: int | Sequence[int] | None = None, variant: str = "overlap", rate: float = 0.2
    ) -> None:
        check_plate(u, rate)
        self.variant, self.rate = check_choice("variant", variant, VARIANTS), np.float32(rate)
        self.devices = choose_devices(devices)[: u.shape[0] - 2]
        if variant != "host" and not connect(self.devices):
            raise ValueError(f"variant is {variant!r}; these devices cannot reach each other's memory, so take 'host'")
        self.start, self.parts = u.copy(), rows_of(u.shape[0] - 2, len(self.devices))  # of the rows that change
        self.buffers: list[tuple[Any, Any]] = []
        for part, device in zip(self.parts, self.devices, strict=True):
            own = self.start[part.start : part.stop + 2]  # with a row of the halo, or of the rim, at each end
            with cuda.gpus[device]:
                first, second = cuda.to_device(own), cuda.device_array(own.shape, own.dtype)
                second.copy_to_device(first)
                self.buffers.append((first, second))
        ends = (len(self.devices), 2, 2, u.shape[1])  # a row for each end of each device, for odd and even steps
        self.staged: Any = cuda.pinned_array(ends, np.float32) if variant == "host" else None

    def result(self, steps: int) -> np.ndarray:
        """Copy the temperatures after a number of steps to the host; its parity says which buffers hold them."""
        u, steps = self.start.copy(), check_int("steps", steps, 0)
        for part, device, buffers in zip(self.parts, self.devices, self.buffers, strict=True):
            with cuda.gpus[device]:
                u[1:-1][part] = buffers[steps % 2].copy_to_host()[1:-1]
        return u

    def schedule(self, steps: int, first: int = 0) -> Schedule:
        """Make the operations of a number of time steps, from step ``first`` on."""
        made = Schedule()
        plan = _Plan(self, made)
        first = check_int("first", first, 0)
        for step in range(first, first + check_int("steps", steps, 0, MAX_STEPS)):
            VARIANTS[self.variant](plan, step)
        return made


class _Plan:
    """Fills a schedule. ``edges``, ``insides`` and ``arrived`` hold the last operations of each kind, by device."""

    def __init__(self, heat: Heat, schedule: Schedule) -> None:
        self.heat, self.schedule = heat, schedule
        self.count, self.made = len(heat.devices), {}
        self.edges, self.insides = [[] for _ in heat.devices], [[] for _ in heat.devices]
        self.arrived = [[] for _ in heat.devices]  # what has filled the halo

    # -- the four ways ------------------------------------------------------------------------------------------------

    def host(self, step):
        """All rows; then both edges to the host, and from there to the neighbours."""
        after = self.arrived
        kernels = [self._rows(d, step, heat_rows, self._span(d), 0, after[d]) for d in range(self.count)]
        copied = {(d, to): self._edge_out(d, to, step, kernels[d]) for d, to in self._neighbours()}
        self.arrived = [[] for _ in range(self.count)]
        for (d, to), operation in copied.items():
            self.arrived[to].append(self._halo_in(d, to, step, operation))

    def peer_copy(self, step):
        """All rows; then both edges straight to the neighbours."""
        after = self.arrived
        self.arrived = [[] for _ in range(self.count)]
        for d in range(self.count):
            self._send(d, step, [self._rows(d, step, heat_rows, self._span(d), 0, after[d])], 0)

    def peer_load(self, step):
        """All rows, by a kernel that reads the neighbours' edges. It waits for the neighbours' last step."""
        before = self.insides
        self.insides = []
        for d in range(self.count):
            after = [number for to in self._around(d) for number in before[to]]
            self.insides.append([self._rows(d, step, heat_reaching, self._span(d), 0, after)])

    def overlap(self, step):
        """The edges first, in a stream of their own, and to the neighbours while the inside is computed."""
        edges, insides, arrived = self.edges, self.insides, self.arrived
        self.edges, self.insides, self.arrived = [], [], [[] for _ in range(self.count)]
        for d in range(self.count):
            first, last = self._span(d)
            alone = self.count == 1
            rows = [self._rows(d, step, heat_edges, (first, last), 1, insides[d] + arrived[d])] if not alone else []
            self.edges.append(rows)
            self._send(d, step, rows, 1)
            inner = (first, last) if alone else (first + 1, last - 1)
            inside = [self._rows(d, step, heat_rows, inner, 0, edges[d])] if inner[0] < inner[1] else []
            self.insides.append(inside)

    # -- operations ---------------------------------------------------------------------------------------------------

    def _rows(self, d, step, kernel, span, stream, after):
        """Queue one of the kernels on rows ``span`` of device number d."""
        heat, (first, last) = self.heat, span
        device, (u, new) = heat.devices[d], self._pair(d, step)
        columns, edges = u.shape[1], min(2, last - first)
        rows, reads = range(first, last), range(first - 1, last + 1)
        if kernel is heat_edges:
            grid, block, count = (ceil_div(columns, 256), edges), (256, 1), edges
            rows = (first, last - 1)
            reads = {row + move for row in rows for move in (-1, 0, 1)}
        else:
            count = last - first
            grid, block = (ceil_div(columns, BLOCK), ceil_div(count, TALL)), (BLOCK, 1)
        arrays, names, over = (u, new), self._names(d, step, reads), {}
        if kernel is heat_reaching:
            ends, names = [], self._names(d, step, range(1, last))
            for to, rim in zip(self._beside(d), (0, last), strict=True):
                edge = rim if to is None else self._rows_between(to, d)[0]
                ends.append(u[rim] if to is None else heat.buffers[to][step % 2][edge])
                names |= self._names(d if to is None else to, step, [edge])
                over |= {} if to is None else {"peer": heat.devices[to], "peer_bytes": 4 * columns}
            arrays = (u, *ends, new)
        queue = self.schedule.stream(stream, device)
        key = kernel, d, step % 2
        if key not in self.made:
            with on_device(device):
                launch = configure_quietly(kernel, grid, block, queue)
                self.made[key] = prepare(launch, *arrays, first, last, heat.rate)
        launch = self.made[key]
        return self.schedule.add(
            "kernel",
            lambda _: launch(),
            stream,
            name=f"{'edges' if kernel is heat_edges else 'rows'} of GPU {device}, step {step}",
            task=step,
            after=after,
            reads=sorted(names),
            writes=sorted(self._names(d, step + 1, rows)),
            nbytes=8 * columns * count,
            share=min(1.0, grid[0] * grid[1] / 2112),  # 132 SMs hold 16 blocks each
            device=device,
            **over,
        )

    def _send(self, d, step, kernels, stream):
        """Queue the copies of a device's edges into its neighbours' halos, after the kernel that computes them."""
        for to in self._around(d):
            edge, halo = self._rows_between(d, to)
            source, target = self._pair(d, step)[1][edge], self._pair(to, step)[1][halo]
            action = prepare_copy(target, source, self._stream(d, stream))
            place = {"device": self.heat.devices[d], "peer": self.heat.devices[to], "nbytes": source.nbytes}
            names = {"reads": self._names(d, step + 1, [edge]), "writes": self._names(to, step + 1, [halo])}
            self.arrived[to].append(self._copy(PEER_COPY, action, stream, d, to, step, kernels, place | names))

    def _edge_out(self, d, to, step, after):
        edge, _ = self._rows_between(d, to)
        source, staged = self._pair(d, step)[1][edge], self._staged(d, to, step)
        action = prepare_copy(staged, source, self._stream(d, 0))
        names = {"reads": self._names(d, step + 1, [edge]), "writes": [self._staged_name(d, to, step)]}
        place = {"device": self.heat.devices[d], "nbytes": source.nbytes}
        return self._copy("copy out", action, 0, d, to, step, [after], place | names)

    def _halo_in(self, d, to, step, after):
        _, halo = self._rows_between(d, to)
        target, staged = self._pair(to, step)[1][halo], self._staged(d, to, step)
        action = prepare_copy(target, staged, self._stream(to, 0))
        names = {"reads": [self._staged_name(d, to, step)], "writes": self._names(to, step + 1, [halo])}
        place = {"device": self.heat.devices[to], "nbytes": target.nbytes}
        return self._copy("copy in", action, 0, d, to, step, [after], place | names)

    def _copy(self, engine, action, stream, d, to, step, after, further):
        name = f"{engine} from GPU {self.heat.devices[d]} to {self.heat.devices[to]}, step {step}"
        return self.schedule.add(engine, action, stream, name=name, task=step, after=after, **further)

    # -- who is where -------------------------------------------------------------------------------------------------

    def _span(self, d):
        """The rows of a device's buffers that change."""
        return 1, self.heat.buffers[d][0].shape[0] - 1

    def _pair(self, d, step):
        buffers = self.heat.buffers[d]
        return buffers[step % 2], buffers[(step + 1) % 2]

    def _beside(self, d):
        return (d - 1 if d > 0 else None), (d + 1 if d + 1 < self.count else None)

    def _around(self, d):
        return [to for to in self._beside(d) if to is not None]

    def _neighbours(self):
        return [(d, to) for d in range(self.count) for to in self._around(d)]

    def _rows_between(self, d, to):
        """The edge of a device that a neighbour needs, and the row of the neighbour's buffer that it belongs in."""
        rows, theirs = (self.heat.buffers[i][0].shape[0] for i in (d, to))
        return (rows - 2, 0) if to > d else (1, theirs - 1)

    def _stream(self, d, number):
        return self.schedule.stream(number, self.heat.devices[d])

    def _staged(self, d, to, step):
        return self.heat.staged[d, int(to > d), step % 2]

    def _staged_name(self, d, to, step):
        return f"host row {d} to {to}, {step % 2}"

    def _names(self, d, step, rows):
        """The names of rows for `Schedule.races`: those near the edges one by one, the others as one."""
        count = self.heat.buffers[d][0].shape[0]
        near = {0, 1, 2, count - 3, count - 2, count - 1}
        return {f"GPU {d}, {step % 2}, row {row if row in near else 'inside'}" for row in rows}


#: How the edges get to the neighbours, in the order of the chapter.
VARIANTS = {
    "host": _Plan.host,
    "peer_copy": _Plan.peer_copy,
    "peer_load": _Plan.peer_load,
    "overlap": _Plan.overlap,
}


def heat(
    u: np.ndarray,
    steps: int,
    devices: int | Sequence[int] | None = None,
    variant: str = "overlap",
    rate: float = 0.2,
) -> np.ndarray:
    """Let heat spread for a number of time steps, on one device or several.

    Parameters
    ----------
    u, devices, variant, rate
        As for `Heat`.
    steps : int

    Returns
    -------
    ndarray of the shape of ``u``, float32
        The same bits for any number of devices.

    Examples
    --------
    >>> plate = np.zeros((4, 4), np.float32)
    >>> plate[0] = 1
    >>> float(heat(plate, steps=2, devices=1, rate=0.25)[1, 1])
    0.3125
    """
    plate = Heat(u, devices, variant, rate)
    schedule = plate.schedule(steps)
    schedule.run()
    return plate.result(steps)
