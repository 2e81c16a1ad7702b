"""The style of all figures: colours, sizes, and the device under each."""

import functools
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from warpstep.values import check_int, check_items, check_number, check_text, check_type, describe

#: Stands under a figure in place of the device's name if kernels ran on the emulator.
EMULATED = "emulated: counts, no times"

#: The colours of Okabe and Ito, which stay apart for colour-blind readers; without their black, which is for text.
PALETTE = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
INK, FAINT = "#222222", "#767676"
SCALE = plt.get_cmap("cividis")  # for values with an order; made for colour-blind readers too

STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "font.size": 10,
    "text.color": INK,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=[PALETTE[i] for i in (5, 6, 2, 1, 3, 0, 7, 4)]),
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": "#DDDDDD",
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "image.cmap": "cividis",
    "image.interpolation": "nearest",
}

WIDTH = 8.0  # inches: the text column of a notebook
MAX_AXES, MAX_INCHES = 16, 100  # axes of a figure along each side, and its sides


@contextmanager
def style():
    """Draw in the style of all figures.

    Not ``matplotlib.rc_context``: when the first figure of a notebook starts its backend, that would undo what the
    backend has set, and no later figure would be shown.
    """
    before = {name: plt.rcParams[name] for name in STYLE}
    plt.rcParams.update(STYLE)
    try:
        yield
    finally:
        plt.rcParams.update(before)


@contextmanager
def figure(title="", size=(WIDTH, 3.2), rows=1, columns=1, mark=EMULATED, **options):
    """Open a figure in the style of all others: ``with figure(...) as ax:``.

    Parameters
    ----------
    title : str
    size : tuple of 2 float
        Width and height in inches; a notebook has room for a width of 8.
    rows, columns : int
        Axes to make; ``as`` gets an array of them if there are several.
    mark : str
        Text under the figure: the device of its data.
    **options
        For ``matplotlib.pyplot.subplots``.

    Raises
    ------
    TypeError, ValueError
        If ``rows`` or ``columns`` is not an int from 1 to 16, or ``size`` not two numbers up to 100.
    """
    check_int("rows", rows, 1, MAX_AXES)
    check_int("columns", columns, 1, MAX_AXES)
    check_text("title", title)
    check_text("mark", mark)
    size = check_items("size", size, "a width and a height")
    if len(size) != 2:
        raise ValueError(f"size is {describe(size)}; it must be a width and a height")
    for i, inches in enumerate(size):
        if not 0 < check_number(f"size[{i}]", inches) <= MAX_INCHES:
            raise ValueError(
                f"size[{i}] is {describe(inches)}; it must be more than 0, and at most {MAX_INCHES} inches"
            )
    with style():
        made, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", **options)
        if title:
            made.suptitle(title, x=0.01, ha="left", fontsize=STYLE["axes.titlesize"])
        stamp(made, mark)
        yield axes


def styled(mark: Callable[[], str]):
    """Decorate a function that draws and returns axes: with the style, and the text of ``mark`` under the figure."""

    def decorate(draw):
        @functools.wraps(draw)
        def styled_draw(*args, **kwargs):
            check_axes(kwargs.get("ax"))
            with style():
                ax = draw(*args, **kwargs)
                stamp(ax.get_figure(root=True), mark())
                return ax

        return styled_draw

    return decorate


def check_axes(ax) -> None:
    """Raise TypeError if ``ax`` is neither axes nor None."""
    check_type("ax", ax, (Axes, type(None)), "Matplotlib axes or None")


def canvas(width: float, height: float, above: float, below: float):
    """Axes of this size in a new figure, with room for the title above and the mark below; all in inches."""
    across, down = max(width, 3.0), height + above + below
    return plt.figure(figsize=(across, down)).add_axes((0, below / down, width / across, height / down))


def legend_below(ax, handles, left=0.0, **options):
    """Put a legend in one row at the bottom of axes."""
    tight = {"borderpad": 0, "borderaxespad": 0, "handlelength": 1.2, "columnspacing": 1.2}
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(left, 0), ncols=len(handles), **tight | options)


def stamp(figure_, mark=EMULATED):
    """Write ``mark`` under a figure, once, unless empty; notebooks then store the picture with an alternative text."""
    if mark and not figure_.get_supxlabel():
        figure_.supxlabel(mark, x=0.995, ha="right", fontsize=8, color=FAINT)
    figure_._repr_mimebundle_ = functools.partial(_with_words, figure_)


def in_words(figure_) -> str:
    """Say what a figure shows, by its titles and the labels of its axes."""
    parts = [figure_.get_suptitle()]
    for ax in figure_.axes:
        parts += [ax.get_title(loc) for loc in ("left", "center", "right")]
        labels = [label for label in (ax.get_ylabel(), ax.get_xlabel()) if label]
        parts.append(" against ".join(labels))
    lines = [" ".join(line.replace("$", "").split()) for part in parts for line in part.splitlines()]
    return "; ".join(dict.fromkeys(line for line in lines if line))


def _with_words(figure_, include=None, exclude=None):
    """No data of its own for IPython, but metadata for its picture."""
    words = in_words(figure_)
    return {}, {"image/png": {"alt": words}} if words else {}


def ink_on(face):
    """The text colour for a cell of this colour, dark or white, by contrast."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(face)]
    return INK if np.dot(linear, (0.2126, 0.7152, 0.0722)) > 0.21 else "white"


def abridge(n: int, limit: int) -> list:
    """Choose which of n to draw: all, or the first ones and the last, with None for those left out."""
    return list(range(n)) if n <= limit else [*range(limit - 2), None, n - 1]
