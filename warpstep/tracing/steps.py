"""What the first block of a traced launch does, in order: its lines, the lanes that run them, what they access."""

import functools
from typing import Any

import numpy as np

from warpstep.integers import ceil_div
from warpstep.limits import WARP
from warpstep.machine.batch import unravel
from warpstep.tracing import counting

#: Warps of the block that are followed, and events that are kept.
MAX_WARPS, MAX_EVENTS = 8, 1000
_LANE_BITS = np.int64(1) << np.arange(WARP, dtype=np.int64)


class StepLog:
    """Keeps the first events of the first block: basic blocks that it enters, accesses, barriers.

    Attributes
    ----------
    open : bool
        True as long as events are kept.
    """

    def __init__(self, launch):
        self.launch = launch
        self.threads = min(launch.threads, MAX_WARPS * WARP)
        self.open = True
        self.complete = False
        self.block = None
        self.events = []

    def begin(self, ids):
        """Follow the first of these blocks, unless one has been followed already."""
        if self.block is None:
            self.block = unravel(int(ids[0]), self.launch.grid)

    def enter(self, label, mask):
        """Keep that lanes run a basic block."""
        self._keep("enter", mask, label)

    def access(self, view, address, mask, site, op, nbytes, contiguous, aligned):
        """Keep an access; ``address`` is that of each thread's element, in bytes."""
        size = view.items.dtype.itemsize
        space = "global" if view.space == "const" else view.space
        shape = view.shape if contiguous and isinstance(view.base, int) else ()
        origin = view.address + (view.base * size if isinstance(view.base, int) else 0)
        self._keep(
            "access", mask, site, _first_row(address), op, nbytes, aligned, (view.name, space, size, origin, shape)
        )

    def barrier(self, mask, site, kind):
        """Keep that lanes arrive at a barrier."""
        self._keep("barrier", mask, site, kind)

    def close(self, complete):
        """Keep nothing more; ``complete``: the block has come to its end."""
        if self.open:
            self.open, self.complete = False, complete

    def _keep(self, kind, mask, *event):
        if len(self.events) == MAX_EVENTS:
            self.close(complete=False)
            return
        row = None if mask is None else _first_row(mask)
        if row is None or row.any():
            self.events.append((kind, row, *event))


def _first_row(value):
    """The values of the followed threads of the first block, copied out of the batch's."""
    return value[0, : MAX_WARPS * WARP].copy() if isinstance(value, np.ndarray) and value.ndim == 2 else value


class Steps:
    """The steps of one block, made from a `StepLog` when they are asked for, or read from a file.

    Parameters
    ----------
    log : StepLog, optional
    data : dict, optional
        As the attribute.
    """

    def __init__(self, log: StepLog | None = None, data: dict | None = None):
        self._log = log
        if data is not None:
            self.data = data

    def __deepcopy__(self, memo):
        return self

    def __eq__(self, other):
        return self.data == other.data if isinstance(other, Steps) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @functools.cached_property
    def data(self) -> dict[str, Any]:
        """dict : plain data, ready for JSON.

        block: ``blockIdx``. threads: how many are followed. complete: False if the end is missing. files: names.
        arrays: [name, space, item size, address of the first element, shape or []].
        steps: [file, line, masks of the active lanes by warp, barrier or "", accesses]. An access is [array, operation,
        bytes per lane, one entry for each warp]: 0, or [mask, cost, least cost, addresses]. Costs are wavefronts or
        sectors. Addresses are [first, step] of the lanes, or one for each lane.
        """
        assert self._log is not None
        made, self._log = _Making(self._log).data, None
        return made


class _Making:
    def __init__(self, log):
        self.log = log
        self.program = log.launch.program
        self.warps = ceil_div(log.threads, WARP)
        self.files, self.arrays, self.steps = {}, {}, []
        #: The lines of the basic block that runs and are still to come.
        self.coming, self.masks = [], []
        for event in log.events:
            getattr(self, f"_{event[0]}")(*event[1:])
        self._flush()
        arrays = [[name, space, size, int(origin), list(shape)] for name, space, size, origin, shape in self.arrays]
        self.data = {
            "block": [int(i) for i in log.block],
            "threads": log.threads,
            "complete": log.complete,
            "files": list(self.files),
            "arrays": arrays,
            "steps": self.steps,
        }

    def _enter(self, row, label):
        self._flush()
        self.coming, self.masks = list(self.program.lines[label]), self._bits(row)

    def _access(self, row, site, address, op, nbytes, aligned, array):
        place = self.program.sites[site]
        self._advance(place.filename, place.line, row)
        active = self._active(row)
        addresses = np.broadcast_to(address, (self.log.threads,))
        rows = np.zeros((self.warps, WARP), np.int64)
        rows.reshape(-1)[: self.log.threads] = addresses
        space = array[1]
        counts = counting.count_warps(space, rows, active, op, nbytes, aligned)
        cost, ideal = counts[:2] if space == "shared" else counts[3:5]
        masks = self._bits(row)
        by_warp = [
            [masks[w], int(cost[w]), int(ideal[w]), _compact(rows[w], active[w])] if masks[w] else 0
            for w in range(self.warps)
        ]
        number = self.arrays.setdefault(array, len(self.arrays))
        self.steps[-1][4].append([number, "atomic" if op == "cas" else op, nbytes, by_warp])

    def _barrier(self, row, site, kind):
        place = self.program.sites[site]
        self._advance(place.filename, place.line, row)
        self.steps[-1][3] = kind

    def _advance(self, filename, line, row):
        """Go on to the next step at a line; add one if the basic block has none."""
        if (filename, line) in self.coming:
            while self._next() != (filename, line):
                pass
        elif not self.steps or self.steps[-1][:2] != [self.files.get(filename), line]:
            self._add(filename, line, self._bits(row))

    def _next(self):
        filename, line = self.coming.pop(0)
        self._add(filename, line, self.masks)
        return filename, line

    def _flush(self):
        while self.coming:
            self._next()

    def _add(self, filename, line, masks):
        number = self.files.setdefault(filename, len(self.files))
        step = [number, line, masks, "", []]
        # A line may begin in one basic block and end in the next.
        if not self.steps or self.steps[-1] != step:
            self.steps.append(step)

    def _active(self, row):
        active = np.zeros(self.warps * WARP, bool)
        active[: self.log.threads] = True if row is None else np.broadcast_to(row[: self.log.threads], self.log.threads)
        return active.reshape(-1, WARP)

    def _bits(self, row):
        return (self._active(row) * _LANE_BITS).sum(axis=1).tolist()


def _compact(addresses, active):
    """[first, step] if the active lanes' addresses are those of an arithmetic progression, else 32 addresses."""
    lanes = np.flatnonzero(active)
    first = lanes[0]
    step = int(addresses[lanes[1]] - addresses[first]) // int(lanes[1] - first) if lanes.size > 1 else 0
    start = int(addresses[first]) - step * int(first)
    if (addresses[lanes] == start + step * lanes).all():
        return [start, step]
    return np.where(active, addresses, 0).tolist()
