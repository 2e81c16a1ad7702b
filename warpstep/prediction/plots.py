"""Figures of predictions: the roofline, and predicted against measured times."""

from collections.abc import Iterable

import numpy as np
from matplotlib.patheffects import withStroke

from warpstep.prediction.ceilings import Ceilings
from warpstep.report import axes as plot
from warpstep.values import check_items, check_number, check_text, check_type

__all__ = ["compared", "roofline"]

MARKERS = ("o", "s", "D", "^", "v", "P")
MIN_INTENSITY, MAX_INTENSITY = 1 / 32, 4096  # the axis, FLOP/B: up to products of large matrices
ROOF_NAMES = 90  # FLOP/B where the names of the roofs begin: between convolutions and large products lies no point


def roofline(points: Iterable[dict], ceilings: Ceilings, *, title: str = "", mark: str = ""):
    """Draw kernels under the roofline of memory and arithmetic.

    Kernels without floating-point operations are in a strip at the left, at the height of their bandwidth.

    Parameters
    ----------
    points : iterable of dict
        With "group" (one colour each), "flops", "bytes" and "seconds" of a launch. Optional are "label", a name beside
        the point, and "ladder": points of the same one are joined in their order, and the first and last labelled.
    ceilings : Ceilings
    title, mark : str
        As for `warpstep.report.axes.figure`.

    Returns
    -------
    array of 2 matplotlib Axes

    Examples
    --------
    >>> points = [{"group": "mine", "flops": 1e9, "bytes": 1e8, "seconds": 1e-4}]
    >>> axes = roofline(points, gpukit.prediction.recorded())
    """
    check_type("ceilings", ceilings, Ceilings, "Ceilings, as recorded() returns")
    points = _checked(points, "flops", "bytes", "seconds")
    looks = _looks(point["group"] for point in points)
    ratios = {"width_ratios": (1, 6)}
    with plot.figure(title, size=(8, 4.4), columns=2, mark=mark or ceilings.device, gridspec_kw=ratios) as axes:
        _roof(axes[1], ceilings)
        for group, look in looks.items():
            chosen = [point for point in points if point["group"] == group and point["flops"]]
            x = [np.clip(p["flops"] / p["bytes"], MIN_INTENSITY, MAX_INTENSITY) for p in chosen]
            axes[1].scatter(x, [p["flops"] / p["seconds"] * 1e-12 for p in chosen], label=group, **look)
            chosen = [point for point in points if point["group"] == group and not point["flops"]]
            axes[0].scatter([0] * len(chosen), [p["bytes"] / p["seconds"] * 1e-12 for p in chosen], **look)
        _join_ladders(axes[1], points, looks)
        for point in _first_and_last(points):
            x = point["flops"] / point["bytes"] if point["flops"] else 0
            _name(axes[int(x > 0)], point, x, (point["flops"] or point["bytes"]) / point["seconds"] * 1e-12)
        peak = ceilings.dram_read * 1e-12
        axes[0].axhline(peak, color=plot.INK, linewidth=1)
        axes[0].set(xlim=(-1, 1), xticks=[], yscale="log", ylim=(peak / 60, peak * 1.4), ylabel="TB/s")
        axes[0].set_title("copies only", fontsize=9)
        axes[1].legend(loc="lower right", fontsize=8)
        for ax in axes:
            ax.yaxis.set_major_formatter("{x:g}")
    return axes


def _join_ladders(ax, points, looks):
    """Draw a line through the rungs of each ladder."""
    for ladder in dict.fromkeys(point.get("ladder") for point in points):
        rungs = [p for p in points if p.get("ladder") == ladder and p["flops"]]
        if ladder is not None and len(rungs) > 1:
            x, y = ([p["flops"] / p[by] * scale for p in rungs] for by, scale in (("bytes", 1), ("seconds", 1e-12)))
            ax.plot(x, y, color=looks[rungs[0]["group"]]["color"], linewidth=0.9, alpha=0.6, zorder=1)


def _first_and_last(points):
    """The points whose labels are written: of a ladder only the first and the last."""
    ends = {point["ladder"]: point for point in points if point.get("ladder") is not None}
    starts = {point["ladder"]: point for point in reversed(points) if point.get("ladder") is not None}
    named = {id(point) for point in (*starts.values(), *ends.values())}
    return [point for point in points if point.get("ladder") is None or id(point) in named]


def _checked(points, *fields):
    """The points as a list; TypeError or ValueError unless each has a group and these fields."""
    points = check_items("points", points, "a list of dicts")
    if not points:
        raise ValueError("points is empty; there is nothing to draw")
    for i, point in enumerate(points):
        check_text(f"points[{i}]['group']", check_type(f"points[{i}]", point, dict, "a dict").get("group"))
        for field in fields:
            number = check_number(f"points[{i}][{field!r}]", point.get(field), 0)
            if number == 0 and field != "flops":
                raise ValueError(f"points[{i}][{field!r}] is 0; it must be more")
    return points


def _roof(ax, ceilings):
    x = np.geomspace(MIN_INTENSITY, MAX_INTENSITY, 200)
    for name, peak, style in (("FP32", ceilings.fp32, "-"), ("FP64", ceilings.fp64, "--")):
        ax.plot(x, np.minimum(x * ceilings.dram_read, peak) * 1e-12, color=plot.INK, linewidth=1, linestyle=style)
        ax.text(ROOF_NAMES, peak * 1.06e-12, f"{name} {peak * 1e-12:.0f} TFLOP/s", va="bottom", fontsize=8)
    slope = ceilings.dram_read * 1e-12
    ax.text(2, 1.2 * slope, f"{slope:.1f} TB/s", va="top", fontsize=8)
    top = ceilings.fp32 * 1e-12
    ax.set(xscale="log", yscale="log", xlim=(MIN_INTENSITY, MAX_INTENSITY), ylim=(top / 2000, 2 * top))
    ax.set(xlabel="FLOP per byte that must move from or to memory", ylabel="TFLOP/s")
    ax.grid(alpha=0.5)


def _name(ax, point, x, y):
    if point.get("label"):
        text = ax.annotate(point["label"], (x, y), (6, -3), textcoords="offset points", fontsize=7.5, zorder=4)
        text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])  # readable across points and lines


def _looks(groups):
    """{group: marker and colour}, in the order of first use."""
    colors = [plot.PALETTE[i] for i in (5, 6, 2, 1, 3, 0)]
    return {
        group: {"marker": MARKERS[n % len(MARKERS)], "color": colors[n % len(colors)], "s": 26}
        for n, group in enumerate(dict.fromkeys(groups))
    }


def compared(points: Iterable[dict], *, within: float = 1.5, ax=None):
    """Draw measured times against predicted ones.

    Parameters
    ----------
    points : iterable of dict
        With "group", "predicted" and "measured", both in seconds; "label" is optional.
    within : float
        The factor that bounds the band around equality.
    ax : matplotlib Axes, optional
        Of ``warpstep.report.axes.figure``; a new figure unless given.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> axes = compared([{"group": "mine", "predicted": 1e-4, "measured": 1.2e-4}])
    """
    points, within = _checked(points, "predicted", "measured"), check_number("within", within, 1)
    plot.check_axes(ax)
    if ax is None:
        with plot.figure(size=(6, 5)) as ax:
            return compared(points, within=within, ax=ax)
    both = [value * 1e6 for point in points for value in (point["predicted"], point["measured"])]
    x = np.array([min(both) / 1.6, max(both) * 1.6])
    ax.fill_between(x, x / within, x * within, color=plot.PALETTE[0], alpha=0.18, linewidth=0)
    ax.plot(x, x, color=plot.INK, linewidth=1)
    for group, look in _looks(point["group"] for point in points).items():
        chosen = [point for point in points if point["group"] == group]
        predicted, measured = ([point[name] * 1e6 for point in chosen] for name in ("predicted", "measured"))
        ax.scatter(predicted, measured, label=group, alpha=0.85, **look)
    for point in points:
        _name(ax, point, point["predicted"] * 1e6, point["measured"] * 1e6)
    ax.set(xscale="log", yscale="log", xlim=x, ylim=x, xlabel="predicted, us", ylabel="measured, us")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.legend(loc="upper left", fontsize=8)
    return ax
