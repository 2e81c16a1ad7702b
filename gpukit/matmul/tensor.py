"""The launches of a product on tensor cores: operands as these can read them, one product, and the sum of its parts."""

import itertools
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from gpukit import intrinsics
from gpukit._host.arrays import address_of, configure_quietly, device_array_of, dtype_of
from gpukit._numba import dtype_of_type
from gpukit.backend import cuda
from gpukit.errors import LaunchError
from gpukit.matmul.align import (
    CHUNK,
    COPY_THREADS,
    HIGH_A,
    HIGH_B,
    LANES,
    MAX_CHUNKS,
    PLAIN,
    ROWS,
    align,
    align_grid,
    align_rows,
    chunks_across,
    make_chunks,
    turn_bytes,
    turn_grid,
)
from gpukit.matmul.cost import MAX_FEW, MAX_JOINED, TENSOR_SPEEDS, Access, choose_tensor, high_pays, tensor_time
from gpukit.matmul.fast import SUM_THREADS, choose_sum
from gpukit.matmul.formats import FORMATS, Format
from gpukit.matmul.loaded import LOADS, LoadedTile, loaded
from gpukit.matmul.maps import movable_map
from gpukit.matmul.operands import Flat, Operand
from gpukit.matmul.raster import ALL, make_order
from gpukit.matmul.rows import FOUR
from gpukit.matmul.shallow import ACROSS, WIDTHS, ShallowTile, shallow
from gpukit.matmul.sliced import SlicedTile, sliced
from gpukit.matmul.small import SmallTile, small
from gpukit.matmul.warpgroups import GroupTile, boxes, is_turned, warpgroups
from gpukit.matmul.warps import WarpTile, warps
from warpstep.integers import ceil_div
from warpstep.limits import LINE, MAX_GRID_YZ

__all__ = ["Rows", "array_of", "both_rows", "reads_grouped", "takes_high", "tensor_launches", "whole_chunks"]

#: Bytes that rows must begin at multiples of. Those of a copy are whole lines, so that a row of a tile is one.
UNIT = 16
#: Bytes of the elements that `align_rows` copies.
ITEM = 2


class Rows(NamedTuple):
    """An operand as rows in memory.

    Attributes
    ----------
    flat : array of one dimension
    along : bool
        Whether the rows lie along K.
    matrices, rows, columns : int
        Different matrices, and their extents in memory.
    pitch, step : int
        Elements from row to row, and from matrix to matrix.
    rule : (int, int)
    inner, outer_step : int
        As of `Operand`.
    """

    flat: Any
    along: bool
    matrices: int
    rows: int
    columns: int
    pitch: int
    step: int
    rule: tuple
    inner: int = 0
    outer_step: int = 0

    @property
    def matrix_step(self) -> int:
        """Elements from matrix to matrix, also for a single one."""
        return self.step if self.matrices > 1 else self.rows * self.pitch

    @property
    def copied_bytes(self) -> int:
        """Half of the bytes that a copy to whole lines reads and writes."""
        row = self.columns * dtype_of(self.flat).itemsize
        return self.matrices * self.rows * (row + ceil_div(row, LINE) * LINE) // 2

    def lines(self) -> float:
        """How many cache lines as many bytes of a row lie in, on average."""
        item = dtype_of(self.flat).itemsize
        step = gcd(self.pitch * item, self.matrix_step * item, self.outer_step * item, LINE)
        return 2.0 - step / LINE if address_of(self.flat) % step == 0 else 2.0

    def width(self, most: int, widths: tuple = WIDTHS) -> int:
        """The most elements of a row, up to so many, that one access loads wherever they lie."""
        fits = (n for n in widths if n <= most and self.begins_aligned(ITEM * n) and self.ends_aligned(ITEM * n))
        return next(fits, 1)

    def begins_aligned(self, unit: int = UNIT) -> bool:
        """Whether all rows begin at multiples of so many bytes."""
        item = dtype_of(self.flat).itemsize
        return all(n % unit == 0 for n in self._places(item))

    def _places(self, item):
        steps = self.pitch, self.matrix_step, self.outer_step
        return address_of(self.flat), *(step * item for step in steps)

    def ends_aligned(self, unit: int = UNIT) -> bool:
        """Whether all rows end at multiples of so many bytes too."""
        return self.columns * dtype_of(self.flat).itemsize % unit == 0


def tensor_launches(flat: Flat, m: int, n: int, name: str, work):
    """The launches of out = alpha a b + beta out in a format, or in "high": float32 in three products of TF32."""
    ways, name = ((HIGH_A, HIGH_B), "tf32") if name == "high" else ((PLAIN, PLAIN), name)
    form, batch = FORMATS[name], flat.batch
    total = dtype_of_type(form.total)
    factors = total.type(flat.alpha), total.type(flat.beta)
    if flat.k == 0:
        parts = work.take("parts", 1, total)
        yield from _sum_launches(parts, flat, m, n, 0, form, factors, work.stream)
        return
    has_groups = _check_capability()
    found = both_rows(flat, m, n)
    kind, copied = _choose_kind(found, form, ways, (m, n, flat.k, batch), has_groups)
    copy = _copy_rows if _have_chunks(found, copied, form, ways) else _copy_each
    copies, operands = copy(found, copied, form, ways, work) if copied else ([], found)
    yield from copies
    k = operands[0].columns if operands[0].along else operands[0].rows
    multiprocessors = cuda.get_current_device().MULTIPROCESSOR_COUNT
    tile, parts = choose_tensor(m, n, k * form.itemsize, batch, multiprocessors, kind, _access_to(operands))
    launches, summed = _group_launches, parts
    if isinstance(tile, LoadedTile):
        launches = _loaded_launches
    elif isinstance(tile, SmallTile):
        # The last block of a tile adds up a few parts; many are for a launch of their own.
        launches, summed = _small_launches, parts if parts > MAX_JOINED else 1
    elif isinstance(tile, ShallowTile):
        launches = _shallow_launches
    elif isinstance(tile, SlicedTile):
        launches, summed = _sliced_launches, 1
    elif isinstance(tile, WarpTile):
        launches = _warp_launches
    turns = isinstance(tile, GroupTile) and is_turned(name, _layout_of(operands))
    # Short elements are stored by four where they are not scaled.
    unit = FOUR * ITEM if dtype_of(flat.out).itemsize == ITEM else 1
    scales = flat.alpha != 1 or flat.beta != 0 or address_of(flat.out) % unit > 0
    target, wide, is_total = flat.out, flat.wide_out, False
    if summed > 1 or turns and scales:
        scales, is_total = False, True
        target, wide = work.take("parts", batch * summed * m * n, total), n * total.itemsize % UNIT == 0
    wide = wide and not (isinstance(tile, SlicedTile) or isinstance(tile, GroupTile) and tile.swapped)
    words = target.view(np.uint32) if wide and not scales else target
    yield from launches(tile, name, (m, n, k, parts, batch), operands, words, (is_total, wide, scales), factors, work)
    if target is not flat.out:
        yield from _sum_launches(target, flat, m, n, summed, form, factors, work.stream)


def both_rows(flat: Flat, m: int, n: int) -> list[Rows]:
    return [
        _rows(operand, rows, flat.k, operand.layout == along)
        for operand, rows, along in zip((flat.a, flat.b), (m, n), "NT", strict=True)
    ]


def reads_grouped(flat: Flat, m: int, n: int, name: str) -> bool:
    """Whether operands of which one is grouped are multiplied as they lie."""
    form, has_groups, found = FORMATS[name], _check_capability(), both_rows(flat, m, n)
    kind, copied = _choose_kind(found, form, (PLAIN, PLAIN), (m, n, flat.k, flat.batch), has_groups)
    if kind in ("small", "loaded"):
        return True
    fits = [rows.outer_step % rows.pitch == 0 if rows.along else rows.inner * rows.step <= rows.pitch for rows in found]
    return kind in ("groups", "few") and all(
        not rows.inner or which not in copied and fits[which] for which, rows in enumerate(found)
    )


def takes_high(flat: Flat, m: int, n: int) -> bool:
    """Whether "high" computes this product by three of TF32."""
    kind = "groups" if _check_capability() else _warps_kind()
    counts, multiprocessors = (flat.a.rule[1], flat.b.rule[1]), cuda.get_current_device().MULTIPROCESSOR_COUNT
    return flat.k > 0 and high_pays(m, n, flat.k, flat.batch, counts, multiprocessors, kind)


def _check_capability():
    """Whether groups of warps can multiply; LaunchError if single warps cannot either."""
    found = tuple(cuda.get_current_device().compute_capability)
    if found < (8, 0):
        raise LaunchError(
            "products of float16, bfloat16, int8 and TF32 need compute capability 8.0 or more; "
            "the device has {}.{}".format(*found)
        )
    return found[0] == 9  # wgmma is an instruction of 9.0 alone


def _warps_kind():
    """The tiles of single warps that the device has the shared memory for, by their key in ``TENSOR_SPEEDS``."""
    needed = max(speed.tile.shared_bytes for speed in TENSOR_SPEEDS["warps"])
    return "warps" if needed <= cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN else "short warps"


# -- operands --------------------------------------------------------------------------------------


def _rows(operand: Operand, extent: int, k: int, along: bool) -> Rows:
    rows, columns = (extent, k) if along else (k, extent)
    return Rows(operand.flat, along, operand.rule[1], rows, columns, *operand[2:5], *operand[6:])


def _choose_kind(found: list[Rows], form: Format, ways: tuple, sizes: tuple, has_groups: bool) -> tuple[str, list[int]]:
    """What multiplies, a key of ``TENSOR_SPEEDS``, and which operands are copied for it."""
    stays = _across_at_best(found, form, ways, has_groups)
    copied = [
        which
        for which, (rows, way) in enumerate(zip(found, ways, strict=True))
        if which != stays and _must_copy(rows, form, way, has_groups)
    ]
    kind = ("across a", "across b")[stays] if stays is not None else "groups" if has_groups else _warps_kind()
    m, n, k, batch = sizes
    plain = ways == (PLAIN, PLAIN) and form.turns
    ways_to_go = [(kind, copied)]
    if kind == "groups":  # rows that begin at lines are read faster
        rest = [which for which in (0, 1) if which not in copied and found[which].lines() > 1]
        ways_to_go += [(kind, [*copied, *more]) for n_more in (1, 2) for more in itertools.combinations(rest, n_more)]
    if kind == "groups" and m <= MAX_FEW and (found[0].along or not form.turns):
        ways_to_go += [("few", copied) for _, copied in ways_to_go]
    if plain:
        ways_to_go.append(("small", []))
    if plain and has_groups and copied:
        ways_to_go.append(("loaded", []))
    shape = m, n, k * form.itemsize, batch, cuda.get_current_device().MULTIPROCESSOR_COUNT

    def predicted(way):
        kind, copied = way
        access = _access_to(found, copied)
        by_rows = _have_chunks(found, copied, form, ways)
        return tensor_time(*shape, kind, tuple(found[which].copied_bytes for which in copied), by_rows, access)

    return min(ways_to_go, key=predicted)


def _access_to(operands: list[Rows], copied: tuple | list = ()) -> Access:
    """How operands are read where some are copied first."""
    lines_a, lines_b = (1.0 if which in copied else rows.lines() for which, rows in enumerate(operands))
    width_a, width_b = (rows.width(WIDTHS[0] if rows.along else ACROSS) for rows in operands)
    loads_a, loads_b = (rows.width(LOADS[0], LOADS) for rows in operands)
    return Access((lines_a, lines_b), (width_a, width_b), (loads_a, loads_b))


def _across_at_best(found: list[Rows], form: Format, ways: tuple, has_groups: bool) -> int | None:
    """The operand of float32 that may lie across K for the kernel of `warpgroups`, 0 or 1; None without one."""
    if form != FORMATS["tf32"] or ways != (PLAIN, PLAIN) or not has_groups:
        return None
    return next((which for which in (1, 0) if not found[which].along and found[which].begins_aligned()), None)


def _must_copy(rows: Rows, form: Format, way, has_groups):
    if way != PLAIN or not (rows.along or form.turns) or not rows.begins_aligned():
        return True
    # Tensor copies end anywhere; those of 16 bytes do not.
    return not has_groups and not rows.ends_aligned()


def _have_chunks(found: list[Rows], copied: list[int], form: Format, ways) -> bool:
    """Whether `align_rows` copies these operands: as they lie, by 2 bytes, and it can number their chunks."""
    return all(
        ways[which] == PLAIN
        and (rows.along or form.turns)
        and rows.begins_aligned(ITEM)
        and rows.ends_aligned(ITEM)
        and rows.matrices * rows.rows * chunks_across(rows.columns * form.itemsize // ITEM) <= MAX_CHUNKS
        for which, rows in enumerate(found)
        if which in copied
    )


def _copy_rows(found: list[Rows], copied: list[int], form: Format, ways, work):
    """The launch that copies operands by 2 bytes, as a list, and what to multiply."""
    operands, arguments, blocks, item = list(found), [], [], form.itemsize
    for which in copied:
        rows = found[which]
        odd = address_of(rows.flat) // ITEM % 2
        used, pitch, step = (n * item // ITEM for n in (rows.columns, rows.pitch, rows.step))
        chunks = make_chunks(rows.matrices, rows.rows, used, odd, pitch, step)
        pitch = int(chunks.across.value) * CHUNK * ITEM // item
        copy = work.take(f"operand {which}", rows.matrices * rows.rows * pitch, dtype_of_type(form.element))
        operands[which] = rows._replace(flat=copy, pitch=pitch, step=rows.rows * pitch)
        arguments += rows.flat.view(np.uint16), copy.view(np.uint32), chunks
        blocks.append(chunks.blocks)
    if len(copied) == 1:  # the second operand has no blocks
        arguments *= 2
    launch = configure_quietly(align_rows, sum(blocks), COPY_THREADS, work.stream)
    return [(launch, (*arguments, np.uint32(blocks[0])))], operands


def _copy_each(found: list[Rows], copied: list[int], form: Format, ways, work):
    """The launches that copy operands, one each, and what to multiply."""
    copies = {which: _copy(found[which], form, ways[which], f"operand {which}", work) for which in copied}
    operands = [copies[which][1] if which in copies else rows for which, rows in enumerate(found)]
    return [launch for launch, _ in copies.values()], operands


def _copy(rows: Rows, form: Format, way, purpose, work):
    """The launch that copies an operand, and the copy."""
    along = rows.along or not form.turns
    turned = along != rows.along
    down, used = (rows.columns, rows.rows) if turned else (rows.rows, rows.columns)
    across = ceil_div(used * form.itemsize, LINE) * LINE // form.itemsize
    pitch, dtype = across * len(way), dtype_of_type(form.element)
    copy = work.take(purpose, rows.matrices * down * pitch, dtype)
    if form.itemsize == 1 and turned and rows.begins_aligned(4) and rows.ends_aligned(4):
        kernel, blocks = turn_bytes, turn_grid(rows.matrices, down, across)
        source, target = rows.flat.view(np.uint32), copy.view(np.uint32)
    else:
        kernel, blocks = align(form.element, turned, way), align_grid(rows.matrices, down, across, form.itemsize)
        source, target = rows.flat, copy
    launch = configure_quietly(kernel, blocks, (LANES, ROWS), work.stream)
    sizes = tuple(np.uint32(size) for size in (rows.matrices, down, across, used))
    arguments = source, target, sizes, np.uint64(rows.pitch), np.uint64(rows.step)
    columns = pitch if len(way) > 1 else used
    return (launch, arguments), Rows(copy, along, rows.matrices, down, columns, pitch, down * pitch, rows.rule)


# -- products --------------------------------------------------------------------------------------


def _group_launches(tile, name, sizes, operands, out, stores, factors, work):
    """One launch, whose blocks stay on their multiprocessors."""
    m, n, k, parts, batch = sizes
    if tile.swapped:
        operands, m, n = operands[::-1], n, m
    layout = _layout_of(operands)
    kernel, found_boxes = warpgroups(tile, name, layout, *stores), boxes(tile, name, layout)
    maps = [movable_map(array_of(rows), box, work) for rows, box in zip(operands, found_boxes, strict=True)]
    inner = tuple(rows.inner or (ALL if rows.along else 1) for rows in operands)
    asides = tuple(
        np.uint32((rows.outer_step // rows.pitch if rows.along else rows.step) if rows.inner else 0)
        for rows in operands
    )
    launch, order, partials = _stay(kernel, tile, name, (m, n, k, parts, batch), operands, inner, work)
    out = out.view(np.float32) if is_turned(name, layout) else out
    yield launch, (*maps, out, (np.uint32(m), np.uint32(n)), order, asides, factors, partials)


def _loaded_launches(tile, name, sizes, operands, out, stores, factors, work):
    """The same for operands that threads copy."""
    m, n, k, parts, batch = sizes
    if tile.swapped:
        operands, m, n = operands[::-1], n, m
    widths = tuple(rows.width(LOADS[0], LOADS) for rows in operands)
    kernel = loaded(tile, name, _layout_of(operands), *stores, widths)
    bits = [rows.flat.view(np.uint16) for rows in operands]
    heads, words = zip(*(whole_chunks(x, 4) for x in bits), strict=True)
    inner = tuple(rows.inner or ALL for rows in operands)
    launch, order, partials = _stay(kernel, tile, name, (m, n, k, parts, batch), operands, inner, work)
    a, b = operands
    sizes = tuple(np.uint32(size) for size in (m, n, k, a.pitch, b.pitch, *heads))
    matrix_steps = tuple(map(np.uint64, (a.step, b.step, a.outer_step, b.outer_step)))
    yield launch, (*bits, *words, out, sizes, order, matrix_steps, factors, partials)


def _stay(kernel, tile, name, sizes, operands, inner, work):
    """Configure a launch whose blocks stay on their multiprocessors: (launch, order of tiles, sums of slices)."""
    m, n, k, parts, batch = sizes
    intrinsics.allow_dynamic_shared(kernel, tile.shared_bytes)
    of_cluster = tile.cluster * tile.slices
    if of_cluster > 1:
        intrinsics.set_cluster_size(kernel, of_cluster)
    down, across, steps = tile.down(m), ceil_div(n, tile.columns), ceil_div(k, FORMATS[name].depth)
    order = make_order(down, across, steps, parts, batch, tuple(rows.rule for rows in operands), inner)
    blocks, held = int(order.tiles) * tile.slices, 0
    if tile.slices == 1:
        clusters = max(cuda.get_current_device().MULTIPROCESSOR_COUNT * tile.resident // of_cluster, 1)
        blocks = min(blocks, clusters * of_cluster)
    else:
        held = blocks * tile.rows * tile.columns
    launch = configure_quietly(kernel, blocks, tile.threads, work.stream, tile.shared_bytes)
    return launch, order, work.take("partials", held, dtype_of_type(FORMATS[name].total))


def _layout_of(operands):
    return ("N" if operands[0].along else "T") + ("T" if operands[1].along else "N")


def array_of(rows: Rows):
    """The matrices of an operand as an array of three axes. If they are grouped, the groups are below one another, or
    if they lie across K the matrices of one beside each other: K ends where it does in memory.
    """
    item, count = dtype_of(rows.flat).itemsize, rows.matrices // (rows.inner or rows.matrices)
    shape, step = (rows.matrices, rows.rows, rows.columns), rows.matrix_step
    if rows.inner and rows.along:
        shape = rows.inner, rows.rows + (count - 1) * rows.outer_step // rows.pitch, rows.columns
    elif rows.inner:
        shape, step = (count, rows.rows, (rows.inner - 1) * rows.step + rows.columns), rows.outer_step
    return device_array_of(shape, (step * item, rows.pitch * item, item), dtype_of(rows.flat), rows.flat)


def _small_launches(tile, name, sizes, operands, out, stores, factors, work):
    kernel = small(tile, name, _layout_of(operands), *stores)
    bits = [rows.flat.view(np.uint16) for rows in operands]
    heads, words = zip(*map(whole_chunks, bits), strict=True)
    arrays, joined = (*bits, *words), 1 if stores[0] else sizes[3]
    return _tile_launches(kernel, tile, name, sizes, operands, arrays, heads, out, factors, work, joined)


def _shallow_launches(tile, name, sizes, operands, out, stores, factors, work):
    widths, words = _words(tile, operands)
    kernel = shallow(tile, name, _layout_of(operands), *stores, widths)
    return _tile_launches(kernel, tile, name, sizes, operands, words, (), out, factors, work)


def _sliced_launches(tile, name, sizes, operands, out, stores, factors, work):
    widths, words = _words(tile, operands)
    kernel = sliced(tile, name, _layout_of(operands), stores[2], widths)
    return _tile_launches(kernel, tile, name, sizes, operands, words, (), out, factors, work, joined=sizes[3])


def _words(tile, operands):
    """How many elements of each operand a lane loads at a time, and the arrays for that."""
    widths = [rows.width(tile.width(rows.along, extent)) for rows, extent in zip(operands, tile[:2], strict=True)]
    words = [rows.flat.view(np.uint16 if n == 1 else np.uint32) for rows, n in zip(operands, widths, strict=True)]
    return tuple(widths), words


def _tile_launches(kernel, tile, name, sizes, operands, arrays, heads, out, factors, work, joined=0):
    """Make one launch, with a block for each tile and part of K. Blocks of some kernels add up so many parts."""
    m, n, k, parts, batch = sizes
    a, b = operands
    form = FORMATS[name]
    down, across, steps = ceil_div(m, tile.rows), ceil_div(n, tile.columns), ceil_div(k * form.itemsize, tile.depth)
    inner = a.inner or ALL, b.inner or ALL
    order, more = make_order(down, across, steps, parts, batch, (a.rule, b.rule), inner), ()
    if joined:
        held = int(order.tiles) * tile.rows * tile.columns if joined > 1 else 1
        more = (
            work.take("partials", held, dtype_of_type(form.total)),
            work.zeros(down * across * batch if joined > 1 else 1),
        )
    intrinsics.allow_dynamic_shared(kernel, tile.shared_bytes)
    blocks = tile.blocks(int(order.tiles)) if isinstance(tile, ShallowTile) else int(order.tiles)
    launch = configure_quietly(kernel, blocks, tile.threads, work.stream, tile.shared_bytes)
    sizes = tuple(np.uint32(size) for size in (m, n, k, a.pitch, b.pitch, *heads))
    matrix_steps = tuple(map(np.uint64, (a.step, b.step, a.outer_step, b.outer_step)))
    yield launch, (*arrays, out, sizes, order, matrix_steps, factors, *more)


def whole_chunks(bits: Any, unit: int = UNIT) -> tuple[int, Any]:
    """Count the elements before the first multiple of 16 bytes, and view the chunks of so many after them as words."""
    item = dtype_of(bits).itemsize
    head = min(-address_of(bits) % unit // item, bits.size)
    words = (bits.size - head) * item // unit * (unit // 4)
    return head, device_array_of((words,), (4,), np.uint32, bits, head * item)


def _warp_launches(tile, name, sizes, operands, out, stores, factors, work):
    """Make one launch, or one for as many matrices as a grid has blocks along z."""
    m, n, k, parts, batch = sizes
    a, b = operands
    kernel = warps(tile, name, _layout_of(operands), *stores)
    arrays = [rows.flat.view(np.uint16) if FORMATS[name].itemsize == 2 else rows.flat for rows in operands]
    intrinsics.allow_dynamic_shared(kernel, tile.shared_bytes)
    tiles = ceil_div(m, tile.rows) * ceil_div(n, tile.columns)
    sizes = tuple(np.uint32(size) for size in (m, n, k, a.pitch, b.pitch))
    for z in range(0, batch, MAX_GRID_YZ):
        blocks = tiles, parts, min(batch - z, MAX_GRID_YZ)
        launch = configure_quietly(kernel, blocks, tile.threads, work.stream, tile.shared_bytes)
        which = tuple(np.uint32(x) for x in (z, *a.rule, *b.rule))
        yield launch, (*arrays, out, sizes, which, (np.uint64(a.step), np.uint64(b.step)), factors)


def _sum_launches(parts, flat, m, n, count, form, factors, stream):
    """Add up the parts of K."""
    kernel, across = choose_sum(count, (flat.batch, m, n), 4, flat.beta != 0, form.total, form.result)
    sizes = tuple(np.uint32(size) for size in (count, m, n, flat.pitch_out))
    for z in range(0, flat.batch, MAX_GRID_YZ):
        blocks = across, min(flat.batch - z, MAX_GRID_YZ)
        launch = configure_quietly(kernel, blocks, SUM_THREADS, stream)
        yield launch, (parts[z * count * m * n :], flat.out[z * m * flat.pitch_out :], *sizes, *factors)
