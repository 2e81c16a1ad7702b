"""Pictures of what happens when: warps at a barrier, loads that overlap with arithmetic, errors."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from gpukit.plot.style import COLUMN, box, drawn, sheet, tint, write
from warpstep.report.axes import INK, PALETTE
from warpstep.values import check_int, check_items, check_number

__all__ = ["barrier_in_time", "double_buffering", "errors_in_time"]

LEFT, RIGHT, ROW = 0.95, 0.15, 0.36  # inches: names, the right margin, the pitch of rows
EARLY = PALETTE[6]
MAX_WARPS, MAX_STEPS = 8, 12


@drawn
def barrier_in_time(
    store: Sequence[float] = (2, 5, 3), load: Sequence[float] = (3, 3, 3), *, ax: Axes | None = None
) -> Axes:
    """Draw warps that store to a tile and then load from all of it, without a barrier between and with one.

    Without, what a warp loads before all others have stored is marked: it may not be there yet.

    Parameters
    ----------
    store, load : sequence of float
        The time that each warp takes for either, 2 to 8 warps.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If there is not one time above 0 in ``load`` for each in ``store``.

    Examples
    --------
    >>> axes = barrier_in_time()
    """
    store, load = _times("store", store), _times("load", load)
    if len(store) != len(load):
        raise ValueError(f"load has {len(load)} items for {len(store)} of store; it must have one for each warp")
    stored = max(store)
    scale = (COLUMN - LEFT - RIGHT) / (stored + max(load))
    early = sum(end < stored for end in store)
    title = f"Without syncthreads {early} of {len(store)} warps load too early"
    title += "; with it they wait" if early else ", this time"
    panel = 0.34 + ROW * len(store)
    ax = sheet(ax, COLUMN, 2 * panel + 0.52, title)
    for top, head, waits in ((0.0, "without syncthreads()", False), (panel + 0.1, "with syncthreads()", True)):
        write(ax, 0.05, top + 0.14, head, ha="left", fontweight="bold")
        for warp, (first, second) in enumerate(zip(store, load, strict=True)):
            y = top + 0.3 + ROW * warp
            write(ax, LEFT - 0.1, y + 0.15, f"warp {warp}", ha="right")
            box(ax, LEFT, y, first * scale, 0.3, tint(0), "stores", edge="white")
            begins = stored if waits else first
            box(ax, LEFT + begins * scale, y, second * scale, 0.3, tint(2), "loads", edge="white")
            if waits and first < stored:
                look = {"edge": "#999999", "line": 0.0, "hatch": "////", "gid": "waits"}
                box(ax, LEFT + first * scale, y, (stored - first) * scale, 0.3, "white", **look)
            elif first < stored:
                until = min(stored, first + second)
                look = {"edge": EARLY, "line": 1.6, "gid": "early"}
                box(ax, LEFT + first * scale, y, (until - first) * scale, 0.3, "none", **look)
        ax.plot([LEFT + stored * scale] * 2, [top + 0.24, top + panel], color=INK, linestyle="-" if waits else ":")
    legend = [(EARLY, "none", "", "may load what is not stored yet"), ("#999999", "white", "////", "waits")]
    x, y = LEFT, 2 * panel + 0.24
    for edge, face, hatch, text in legend:
        box(ax, x, y, 0.26, 0.18, face, edge=edge, line=0.0 if hatch else 1.6, hatch=hatch)
        write(ax, x + 0.34, y + 0.09, text, ha="left", size=8.5)
        x += 2.4
    write(ax, COLUMN - RIGHT, y + 0.09, "time →", ha="right", faint=True)
    return ax


def _times(name, values):
    values = check_items(name, values, "a time for each warp", MAX_WARPS)
    if len(values) < 2:
        raise ValueError(f"{name} has {len(values)} items; it must have two or more, one for each warp")
    for i, value in enumerate(values):
        if check_number(f"{name}[{i}]", value, 0) == 0:
            raise ValueError(f"{name}[{i}] is 0; it must be more")
    return [float(value) for value in values]


@drawn
def double_buffering(
    load: float = 3, compute: float = 2, steps: int = 5, buffers: int = 2, *, ax: Axes | None = None
) -> Axes:
    """Draw the steps of a tiled kernel in time: each loads a tile, then computes with it, in one buffer and in several.

    Parameters
    ----------
    load, compute : float
        The time of a load and of the arithmetic of a step, in any unit.
    steps : int
    buffers : int
        Tiles in shared memory: while one is computed with, the others are loaded.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If a time is not above 0, or ``steps`` or ``buffers`` out of range.

    Examples
    --------
    >>> axes = double_buffering(load=3, compute=2)
    """
    load, compute = _times("load and compute", (load, compute))
    steps, buffers = check_int("steps", steps, 1, MAX_STEPS), check_int("buffers", buffers, 2, 4)
    one, several = (_schedule(load, compute, steps, count) for count in (1, buffers))
    ends = one[-1][3], several[-1][3]
    scale = (COLUMN - LEFT - RIGHT) / ends[0]
    name = {2: "Double buffering", 3: "Three buffers", 4: "Four buffers"}[buffers]
    ax = sheet(
        ax, COLUMN, 2.45, f"{name}: {ends[0]:g} units of time become {ends[1]:g}, {ends[0] / ends[1]:.2f} times as fast"
    )
    panels = (
        (0.0, "one buffer: load, then compute", one, 1),
        (1.15, f"{buffers} buffers: the next load overlaps", several, buffers),
    )
    for top, head, bars, count in panels:
        write(ax, 0.05, top + 0.14, head, ha="left", fontweight="bold")
        for row, label in enumerate(("loads", "computes")):
            write(ax, LEFT - 0.1, top + 0.47 + ROW * row, label, ha="right")
        for step, loaded, begun, _ in bars:
            face = tint(step % count)
            wide = 0.09 * len(str(step)) < min(load, compute) * scale
            text = str(step) if wide else ""
            box(ax, LEFT + (loaded - load) * scale, top + 0.31, load * scale, 0.31, face, text, edge="white")
            box(ax, LEFT + begun * scale, top + 0.31 + ROW, compute * scale, 0.31, face, text, edge="white")
    write(ax, LEFT, 2.31, "number: the step; colour: the buffer", faint=True, ha="left", size=8.5)
    write(ax, COLUMN - RIGHT, 2.31, "time →", ha="right", faint=True)
    return ax


#: Of each kind of error: its name, and what host and GPU do: (what, begin, end, whether it raises, or fails, here).
ERRORS = (
    (
        "at once: the driver refuses the launch, and everything else works",
        (("launch", 0, 2, True), ("launch", 2.5, 4.5, False), ("copy", 5, 9.5, False)),
        (("kernel", 4.5, 8, False),),
    ),
    (
        "later, and for good: the call that waits says so, and every call after it",
        (("launch", 0, 2, False), ("copy", 2.5, 6, True), ("launch", 6.5, 8.5, True), ("copy", 9, 11, True)),
        (("kernel", 2, 6, True), ("lost", 6, 12, False)),
    ),
)


@drawn
def errors_in_time(*, ax: Axes | None = None) -> Axes:
    """Draw when the host learns of an error: at the launch, or in a later call and in every call from then on.

    Parameters
    ----------
    ax : matplotlib Axes, optional

    Examples
    --------
    >>> axes = errors_in_time()
    """
    scale, panel = (COLUMN - LEFT - RIGHT) / 12, 0.4 + 2 * ROW
    ax = sheet(ax, COLUMN, len(ERRORS) * panel + 0.36, "When the host learns of an error, and what works afterwards")
    for number, (head, *rows) in enumerate(ERRORS):
        top = panel * number
        write(ax, 0.05, top + 0.14, head, ha="left", fontweight="bold")
        for row, (name, bars) in enumerate(zip(("host", "GPU"), rows, strict=True)):
            y = top + 0.3 + ROW * row
            write(ax, LEFT - 0.1, y + 0.15, name, ha="right")
            for what, begin, end, wrong in bars:
                look = {"edge": EARLY if wrong else "white", "line": 1.8 if wrong else 0.9, "gid": "wrong" * wrong}
                if what == "lost":
                    look = {"edge": "#999999", "line": 0.0, "hatch": "////"}
                face, text = ("white", "") if what == "lost" else (tint(2 if row else 0), what)
                box(ax, LEFT + begin * scale, y, (end - begin) * scale, 0.3, face, text, **look)
    x, y = LEFT, len(ERRORS) * panel + 0.08
    for look, text in (
        ({"edge": EARLY, "line": 1.8}, "fails, or raises"),
        ({"edge": "#999999", "line": 0.0, "hatch": "////"}, "context lost"),
    ):
        box(ax, x, y, 0.26, 0.18, "white", **look)
        write(ax, x + 0.34, y + 0.09, text, ha="left", size=8.5)
        x += 2.0
    write(ax, COLUMN - RIGHT, y + 0.09, "time →", ha="right", faint=True)
    return ax


def _schedule(load, compute, steps, buffers):
    """(step, end of its load, begin and end of its arithmetic): a load waits until its buffer is free."""
    bars = []
    for step in range(steps):
        free = bars[step - buffers][3] if step >= buffers else 0.0
        loaded = max(free, bars[-1][1] if bars else 0.0) + load
        begun = max(loaded, bars[-1][3] if bars else 0.0)
        bars.append((step, loaded, begun, begun + compute))
    return bars


# -- steps of a warp ---------------------------------------------------------------------------------


@drawn
def butterfly(values: Sequence[int] = (3, 1, 4, 1, 5, 9, 2, 6), *, ax: Axes | None = None) -> Axes:
    """Draw a sum by butterfly shuffles: in each step a lane adds the value of the lane at an exclusive or of its own.

    Parameters
    ----------
    values : sequence of int
        One for each lane: 2, 4, 8 or 16.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If ``values`` is not as above.

    Examples
    --------
    >>> axes = butterfly([1, 2, 3, 4])
    """
    values = _lanes(values)
    n = len(values)
    if n & (n - 1):
        raise ValueError(f"values has {n} items; a butterfly needs a power of two")
    steps = [n >> i for i in range(1, n.bit_length())]
    partners = [(distance, [lane ^ distance for lane in range(n)]) for distance in steps]
    title = f"Sum of {n} lanes in {len(steps)} step{'s' * (len(steps) > 1)}: each adds the value of lane ^ distance"
    return _draw_steps(ax, title, values, partners)


@drawn
def scan_steps(values: Sequence[int] = (3, 1, 4, 1, 5, 9, 2, 6), *, ax: Axes | None = None) -> Axes:
    """Draw an inclusive scan: in each step a lane adds the value of the lane that is a distance before it.

    Parameters
    ----------
    values : sequence of int
        One for each lane: 2 to 16.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If ``values`` is not as above.

    Examples
    --------
    >>> axes = scan_steps([1, 2, 3, 4])
    """
    values = _lanes(values)
    n = len(values)
    steps = [1 << i for i in range((n - 1).bit_length())]
    partners = [(d, [lane - d if lane >= d else None for lane in range(n)]) for d in steps]
    title = f"Inclusive scan of {n} values in {len(steps)} step{'s' * (len(steps) > 1)}: each lane adds the value "
    return _draw_steps(ax, title + "of lane - distance", values, partners)


def _lanes(values):
    values = check_items("values", values, "ints, one for each lane", 16)
    if len(values) < 2:
        raise ValueError(f"values has {len(values)} items; it must have 2 or more, one for each lane")
    return [check_int(f"values[{i}]", value, -999, 9999) for i, value in enumerate(values)]


def _draw_steps(ax, title, values, partners):
    """Draw a row of values for each step, and lines from the values that each lane adds to its own."""
    left, pitch = 1.0, 0.85
    width = (COLUMN - left - 0.05) / len(values)
    ax = sheet(ax, COLUMN, 0.3 + pitch * len(partners) + 0.45, title)
    for lane in range(len(values)):
        write(ax, left + (lane + 0.5) * width, 0.12, f"lane {lane}" if len(values) <= 8 else lane, size=8.5, faint=True)
    rows = [(0, [None] * len(values)), *partners]
    for step, (distance, sources) in enumerate(rows):
        top = 0.27 + pitch * step
        if step:
            write(ax, left - 0.12, top + 0.16, f"distance {distance}", ha="right", size=8.5)
            values = [v if s is None else v + values[s] for v, s in zip(values, sources, strict=True)]
        for lane, (value, source) in enumerate(zip(values, sources, strict=True)):
            x = left + (lane + 0.5) * width
            if step:
                ax.plot([x, x], [top - pitch + 0.32, top], color="#BBBBBB", linewidth=1, zorder=0)
            if source is not None:
                begin = left + (source + 0.5) * width
                ax.plot([begin, x], [top - pitch + 0.32, top], color=PALETTE[5], linewidth=1.1, zorder=0)
            face = tint(1) if source is not None else tint(0)
            box(
                ax,
                left + lane * width + 0.04,
                top,
                width - 0.08,
                0.32,
                face,
                str(value),
                edge="white",
                gid=f"step {step}",
            )
    return ax
