"""Tiles in shared memory: matrices that a warp loads from them, and products that four warps make of them.

A product is finished when its warps wait for it, and no sooner: until then its accumulators hold NaN, or numbers that
mean nothing.
"""

import numpy as np

from warpstep.integers import ceil_div
from warpstep.limits import GROUP, WARP
from warpstep.machine import tensor
from warpstep.machine.arithmetic import to_bfloat16
from warpstep.machine.barriers import swizzle

#: The rows of a product.
ROWS = 64
#: Bytes that ldmatrix loads of a row, and those of rows that `wgmma` reads.
MATRIX_ROW, TILE_ROWS = 16, (16, 32, 64, 128)
#: Bits of a word that stands for an accumulator in flight: a NaN, the number of the product, that of the accumulator.
NAN, PRODUCT_AT, PRODUCTS = 0x7FC00000, 7, 1 << 15


class Product:
    """A product of some groups of four warps that has begun.

    Attributes
    ----------
    rows, groups : (n,) int64 ndarray
        The blocks and the groups in them.
    sums : (n, 64, N) ndarray
    number : (n,) int64 ndarray
        Of the commit group of each.
    """

    def __init__(self, rows, groups, sums, number):
        self.rows, self.groups, self.sums, self.number = rows, groups, sums, number


class Tiles:
    """What the warps of a batch do with tiles."""

    def __init__(self, memory):
        self.memory = memory
        self.batch = memory.batch
        self.count = ceil_div(self.batch.threads, GROUP)
        #: The products in flight, by the number that stands for them.
        self.products = {}
        self._next = 0
        #: Of each group of four warps: the products that it has committed, in groups.
        self.committed = np.zeros((self.batch.blocks, self.count), np.int64)

    # -- matrices of a warp --------------------------------------------------------------------------------------------

    def load_matrices(self, view, index, count, trans, mask, site):
        """``ldmatrix``: the words of each lane, of ``count`` matrices whose rows the lanes give."""
        batch, size = self.batch, view.dtype.itemsize
        batch.check_warps(mask, "ldmatrix", site)
        givers = np.arange(batch.threads) % WARP < 8 * count
        lanes = np.broadcast_to(givers if mask is None else mask & givers, batch.shape)
        position, _ = self.memory.reach(view, index, lanes, site, "load", MATRIX_ROW // size)
        parts = [self.memory.fetch(view, position + np.int64(k)) for k in range(MATRIX_ROW // size)]
        rows = np.stack([batch.by_warp(part, view.dtype.type(0)) for part in parts], axis=-1)
        words = []
        for i in range(count):
            matrix = np.ascontiguousarray(rows[:, :, 8 * i : 8 * i + 8])
            if trans:
                matrix = np.ascontiguousarray(matrix.view(np.uint16).swapaxes(2, 3))
            words.append(batch.from_warps(matrix.view(np.uint32).reshape(*matrix.shape[:2], WARP)))
        return tuple(np.ascontiguousarray(word) for word in words)

    def store_fragment(self, view, corner, values, guard, mask, site):
        """Store the sums that lanes hold, two neighbours at a time."""
        kind = view.dtype
        values = [to_bfloat16(v) if kind == np.uint16 else v.astype(kind) for v in values]
        lane = np.arange(self.batch.threads)[None, :] % WARP
        row, column = (np.asarray(part).astype(np.int64) for part in corner)
        row, column = row + lane // 4, column + 2 * (lane % 4)
        for i in range(0, len(values), 2):
            here, at = row + 8 * (i // 2 % 2), column + 8 * (i // 4)
            if not guard:
                self.memory.store_wide(view, (here, at), values[i : i + 2], mask, site)
                continue
            for k in range(2):
                lanes = (here < view.shape[0]) & (at + k < view.shape[1])
                lanes = np.broadcast_to(lanes if mask is None else lanes & mask, self.batch.shape)
                if lanes.any():
                    self.memory.store(view, (here, at + k), values[i + k], lanes, site)

    # -- products of four warps ----------------------------------------------------------------------------------------

    def multiply(self, sums, a, a_index, b, b_index, trans_a, trans_b, add, mask, site):
        """Begin a product; returns words that stand for the accumulators."""
        rows, groups = self._groups(mask, "wgmma", site)
        if not rows.size:
            return sums
        size = b.dtype.itemsize
        columns, depth = 2 * len(sums), 32 // size
        right = self.tile(b, b_index, rows, groups, columns, depth, trans_b, site, split=False)
        if isinstance(a, tuple):
            left = self._in_registers(a, rows, groups, depth)
        else:
            left = self.tile(a, a_index, rows, groups, ROWS, depth, trans_a, site, split=True)
        kind = np.dtype(np.int32 if size == 1 else np.float32)
        before = self.before(sums, rows, groups, kind, site)
        if add is not None:
            keep = np.broadcast_to(add, self.batch.shape)[rows, GROUP * groups]
            before = np.where(keep[:, None, None], before, kind.type(0))
        total = tensor.add_products(left, right.swapaxes(1, 2), before)
        return self._begin(Product(rows, groups, total, self.committed[rows, groups]), len(sums), kind)

    def _begin(self, product, count, kind):
        number = self._next % PRODUCTS
        self._next += 1
        self.products[number] = product
        words = np.uint32(NAN) | np.uint32(number << PRODUCT_AT) | np.arange(count, dtype=np.uint32)
        return tuple(words.view(kind))

    def _groups(self, mask, what, site):
        """The blocks and the groups that run; fail where only a part of a group does."""
        lanes = np.broadcast_to(True if mask is None else mask, self.batch.shape)
        whole = np.zeros((self.batch.blocks, self.count * GROUP), bool)
        whole[:, : self.batch.threads] = lanes
        whole = whole.reshape(self.batch.blocks, self.count, GROUP)
        partial = whole.any(axis=2) & ~whole.all(axis=2)
        if partial.any():
            lanes = lanes & np.repeat(partial, GROUP, axis=1)[:, : self.batch.threads]
            message = f"{what} is reached by a part of the threads of a group of four warps"
            self.batch.fail("barrier-divergence", message, site, lanes, "All 128 threads must run it together.")
        return np.nonzero(whole.all(axis=2))

    def tile(self, view, index, rows, groups, count, depth, trans, site, split):
        """The numbers (n, count, depth) of an operand in shared memory; ``split``: each warp reads a quarter of it."""
        places = self._places(view, index, rows, groups, count, depth, trans, site)
        if places is None:
            return np.zeros((rows.size, count, depth))
        self.reading(view, places, rows, groups, split, site)
        return tensor.exact(view.items[places])

    def _places(self, view, index, rows, groups, count, depth, trans, site):
        """Where the elements of an operand lie, in the items of its array."""
        span, size = view.shape[-1], view.dtype.itemsize
        first = np.zeros(self.batch.shape, bool)
        first[rows, GROUP * groups] = True
        if view.space != "shared" or span * size not in TILE_ROWS:
            message = f"wgmma reads rows of 16, 32, 64 or 128 bytes in shared memory; those of {view.name!r} have "
            self.batch.fail("misaligned", message + f"{span * size:,}", site, first, "", view.name)
            return None
        number, k = np.arange(count)[:, None], np.arange(depth)[None, :]
        if trans:
            part, row, column = number // span, k, number % span
        elif span * size == 16:
            part, row, column = k // span, number, k % span
        else:
            part, row, column = 0 * k, number, k
        last = [int(np.max(n)) for n in (part, row, column)]
        axes = len(view.shape)
        if axes == 2 and last[0]:
            message = f"{count if trans else depth} elements do not fit into a row of {view.name!r}"
            cure = "Give the tile a third axis before, with the parts of the rows."
            self.batch.fail("out-of-bounds", message, site, first, cure, view.name)
            return None
        reached = [np.int64(0)] * (axes - 3) + [np.int64(n) for n in last[3 - min(axes, 3) :]]
        self.memory.locate(view, tuple(i + n for i, n in zip(index, reached, strict=True)), first, site)
        position, lanes = self.memory.locate(view, index, first, site)
        position = np.broadcast_to(position, self.batch.shape)
        at = np.broadcast_to(index[-1], self.batch.shape)
        odd = first & (((position - at) * size + view.address) % (8 * span * size) != 0)
        if odd.any():
            message = f"a tile of wgmma begins in {view.name!r} at an address that is no multiple of 8 rows"
            cure = "Give the array alignment=1024, and begin at a row that is a multiple of 8."
            self.batch.fail("misaligned", message, site, odd, cure, view.name)
        stride = view.strides[-3] if axes > 2 else 0
        start = position[rows, GROUP * groups][:, None, None]
        address = (start + part * stride + row * span + column) * size + view.address
        places = (swizzle(address, span * size) - view.address) // size
        block = np.broadcast_to(self.memory.block_row, self.batch.shape)[rows, 0]
        return np.minimum(places, view.row - 1) + (block * view.row)[:, None, None]

    def _in_registers(self, a, rows, groups, depth):
        """The numbers (n, 64, depth) of an operand that lanes hold."""
        elements, packed = tensor.unpack([self.batch.by_warp(value, value.dtype.type(0)) for value in a])
        fragment = tensor.fragments((len(elements), depth // 4, 4), packed)[0]
        matrices = fragment.gather(elements)
        warps = matrices.reshape(self.batch.blocks, -1, 4 * 16, depth)
        return warps[rows, groups]

    def before(self, sums, rows, groups, kind, site):
        """The accumulators (n, 64, N) of groups, those in flight too."""
        words = self._words(sums, kind)
        number = self._number(words, rows, groups)
        if (number == number[0]).all() and number[0] >= 0:
            product = self.products.get(int(number[0]))
            if product is not None and np.array_equal(product.rows, rows) and np.array_equal(product.groups, groups):
                del self.products[int(number[0])]
                return product.sums
        found = self._gather(words, rows, groups).view(kind)
        for each in np.unique(number[number >= 0]):
            product = self.products.get(int(each))
            if product is not None:
                at, own = self._common(product, rows, groups, number == each)
                found[at] = product.sums[own]
        return found

    def _words(self, sums, kind):
        """The bits of a tuple: (its length, B, T)."""
        parts = [np.broadcast_to(np.asarray(self.plain(value), kind), self.batch.shape) for value in sums]
        return np.ascontiguousarray(np.stack(parts)).view(np.uint32)

    def _number(self, words, rows, groups):
        """The number of the product that each group's accumulators stand for; -1 for numbers."""
        held = words[:, rows, GROUP * groups]
        number = (held[0].astype(np.int64) & 0x3FFFFF) >> PRODUCT_AT
        expected = NAN | number << PRODUCT_AT | np.arange(len(held))[:, None]
        return np.where((held == expected).all(axis=0) & np.isin(number, list(self.products)), number, -1)

    def _common(self, product, rows, groups, wanted):
        """Positions in (rows, groups), and in the product, of the groups that are in both."""
        places = {place: i for i, place in enumerate(zip(product.rows.tolist(), product.groups.tolist(), strict=True))}
        pairs = [
            (i, places[place])
            for i, place in enumerate(zip(rows.tolist(), groups.tolist(), strict=True))
            if wanted[i] and place in places
        ]
        return [list(part) for part in zip(*pairs, strict=True)] if pairs else [[], []]

    def _lanes(self):
        """Row and column of each accumulator: (threads of a group, accumulators) for as many as asked."""
        lane = np.arange(GROUP)
        return 16 * (lane // WARP) + lane % WARP // 4, 2 * (lane % 4)

    def _where(self, count):
        row, column = self._lanes()
        i = np.arange(count)[:, None]
        return row + 8 * (i // 2 % 2), column + 8 * (i // 4) + i % 2

    def _gather(self, words, rows, groups):
        """Words (R, B, T) as matrices (n, 64, 2 R)."""
        row, column = self._where(len(words))
        found = np.empty((rows.size, ROWS, 2 * len(words)), np.uint32)
        lanes = GROUP * groups[:, None] + np.arange(GROUP)
        found[:, row, column] = words[:, rows[:, None], lanes].swapaxes(0, 1)
        return found

    def commit(self, mask, site):
        rows, groups = self._groups(mask, "wgmma_commit", site)
        self.committed[rows, groups] += 1

    def wait(self, most, sums, mask, site):
        """Wait until groups of products are finished; returns the accumulators, numbers where they are."""
        rows, groups = self._groups(mask, "wgmma_wait", site)
        if not rows.size:
            return sums
        self.waited(rows, groups, self.committed[rows, groups] - most)
        kind = sums[0].dtype
        words = self._words(sums, kind)
        number = self._number(words, rows, groups)
        found = words.copy()
        for each in np.unique(number[number >= 0]):
            product = self.products[int(each)]
            at, own = self._common(product, rows, groups, number == each)
            done = product.number[own] < self.committed[rows[at], groups[at]] - most
            at, own = np.array(at, int)[done], np.array(own, int)[done]
            if at.size:
                row, column = self._where(len(sums))
                lanes = GROUP * groups[at][:, None] + np.arange(GROUP)
                values = np.ascontiguousarray(product.sums[own][:, row, column]).view(np.uint32)
                found[:, rows[at][:, None], lanes] = values.swapaxes(0, 1)
                if at.size == product.rows.size:
                    del self.products[int(each)]
        return tuple(self.finished(found.view(kind), sums, rows, groups, most))

    # -- hooks for traces ----------------------------------------------------------------------------------------------

    def plain(self, value):
        """A value without what a trace notes with it."""
        return value

    def reading(self, view, places, rows, groups, split, site):
        """Note that groups read a tile until they wait."""

    def waited(self, rows, groups, done):
        """Note that groups have waited for the products before the number ``done``."""

    def finished(self, words, sums, rows, groups, most):
        """The accumulators after a wait."""
        return list(words)

    def fence(self, mask, site):
        """Note a fence before products."""
