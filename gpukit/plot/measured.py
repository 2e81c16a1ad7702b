"""Images, and figures of what was measured."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_hex
from matplotlib.lines import Line2D

from gpukit._host.checks import as_numbers
from gpukit.plot.style import COLUMN, box, drawn, figure, in_style, new_axes, plt
from gpukit.timing import Timing
from warpstep.report.axes import FAINT, PALETTE, SCALE, WIDTH
from warpstep.values import check_callable, check_items, check_number, check_text, check_type

__all__ = ["dots", "image", "lines", "photograph", "rungs", "shaded"]

MAX_IMAGE_HEIGHT = 3.5  # inches
COLORS = tuple(PALETTE[i] for i in (5, 6, 2, 3, 1, 0))  # of series: those that stand out on white
MARKERS = ("o", "s", "D", "^", "v", "P")
MAX_PIXELS, MAX_POINTS = 2**26, 2**20  # of an image, and of a line


def photograph() -> np.ndarray:
    """Read the photograph of the course: Grace Hopper, by the United States Navy. It comes with Matplotlib.

    Returns
    -------
    ndarray of uint8, shape (600, 512, 3)
        Red, green, blue.

    Examples
    --------
    >>> photograph().shape
    (600, 512, 3)
    """
    return plt.imread(Path(matplotlib.get_data_path(), "sample_data", "grace_hopper.jpg")).copy()


@drawn
def image(pixels: np.ndarray, title: str = "", *, ax: Axes | None = None) -> Axes:
    """Show an image, pixel for pixel.

    Parameters
    ----------
    pixels : ndarray, uint8 (0 to 255) or float (0 to 1), shape (H, W) or (H, W, 3)
    title : str
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If ``pixels`` is not as above.

    Examples
    --------
    >>> axes = image(photograph())
    """
    check_text("title", title)
    check_type("pixels", pixels, np.ndarray, "a NumPy array")
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise TypeError(f"pixels has dtype {pixels.dtype}; it must be uint8 or float")
    if not (pixels.ndim == 2 or pixels.ndim == 3 and pixels.shape[2] == 3) or pixels.size == 0:
        raise ValueError(f"pixels has shape {pixels.shape}; it must be (H, W) or (H, W, 3), neither 0")
    if pixels.size > MAX_PIXELS:
        raise ValueError(f"pixels has shape {pixels.shape}; at most {MAX_PIXELS:,} values can be drawn")
    if ax is None:
        height = min(MAX_IMAGE_HEIGHT, WIDTH * pixels.shape[0] / pixels.shape[1])
        ax = new_axes(height * pixels.shape[1] / pixels.shape[0], height)
    ax.imshow(pixels, cmap="gray", vmin=0, vmax=255 if pixels.dtype == np.uint8 else 1)
    ax.set_axis_off()
    ax.set_title(title)
    return ax


@in_style
def lines(
    x: Sequence[float],
    timings: Iterable[Timing],
    value: Callable[[float], float],
    unit: str,
    label: str = "",
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw times, or rates computed from them: a line through the medians and a band between the quartiles.

    Parameters
    ----------
    x : sequence of numbers
    timings : iterable of timing.Timing
        One for each of ``x``.
    value : callable
        Converts seconds to the value drawn.
    unit : str
        Unit of that value, for the axis.
    label : str
        For a legend.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If ``value`` is not callable, ``unit`` is empty, or there is not one timing for each of ``x``.

    Examples
    --------
    >>> timing = gpukit.timing.bench(lambda: sorted(range(99)), device="cpu", repeat=20)
    >>> axes = lines([99], [timing], lambda seconds: 1e6 * seconds, "us")
    """
    check_callable("value", value, "a function of seconds")
    if not check_text("unit", unit):
        raise ValueError("unit is ''; it must say what the axis shows, 'GB/s' for example")
    check_text("label", label)
    timings = check_items("timings", timings, "timings of bench, one for each of x", MAX_POINTS)
    for i, timing in enumerate(timings):
        check_type(f"timings[{i}]", timing, Timing, "a Timing")
    x = check_items("x", x, "a sequence of numbers", MAX_POINTS)
    for i, number in enumerate(x):
        check_number(f"x[{i}]", number)
    if len(timings) != len(x) or not timings:
        raise ValueError(f"timings has {len(timings)} items for {len(x)} of x; it must have one for each")
    if ax is None:
        ax = plt.subplots(figsize=(WIDTH, 3.2), layout="constrained")[1]
    quartiles = np.array([[value(seconds) for seconds in timing.quartiles] for timing in timings])
    (line,) = ax.plot(x, [value(timing.median) for timing in timings], marker="o", markersize=4, label=label)
    ax.fill_between(x, *quartiles.T, color=line.get_color(), alpha=0.25, linewidth=0)
    ax.set_ylabel(unit)
    ax.grid(axis="y")
    return ax


# -- measurements side by side ---------------------------------------------------------------------


def dots(
    values: Mapping[str, float | Mapping[str, float]],
    unit: str,
    *,
    title: str = "",
    mark: str = "",
    notes: Mapping[str, str] | None = None,
    heading: str = "",
    hollow: Collection[str] = (),
    limit: tuple[str, float] | None = None,
    log: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw a row for each name and a point for each of its values, which unlike bars need no zero on the axis.

    Parameters
    ----------
    values : dict
        {name: value}, or {name: {series: value}} with a colour and a marker for each series.
    unit : str
        Of the values, for the axis.
    title, mark : str
        As for `figure`.
    notes : dict, optional
        {name: text} for a column of text at the right, under ``heading``.
    hollow : collection of str
        The series, or else the names, that are drawn hollow: recorded elsewhere, for example.
    limit : tuple of (str, float), optional
        The name and the value of a line across all rows.
    log : bool
        Whether the axis is logarithmic.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, a value not finite, or not positive on a logarithmic axis.

    Examples
    --------
    >>> axes = dots({"naive": 1.5, "tiled": 7.75}, "TFLOP/s")
    """
    rows = _rows(values, log)
    if not check_text("unit", unit):
        raise ValueError("unit is ''; it must say what the axis shows, 'ms' for example")
    if ax is None:
        with figure(title, (COLUMN, 0.27 * len(rows) + 1.15), mark=mark) as ax:
            options = {"notes": notes, "heading": heading, "hollow": hollow, "limit": limit, "log": log}
            return dots(values, unit, ax=ax, **options)
    series = list(dict.fromkeys(name for row in rows.values() for name in row))
    _scatter(ax, rows, series, set(hollow))
    _dress_rows(ax, rows, unit, log, room=len(series) == 1)
    if limit:
        ax.axvline(limit[1], color=FAINT, linewidth=1, linestyle="--", zorder=1)
        look = {"ha": "center", "va": "bottom", "fontsize": 8.5, "color": FAINT}
        ax.annotate(limit[0], (limit[1], -0.7), (0, 2), textcoords="offset points", **look)
    beside = {"transform": ax.get_yaxis_transform(), "fontsize": 8.5}
    for i, name in enumerate(rows):
        if notes and name in notes:
            ax.text(1.03, i, notes[name], va="center", **beside)
    if heading:
        ax.text(1.03, -0.75, heading, va="bottom", color=FAINT, **beside)
    return ax


def _scatter(ax, rows, series, hollow):
    """Draw the points of each series, with a legend, or with their numbers if there is only one."""
    handles = []
    for order, (one, color, marker) in enumerate(zip(series, cycle(COLORS), cycle(MARKERS), strict=False)):
        found = {name: (i, row[one]) for i, (name, row) in enumerate(rows.items()) if one in row}
        look = {"edgecolors": color, "linewidths": 1.5, "s": 38, "marker": marker}
        faces = ["white" if {one, name} & hollow else color for name in found]
        above = 4 - order / len(series)  # so that a circle shows on a square at the same place
        ax.scatter([x for _, x in found.values()], [i for i, _ in found.values()], c=faces, zorder=above, **look)
        handles.append(
            Line2D([], [], color=color, marker=marker, linestyle="", fillstyle="none" if one in hollow else "full")
        )
        for i, x in found.values() if len(series) == 1 else ():
            ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # a line may pass behind the number
            ax.annotate(_short(x), (x, i), (7, 0), textcoords="offset points", va="center", fontsize=8.5, bbox=ground)
    if series != [""]:
        ax.legend(handles, series, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(series), borderpad=0.1)


def _rows(values, log):
    """{name: {series: value}}, checked; the only series of plain values has no name."""
    check_type("values", values, Mapping, "a dict of values by name")
    if not values:
        raise ValueError("values is empty; there is nothing to draw")
    rows = {name: dict(row) if isinstance(row, Mapping) else {"": row} for name, row in values.items()}
    for name, row in rows.items():
        for one, value in row.items():
            place = f"values[{name!r}]" + f"[{one!r}]" * bool(one)
            check_number(place, value)
            if log and value <= 0:
                raise ValueError(f"{place} is {value}; on a logarithmic axis it must be more than 0")
    return rows


def _dress_rows(ax, rows, unit, log, room):
    """Name the rows and scale the axis, with room for the numbers beside the points."""
    ax.set_yticks(range(len(rows)), rows, fontsize=9)
    ax.set(ylim=(len(rows) - 0.4, -0.7), xlabel=f"{unit}, logarithmic" if log else unit)
    ax.tick_params(axis="y", length=0)
    ax.hlines(range(len(rows)), 0, 1, transform=ax.get_yaxis_transform(), color="#E6E6E6", linewidth=0.8, zorder=0)
    least, most = (pick(v for row in rows.values() for v in row.values()) for pick in (min, max))
    if log:
        ax.set_xscale("log")
        ax.set_xlim(least / 1.6, most * (most / least) ** (0.16 * room) * 1.6)
        ax.xaxis.set_major_formatter("{x:,g}")
        ax.minorticks_off()
    else:
        low = min(0.0, least)
        ax.set_xlim(low, low + (most - low) * (1.15 if room else 1.05) or 1)


def _short(value):
    """Three digits and no exponent: 0.0123, 12.0, 1,230."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def rungs(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    unit: str,
    highlight: Sequence[str],
    *,
    against: Sequence[str] = (),
    xlabel: str = "elements",
    title: str = "",
    mark: str = "",
) -> np.ndarray:
    """Draw rates over sizes: a few lines in colours with their names beside them, and all others in grey.

    With ``against``, a second panel shows the ratio of each highlighted line to the best of these.

    Parameters
    ----------
    x : sequence of numbers
        Sizes, for a logarithmic axis.
    series : dict
        {name: a rate for each of x}; more is better.
    unit : str
        Of the rates.
    highlight : sequence of str
        Names to draw in colours: 6 or less.
    against : sequence of str
        Names whose best is the 1 of the second panel.
    xlabel, title, mark : str

    Returns
    -------
    ndarray of matplotlib Axes, shape (1,) or (2,)

    Raises
    ------
    TypeError, ValueError
        If a name is not in ``series``, or a series has not one rate for each of ``x``.

    Examples
    --------
    >>> axes = rungs([1, 2, 4], {"ours": [1, 2, 3], "theirs": [2, 2, 2]}, "GB/s", ["ours"])
    """
    sizes, rates = _rates(x, series)
    unknown = [name for name in (*highlight, *against) if name not in rates]
    if unknown or not 1 <= len(highlight) <= len(COLORS):
        names = f"{list(highlight)}, {list(against)}"
        raise ValueError(f"highlight and against are {names}; they must be 1 to 6 names of series")
    looks = {name: {"color": COLORS[i], "marker": MARKERS[i]} for i, name in enumerate(highlight)}
    count = 2 if against else 1
    with figure(title, (COLUMN, 2.7 * count + 0.4), rows=count, mark=mark, sharex=True, squeeze=False) as axes:
        axes = axes[:, 0]
        for name, row in rates.items():
            if name not in looks:
                axes[0].plot(sizes, row, color="#C4C4C4", linewidth=1.1, zorder=1)
        best = np.max([rates[name] for name in against], axis=0) if against else None
        for ax, scale in zip(axes, (1.0, best), strict=False):
            for name, look in looks.items():
                ax.plot(sizes, rates[name] / scale, markersize=4, linewidth=1.6, **look)
            _name_lines(ax, {name: (rates[name] / scale)[-1] for name in looks}, looks)
            ax.set(xscale="log", ylim=(0, None))
            ax.grid(axis="y")
        axes[0].set_ylabel(unit)
        if len(rates) > len(looks):
            rest = ", ".join(name for name in rates if name not in looks)
            axes[0].set_title(f"grey: {rest}", fontsize=8.5, color=FAINT)
        if against:
            axes[1].axhline(1, color=FAINT, linewidth=1, linestyle="--", zorder=1)
            over = "over the faster of\n" if len(against) > 1 else "over "
            axes[1].set_ylabel(over + ", ".join(against))
        axes[-1].set_xlabel(xlabel)
    return axes


def _rates(x, series):
    """x and {name: rates} as arrays, checked."""
    sizes = as_numbers("x", check_items("x", x, "numbers", MAX_POINTS)).astype(float)
    check_type("series", series, Mapping, "a dict of rates by name")
    rates = {}
    for name, row in series.items():
        argument = f"series[{name!r}]"
        rates[name] = as_numbers(argument, check_items(argument, row, "rates", MAX_POINTS)).astype(float)
        if rates[name].shape != sizes.shape:
            many = f"{rates[name].size} items for {sizes.size} of x"
            raise ValueError(f"{argument} has {many}; it must have one for each")
    return sizes, rates


def _name_lines(ax, ends, looks):
    """Write the names of lines at their right ends, moved apart where they would overlap."""
    apart = 0.075 * max(ax.get_ylim()[1], max(ends.values()))
    groups = []  # of names that touch, from below: (middle, names)
    for name, end in sorted(ends.items(), key=lambda item: item[1]):
        groups.append((end, [name]))
        while (
            len(groups) > 1 and _top(groups[-2], apart) > groups[-1][0] - (len(groups[-1][1]) - 1) * apart / 2 - apart
        ):
            (_, above), (_, below) = groups.pop(), groups.pop()
            together = below + above
            groups.append((sum(ends[one] for one in together) / len(together), together))
    for middle, names in groups:
        for i, name in enumerate(names):
            y = middle + (i - (len(names) - 1) / 2) * apart
            look = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 8.5}
            ax.annotate(name, (1.01, y), annotation_clip=False, color=looks[name]["color"], **look)


def _top(group, apart):
    middle, names = group
    return middle + (len(names) - 1) * apart / 2


def shaded(
    values: Any,
    rows: Sequence[str],
    columns: Sequence[str],
    unit: str = "",
    *,
    form: str = "{:.2f}",
    title: str = "",
    mark: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draw a table whose cells are shaded by their values, from dark for the least to light for the most.

    Parameters
    ----------
    values : array of shape (rows, columns)
        NaN leaves a cell empty.
    rows, columns : sequence of str
        Their names.
    unit : str
        What the values are, written above the table.
    form : str
        Format of a value.
    title, mark : str
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If the shape does not fit the names.

    Examples
    --------
    >>> axes = shaded([[1, 2], [3, 4]], ["a", "b"], ["x", "y"])
    """
    table = as_numbers("values", values).astype(float)
    rows, columns = check_items("rows", rows, "names"), check_items("columns", columns, "names")
    if table.shape != (len(rows), len(columns)) or not table.size or np.isnan(table).all():
        raise ValueError(
            f"values has shape {table.shape}; it must be ({len(rows)}, {len(columns)}), with a number in it"
        )
    if ax is None:
        height = 0.3 * len(rows) + 0.6 + 0.16 * max(name.count("\n") for name in columns)
        with figure(title, (COLUMN, height), mark=mark) as ax:
            return shaded(values, rows, columns, unit, form=form, ax=ax)
    scale = Normalize(np.nanmin(table), max(np.nanmax(table), np.nanmin(table) + 1e-12))
    for (i, j), value in np.ndenumerate(table):
        face = "white" if np.isnan(value) else to_hex(SCALE(scale(value)))
        text = "–" if np.isnan(value) else form.format(value)
        box(ax, j, i, 1, 1, face, text, edge="white", size=8.5)
    ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    ax.set_xticks(np.arange(len(columns)) + 0.5, columns, fontsize=8.5)
    ax.set_yticks(np.arange(len(rows)) + 0.5, rows, fontsize=8.5)
    ax.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    if unit:
        ax.set_xlabel(unit, fontsize=9)
    return ax
