"""Pictures of tiles of matrices and images, and of the threads that compute them."""

from collections import Counter

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from gpukit._host.checks import check_sizes
from gpukit.plot.style import COLUMN, box, drawn, new_axes, sheet, tint, write
from warpstep.integers import ceil_div
from warpstep.limits import WARP
from warpstep.report.axes import FAINT, INK, PALETTE
from warpstep.values import check_int

__all__ = ["edge_blocks", "halo_tile", "nested_tiles", "product_tiles", "split_k"]

MAX_SIZE, MAX_TILES = 2**31 - 1, 1000  # of what is drawn, and of tiles along k
MAX_LINES = 16  # blocks along a side whose borders are drawn
BEYOND, GROWN = "threads beyond the image", "last blocks grow"  # plans for the edge
OWN = PALETTE[1]  # what belongs to the thread that is followed
COPIES = (tint(0), tint(4), tint(1), PALETTE[6])  # of a thread: few to many


@drawn
def product_tiles(
    m: int, n: int, k: int, tile: int, block: tuple[int, int] = (0, 0), step: int = 0, *, ax: Axes | None = None
) -> Axes:
    """Draw one block of a tiled matrix product: its tile of out, and the tiles of a and b it steps through.

    Parameters
    ----------
    m, n, k : int
        a has m rows and k columns, b k rows and n columns.
    tile : int
        Rows and columns of a tile.
    block : tuple of 2 int
        (x, y) of the block whose tiles are coloured.
    step : int
        The step whose pair of tiles, then in shared memory, is drawn strongest.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or there is no such block or step.

    Examples
    --------
    >>> axes = product_tiles(64, 64, 64, tile=16)
    """
    m, n, k = check_int("m", m, 1, MAX_SIZE), check_int("n", n, 1, MAX_SIZE), check_int("k", k, 1, MAX_SIZE)
    tile = check_int("tile", tile, 1, MAX_SIZE)
    steps = ceil_div(k, tile)
    if steps > MAX_TILES:
        raise ValueError(f"k is {k}: {steps:,} tiles of {tile}; {MAX_TILES:,} at most can be drawn")
    step = check_int("step", step, 0, steps - 1)
    most = ceil_div(n, tile) - 1, ceil_div(m, tile) - 1
    block = check_sizes("block", block, (0, 0), most, "a tuple of 2 ints, x and y")
    x, y = (index * tile for index in block)
    gap = 0.12 * (k + max(m, n))
    left, above = k + gap, k + gap
    if ax is None:
        ax = new_axes(max(5.6, 3.6 * (left + n) / (above + m)), 3.6)  # the title wants its room
    for name, (across, down), size in (
        (f"a  {m} x {k}", (0, above), (k, m)),
        (f"b  {k} x {n}", (left, 0), (n, k)),
        (f"out  {m} x {n}", (left, above), (n, m)),
    ):
        ax.add_patch(Rectangle((across, down), *size, facecolor="white", edgecolor=INK, linewidth=1.1))
        ax.text(across, down - 0.02 * above, name, ha="left", va="bottom", fontsize=9)
    for i in range(steps):
        look = {"alpha": 1.0 if i == step else 0.3, "edgecolor": "white", "linewidth": 0.8}
        length = min(tile, k - i * tile)
        ax.add_patch(Rectangle((i * tile, above + y), length, min(tile, m - y), facecolor=PALETTE[0], **look))
        ax.add_patch(Rectangle((left + x, i * tile), min(tile, n - x), length, facecolor=PALETTE[1], **look))
    ax.add_patch(Rectangle((left + x, above + y), min(tile, n - x), min(tile, m - y), facecolor=PALETTE[2]))
    ax.set(xlim=(-0.02 * left, left + n * 1.02), ylim=(above + m * 1.02, -0.1 * above), aspect="equal", anchor="NW")
    ax.set_axis_off()
    ax.set_title(f"Block {tuple(block)}, step {step + 1} of {steps}: a tile of a times a tile of b")
    return ax


# -- the three levels of a fast product ------------------------------------------------------------


@drawn
def nested_tiles(
    block: tuple[int, int] = (128, 128),
    warp: tuple[int, int] = (32, 64),
    lanes: tuple[int, int] = (4, 8),
    square: int = 4,
    chosen: tuple[int, int] = (2, 10),
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the tile of a block, the part of it that a warp computes, and the squares of one thread.

    Parameters
    ----------
    block, warp : tuple of 2 int
        Rows and columns of the result that a block and a warp compute.
    lanes : tuple of 2 int
        Rows and columns in which the 32 lanes are laid out, again and again.
    square : int
        Rows and columns of neighbouring results of a thread.
    chosen : tuple of 2 int
        The warp and the lane to follow.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If the sizes do not divide, or there is no such warp or lane.

    Examples
    --------
    >>> axes = nested_tiles()
    """
    what = "a tuple of 2 ints, rows and columns"
    block = check_sizes("block", block, (1, 1), (1024, 1024), what)
    warp = check_sizes("warp", warp, (1, 1), tuple(block), what)
    lanes, square = check_sizes("lanes", lanes, (1, 1), (WARP, WARP), what), check_int("square", square, 1, 16)
    if lanes[0] * lanes[1] != WARP:
        raise ValueError(f"lanes is {tuple(lanes)}; it must make {WARP}")
    if any(b % w or w % (count * square) for b, w, count in zip(block, warp, lanes, strict=True)):
        raise ValueError(f"warp is {tuple(warp)}; it must divide block, and be a multiple of lanes times square")
    grid = block[0] // warp[0], block[1] // warp[1]
    one, lane = check_sizes(
        "chosen", chosen, (0, 0), (grid[0] * grid[1] - 1, WARP - 1), "a tuple of 2 ints, warp and lane"
    )
    cells, own = (warp[0] // square, warp[1] // square), [w // count for w, count in zip(warp, lanes, strict=True)]
    title = f"A block's tile of {block[0]} x {block[1]}, a warp's of {warp[0]} x {warp[1]}, "
    title += f"a thread's {own[0]} x {own[1]}: warp {one}, lane {lane}"
    side, cell = 2.0, min(5.9 / cells[1], 3.4 / cells[0], 0.36)
    low = side + 0.85
    ax = sheet(ax, COLUMN, low + cells[0] * cell + 0.1, title)
    spots = _squares(cells, lanes, lane)
    corner = _warps_of_block(ax, block, warp, one, side, [(r * square, c * square, square) for r, c in spots])
    unit = side / max(block)
    write(ax, 0.18, low - 0.16, f"warp {one}: 32 lanes, again and again", ha="left", fontweight="bold")
    for x, end in ((corner[0], 0.1), (corner[0] + warp[1] * unit, 0.1 + cells[1] * cell)):
        ax.plot([x, end], [corner[1] + warp[0] * unit, low], color="0.3", linewidth=0.8, linestyle=":", zorder=0.5)
    for row in range(cells[0]):
        for col in range(cells[1]):
            text = str(row % lanes[0] * lanes[1] + col % lanes[1])
            face = OWN if (row, col) in spots else tint(0)
            box(ax, 0.1 + col * cell, low + row * cell, cell, cell, face, text, edge="white", size=8, gid="lane")
    _thread_squares(ax, own, square, lane, 0.8 * side)  # above the line of the zoom
    return ax


def _warps_of_block(ax, block, warp, one, side, spots):
    """Draw a block's tile with its warps, and in one the squares of a thread. Returns that warp's corner."""
    unit, grid = side / max(block), (block[0] // warp[0], block[1] // warp[1])
    places = [(0.1 + c * warp[1] * unit, 0.3 + r * warp[0] * unit) for r in range(grid[0]) for c in range(grid[1])]
    write(ax, 0.1, 0.14, f"block: {len(places)} warps", ha="left", fontweight="bold")
    for w, place in enumerate(places):
        face, text = (tint(0), "") if w == one else ("#F2F2F2", f"warp {w}")
        box(ax, *place, warp[1] * unit, warp[0] * unit, face, text, edge=FAINT, size=8.5)
    x, y = places[one]
    for row, col, size in spots:
        box(ax, x + col * unit, y + row * unit, size * unit, size * unit, OWN, edge="none")
    box(ax, x, y, warp[1] * unit, warp[0] * unit, "none", line=1.4)
    return x, y


def _squares(cells, lanes, lane):
    """Row and column, in squares, of all squares of a lane in its warp's tile."""
    row, col = divmod(lane, lanes[1])
    return [(r, c) for r in range(row, cells[0], lanes[0]) for c in range(col, cells[1], lanes[1])]


def _thread_squares(ax, own, square, lane, side):
    """Draw the results that a thread keeps in registers, with gaps where its squares are apart."""
    left, count = 3.5, [n // square for n in own]
    unit = side / (max(own) + 0.8 * (max(count) - 1))
    squares = count[0] * count[1]
    text = f"lane {lane}: {own[0] * own[1]} sums, {squares} square{'s' * (squares > 1)}"
    write(ax, left, 0.14, text, ha="left", fontweight="bold")
    for row in range(own[0]):
        for col in range(own[1]):
            x = left + (col + 0.8 * (col // square)) * unit
            y = 0.3 + (row + 0.8 * (row // square)) * unit
            box(ax, x, y, unit, unit, OWN, edge="white", line=0.8, gid="own")


# -- K in parts ------------------------------------------------------------------------------------


@drawn
def split_k(m: int, n: int, k: int, tile: int = 64, parts: int = 4, *, ax: Axes | None = None) -> Axes:
    """Draw split-K: each part of K gives a partial product of its own blocks, and a last step adds them.

    Parameters
    ----------
    m, n, k : int
        a has m rows and k columns, b k rows and n columns.
    tile : int
        Rows and columns of the result that a block computes.
    parts : int
        Parts of K.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Examples
    --------
    >>> axes = split_k(128, 128, 4096)
    """
    m, n, k = (check_int(name, size, 1, MAX_SIZE) for name, size in (("m", m), ("n", n), ("k", k)))
    tile, parts = check_int("tile", tile, 1, MAX_SIZE), check_int("parts", parts, 1, min(k, 8))
    grid = ceil_div(m, tile), ceil_div(n, tile)
    blocks = grid[0] * grid[1]
    title = f"Split-K, tiles of {tile}: {blocks:,} block{'s' * (blocks > 1)} with K whole, "
    title += f"{blocks * parts:,} with K in {parts} part{'s' * (parts > 1)}"
    shift = 0.2
    room = COLUMN - 2.0 - shift * (parts - 1)
    height, width, depth = _sides(m, n, k, room)
    tall = max(height + shift * (parts - 1), depth)
    ax = sheet(ax, COLUMN, tall + 0.95, title)
    middle = 0.3 + tall / 2
    x = 0.35
    _factor(ax, x, middle, depth, height, parts, across=True)
    write(ax, x + depth / 2, middle + height / 2 + 0.14, f"a: K = {k:,}", size=8.5)
    write(ax, x - 0.14, middle, f"M = {m:,}", size=8.5, rotation=90)
    x += depth + 0.32
    write(ax, x - 0.16, middle, "x", size=12)
    _factor(ax, x, middle, width, depth, parts, across=False)
    write(ax, x + width / 2, middle + depth / 2 + 0.14, f"b: N = {n:,}", size=8.5)
    x += width + 0.45
    write(ax, x - 0.22, middle, "=", size=12)
    top = middle - (height + shift * (parts - 1)) / 2
    for part in reversed(range(parts)):
        _result(ax, x + shift * part, top + shift * (parts - 1 - part), width, height, grid, tint(part), f"part {part}")
    label = f"{parts} partial results"
    write(ax, x + (width + shift * (parts - 1)) / 2, top + height + shift * (parts - 1) + 0.14, label, size=8.5)
    x += width + shift * (parts - 1) + 0.62
    write(ax, x - 0.31, middle - 0.12, "add", size=8.5)
    write(ax, x - 0.31, middle + 0.04, "→", size=12)
    _result(ax, x, middle - height / 2, width, height, grid, "#D8D8D8", "out")
    write(ax, x + width / 2, middle + height / 2 + 0.14, f"out: {m:,} x {n:,}", size=8.5)
    return ax


def _factor(ax, left, middle, width, height, parts, across):
    """Draw a matrix whose columns, or rows, are cut into parts."""
    for part in range(parts):
        if across:
            box(ax, left + part * width / parts, middle - height / 2, width / parts, height, tint(part), edge="white")
        else:
            top = middle - height / 2 + part * height / parts
            box(ax, left, top, width, height / parts, tint(part), edge="white")
    box(ax, left, middle - height / 2, width, height, "none", line=1.0)


def _sides(m, n, k, room):
    """Lengths for m, n and k that keep their order but not their ratios; k and three times n fit into ``room``."""
    roots = [size**0.5 for size in (m, n, k)]
    unit = min(1.5 / max(roots), (room - 0.42) / (roots[2] + 3 * roots[1]))
    return [max(0.42, unit * root) for root in roots]


def _result(ax, left, top, width, height, grid, face, gid):
    box(ax, left, top, width, height, face, gid=gid)
    if max(grid) > MAX_LINES:
        return
    for row in range(1, grid[0]):
        y = top + row * height / grid[0]
        ax.plot([left, left + width], [y, y], color="white", linewidth=1, zorder=1)
    for col in range(1, grid[1]):
        x = left + col * width / grid[1]
        ax.plot([x, x], [top, top + height], color="white", linewidth=1, zorder=1)


# -- tiles of an image -----------------------------------------------------------------------------


@drawn
def halo_tile(tile: tuple[int, int] = (4, 8), kernel: tuple[int, int] = (3, 3), *, ax: Axes | None = None) -> Axes:
    """Draw the pixels that a block copies for its tile of a convolution, and the thread that copies each, in two plans.

    By edges, a thread copies its own pixel, and those at the right and lower edge the halo beside them. Evenly, all
    threads take pixels in turn.

    Parameters
    ----------
    tile : tuple of 2 int
        Rows and columns of the results of a block: one thread for each.
    kernel : tuple of 2 int
        Rows and columns of the kernel; the stride is 1.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Examples
    --------
    >>> axes = halo_tile()
    """
    tile = check_sizes("tile", tile, (1, 1), (16, 16), "a tuple of 2 ints, rows and columns")
    kernel = check_sizes("kernel", kernel, (1, 1), (11, 11), "a tuple of 2 ints, rows and columns")
    rows, cols = (t + k - 1 for t, k in zip(tile, kernel, strict=True))
    threads = tile[0] * tile[1]
    edges = [[min(r, tile[0] - 1) * tile[1] + min(c, tile[1] - 1) for c in range(cols)] for r in range(rows)]
    evenly = [[(r * cols + c) % threads for c in range(cols)] for r in range(rows)]
    title = f"{tile[0]} x {tile[1]} results, {kernel[0]} x {kernel[1]} filter: {threads} threads copy "
    title += f"{rows} x {cols} = {rows * cols} pixels\n"
    title += "Number: the thread that copies it; outlined: the pixels under the results"
    cell = min(0.3, (COLUMN - 0.3) / 2 / cols)
    ax = sheet(ax, COLUMN, rows * cell + 1.05, title)
    for left, name, owners in ((0.05, "by edges", edges), (COLUMN / 2 + 0.1, "evenly", evenly)):
        _plan(ax, left, cell, name, owners, tile, kernel)
    return ax


def _plan(ax, left, cell, name, owners, tile, kernel):
    """Draw who copies which pixel, with the tile of the results outlined, and count the pixels of the threads."""
    copies = Counter(thread for row in owners for thread in row)
    faces = dict(zip(sorted(set(copies.values())), COPIES, strict=False))
    write(ax, left, 0.13, name, ha="left", fontweight="bold")
    for r, row in enumerate(owners):
        for c, thread in enumerate(row):
            face = faces.get(copies[thread], COPIES[-1])
            text = str(thread) if cell > 0.2 else ""
            box(ax, left + c * cell, 0.28 + r * cell, cell, cell, face, text, edge="white", size=8, gid=name)
    inner = left + (kernel[1] - 1) // 2 * cell, 0.28 + (kernel[0] - 1) // 2 * cell
    box(ax, *inner, tile[1] * cell, tile[0] * cell, "none", line=1.4)
    y = 0.28 + len(owners) * cell + 0.1
    mean = sum(copies.values()) / (tile[0] * tile[1])
    write(ax, left, y + 0.1, f"up to {max(copies.values())} copies, {mean:.4g} on average", ha="left", size=8.5)
    write(ax, left, y + 0.37, "copies: threads", ha="left", size=8.5)
    for i, (count, face) in enumerate(faces.items()):
        x = left + 1.1 + 0.62 * i
        box(ax, x, y + 0.28, 0.18, 0.18, face, edge="none")
        write(ax, x + 0.23, y + 0.37, f"{count}: {sum(n == count for n in copies.values())}", ha="left", size=8.5)


@drawn
def edge_blocks(size: tuple[int, int] = (14, 27), tile: tuple[int, int] = (4, 8), *, ax: Axes | None = None) -> Axes:
    """Draw the blocks that cover an image whose size is no multiple of the tile, in two plans.

    Either one more block covers the remainder, some of its threads without a pixel, or the last block along each axis
    grows by the remainder, so that its threads take more than one pixel.

    Parameters
    ----------
    size, tile : tuple of 2 int
        Rows and columns of the image and of the tile.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or the image smaller than a tile.

    Examples
    --------
    >>> axes = edge_blocks()
    """
    what = "a tuple of 2 ints, rows and columns"
    tile = check_sizes("tile", tile, (1, 1), (1024, 1024), what)
    size = check_sizes("size", size, tuple(tile), (2**16, 2**16), what)
    axes = tuple(zip(size, tile, strict=True))
    more = [[(i * t, min(t, n - i * t)) for i in range(ceil_div(n, t))] for n, t in axes]
    grown = [[(i * t, t + (n % t if i == n // t - 1 else 0)) for i in range(n // t)] for n, t in axes]
    if max(map(len, more)) > 12:
        raise ValueError(f"size is {tuple(size)}; at most 12 tiles along an axis can be drawn")
    title = f"{size[0]} x {size[1]} results, tiles of {tile[0]} x {tile[1]}: one more block, or a larger last one"
    whole = [len(part) * t for part, t in zip(more, tile, strict=True)]
    unit = min((COLUMN - 0.4) / 2 / whole[1], 2.4 / whole[0])
    ax = sheet(ax, COLUMN, whole[0] * unit + 0.75, title)
    for left, name, blocks in ((0.05, BEYOND, more), (COLUMN / 2 + 0.1, GROWN, grown)):
        _cover(ax, left, name, blocks, size, tile, unit)
        number = len(blocks[0]) * len(blocks[1])
        largest = max(high for _, high in blocks[0]) * max(wide for _, wide in blocks[1])
        text = f"{number} blocks; up to {largest} results for {tile[0] * tile[1]} threads"
        if name == BEYOND:
            text = f"{number} blocks; {number * tile[0] * tile[1] - size[0] * size[1]} threads have no result"
        write(ax, left, 0.28 + whole[0] * unit + 0.16, text, ha="left", size=8.5)
    return ax


def _cover(ax, left, name, blocks, size, tile, unit):
    """Draw the blocks of a plan over the image, and hatch what a block has beyond it."""
    write(ax, left, 0.13, name, ha="left", fontweight="bold")
    for top, high in blocks[0]:
        for across, wide in blocks[1]:
            x, y = left + across * unit, 0.28 + top * unit
            partial, larger = high < tile[0] or wide < tile[1], high > tile[0] or wide > tile[1]
            if partial:
                look = {"edge": "#999999", "line": 0.6, "hatch": "////"}
                box(ax, x, y, tile[1] * unit, tile[0] * unit, "white", **look)
            face = tint(6) if larger else tint(1) if partial else tint(0)
            text = f"{high} x {wide}" if wide * unit > 0.5 and high * unit > 0.16 else ""
            box(ax, x, y, wide * unit, high * unit, face, text, edge="white", size=8, gid=name)
    box(ax, left, 0.28, size[1] * unit, size[0] * unit, "none", line=1.2)
