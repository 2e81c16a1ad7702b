"""Pictures of arrays: layouts, windows, the product of a convolution, reductions over an axis, swizzles, fragments."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from gpukit._host.checks import check_sizes
from gpukit.plot.style import COLUMN, box, drawn, sheet, tint, write
from warpstep.integers import ceil_div
from warpstep.report.axes import INK, PALETTE, SCALE, abridge
from warpstep.values import check_int, check_items, describe, has_attributes

__all__ = ["fragment", "im2col_product", "layouts", "padded_window", "reduce_axes", "swizzle"]

MAX_SIZE = 2**40
EDGE = PALETTE[6]


@drawn
def layouts(n: int = 2, c: int = 3, h: int = 2, w: int = 2, *, ax: Axes | None = None) -> Axes:
    """Draw the same values in the order in which NCHW, NHWC and CHWN keep them in memory.

    Parameters
    ----------
    n, c, h, w : int
        Samples, channels, rows and columns; at most 48 values.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If a size is not an int of 1 or more, or there are too many values.

    Examples
    --------
    >>> axes = layouts()
    """
    sizes = {name: check_int(name.lower(), size, 1, 48) for name, size in zip("NCHW", (n, c, h, w), strict=True)}
    count = prod(sizes.values())
    if count > 48:
        raise ValueError(f"n, c, h, w are {n}, {c}, {h}, {w}: {count} values; at most 48 can be drawn")
    across = min(count, 24)
    rows, cell = ceil_div(count, across), (COLUMN - 0.85) / across
    pitch = 0.36 * rows + 0.2
    title = f"{n} x {c} x {h} x {w} values in memory.  Colour: channel, number: pixel, dark: sample 0"
    if n == 1:
        title = title.removesuffix(", dark: sample 0")
    ax = sheet(ax, COLUMN, 0.1 + 3 * pitch + 0.12, title)
    for row, layout in enumerate(("NCHW", "NHWC", "CHWN")):
        top = 0.1 + row * pitch
        write(ax, 0.7, top + 0.18 * rows, layout, ha="right", fontweight="bold")
        for at in range(count):
            index = dict(zip(layout, np.unravel_index(at, [sizes[axis] for axis in layout]), strict=True))
            pixel = int(index["H"] * w + index["W"])
            face = PALETTE[index["C"] % len(PALETTE)] if index["N"] == 0 and n > 1 else tint(int(index["C"]))
            x, y = 0.8 + at % across * cell, top + at // across * 0.36
            box(ax, x, y, cell, 0.33, face, str(pixel), edge="white", gid=f"{layout} {at}")
    return ax


@drawn
def padded_window(
    size: tuple[int, int] = (4, 5),
    kernel: tuple[int, int] = (3, 3),
    stride: int = 1,
    padding: int = 1,
    dilation: int = 1,
    at: tuple[int, int] = (0, 0),
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw an image with its padding, the window of one output, and the column that im2col makes of it.

    Parameters
    ----------
    size, kernel : tuple of 2 int
        Rows and columns of the image and of the kernel.
    stride, padding, dilation : int
    at : tuple of 2 int
        Row and column of the output.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or there is no such output.

    Examples
    --------
    >>> axes = padded_window(padding=1)
    """
    height, width = check_sizes("size", size, (1, 1), (16, 16), "a tuple of 2 ints, rows and columns")
    taps = check_sizes("kernel", kernel, (1, 1), (5, 5), "a tuple of 2 ints, rows and columns")
    stride, padding = check_int("stride", stride, 1, 8), check_int("padding", padding, 0, 4)
    dilation = check_int("dilation", dilation, 1, 4)
    spans = [dilation * (k - 1) + 1 for k in taps]
    outs = [(n + 2 * padding - span) // stride + 1 for n, span in zip((height, width), spans, strict=True)]
    if min(outs) < 1:
        raise ValueError(f"kernel is {tuple(taps)} with dilation {dilation}; it must fit the padded image")
    oh, ow = check_sizes("at", at, (0, 0), (outs[0] - 1, outs[1] - 1), "a tuple of 2 ints, row and column")
    wide, high = width + 2 * padding, height + 2 * padding
    cell = min(0.4, (COLUMN - 2.1) / (wide + outs[1]))
    title = f"{height} x {width} image, filter {taps[0]} x {taps[1]}, stride {stride}, padding {padding}, "
    title += f"dilation {dilation}:\n{outs[0]} x {outs[1]} outputs; the window of output ({oh}, {ow})"
    tall = max(high * cell, 0.2 * prod(taps))
    ax = sheet(ax, COLUMN, tall + 0.35, title)
    window = [(oh * stride + i * dilation, ow * stride + j * dilation) for i in range(taps[0]) for j in range(taps[1])]
    values = np.pad(np.arange(1, height * width + 1).reshape(height, width), padding)
    write(ax, 0.1, 0.13, "image and padding", ha="left", size=8.5)
    for (r, q), value in np.ndenumerate(values):
        face = _window_face(value) if (r, q) in window else tint(0) if value else "#EEEEEE"
        box(ax, 0.1 + q * cell, 0.28 + r * cell, cell, cell, face, str(value), edge="white", size=8)
    box(ax, 0.1 + padding * cell, 0.28 + padding * cell, width * cell, height * cell, "none", edge=INK, line=1.2)
    left = 0.1 + wide * cell + 0.35
    write(ax, left, 0.13, "its column", ha="left", size=8.5)
    for tap, place in enumerate(window):
        y, value = 0.28 + 0.2 * tap, values[place]
        box(ax, left, y, 0.36, 0.2, _window_face(value), str(value), edge="white", size=8, gid="tap")
        write(ax, left + 0.42, y + 0.1, f"filter {divmod(tap, taps[1])}", ha="left", size=8, faint=True)
    left += 0.36 + 1.15
    write(ax, left, 0.13, "outputs", ha="left", size=8.5)
    for r, q in np.ndindex(*outs):
        face = PALETTE[1] if (r, q) == (oh, ow) else tint(2)
        box(ax, left + q * cell, 0.28 + r * cell, cell, cell, face, edge="white")
    return ax


def _window_face(value):
    """The colour of a value in the window; 0 is padding."""
    return PALETTE[1] if value else tint(1)


@drawn
def im2col_product(groups: int, m: int, k: int, n: int, *, ax: Axes | None = None) -> Axes:
    """Draw a convolution as matrix products: (groups, M, K) x (groups, K, N) gives (groups, M, N).

    Parameters
    ----------
    groups : int
    m, k, n : int
        Out channels of a group, in channels of a group times values of the kernel, and outputs of a channel.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If an argument is not an int of 1 or more.

    Examples
    --------
    >>> axes = im2col_product(1, 4, 9, 16)
    """
    groups = check_int("groups", groups, 1, 2**20)
    m, k, n = (check_int(name, size, 1, 2**40) for name, size in (("m", m), ("k", k), ("n", n)))
    shown = min(groups, 3)
    # Lengths follow the square roots of sizes, for an image has many more values than a kernel.
    roots = np.sqrt([m, k, n])
    room = COLUMN - 2.2 - 0.3 * shown - 0.22  # for the columns and twice the outputs, less the smallest for K
    m_, k_, n_ = np.maximum(roots * min(room / (roots[1] + 2 * roots[2]), 2.2 / max(roots[:2])), 0.22)
    shift = 0.1 * (shown - 1)
    tall = max(m_, k_) + shift
    title = f"{groups} product{'s' * (groups > 1)}: "
    title += f"({groups}, {m:,}, {k:,}) x ({groups}, {k:,}, {n:,}) = ({groups}, {m:,}, {n:,})"
    ax = sheet(ax, COLUMN, tall + 0.8, title)
    middle = 0.3 + tall / 2
    x = 0.65
    parts = (
        ("weights", f"M = {m:,}", f"K = {k:,}", k_, m_, 0, " x "),
        ("columns", f"K = {k:,}", f"N = {n:,}", n_, k_, 1, " = "),
        ("out", f"M = {m:,}", f"N = {n:,}", n_, m_, 2, ""),
    )
    for name, down, along, width, height, color, sign in parts:
        top = middle - (height - shift) / 2
        for group in reversed(range(shown)):
            offset = 0.1 * group
            box(ax, x + offset, top - offset, width, height, tint(color), edge=INK, gid=name)
        write(ax, x + width / 2, top + height / 2, name if width > 0.6 else "", size=9)
        write(ax, x - 0.1, top + height / 2, down, size=8.5, rotation=90)
        write(ax, x + width / 2, top + height + 0.14, along, size=8.5)
        if width <= 0.6:
            write(ax, x + width / 2, top + height + 0.32, name)
        x += width + shift + 0.22
        if sign:
            write(ax, x, middle, sign.strip(), size=14)
        x += 0.42
    return ax


@drawn
def reduce_axes(
    shape: Sequence[int],
    axis: int = 0,
    columns: int = 32,
    rows: int = 2,
    parts: int = 2,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the blocks that reduce an array over an axis: x tiles the axes after it, y splits it, z is the axes before.

    Blocks whose tiles are all full run without checks; those that reach beyond the array are marked.

    Parameters
    ----------
    shape : sequence of int
    axis : int
        The axis to reduce.
    columns : int
        Elements along the axes after it for which a block is responsible.
    rows : int
        Rows that a block reads in a step.
    parts : int
        Blocks along the axis, whose partial results a second pass combines.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Examples
    --------
    >>> axes = reduce_axes((4, 70))
    """
    shape = [check_int(f"shape[{i}]", n, 1, MAX_SIZE) for i, n in enumerate(check_items("shape", shape, "ints", 8))]
    if not shape:
        raise ValueError("shape is empty; it must have one axis or more")
    axis = check_int("axis", axis, 0, len(shape) - 1)
    columns, rows = check_int("columns", columns, 1, 4096), check_int("rows", rows, 1, 64)
    outer, n, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    parts = check_int("parts", parts, 1, n)
    each = ceil_div(ceil_div(n, parts), rows) * rows
    parts, across = ceil_div(n, each), ceil_div(inner, columns)
    title = f"{tuple(shape)} over axis {axis}: {outer} x {n} x {inner} as (outer, n, inner)\n"
    title += f"Blocks x, y, z: {across} x {parts} x {outer}, each {columns} columns, steps of {rows} rows"
    slices, xs, ys = abridge(outer, 3), abridge(across, 4), abridge(parts, 4)
    wide, high = _blocks(xs, columns, inner, 1.0), _blocks(ys, each, n, 0.42)
    width, height = sum(wide), sum(high)
    pitch = (COLUMN - 0.95 - 0.5 * slices.count(None)) / (len(slices) - slices.count(None))
    scale = (pitch - 0.15) / width
    ax = sheet(ax, COLUMN, height + (1.75 if parts > 1 else 1.25), title)
    left = 0.85 - pitch
    for z in slices:
        left += 0.5 if z is None else pitch
        if z is None:
            write(ax, left + pitch - 0.35, 0.3 + height / 2, "⋯", size=12)
            continue
        write(ax, left, 0.14, f"z = {z}", ha="left", fontweight="bold", size=8.5)
        _reduced_slice(ax, left, 0.28, (xs, ys, z), [w * scale for w in wide], high, (columns, each, rows, n, inner))
        bottom = 0.28 + height
        if parts > 1:
            _result_row(ax, left, bottom + 0.26, xs, [w * scale for w in wide], 0.1 * min(parts, 4), parts)
        _result_row(ax, left, bottom + (0.8 if parts > 1 else 0.26), xs, [w * scale for w in wide], 0.2, 0)
    _name_rows(ax, 0.28 + height, f"axis {axis}:\n{n} rows", height, parts > 1)
    return ax


def _name_rows(ax, bottom, rows, height, partial):
    """Write what the rows below one another are, and what the border of a block means."""
    write(ax, 0.78, bottom - height / 2, rows, ha="right", size=8.5)
    if partial:
        write(ax, 0.78, bottom + 0.4, "partial\nresults", ha="right", size=8.5)
    write(ax, 0.78, bottom + (0.9 if partial else 0.36), "out", ha="right", size=8.5)
    y = bottom + (1.2 if partial else 0.7)
    box(ax, 0.85, y, 0.28, 0.18, "white", edge=EDGE, line=1.6)
    write(ax, 1.2, y + 0.09, "reaches beyond the array: its loads are checked", ha="left", size=8.5)


def _blocks(shown, each, total, inches):
    """The extents of the blocks drawn along an axis; the last one may be smaller."""
    return [inches * (0.4 if i is None else max(0.35, min(each, total - i * each) / each)) for i in shown]


def _reduced_slice(ax, left, top, indices, wide, high, sizes):
    (xs, ys, z), (columns, each, rows, n, inner) = indices, sizes
    y = top
    for by, tall in zip(ys, high, strict=True):
        x = left
        for bx, width in zip(xs, wide, strict=True):
            if by is None or bx is None:
                write(ax, x + width / 2, y + tall / 2, "⋯" if by is not None else "⋮")
            else:
                first, count = by * each, min(columns, inner - bx * columns)
                some = min(each, n - first)
                partial = count < columns or some % rows > 0
                text = f"{bx}, {by}, {z}" if width > 0.5 else ""
                look = {"edge": EDGE if partial else "white", "line": 1.6 if partial else 0.8, "size": 8.5}
                box(ax, x + 0.02, y + 0.02, width - 0.04, tall - 0.04, tint(by), text, gid=f"{count} x {some}", **look)
            x += width
        y += tall


def _result_row(ax, left, top, xs, wide, tall, parts):
    """Draw a result for each column: the partial ones of each part, or the last."""
    x = left
    for bx, width in zip(xs, wide, strict=True):
        for part in range(min(parts, 4) or 1):
            down = tall / (min(parts, 4) or 1)
            if bx is not None:
                face = tint(part) if parts else "#CCCCCC"
                box(ax, x + 0.02, top + part * down, width - 0.04, down, face, edge="white", line=0.6)
        x += width


@drawn
def swizzle(tile: int = 8, *, ax: Axes | None = None) -> Axes:
    """Draw the elements of a square tile on banks, plain and with each row's columns swizzled by an exclusive or.

    The number and the colour of a cell are the element's column. A column of the matrix that is in one bank conflicts.

    Parameters
    ----------
    tile : int
        Rows, columns and banks: a power of two up to 16.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If ``tile`` is not as above.

    Examples
    --------
    >>> axes = swizzle(8)
    """
    tile = check_int("tile", tile, 2, 16)
    if tile & (tile - 1):
        raise ValueError(f"tile is {tile}; it must be a power of two")
    cell = (COLUMN - 1.0) / 2 / tile
    ax = sheet(ax, COLUMN, tile * cell + 0.62, "Bank of each element; number and colour: its column in the tile")
    rows, banks = np.indices((tile, tile))
    for left, name, columns in (
        (0.55, "plain", banks),
        (COLUMN - 0.05 - tile * cell, "swizzled: column ^ row", banks ^ rows),
    ):
        write(ax, left, 0.12, name, ha="left", fontweight="bold")
        write(ax, left + tile * cell / 2, tile * cell + 0.5, "bank", faint=True)
        for i in range(tile):
            write(
                ax, left - 0.08, 0.28 + (i + 0.5) * cell, f"row {i}" if left < 1 else i, ha="right", size=8, faint=True
            )
            write(ax, left + (i + 0.5) * cell, tile * cell + 0.37, i, size=8, faint=True)
            for j in range(tile):
                column = int(columns[i, j])
                face = to_hex(SCALE(column / (tile - 1)))
                box(ax, left + j * cell, 0.28 + i * cell, cell, cell, face, str(column), edge="white", gid=name)
    return ax


@drawn
def fragment(held: Any, lane: int | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw which lane of a warp, and which of its registers, holds each element of a small matrix.

    Parameters
    ----------
    held : FragmentMap
        Of `gpukit.tensor.fragment_map`.
    lane : int, optional
        A lane whose elements are framed.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If ``lane`` is not an int from 0 to 31.

    Examples
    --------
    >>> from gpukit import tensor
    >>> axes = fragment(tensor.fragment_map((16, 8, 16), "float16", "a"), lane=5)
    """
    if not has_attributes(held, "name", "packed", "rows", "lanes", "elements"):
        raise TypeError(f"held is {describe(held)}; it must be a FragmentMap of gpukit.tensor.fragment_map")
    framed = None if lane is None else check_int("lane", lane, 0, 31)
    (down, across), (row, col) = held.shape, np.indices(held.shape)
    along = 1 if held.name.startswith("a") else 0  # the elements of a register are neighbours along K
    width, height = (held.packed, 1) if along else (1, held.packed)
    cell = min(0.36, (COLUMN - 0.6) / across)
    title = f"{held.name}: the lane that holds each element"
    ax = sheet(ax, COLUMN, down * cell + 0.6, title)
    for r, c in zip(row.reshape(-1), col.reshape(-1), strict=True):
        if (c if along else r) % held.packed == 0:
            number, face = held.lanes[r, c], tint(held.elements[r, c] // held.packed)
            where = 0.5 + c * cell, 0.25 + r * cell, width * cell, height * cell
            line = {"edge": INK, "line": 1.6, "zorder": 3} if number == framed else {"edge": "white", "line": 0.8}
            box(ax, *where, face, str(number), size=8, **line)
    for name, count, at in (("row", down, (0.42, 0.25)), ("column", across, (0.5, 0.17))):
        for i in range(0, count, 1 if cell > 0.3 else 4):
            x, y = (at[0], at[1] + (i + 0.5) * cell) if name == "row" else (at[0] + (i + 0.5) * cell, at[1])
            write(ax, x, y, str(i), size=8, faint=True, ha="right" if name == "row" else "center")
    for register in range(held.rows.shape[1] // held.packed):
        box(ax, 0.5 + 0.9 * register, down * cell + 0.36, 0.14, 0.14, tint(register), edge="white")
        write(ax, 0.7 + 0.9 * register, down * cell + 0.43, f"register {register}", size=8, ha="left")
    return ax
