"""The figures of a trace: lanes and banks, the sectors that a warp touches, cost by line."""

from collections import Counter, defaultdict
from typing import Any

import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from warpstep.integers import ceil_div, next_power_of_two
from warpstep.limits import BANKS, LINE, SECTOR, WARP, WORD
from warpstep.report import axes as plot
from warpstep.report import facts
from warpstep.tracing.records import Access, Recording, check_trace
from warpstep.values import describe

__all__ = ["banks", "heat", "lines", "sectors"]

ALONE, SHARED, COLLIDES = plot.PALETTE[0], plot.PALETTE[2], plot.PALETTE[6]
FEWEST, MORE = plot.PALETTE[5], plot.PALETTE[6]
TOUCHED = "#E3EDF5"  # a sector that moves although no lane uses it
MAX_MEMORY_LINES = 6  # drawn by ``sectors``, which leaves out the middle of more
MAX_BARS = 20  # drawn by ``lines``
MARGINS, TOTAL_WIDTH = (16, 36), LINE + 52  # of ``sectors``, in bytes: left and right of a line, and in all
FONT_SIZE, MIN_FONT_SIZE, DIGIT = 7.4, 5.2, 0.64  # in points, and the width of a digit over its size

#: Counts come from the emulator on any machine.
styled = plot.styled(lambda: plot.EMULATED)


# -- which request to draw --------------------------------------------------------------------------


def _choose(trace, line, array, spaces, memory) -> tuple[Access, Any]:
    """The access to draw, and its worst request: the worst of those asked for."""
    check_trace("trace", trace)
    if line is not None and (not isinstance(line, int | np.integer) or isinstance(line, bool)):
        raise TypeError(f"line is {describe(line)}; it must be the number of a line, or None for the worst")
    if array is not None and not isinstance(array, str):
        raise TypeError(f"array is {describe(array)}; it must be the name of an array, or None for the worst")
    candidates = [a for a in trace.accesses if a.space in spaces and a.worst is not None]
    if not candidates:
        raise ValueError(f"{trace.kernel} has no access to {memory}; there is nothing to draw")
    chosen = candidates
    if line is not None:
        chosen = [a for a in candidates if a.line == line]
        # A line of another file may have the same number; the kernel's own comes first.
        chosen = [a for a in chosen if a.filename == trace.filename] or chosen
        if not chosen:
            some = facts.join_words((f"{n}" for n in sorted({a.line for a in candidates})), 12)
            raise ValueError(f"line is {line}, which has no access to {memory}; lines with some: {some}")
    if array is not None:
        names = sorted({a.array for a in chosen})
        chosen = [a for a in chosen if a.array == array]
        if not chosen:
            place = "the kernel" if line is None else f"line {line}"
            raise ValueError(
                f"array is {describe(array)}; arrays in {memory} that {place} accesses: {', '.join(names)}"
            )
    access = max(chosen, key=lambda access: (facts.wasted(access), facts.cost(access)))
    return access, access.worst


def _title(access, trace, result):
    block = facts.format_index(access.worst.block, trace.grid)
    return (
        f"line {access.line}, {access.op} {access.array}: {result}\n"
        f"{facts.shorten(access.code, 70)}   (block {block}, warp {access.worst.warp})"
    )


def _result(count, ideal, unit, best):
    """``4 wavefronts where 1 would do``."""
    text = facts.plural(count, unit)
    return f"{text}, {best}" if count == ideal else f"{text} where {ideal} would do"


def _canvas(height):
    """Axes as wide as a notebook, with room for a title of two lines."""
    return plot.canvas(plot.WIDTH, height, 0.52, 0.24)


# -- banks ------------------------------------------------------------------------------------------


@styled
def banks(trace: Recording, line: int | None = None, array: str | None = None):
    """Draw lanes x banks of one request to shared memory: the one with the most conflicts.

    A row is a lane, with the element that it accesses at the right. A column is one of the 32 banks, 4 bytes wide. If a
    bank serves several words, these are numbered in the order of the lanes. Lanes with the same number share a word and
    a wavefront; each different word takes another wavefront. Accesses of 8 and 16 bytes are drawn as they are served,
    by half and quarter warps.

    Parameters
    ----------
    trace : Trace
    line : int, optional
        The line with the most conflicts unless given.
    array : str, optional
        One of several arrays that the line accesses; the one with the most conflicts unless given.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the line does not access shared memory or this array; the message names those that do.
    """
    access, request = _choose(trace, line, array, ("shared",), "shared memory")
    result = _result(request.wavefronts, request.ideal_wavefronts, "wavefront", "no conflict")
    groups = _groups(request.itemsize)
    height = 0.135 * 32 + 0.34 * len(groups) + 0.22
    ax = _canvas(height)
    top, cells, faces = 0.0, [], []
    for number, lanes in enumerate(groups):
        words = _bank_words(request, lanes)
        top += 2.0 if number == 0 else 2.6
        name = {1: "", 2: f"half {number}, ", 4: f"quarter {number}, "}.get(len(groups), f"part {number}, ")
        _bank_heads(ax, words, name, top, len(lanes))
        _lane_rows(ax, request, lanes, words, top, cells, faces)
        outline = {"facecolor": "none", "edgecolor": plot.FAINT, "linewidth": 0.8}
        ax.add_patch(Rectangle((0, top), BANKS, len(lanes), **outline))
        top += len(lanes)
    ax.add_collection(PatchCollection(cells, facecolors=faces, edgecolors="white", linewidths=0.7, gid="cells"))
    ax.set(xlim=(-5.4, BANKS + 7.4), ylim=(top + 1.9, 0.0))
    ax.set_axis_off()
    ax.set_title(_title(access, trace, result))
    _bank_legend(ax, set(faces))
    return ax


def _groups(itemsize):
    """The lanes that are served together: the warp, its halves, or its quarters."""
    return np.split(np.arange(WARP), min(next_power_of_two(ceil_div(itemsize, WORD)), WARP))


def _bank_words(request, lanes):
    """{bank: {word: lanes}} for these lanes, in their order."""
    words = defaultdict(lambda: defaultdict(list))
    for lane in lanes[request.active[lanes]]:
        first = int(request.addresses[lane]) // WORD
        last = (int(request.addresses[lane]) + request.itemsize - 1) // WORD
        for word in range(first, last + 1):
            words[word % BANKS][word].append(int(lane))
    return words


def _bank_heads(ax, words, name, top, rows):
    """Draw the columns: above each the number of the bank and, if there are several, the number of words it serves."""
    _write(ax, -0.5, top - 1.5, f"{name}bank", ha="right", color=plot.FAINT)
    if any(len(served) > 1 for served in words.values()):
        _write(ax, -0.5, top - 0.55, "words", ha="right", color=COLLIDES, weight="bold")
    for bank in range(BANKS):
        served = len(words.get(bank, ()))
        if served > 1:
            _write(ax, bank + 0.5, top - 0.55, f"{served}", color=COLLIDES, weight="bold", gid="words")
        _write(ax, bank + 0.5, top - 1.5, f"{bank}", color=plot.FAINT)
    ax.vlines(range(1, BANKS), top, top + rows, color="#EDEDED", linewidth=0.6, zorder=0)


def _lane_rows(ax, request, lanes, words, top, cells, faces):
    for row, lane in enumerate(lanes):
        y = top + row
        active = request.active[lane]
        _write(ax, -0.5, y + 0.5, f"lane {lane}", ha="right", color=plot.INK if active else plot.FAINT)
        label = request.label(request.addresses[lane]) if active else "not active"
        look = {"ha": "left", "color": plot.INK if active else plot.FAINT, "gid": "label" if active else None}
        _write(ax, BANKS + 0.5, y + 0.5, _fitting(label, 20), **look)
    for bank, served in words.items():
        for turn, (_, wanted) in enumerate(served.items(), 1):
            face = COLLIDES if len(served) > 1 else SHARED if len(wanted) > 1 else ALONE
            for lane in wanted:
                y = top + lane - lanes[0]
                cells.append(Rectangle((bank, y), 1, 1))
                faces.append(face)
                if len(served) > 1:
                    _write(ax, bank + 0.5, y + 0.53, f"{turn}", color="white", gid="turn")


def _fitting(label, limit):
    """``tile[2, 5]``; a long name is cut to the room that the index leaves."""
    name, bracket, index = label.partition("[")
    room = max(3, limit - len(bracket + index))
    return facts.shorten(name, room) + bracket + index


def _bank_legend(ax, faces):
    meaning = {
        ALONE: "alone in its bank",
        SHARED: "lanes that share a word: free",
        COLLIDES: "several words in one bank, a wavefront for each; the same number is the same word",
    }
    handles = [Patch(facecolor=face, label=text) for face, text in meaning.items() if face in faces]
    plot.legend_below(ax, handles, 5.4 / (BANKS + 12.8), fontsize=8, columnspacing=1.4)


def _write(ax, x, y, text, **options):
    ax.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": FONT_SIZE} | options)


# -- sectors ----------------------------------------------------------------------------------------


@styled
def sectors(trace: Recording, line: int | None = None, array: str | None = None):
    """Draw what one request to global memory moves: 128-byte lines, their 32-byte sectors, and what lanes use of them.

    The request is the one with the most sectors over the ideal. A row is a line of 128 bytes; lines between that no
    lane accesses are left out. The numbers are lanes; below a sector stands how many of its bytes they use.

    Parameters
    ----------
    trace : Trace
    line : int, optional
        The line of the source that wastes the most sectors unless given.
    array : str, optional
        One of several arrays that the line accesses; the one that wastes the most sectors unless given.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the line does not access global or local memory or this array; the message names those that do.
    """
    access, request = _choose(trace, line, array, ("global", "local"), "global or local memory")
    result = _result(request.sectors, request.ideal_sectors, "sector", "the fewest possible")
    memory = _memory(request, access.space == "local")
    rows = plot.abridge(len(memory), MAX_MEMORY_LINES)
    pitch, origin = 1.8, _interleaved(request.origin, 0) if access.space == "local" else request.origin // LINE * LINE
    height = 0.19 * (pitch * len(rows) + 3.3)
    ax = _canvas(height)
    bases, before, y = sorted(memory), None, 1.2
    for edge in range(0, LINE + 1, SECTOR):
        _write(ax, edge, 0.6, f"{edge}" + " bytes" * (edge == LINE), color=plot.FAINT)
    for row in rows:
        if row is None:
            _left_out(ax, memory, bases[rows[-3] + 1 : -1], y)
            y, before = y + pitch, None
            continue
        base = bases[row]
        if before is not None and base != before + LINE:
            _write(ax, -3, y - 0.32, "⋮", fontsize=FONT_SIZE + 1, ha="right", color=plot.FAINT)
        _memory_line(ax, request, memory[base], y)
        offset = f"{base - origin:+,}" if base != origin else "0"
        _write(ax, -3, y + 0.5, offset, ha="right", color=plot.FAINT)
        y, before = y + pitch, base
    ax.set(xlim=(-MARGINS[0], LINE + MARGINS[1]), ylim=(y + 1.6, 0.0))
    ax.set_axis_off()
    ax.set_title(_title(access, trace, result))
    _sector_legend(ax, memory)
    return ax


def _memory(request, local):
    """{address of a 128-byte line: [(first byte in it, bytes, lanes)]} of all lines touched, in the order of memory."""
    wanted = defaultdict(list)
    for lane in np.flatnonzero(request.active).tolist():
        address = int(request.addresses[lane])
        if local:
            for word in range(address, address + request.itemsize, WORD):
                wanted[_interleaved(word, lane), min(WORD, request.itemsize)].append(lane)
        else:
            wanted[address, request.itemsize].append(lane)
    memory = defaultdict(list)
    for (address, count), lanes in sorted(wanted.items()):
        at, end = address, address + count
        while at < end:  # an element that is not aligned may lie on two lines
            base = at // LINE * LINE
            part = min(end, base + LINE) - at
            memory[base].append((at - base, part, lanes))
            at += part
    return dict(memory)


def _interleaved(address, lane):
    """The address of a byte of a thread's own memory: one word of all lanes of the warp fills a line of 128 bytes."""
    return address // WORD * LINE + lane * WORD + address % WORD


def _used(pieces):
    """Count the bytes that lanes use of each of the four sectors of a line."""
    used = np.zeros(LINE, bool)
    for first, count, _ in pieces:
        used[first : first + count] = True
    return used.reshape(-1, SECTOR).sum(axis=1)


def _memory_line(ax, request, pieces, y):
    used, named = _used(pieces), not any(text.get_gid() == "used" for text in ax.texts)
    for sector, count in enumerate(used):
        face = TOUCHED if count else "white"
        box = Rectangle(
            (sector * SECTOR, y), SECTOR, 1, facecolor=face, edgecolor="none", gid="sector" if count else None
        )
        ax.add_patch(box)
        if count:
            text = f"{count} of {SECTOR}" + " bytes used" * named
            _write(ax, (sector + 0.5) * SECTOR, y + 1.36, text, fontsize=FONT_SIZE - 0.6, color=plot.FAINT, gid="used")
    faces = [SHARED if len(lanes) > 1 else ALONE for _, _, lanes in pieces]
    boxes = [Rectangle((first, y), count, 1) for first, count, _ in pieces]
    ax.add_collection(PatchCollection(boxes, facecolors=faces, edgecolors="white", linewidths=0.5, gid="cells"))
    for sector, count in enumerate(used):
        edge, width, order = (plot.FAINT, 0.9, 2) if count else ("#CCCCCC", 0.6, 1.5)
        look = {"facecolor": "none", "edgecolor": edge, "linewidth": width, "zorder": order}
        ax.add_patch(Rectangle((sector * SECTOR, y), SECTOR, 1, **look))
    _lane_numbers(ax, pieces, y)
    lanes = [lane for _, _, some in pieces for lane in some]
    first, last = (request.label(request.addresses[lane]) for lane in (min(lanes), max(lanes)))
    _write(ax, LINE + 2, y + 0.5, _from_to(first, last), ha="left", gid="label")


def _lane_numbers(ax, pieces, y):
    """Write the lanes into their elements, or over runs of neighbours if an element is too narrow for that."""
    unit = 72 * plot.WIDTH / TOTAL_WIDTH  # points of one byte
    narrow = unit * min(count for _, count, _ in pieces) < 2 * DIGIT * MIN_FONT_SIZE
    pieces = _runs(pieces) if narrow else pieces
    texts = [_lanes(lanes) for _, _, lanes in pieces]
    rooms = [unit * count / (DIGIT * MIN_FONT_SIZE) for _, count, _ in pieces]  # letters
    if any(len(text) > room for text, room in zip(texts, rooms, strict=True)):
        texts = [
            f"×{len(lanes)}" if len(lanes) > 1 else text for text, (_, _, lanes) in zip(texts, pieces, strict=True)
        ]
    for (first, count, lanes), text, room in zip(pieces, texts, rooms, strict=True):
        if len(text) <= room and (len(lanes) > 1 or not narrow):
            face = SHARED if not narrow and len(lanes) > 1 else ALONE
            size = min(FONT_SIZE, unit * count / (DIGIT * len(text)))
            _write(ax, first + count / 2, y + 0.53, text, fontsize=size, color=plot.ink_on(face), gid="lanes")


def _lanes(lanes):
    """``5``, ``0–31``, or only how many there are: ``×7``."""
    if len(lanes) == 1:
        return str(lanes[0])
    return f"{lanes[0]}–{lanes[-1]}" if lanes == list(range(lanes[0], lanes[-1] + 1)) else f"×{len(lanes)}"


def _runs(pieces):
    """Join pieces that touch."""
    runs = []
    for first, count, lanes in pieces:
        if runs and runs[-1][0] + runs[-1][1] == first:
            begin, size, before = runs[-1]
            runs[-1] = (begin, size + count, sorted({*before, *lanes}))
        else:
            runs.append((first, count, lanes))
    return runs


def _from_to(first, last):
    """``x[3]`` or ``x[3] … [31]``."""
    if first == last:
        return _fitting(first, 26)
    index = "[" + last.partition("[")[2] if "[" in last else last
    return f"{_fitting(first, 24 - len(index))} … {index}"


def _left_out(ax, memory, bases, y):
    """Sum up in one row the lines that are not drawn."""
    used = np.concatenate([_used(memory[base]) for base in bases])
    moved = int(np.count_nonzero(used))
    text = f"⋮   {facts.plural(len(bases), 'more line')}: {facts.plural(moved, 'sector')}, "
    text += f"{used.sum()} of {SECTOR * moved} bytes used   ⋮"
    _write(ax, LINE / 2, y + 0.6, text, fontsize=FONT_SIZE + 0.5, color=plot.FAINT)


def _sector_legend(ax, memory):
    shared = any(len(lanes) > 1 for pieces in memory.values() for _, _, lanes in pieces)
    alone = any(len(lanes) == 1 for pieces in memory.values() for _, _, lanes in pieces)
    handles = [Patch(facecolor=ALONE, label="used by one lane")] * alone
    handles += [Patch(facecolor=SHARED, label="used by several lanes")] * shared
    handles += [Patch(facecolor=TOUCHED, edgecolor=plot.FAINT, label="moved, not used")]
    handles += [Patch(facecolor="white", edgecolor="#CCCCCC", label="not moved")]
    plot.legend_below(ax, handles, MARGINS[0] / TOTAL_WIDTH, fontsize=8, columnspacing=1.4)


# -- lines ------------------------------------------------------------------------------------------


def lines(trace: Recording):
    """Draw what each line of the source costs: wavefronts in shared memory, sectors in global and local memory.

    A bar has two parts, the fewest possible and the rest; a stroke marks the requests. Of a long kernel the 20 lines
    that cost most are drawn.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    ndarray of matplotlib Axes, shape (1,) or (2,)
        Shared memory first, then global and local memory, each if it is accessed.

    Raises
    ------
    TypeError
        If ``trace`` is something else.
    ValueError
        If nothing is accessed.
    """
    check_trace("trace", trace)
    panels = {
        "Shared memory: wavefronts": _sums(trace, ("shared",)),
        "Global and local memory: 32-byte sectors": _sums(trace, ("global", "local")),
    }
    panels = {title: bars for title, bars in panels.items() if bars}
    if not panels:
        raise ValueError(f"{trace.kernel} accesses no memory; there is nothing to draw")
    counts = [len(bars) for bars in panels.values()]
    shape = {"rows": len(panels), "squeeze": False, "height_ratios": [n + 1.2 for n in counts]}
    note = f" ({trace.status})" if trace.status != "complete" else ""
    title = f"{facts.launch(trace)}: cost by line{note}"
    with plot.figure(title, (plot.WIDTH, 0.9 + sum(0.29 * n + 0.45 for n in counts)), **shape) as axes:
        for ax, (name, bars) in zip(axes[:, 0], panels.items(), strict=True):
            _bars(ax, name, bars)
        keys = {key.get_label(): key for ax in axes[:, 0] for key in (*ax.containers, *ax.collections)}
        axes[0, 0].get_figure().legend(
            handles=keys.values(), loc="upper right", ncols=len(keys), fontsize=8, borderaxespad=0.3
        )
    return axes[:, 0]


def _sums(trace, spaces):
    """[(label, requests, ideal, cost)] by line, in the order of the source; the costliest if there are too many."""
    sums, labels = Counter(), {}
    for access in trace.accesses:
        if access.space in spaces:
            place = access.filename, access.line
            labels.setdefault(place, f"{access.line}  {facts.shorten(access.code, 44)}")
            for i, count in enumerate((access.requests, facts.ideal_cost(access), facts.cost(access))):
                sums[place, i] += count
    costliest = sorted(labels, key=lambda place: -sums[place, 2])[:MAX_BARS]
    return [(label, *(sums[place, i] for i in range(3))) for place, label in labels.items() if place in costliest]


def _bars(ax, title, bars):
    labels, requests, ideal, cost = zip(*bars, strict=True)
    places, more = np.arange(len(bars)), np.subtract(cost, ideal)
    ax.barh(places, ideal, 0.62, color=FEWEST, label="the fewest possible")
    if more.any():
        ax.barh(places, more, 0.62, left=ideal, color=MORE, label="more than that")
    ax.vlines(requests, places - 0.42, places + 0.42, color=plot.INK, linewidth=1.6, label="requests")
    for place, total, least in zip(places, cost, ideal, strict=True):
        text = f"  {total:,}" + (f" = {facts.format_ratio(total, least)} {least:,}" if total > least else "")
        ax.text(total, place, text, va="center", fontsize=8)
    ax.set_yticks(places, labels, fontfamily="monospace", fontsize=7.5)
    ax.set(xlim=(0, 1.3 * max(*cost, *requests)), ylim=(max(len(bars), 2) - 0.4, -0.6))
    ax.set_title(title, fontsize=9)
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


# -- elements ---------------------------------------------------------------------------------------


def heat(trace: Recording, array: str | None = None):
    """Draw reads and writes of each element of an array, and the block that wrote it; see `Trace.plot_heat`."""
    chosen = _choose_heat(trace, array)
    counts = {"reads": chosen.reads, "writes": chosen.writes}
    panels = [(name, values) for name, values in counts.items() if values.any()] or [("reads", chosen.reads)]
    if chosen.space == "global" and chosen.writes.any() and trace.grid != (1, 1, 1):
        panels.append(("block", chosen.writer))
    images = [(name, _image(chosen, values, -1 if name == "block" else None)) for name, values in panels]
    rows, columns = images[0][1].shape
    height = float(np.clip(2.6 * rows / columns * 3 / len(panels), 0.8, 3.6))
    cell = "" if chosen.width == 1 else f", {chosen.width} elements in a cell"
    sampled = "" if trace.status == "complete" else f", {trace.blocks:,} of {int(np.prod(trace.grid)):,} blocks"
    name = f"{chosen.array} {chosen.shape}, {chosen.space} memory"
    title = f"{name}: accesses by element{cell}; {facts.launch(trace)}{sampled}"
    with plot.figure(title, (plot.WIDTH, height + 1.0), columns=len(images), squeeze=False) as axes:
        for ax, (name, image) in zip(axes[0], images, strict=True):
            aspect = "auto" if len(chosen.shape) < 2 else "equal"
            shown = ax.imshow(image, aspect=aspect, vmin=None if name == "block" else 0)
            bar = ax.get_figure().colorbar(shown, ax=ax, location="bottom", pad=0.04, aspect=26)
            bar.locator = MaxNLocator(5, integer=True)
            bar.update_ticks()
            bar.set_label("last written by block (x fastest)" if name == "block" else f"{name} of each cell")
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
    return axes[0]


def _choose_heat(trace, array):
    check_trace("trace", trace)
    if array is not None and not isinstance(array, str):
        raise TypeError(f"array is {describe(array)}; it must be the name of an array, or None for the busiest")
    if trace.heat is None:
        raise ValueError(f"accesses of {trace.kernel} by element were not counted; trace it with heat=True")
    if not trace.heat:
        raise ValueError(f"{trace.kernel} accesses no array in global or shared memory; there is nothing to draw")
    if array is None:
        return max(trace.heat, key=lambda h: int(h.reads.sum() + h.writes.sum()))
    found = next((h for h in trace.heat if h.array == array), None)
    if found is None:
        names = ", ".join(sorted(h.array for h in trace.heat))
        raise ValueError(f"array is {describe(array)}; arrays that the kernel accesses: {names}")
    return found


def _image(heat, values, missing):
    """The cells as an image: the last axis across, or rows of a power of two for one dimension."""
    across = heat.shape[-1] // heat.width if len(heat.shape) > 1 and heat.shape[-1] % heat.width == 0 else 0
    if not across:
        across = values.size if values.size <= 2 * WARP else max(WARP, next_power_of_two(int(values.size**0.5)))
    image = np.full(ceil_div(values.size, across) * across, np.nan)
    image[: values.size] = np.where(values == missing, np.nan, values) if missing is not None else values
    return image.reshape(-1, across)
