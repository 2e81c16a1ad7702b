"""The figures of a trace: lanes and banks, a warp's footprint on sectors, cost by line."""

import functools
from collections import Counter, defaultdict

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.patches import Patch, Rectangle

from warpstep.report import axes as plot
from warpstep.report import sections

__all__ = ["banks", "lines", "sectors"]

BANKS, WORD = 32, 4
SECTOR, LINE = 32, 128  # bytes
ALONE, SHARED, COLLIDES = plot.PALETTE[0], plot.PALETTE[2], plot.PALETTE[6]
FEWEST, MORE = plot.PALETTE[5], plot.PALETTE[6]
TOUCHED = "#E3EDF5"  # a sector that moves, where no lane uses it
MOST_MEMORY_LINES = 14  # drawn by ``sectors``; of more the middle is left out
MOST_BARS = 20  # drawn by ``lines``
BESIDE, ACROSS = (16, 36), LINE + 52  # of ``sectors``, in bytes: room at the left and right of a line, and in all
POINTS, SMALLEST, DIGIT = 6.6, 5.2, 0.64  # of letters: sizes in points, and the width over the size


def _counted(draw):
    """Give a figure the look of the course, and the mark of the emulator: counts come from it on any machine."""

    @functools.wraps(draw)
    def drawn(*args, **kwargs):
        with plot.style():
            ax = draw(*args, **kwargs)
            _stamp(ax.get_figure())
            return ax

    return drawn


def _stamp(made):
    made.supxlabel(plot.EMULATED, x=0.995, ha="right", fontsize=8, color=plot.FAINT)


# -- which request to draw --------------------------------------------------------------------------


def _choose(recording, line, array, spaces, what):
    """The access to draw: of those asked for, the one whose worst request is the worst."""
    sections.check("recording", recording)
    if line is not None and (not isinstance(line, int | np.integer) or isinstance(line, bool)):
        raise TypeError(f"line is {line!r}; it must be the number of a line, or None for the worst")
    if array is not None and not isinstance(array, str):
        raise TypeError(f"array is {array!r}; it must be the name of an array, or None for the worst")
    candidates = [a for a in recording.accesses if a.space in spaces and a.worst is not None]
    if not candidates:
        raise ValueError(f"{recording.kernel} has no access to {what}; there is nothing to draw")
    chosen = candidates
    if line is not None:
        chosen = [a for a in candidates if a.line == line]
        # A line of another file may have the same number; the kernel's own comes first.
        chosen = [a for a in chosen if a.filename == recording.filename] or chosen
        if not chosen:
            some = sections.listed((f"{n}" for n in sorted({a.line for a in candidates})), 12)
            raise ValueError(f"line is {line}, which has no access to {what}; lines with some: {some}")
    if array is not None:
        there = sorted({a.array for a in chosen})
        chosen = [a for a in chosen if a.array == array]
        if not chosen:
            place = "the kernel" if line is None else f"line {line}"
            raise ValueError(f"array is {array!r}; arrays in {what} that {place} accesses: {', '.join(there)}")
    return max(chosen, key=_badness)


def _badness(access):
    """What the hardware does more than it must at this line; then, how much it does."""
    return sections.wasted(access), sections.cost(access)


def _title(access, recording, result):
    request = access.worst
    block = sections.index(request.block, recording.grid)
    return (
        f"line {access.line}, {access.op} {access.array}: {result}\n"
        f"{_shortened(access.code, 70)}   (block {block}, warp {request.warp})"
    )


def _shortened(text, most):
    return text if len(text) <= most else text[: most - 1] + "…"


def _canvas(height):
    """Axes of this many inches across a notebook, with room for a title of two lines and the mark of the device."""
    above, below = 0.52, 0.24
    down = height + above + below
    return plt.figure(figsize=(plot.WIDTH, down)).add_axes((0, below / down, 1, height / down))


# -- banks ------------------------------------------------------------------------------------------


@_counted
def banks(recording, line=None, array=None):
    """Draw lanes x banks of one request to shared memory: the one with the most conflicts.

    A row is a lane, with the element it accesses at its right; a column is one of the 32 banks, 4 bytes wide. In a bank
    that serves several words, the words are numbered in the order of the lanes: the same number is the same word, sent
    to all its lanes at once; different numbers are different words, one wavefront each. Accesses of 8 and 16 bytes
    are served half-warp by half-warp and quarter by quarter, and are drawn so.

    Parameters
    ----------
    recording : warpstep.tracing.records.Recording
    line : int, optional
        The line with the most conflicts unless given.
    array : str, optional
        For a line that accesses several arrays in shared memory; the one with the most conflicts unless given.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the line does not access shared memory, or not this array; the message says which do.
    """
    access = _choose(recording, line, array, ("shared",), "shared memory")
    request = access.worst
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
    ax.set_title(_title(access, recording, _wavefronts(request)))
    _bank_legend(ax, set(faces))
    return ax


def _groups(itemsize):
    """The lanes that are served together: the warp, its halves, or its quarters."""
    parts = 1
    while parts * WORD < itemsize and parts < 32:
        parts *= 2
    return np.split(np.arange(32), parts)


def _bank_words(request, lanes):
    """For each bank, the words that these lanes want from it in the order of the lanes, and who wants each."""
    words = defaultdict(lambda: defaultdict(list))
    for lane in lanes[request.active[lanes]]:
        first = int(request.addresses[lane]) // WORD
        last = (int(request.addresses[lane]) + request.itemsize - 1) // WORD
        for word in range(first, last + 1):
            words[word % BANKS][word].append(int(lane))
    return words


def _bank_heads(ax, words, name, top, rows):
    """A column for each bank; above it the bank's number and, if it is more than one, how many words it must serve."""
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


def _fitting(label, most):
    """``tile[2, 5]``; of a long name only the beginning, as far as the index leaves room."""
    name, bracket, index = label.partition("[")
    room = max(3, most - len(bracket + index))
    return _shortened(name, room) + bracket + index


def _wavefronts(request):
    text = sections.plural(request.wavefronts, "wavefront")
    if request.wavefronts == request.ideal_wavefronts:
        return f"{text}, no conflict"
    return f"{text} where {request.ideal_wavefronts} would do"


def _bank_legend(ax, faces):
    meaning = {
        ALONE: "alone in its bank",
        SHARED: "lanes that share a word: free",
        COLLIDES: "several words in one bank, a wavefront for each; the same number is the same word",
    }
    handles = [Patch(facecolor=face, label=text) for face, text in meaning.items() if face in faces]
    _legend(ax, handles, 5.4 / (BANKS + 12.8))


def _legend(ax, handles, left):
    tight = {"borderpad": 0, "borderaxespad": 0, "handlelength": 1.2, "columnspacing": 1.4, "fontsize": 8}
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(left, 0), ncols=len(handles), **tight)


def _write(ax, x, y, text, **options):
    ax.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": POINTS} | options)


# -- sectors ----------------------------------------------------------------------------------------


@_counted
def sectors(recording, line=None, array=None):
    """Draw what one request to global memory moves: 128-byte lines, their 32-byte sectors, and what lanes use of them.

    The request is the one with the most sectors over the ideal. A row is a line of 128 bytes; lines between that no
    lane accesses are left out. The numbers are lanes; below a sector stands how many of its bytes they use.

    Parameters
    ----------
    recording : warpstep.tracing.records.Recording
    line : int, optional
        The line of the source that wastes the most sectors unless given.
    array : str, optional
        For a line that accesses several arrays; the one that wastes the most sectors unless given.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the line does not access global or local memory, or not this array; the message says which do.
    """
    access = _choose(recording, line, array, ("global", "local"), "global or local memory")
    request = access.worst
    memory = _memory(request, access.space == "local")
    rows = plot.abridge(len(memory), MOST_MEMORY_LINES)
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
            _write(ax, -3, y - 0.32, "⋮", fontsize=POINTS + 1, ha="right", color=plot.FAINT)
        _memory_line(ax, request, base, memory[base], y)
        offset = f"{base - origin:+,}" if base != origin else "0"
        _write(ax, -3, y + 0.5, offset, ha="right", color=plot.FAINT)
        y, before = y + pitch, base
    ax.set(xlim=(-BESIDE[0], LINE + BESIDE[1]), ylim=(y + 1.6, 0.0))
    ax.set_axis_off()
    ax.set_title(_title(access, recording, _sectors(request)))
    _sector_legend(ax, memory)
    return ax


def _memory(request, local):
    """For each 128-byte line touched, by its address: [(first byte in it, bytes, lanes)], in the order of memory."""
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
    """Where a byte of a thread's own memory lies: a word of all lanes of the warp fills a line of 128 bytes."""
    return address // WORD * LINE + lane * WORD + address % WORD


def _used(pieces):
    """Bytes that lanes use of each of the four sectors of a line."""
    used = np.zeros(LINE, bool)
    for first, count, _ in pieces:
        used[first : first + count] = True
    return used.reshape(-1, SECTOR).sum(axis=1)


def _memory_line(ax, request, base, pieces, y):
    used, named = _used(pieces), not any(text.get_gid() == "used" for text in ax.texts)
    for sector, count in enumerate(used):
        face = TOUCHED if count else "white"
        box = Rectangle(
            (sector * SECTOR, y), SECTOR, 1, facecolor=face, edgecolor="none", gid="sector" if count else None
        )
        ax.add_patch(box)
        if count:
            text = f"{count} of {SECTOR}" + " bytes used" * named
            _write(ax, (sector + 0.5) * SECTOR, y + 1.36, text, fontsize=POINTS - 0.6, color=plot.FAINT, gid="used")
    faces = [SHARED if len(lanes) > 1 else ALONE for _, _, lanes in pieces]
    boxes = [Rectangle((first, y), count, 1) for first, count, _ in pieces]
    ax.add_collection(PatchCollection(boxes, facecolors=faces, edgecolors="white", linewidths=0.5, gid="cells"))
    for sector, count in enumerate(used):
        look = {
            "edgecolor": plot.FAINT if count else "#CCCCCC",
            "facecolor": "none",
            "linewidth": 0.9 if count else 0.6,
        }
        ax.add_patch(Rectangle((sector * SECTOR, y), SECTOR, 1, zorder=2 if count else 1.5, **look))
    _lane_numbers(ax, pieces, y)
    lanes = [lane for _, _, some in pieces for lane in some]
    first, last = (request.label(request.addresses[lane]) for lane in (min(lanes), max(lanes)))
    _write(ax, LINE + 2, y + 0.5, _from_to(first, last), ha="left", gid="label")


def _lane_numbers(ax, pieces, y):
    """Write the lanes into their elements, or, where an element is too narrow for that, over runs of neighbours."""
    unit = 72 * plot.WIDTH / ACROSS  # points of one byte
    narrow = unit * min(count for _, count, _ in pieces) < 2 * DIGIT * SMALLEST
    pieces = _runs(pieces) if narrow else pieces
    texts = [_lanes(lanes) for _, _, lanes in pieces]
    rooms = [unit * count / (DIGIT * SMALLEST) for _, count, _ in pieces]  # letters
    if any(len(text) > room for text, room in zip(texts, rooms, strict=True)):
        texts = [
            f"×{len(lanes)}" if len(lanes) > 1 else text for text, (_, _, lanes) in zip(texts, pieces, strict=True)
        ]
    for (first, count, lanes), text, room in zip(pieces, texts, rooms, strict=True):
        if len(text) <= room and (len(lanes) > 1 or not narrow):
            face = SHARED if not narrow and len(lanes) > 1 else ALONE
            size = min(POINTS, unit * count / (DIGIT * len(text)))
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
    """One row of words for the lines that are not drawn."""
    used = np.concatenate([_used(memory[base]) for base in bases])
    moved = np.count_nonzero(used)
    text = f"⋮   {sections.plural(len(bases), 'more line')}: {sections.plural(moved, 'sector')}, "
    text += f"{used.sum()} of {SECTOR * moved} bytes used   ⋮"
    _write(ax, LINE / 2, y + 0.6, text, fontsize=POINTS + 0.5, color=plot.FAINT)


def _sectors(request):
    text = sections.plural(request.sectors, "sector")
    if request.sectors == request.ideal_sectors:
        return f"{text}, the fewest possible"
    return f"{text} where {request.ideal_sectors} would do"


def _sector_legend(ax, memory):
    shared = any(len(lanes) > 1 for pieces in memory.values() for _, _, lanes in pieces)
    alone = any(len(lanes) == 1 for pieces in memory.values() for _, _, lanes in pieces)
    handles = [Patch(facecolor=ALONE, label="used by one lane")] * alone
    handles += [Patch(facecolor=SHARED, label="used by several lanes")] * shared
    handles += [Patch(facecolor=TOUCHED, edgecolor=plot.FAINT, label="moved, not used")]
    handles += [Patch(facecolor="white", edgecolor="#CCCCCC", label="not moved")]
    _legend(ax, handles, BESIDE[0] / ACROSS)


# -- lines ------------------------------------------------------------------------------------------


def lines(recording):
    """Draw what each line of the source costs: wavefronts in shared memory, sectors in global and local memory.

    A bar is the fewest possible and what is more than that; a stroke marks the requests. Of a long kernel the 20 lines
    that cost most are drawn.

    Parameters
    ----------
    recording : warpstep.tracing.records.Recording

    Returns
    -------
    ndarray of matplotlib Axes, shape (1,) or (2,)
        Shared memory first, then global and local memory, each if it is accessed.

    Raises
    ------
    TypeError
        If ``recording`` is something else.
    ValueError
        If nothing is accessed.
    """
    sections.check("recording", recording)
    panels = {
        "Shared memory: wavefronts": _sums(recording, ("shared",)),
        "Global and local memory: 32-byte sectors": _sums(recording, ("global", "local")),
    }
    panels = {title: bars for title, bars in panels.items() if bars}
    if not panels:
        raise ValueError(f"{recording.kernel} accesses no memory; there is nothing to draw")
    counts = [len(bars) for bars in panels.values()]
    shape = {"rows": len(panels), "squeeze": False, "height_ratios": [n + 1.2 for n in counts]}
    note = " (counts scaled from some blocks)" if sections.sampled(recording) else ""
    title = f"{sections.launch(recording)}: cost by line{note}"
    with plot.figure(title, (plot.WIDTH, 0.9 + sum(0.29 * n + 0.45 for n in counts)), **shape) as axes:
        for ax, (name, bars) in zip(axes[:, 0], panels.items(), strict=True):
            _bars(ax, name, bars)
        keys = {key.get_label(): key for ax in axes[:, 0] for key in (*ax.containers, *ax.collections)}
        made = axes[0, 0].get_figure()
        made.legend(handles=keys.values(), loc="upper right", ncols=len(keys), fontsize=8, borderaxespad=0.3)
        _stamp(made)
    return axes[:, 0]


def _sums(recording, spaces):
    """[(label, requests, ideal, cost)] by line, in the order of the source; the dearest if there are too many."""
    sums, labels = Counter(), {}
    for access in recording.accesses:
        if access.space in spaces:
            place = access.filename, access.line
            labels.setdefault(place, f"{access.line}  {_shortened(access.code, 44)}")
            for i, count in enumerate((access.requests, sections.ideal_cost(access), sections.cost(access))):
                sums[place, i] += count
    dearest = sorted(labels, key=lambda place: -sums[place, 2])[:MOST_BARS]
    return [(label, *(sums[place, i] for i in range(3))) for place, label in labels.items() if place in dearest]


def _bars(ax, title, bars):
    labels, requests, ideal, cost = zip(*bars, strict=True)
    places, more = np.arange(len(bars)), np.subtract(cost, ideal)
    ax.barh(places, ideal, 0.62, color=FEWEST, label="the fewest possible")
    if more.any():
        ax.barh(places, more, 0.62, left=ideal, color=MORE, label="more than that")
    ax.vlines(requests, places - 0.42, places + 0.42, color=plot.INK, linewidth=1.6, label="requests")
    for place, total, least in zip(places, cost, ideal, strict=True):
        text = f"  {total:,}" + (f" = {sections.ratio(total, least)} {least:,}" if total > least else "")
        ax.text(total, place, text, va="center", fontsize=8)
    ax.set_yticks(places, labels, fontfamily="monospace", fontsize=7.5)
    ax.set(xlim=(0, 1.3 * max(*cost, *requests)), ylim=(max(len(bars), 2) - 0.4, -0.6))
    ax.set_title(title, fontsize=9)
    ax.xaxis.set_major_locator(plt.MaxNLocator(4, integer=True))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
