"""How often a traced launch reads and writes each element of its arrays, and which block writes it."""

import numpy as np

#: Cells that a map has at most; a cell of a larger array holds several elements.
MAX_CELLS = 1 << 15


class HeatMap:
    """Reads and writes of one allocation, or of one shared array in all blocks.

    Attributes
    ----------
    unit : int
        Bytes of a cell, a power of two.
    reads, writes : (n,) int64 ndarray
        Accesses that begin in each cell.
    writer : (n,) int64 ndarray
        The block that wrote the cell last, by its position in the grid; -1 for none.
    thread : (n,) int64 ndarray
        The thread of that block, x fastest.
    """

    def __init__(self, nbytes, dtype, shape=()):
        self.nbytes, self.dtype, self.shape = nbytes, dtype, shape
        self.shift = max(dtype.itemsize.bit_length() - 1, 0)
        while nbytes >> self.shift > MAX_CELLS:
            self.shift += 1
        cells = (nbytes >> self.shift) + 1
        self.unit = 1 << self.shift
        self.reads, self.writes = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
        self.writer, self.thread = np.full(cells, -1, np.int64), np.full(cells, -1, np.int64)

    def of(self, cells):
        """Reads, writes, writer and its thread of some cells."""
        return self.reads[cells], self.writes[cells], self.writer[cells], self.thread[cells]

    def add(self, offset, mask, op, shape, ids):
        """Add an access: byte offsets (broadcast to (B, T)) of the lanes of a mask, in blocks ``ids``."""
        offset = np.asarray(offset)
        same = (offset.ndim < 2 or offset.shape[0] == 1) and (mask is None or mask.shape[0] == 1)
        shape = (1, shape[1]) if same else shape
        cells = offset >> np.int64(self.shift)
        if mask is not None:
            mask = np.broadcast_to(mask, shape)
        cells = np.broadcast_to(cells, shape)
        chosen = cells.reshape(-1) if mask is None else cells[mask]
        times = ids.size if same else 1
        if op != "store":
            np.add.at(self.reads, chosen, times)
        if op == "load":
            return
        np.add.at(self.writes, chosen, times)
        if same:
            self.writer[chosen] = ids[-1]
        else:
            blocks = np.broadcast_to(ids[:, None], shape)
            self.writer[chosen] = blocks.reshape(-1) if mask is None else blocks[mask]
        threads = np.broadcast_to(np.arange(shape[1]), shape)
        self.thread[chosen] = threads.reshape(-1) if mask is None else threads[mask]
