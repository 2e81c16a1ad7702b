"""The style of the course's figures, and the device that stands under each."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Rectangle

from gpukit import device
from gpukit.backend import on_gpu
from warpstep.report import axes
from warpstep.report.axes import EMULATED, FAINT, INK, PALETTE, WIDTH
from warpstep.values import check_text

__all__ = ["COLUMN", "box", "drawn", "figure", "in_style", "new_axes", "plt", "sheet", "stamp_device", "tint", "write"]

COLUMN = 6.4  # inches: a drawing of this width can be read on a telephone, too


@contextmanager
def figure(
    title: str = "",
    size: tuple[float, float] = (WIDTH, 3.2),
    rows: int = 1,
    columns: int = 1,
    mark: str = "",
    **options: Any,
) -> Iterator[Any]:
    """Open a figure in the style of the course: ``with plot.figure(...) as ax:``.

    Parameters
    ----------
    title : str
    size : tuple of 2 float
        Width and height in inches; a notebook has room for a width of 8.
    rows, columns : int
        Number of axes; with more than one, ``as`` gets an array of them.
    mark : str
        Text under the figure; by default the device in use. For figures that show what was recorded on another one.
    **options
        For ``matplotlib.pyplot.subplots``.

    Raises
    ------
    TypeError, ValueError
        If ``rows`` or ``columns`` is not an int from 1 to 16, or ``size`` not two numbers up to 100.

    Examples
    --------
    >>> with figure("A line") as ax:
    ...     drawn = ax.plot([1, 2], [3, 4])
    """
    with axes.figure(title, size, rows, columns, check_text("mark", mark) or _device(), **options) as made:
        yield made


def _device():
    """Name the device, for the text under a figure."""
    return device.info().name if on_gpu() else EMULATED


in_style = axes.styled(_device)
drawn = axes.styled(str)  # what is neither measured nor counted names no device


def stamp_device(ax):
    """Write the device in use under the figure of ``ax``."""
    axes.stamp(ax.get_figure(root=True), _device())


def new_axes(width, height):
    """Axes of this many inches in a new figure, with room for a title of one line."""
    return axes.canvas(width, height, 0.34, 0.26)


def sheet(ax, width, height, title):
    """Axes without ticks whose coordinates are inches, from the upper left corner."""
    if ax is None:
        ax = axes.canvas(width, height, 0.34 + 0.17 * title.count("\n"), 0.26)
    ax.set(xlim=(0, width), ylim=(height, 0), aspect="equal", anchor="NW")
    ax.set_axis_off()
    ax.set_title(title)
    return ax


def tint(rank) -> str:
    """Return a light colour for the block or warp number ``rank``. Colours repeat."""
    red, green, blue = (0.55 * c + 0.45 for c in to_rgb(PALETTE[rank % len(PALETTE)]))
    return to_hex((red, green, blue))


def box(ax, left, top, width, height, face="white", text="", *, size=9.0, edge=INK, line=0.9, **options):
    """Draw a rectangle with text in its middle."""
    look = {"facecolor": face, "edgecolor": edge, "linewidth": line}
    ax.add_patch(Rectangle((left, top), width, height, **look | options))
    if text:
        write(ax, left + width / 2, top + height / 2, text, size=size, color=axes.ink_on(face))


def write(ax, x, y, text, *, size=9.0, faint=False, **options):
    """Write text, centred unless ``options`` say otherwise."""
    look = {"ha": "center", "va": "center", "fontsize": size, "color": FAINT if faint else INK}
    ax.text(x, y, text, **look | options)
