"""Images, and figures of what was measured."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes

from gpukit.plot.style import drawn, in_style, new_axes, plt
from gpukit.timing import Timing
from warpstep.report.axes import WIDTH
from warpstep.values import check_callable, check_items, check_number, check_text, check_type

__all__ = ["image", "lines"]

MAX_IMAGE_HEIGHT = 3.5  # inches
MAX_PIXELS, MAX_POINTS = 2**26, 2**20  # of an image, and of a line


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
