"""Pictures of threads: a launch, its warps, and the elements that threads handle."""

from math import prod
from numbers import Integral

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Patch, Rectangle

from gpukit._host.checks import as_numbers
from gpukit.plot.style import drawn, new_axes, stamp_device, tint
from warpstep.checks import as_dim3
from warpstep.integers import ceil_div
from warpstep.limits import WARP
from warpstep.report import axes
from warpstep.report.axes import FAINT, INK, PALETTE, SCALE, WIDTH, abridge, ink_on
from warpstep.values import check_int, check_text, describe

__all__ = ["FIELDS", "grid_stride", "launch", "mapping", "warps"]

#: The fields ``launch`` colours by and writes in cells, named as in ``indexing.thread_table``.
FIELDS = {
    "block_index": "block",
    "index_in_block": "index in the block",
    "index": "index in the grid",
    "x": "x",
    "y": "y",
    "z": "z",
    "warp": "warp in the block",
    "lane": "lane in the warp",
}
Dim3 = int | tuple[int, ...]
CATEGORIES = ("block_index", "warp")  # these are names, not amounts: neighbours get different colours
UNUSED = "#E8E8E8"  # a thread without an element, an element without a thread

MAX_HEIGHT = 4.4  # inches, of cells
MAX_CELL = 0.38  # inches; a cell is twice as large if its number needs it
MIN_FONT_SIZE = 5.0  # points; smaller numbers are left out
DIGIT = 0.85  # width of a digit over its font size, with some air
MAX_COLUMNS, MAX_ROWS, MAX_SLICES = 38, 20, 4  # cells along an axis; the middle of more is left out
MAX_SIZE, MAX_NUMBER, MAX_THREADS = 2**31 - 1, 2**63 - 1, 2**26  # of what is drawn
GAP, NAMED_GAP = 0.4, 0.95  # between blocks, in cells: side by side, and below a name
ELEMENTS_TOP = 3.2  # of the row of elements below their threads, in cells


# -- cells: what all pictures of threads are made of ------------------------------------------------


class _Cells:
    """Squares with numbers in them, collected first and drawn when the size of the picture is known."""

    def __init__(self):
        self.squares, self.faces, self.texts = [], [], []
        self.outlines, self.words = [], []

    def add(self, x, y, face, text=""):
        self.squares.append(Rectangle((x, y), 1, 1))
        self.faces.append(face)
        self.texts.append(text)

    def outline(self, left, top, right, bottom):
        self.outlines.append(Rectangle((left, top), right - left, bottom - top))

    def word(self, x, y, text, **options):
        self.words.append((x, y, text, options))

    def name(self, x, y, text):
        """Write a name above the block whose upper left corner is (x, y)."""
        self.word(x, y - 0.15, text, ha="left", va="bottom", color=FAINT)

    def block(self, index, across, height):
        """Outline and name a block of a one-dimensional grid."""
        left, right = _span(across)
        self.outline(left, 0, right, height)
        self.name(left, 0, f"block {index}" if len(across) >= 3 else str(index))

    def draw(self, ax, title, margins=(0.1, 0.1, 0.1, 0.1), spare=0.0):
        """Draw on ``ax``, or on new axes that fit; True if the cells are large enough for their numbers.

        ``margins`` are cells left, above, right and below of the outlines; ``spare`` is inches kept free at the right.
        """
        left, above, right, below = margins
        width = max(box.get_x() + box.get_width() for box in self.outlines)
        height = max(box.get_y() + box.get_height() for box in self.outlines)
        across, down = left + width + right, above + height + below
        if ax is None:
            digits = max(map(len, self.texts), default=0)
            enough = min(max(MAX_CELL, 1.02 * DIGIT * digits * MIN_FONT_SIZE / 72), 2 * MAX_CELL)
            cell = min(enough, (WIDTH - spare) / across, MAX_HEIGHT / down)
            ax = new_axes(across * cell, down * cell)
        ax.set(xlim=(-left, width + right), ylim=(height + below, -above), aspect="equal", anchor="NW")
        ax.set_axis_off()
        ax.set_title(title)
        box = ax.get_window_extent()
        points = min(box.width / across, box.height / down) * 72 / ax.figure.dpi
        squares = PatchCollection(self.squares, facecolors=self.faces, edgecolors="white", linewidths=0.8, gid="cells")
        ax.add_collection(squares)
        ax.add_collection(PatchCollection(self.outlines, facecolors="none", edgecolors=INK, linewidths=1.1))
        self._write_words(ax, points)
        return ax, self._write_numbers(ax, points)

    def _write_words(self, ax, points):
        for x, y, text, options in self.words:
            if 0.55 * points >= MIN_FONT_SIZE:
                look = {"ha": "center", "va": "center", "fontsize": min(8.5, 0.55 * points)}
                ax.text(x, y, text, **look | options)

    def _write_numbers(self, ax, points):
        digits = max(map(len, self.texts), default=0)
        size = min(9.5, 0.62 * points, points / (DIGIT * max(digits, 1)))
        if not digits or size < MIN_FONT_SIZE:
            return False
        for square, face, text in zip(self.squares, self.faces, self.texts, strict=True):
            if not text:
                continue
            centre = square.get_x() + 0.5, square.get_y() + 0.53
            look = {"ha": "center", "va": "center", "fontsize": size, "gid": "number"}
            ax.text(*centre, text, color=ink_on(face), **look)
        return True


def _room(largest, inches, most):
    """Count the cells that fit in ``inches``, gaps included, with ``largest`` legible in each."""
    return max(8, min(most, int(72 * inches / (DIGIT * len(_written(largest)) * MIN_FONT_SIZE)) - 1))


def _axis(blocks, threads, most, gap=GAP):
    """Place the threads along one axis of a launch.

    Returns
    -------
    drawn : list of (int, list of (int or None, float))
        For each block drawn, its index, and index and position of each thread; None where threads are left out.
    missing : list of float
        The positions where blocks are left out.
    """
    inside, outside = range(threads), range(blocks)
    if blocks * (threads + gap) - gap > most:
        inside = abridge(threads, max(5, int((most + gap) / blocks - gap)))
    if blocks * (len(inside) + gap) - gap > most:
        outside = abridge(blocks, max(3, 1 + int((most - 1) / (len(inside) + gap))))
    drawn, missing, at = [], [], 0.0
    for block in outside:
        if block is None:
            missing.append(at + 0.5)
            at += 1 + gap
        else:
            drawn.append((block, [(thread, at + i) for i, thread in enumerate(inside)]))
            at += len(inside) + gap
    return drawn, missing


def _span(positions):
    """Return the first and last position of a block's threads, or of an axis's blocks."""
    if isinstance(positions[0][1], list):
        return positions[0][1][0][1], positions[-1][1][-1][1] + 1
    return positions[0][1], positions[-1][1] + 1


# -- a launch ---------------------------------------------------------------------------------------


@drawn
def launch(
    grid: Dim3,
    block: Dim3,
    color_by: str | np.ndarray = "block_index",
    label: str | np.ndarray | None = "index_in_block",
    title: str | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw a launch: one cell per thread, blocks outlined, x to the right, y down, and one slice for each z.

    Of a launch too large to draw, only the first and last blocks and threads along each axis appear, with dots between.

    Parameters
    ----------
    grid, block : int or tuple of 1 to 3 int
    color_by : str or array
        One of ``FIELDS``, or one number for each thread in the order of its index in the grid, a field of a
        ``thread_table`` for example.
    label : str or array or None
        The text of the cells, given in the same way. Left out where it would be too small to read.
    title : str, optional
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        For an argument of another type, shape or range.

    Examples
    --------
    >>> axes = launch(grid=2, block=4)
    """
    grid, block = as_dim3("grid", grid), as_dim3("block", block)
    if prod(grid) * prod(block) > MAX_NUMBER:
        raise ValueError(f"grid is {grid} and block {block}; together they must have 2**63 - 1 threads or less")
    if title is not None:
        check_text("title", title)
    color_by = _per_thread("color_by", color_by, grid, block)
    label = None if label is None else _per_thread("label", label, grid, block)
    cells, threads = _Cells(), []
    categories = isinstance(color_by, str) and color_by in CATEGORIES
    spare = 0.0 if categories else 1.0  # inches for a colour bar
    axes = _axes_of(grid, block, WIDTH - spare, 0 if label is None else _largest(label, grid, block))
    for z, left in _slices(cells, grid, block, axes):
        threads += _slice(cells, grid, block, z, left, axes)
    fields = _fields(grid, block, np.array(threads, np.int64))
    values = _values(color_by, fields)
    largest = _largest(color_by, grid, block)
    if categories:
        cells.faces = [tint(rank) for rank in np.unique(values, return_inverse=True)[1]]
    else:
        cells.faces = [SCALE(value / largest if largest else 0.0)[:3] for value in values]
    if label is not None:
        cells.texts = [_written(value) for value in _values(label, fields)]
    legend = isinstance(color_by, str) and color_by == "warp"
    named = 0.9 * (prod(grid) > 1) + 0.8 * (grid[2] * block[2] > 1)
    title = _describe(grid, block, color_by, label) if title is None else title
    ax, written = cells.draw(ax, title, (0.1, 0.1 + named, 0.1, 0.1 + 1.2 * legend), spare)
    if not isinstance(color_by, str) or isinstance(label, np.ndarray):  # values of a run
        stamp_device(ax)
    if legend:
        _legend(ax, values)
    elif not categories and not written:
        _bar(ax, largest, FIELDS[color_by] if isinstance(color_by, str) else "")
    return ax


def _per_thread(name, given, grid, block):
    if isinstance(given, str):
        if given not in FIELDS:
            raise ValueError(f"{name} is {describe(given)}; it must be one of {', '.join(FIELDS)}, or an array")
        return given
    given = as_numbers(name, given, "iufb")
    count = prod(grid) * prod(block)
    if given.shape != (count,):
        raise ValueError(f"{name} has shape {given.shape}; it must be ({count},), one number for each thread")
    return given


def _slices(cells, grid, block, axes):
    """Return (z, left edge) of each slice to draw."""
    shown = abridge(grid[2] * block[2], MAX_SLICES)
    width = _span(axes[0][0])[1]
    places, left = [], 0.0
    for z in shown:
        if z is None:
            cells.word(left + 0.5, 1, "⋯")
            left += 1 + 3 * GAP
            continue
        if len(shown) > 1:
            cells.word(left, -1.4 if prod(grid) > 1 else -0.5, f"z = {z}", ha="left", fontweight="bold")
        places.append((z, left))
        left += width + 3 * GAP
    return places


def _axes_of(grid, block, inches, largest):
    """Place threads along x and along y."""
    across = _room(largest, inches, MAX_COLUMNS) // min(grid[2] * block[2], MAX_SLICES)
    return _axis(grid[0], block[0], across), _axis(grid[1], block[1], _room(largest, MAX_HEIGHT, MAX_ROWS), NAMED_GAP)


def _slice(cells, grid, block, z, left, axes):
    """Add the cells of one z. Returns (bx, by, bz, tx, ty, tz) of each."""
    (columns, missing_columns), (rows, missing_rows) = axes
    bz, tz = divmod(z, block[2])
    threads = []
    for by, down in rows:
        for bx, across in columns:
            _block(cells, grid, (bx, by, bz), left, across, down)
            for ty, y in down:
                for tx, x in across:
                    if tx is not None and ty is not None:
                        cells.add(left + x, y, "white")
                        threads.append((bx, by, bz, tx, ty, tz))
    for x in missing_columns:
        cells.word(left + x, sum(_span(rows)) / 2, "⋯")
    for y in missing_rows:
        cells.word(left + sum(_span(columns)) / 2, y - NAMED_GAP / 2, "⋮")
    return threads


def _block(cells, grid, index, left, across, down):
    """Outline a block, name it, and mark left-out threads with dots."""
    (start, end), (top, bottom) = _span(across), _span(down)
    cells.outline(left + start, top, left + end, bottom)
    dimensions = max(i + 1 for i in range(3) if grid[i] > 1 or i == 0)
    name = str(index[0]) if dimensions == 1 else f"({', '.join(map(str, index[:dimensions]))})"
    if prod(grid) > 1 and len(name) <= 4 * (end - start):
        cells.name(left + start, top, f"block {name}" if end - start >= 4 else name)
    for x in (x for thread, x in across if thread is None):
        cells.word(left + x + 0.5, (top + bottom) / 2, "⋯")
    for y in (y for thread, y in down if thread is None):
        cells.word(left + (start + end) / 2, y + 0.5, "⋮")


def _fields(grid, block, threads):
    """Compute ``FIELDS`` for rows of (bx, by, bz, tx, ty, tz)."""
    bx, by, bz, tx, ty, tz = threads.T
    block_index = (bz * grid[1] + by) * grid[0] + bx
    index_in_block = (tz * block[1] + ty) * block[0] + tx
    return {
        "block_index": block_index,
        "index_in_block": index_in_block,
        "index": block_index * prod(block) + index_in_block,
        "x": bx * block[0] + tx,
        "y": by * block[1] + ty,
        "z": bz * block[2] + tz,
        "warp": index_in_block // WARP,
        "lane": index_in_block % WARP,
    }


def _values(field, fields):
    """Return the values of the threads drawn."""
    return fields[field] if isinstance(field, str) else field[fields["index"]]


def _largest(field, grid, block):
    """Return the largest value in the whole launch."""
    if not isinstance(field, str):
        return field.max()
    if field == "lane":
        return min(prod(block), WARP) - 1
    last = np.array([(*(n - 1 for n in grid), *(n - 1 for n in block))])
    return int(_fields(grid, block, last)[field][0])


def _written(value):
    """Format a number for a cell."""
    return str(value) if isinstance(value, Integral) else f"{value:g}"


def _describe(grid, block, color_by, label):
    def name(field):
        return FIELDS[field] if isinstance(field, str) else "as given"

    title = f"Grid {_size(grid)}, block {_size(block)}: {prod(grid) * prod(block):,} threads.  "
    if label is None:
        return f"{title}Colour: {name(color_by)}"
    if isinstance(label, str) and isinstance(color_by, str) and label == color_by:
        return f"{title}Number and colour: {name(label)}"
    return f"{title}Number: {name(label)}, colour: {name(color_by)}"


def _size(shape):
    """Format (4, 1, 1) as ``4``, (2, 2, 1) as ``(2, 2)``."""
    used = shape[: max(i + 1 for i in range(3) if shape[i] > 1 or i == 0)]
    return str(used[0]) if len(used) == 1 else str(tuple(used))


def _legend(ax, values):
    """Name the warps drawn, as long as colours differ."""
    present = sorted({int(value) for value in values})
    handles = [Patch(facecolor=tint(i), label=f"warp {value}") for i, value in enumerate(present[: len(PALETTE)])]
    if len(present) > len(PALETTE):
        handles[-1].set_label(f"warp {present[len(PALETTE) - 1]}, and round again")
    axes.legend_below(ax, handles)


def _bar(ax, largest, name):
    scale = ScalarMappable(Normalize(0, max(largest, 1)), SCALE)
    ax.get_figure().colorbar(scale, cax=ax.inset_axes((1.02, 0.1, 0.02, 0.8)), label=name)


@drawn
def warps(block: Dim3, *, ax: Axes | None = None) -> Axes:
    """Draw one block: its threads coloured by warp, with their lane in the warp.

    Parameters
    ----------
    block : int or tuple of 1 to 3 int
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If ``block`` is not as above.

    Examples
    --------
    >>> axes = warps((16, 4))
    """
    shape = as_dim3("block", block)
    threads = prod(shape)
    count = ceil_div(threads, WARP)
    idle = count * WARP - threads
    title = f"Block {_size(shape)}: {threads:,} thread{'s' * (threads > 1)}, "
    title += f"{count} warp{'s' * (count > 1)}.  Number: lane"
    if idle:
        title += f".  The last warp has {idle} lane{'s' * (idle > 1)} without a thread"
    return launch(1, block, "warp", "lane", title, ax=ax)


# -- threads and the elements of an array -----------------------------------------------------------


@drawn
def mapping(elements: np.ndarray, size: int, threads: int, *, ax: Axes | None = None) -> Axes:
    """Draw which element of an array each thread handles.

    Parameters
    ----------
    elements : array of int, shape (all threads,)
        The element of each thread, ordered by index in the grid. A thread whose element is out of bounds is idle.
    size : int
        Elements of the array, 1 or more.
    threads : int
        Threads per block.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        For an argument of another type, shape or range.

    Examples
    --------
    >>> axes = mapping(np.arange(8), size=6, threads=4)
    """
    size, threads = check_int("size", size, 1), check_int("threads", threads, 1)
    elements = as_numbers("elements", elements, "iu")
    if elements.size > MAX_THREADS:
        raise ValueError(f"elements has shape {elements.shape}; at most {MAX_THREADS:,} threads can be drawn")
    if elements.ndim != 1 or elements.size == 0 or elements.size % threads:
        raise ValueError(f"elements has shape {elements.shape}; it must be one element for each thread of whole blocks")
    cells, idle = _Cells(), (elements < 0) | (elements >= size)
    drawn, missing = _axis(elements.size // threads, threads, _room(size - 1, WIDTH, MAX_COLUMNS))
    for x in missing:
        cells.word(x, 0.5, "⋯")
    ends = []
    for rank, (block, across) in enumerate(drawn):
        cells.block(block, across, 1)
        for t, x in across:
            if t is None:
                cells.word(x + 0.5, 0.5, "⋯")
            elif idle[block * threads + t]:
                cells.add(x, 0, UNUSED, str(t))
            else:
                cells.add(x, 0, tint(rank), str(t))
                ends.append((x + 0.5, rank, int(elements[block * threads + t])))
    places = _elements(cells, ends, size)
    ax, _ = cells.draw(ax, _describe_mapping(elements[~idle], elements.size, size), (0.1, 1.0, 0.1, 0.1))
    for x, _, element in ends:
        arrow = {"arrowstyle": "-|>,head_length=0.3,head_width=0.14", "color": INK, "linewidth": 0.7}
        ax.annotate("", (places[element], ELEMENTS_TOP), (x, 1), arrowprops=arrow | {"shrinkA": 0, "shrinkB": 0})
    return ax


def _elements(cells, ends, size):
    """Add the row of the array. Returns the position of each element drawn."""
    touched = sorted({element for _, _, element in ends})
    places, at, before = {}, 0.0, -1
    for element in range(size) if size <= MAX_COLUMNS else touched:
        if element != before + 1:
            cells.word(at + 0.5, ELEMENTS_TOP + 0.5, "⋯")
            at += 1
        hands = [rank for _, rank, e in ends if e == element]
        color = tint(hands[0]) if hands else UNUSED
        cells.add(at, ELEMENTS_TOP, color, str(element))
        places[element] = at + 0.5
        at, before = at + 1, element
    cells.outline(0, ELEMENTS_TOP, at + (before < size - 1), ELEMENTS_TOP + 1)
    if before < size - 1:
        cells.word(at + 0.5, ELEMENTS_TOP + 0.5, "⋯")
    return places


def _describe_mapping(handled, threads, size):
    title = f"{threads:,} threads (above), {size:,} elements (below)"
    touched = min(handled.size, 1) + np.count_nonzero(np.diff(np.sort(handled)))
    untouched = size - touched
    if handled.size < threads:
        title += f".  {threads - handled.size:,} threads without an element"
    if untouched:
        title += f".  {untouched:,} elements without a thread"
    if handled.size > touched:
        title += ".  Some elements have several threads"
    return title


@drawn
def grid_stride(n: int, threads: int, blocks: int, *, ax: Axes | None = None) -> Axes:
    """Draw a grid-stride loop: one column per thread, one row per step, and the element in each cell.

    Parameters
    ----------
    n : int
        Elements, 0 or more.
    threads, blocks : int
        Threads per block, and blocks.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        For an argument of another type, shape or range.

    Examples
    --------
    >>> axes = grid_stride(10, threads=4, blocks=1)
    """
    n, threads = check_int("n", n, 0, MAX_NUMBER), check_int("threads", threads, 1, MAX_SIZE)
    blocks = check_int("blocks", blocks, 1, MAX_SIZE)
    stride = threads * blocks
    steps = ceil_div(n, stride)
    drawn, missing = _axis(blocks, threads, _room(n, WIDTH - 1, MAX_COLUMNS - 4))
    rows = list(enumerate(abridge(max(steps, 1), 8)))
    cells = _Cells()
    for block, across in drawn:
        cells.block(block, across, len(rows))
    for row, step in rows:
        if step is None:
            cells.word(-0.3, row + 0.5, "⋮", ha="right")
            continue
        cells.word(-0.3, row + 0.5, f"step {step}", ha="right")
        for x in missing:
            cells.word(x, row + 0.5, "⋯")
        for rank, (block, across) in enumerate(drawn):
            for t, x in across:
                element = None if t is None else step * stride + block * threads + t
                if element is None:
                    cells.word(x + 0.5, row + 0.5, "⋯")
                elif element < n:
                    cells.add(x, row, tint(rank), str(element))
                else:
                    cells.add(x, row, UNUSED)
    walk = f"{steps:,} step{'s' * (steps != 1)} of {stride:,}" if n else "no thread enters the loop"
    title = f"{n:,} elements, {blocks:,} block{'s' * (blocks > 1)} of {threads:,} threads: {walk}"
    ax, _ = cells.draw(ax, title, (2.6, 1.0, 0.1, 0.1))
    return ax
