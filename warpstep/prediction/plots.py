"""Figures of predictions: the roofline, and predicted against measured times."""

import numpy as np

from warpstep.prediction.ceilings import Ceilings
from warpstep.report import axes as plot

__all__ = ["compared", "roofline"]

MARKERS = ("o", "s", "D", "^", "v", "P")
LEAST, MOST = 1 / 32, 4096  # of the intensity axis, FLOP/B: as far as products of large matrices
NAMED_AT = 90  # where the names of the flat roofs begin: between convolutions and large products, where no point is


def roofline(points, ceilings, *, title="", mark=""):
    """Draw kernels under the roof that memory and arithmetic make.

    Those without floating-point operations have a strip of their own at the left, where the height is the share of the
    bandwidth.

    Parameters
    ----------
    points : iterable of dict
        With "group" (of one colour), "flops" and "bytes" of a launch, and its "seconds"; "label" where one is to be
        written.
    ceilings : Ceilings
    title, mark : str
        As for `warpstep.report.axes.figure`.

    Returns
    -------
    array of 2 matplotlib Axes
    """
    if not isinstance(ceilings, Ceilings):
        raise TypeError(f"ceilings is a {type(ceilings).__name__}; it must be Ceilings, as recorded() gives")
    points = list(points)
    looks = _looks(point["group"] for point in points)
    ratios = {"gridspec_kw": {"width_ratios": (1, 6)}}
    with plot.figure(title, size=(8, 4.4), columns=2, mark=mark or ceilings.device, **ratios) as axes:
        _roof(axes[1], ceilings)
        for group, look in looks.items():
            chosen = [point for point in points if point["group"] == group and point["flops"]]
            x = [np.clip(p["flops"] / p["bytes"], LEAST, MOST) for p in chosen]
            axes[1].scatter(x, [p["flops"] / p["seconds"] * 1e-12 for p in chosen], label=group, **look)
            chosen = [point for point in points if point["group"] == group and not point["flops"]]
            axes[0].scatter([0] * len(chosen), [p["bytes"] / p["seconds"] * 1e-12 for p in chosen], **look)
        for point in points:
            if point.get("label"):
                _name(axes[1] if point["flops"] else axes[0], point)
        most = ceilings.dram_read * 1e-12
        axes[0].axhline(most, color=plot.INK, linewidth=1)
        axes[0].set(xlim=(-1, 1), xticks=[], yscale="log", ylim=(most / 60, most * 1.4), ylabel="TB/s")
        axes[0].set_title("no arithmetic", fontsize=9)
        axes[1].legend(loc="lower right", fontsize=8)
        for ax in axes:
            ax.yaxis.set_major_formatter("{x:g}")
    return axes


def _roof(ax, ceilings):
    x = np.geomspace(LEAST, MOST, 200)
    for name, most, style in (("FP32", ceilings.fp32, "-"), ("FP64", ceilings.fp64, "--")):
        ax.plot(x, np.minimum(x * ceilings.dram_read, most) * 1e-12, color=plot.INK, linewidth=1, linestyle=style)
        ax.text(NAMED_AT, most * 1.06e-12, f"{name} {most * 1e-12:.0f} TFLOP/s", va="bottom", fontsize=8)
    slope = ceilings.dram_read * 1e-12
    ax.text(2, 1.2 * slope, f"{slope:.1f} TB/s", va="top", fontsize=8)
    top = ceilings.fp32 * 1e-12
    ax.set(xscale="log", yscale="log", xlim=(LEAST, MOST), ylim=(top / 2000, 2 * top))
    ax.set(xlabel="FLOP for each byte that must come from memory or go there", ylabel="TFLOP/s")
    ax.grid(alpha=0.5)


def _name(ax, point):
    x = point["flops"] / point["bytes"] if point["flops"] else 0
    height = (point["flops"] or point["bytes"]) / point["seconds"] * 1e-12
    ax.annotate(point["label"], (x, height), (6, -3), textcoords="offset points", fontsize=7.5)


def _looks(groups):
    """{group: marker and colour}, in the order in which they come."""
    colors = [plot.PALETTE[i] for i in (5, 6, 2, 1, 3, 0)]
    return {
        group: {"marker": MARKERS[n % len(MARKERS)], "color": colors[n % len(colors)], "s": 26}
        for n, group in enumerate(dict.fromkeys(groups))
    }


def compared(points, *, within=1.5, ax=None):
    """Draw measured times against predicted ones.

    Parameters
    ----------
    points : iterable of dict
        With "group", "predicted" and "measured", both in seconds; "label" where one is to be written.
    within : float
        The factor that the band around equality has.
    ax : matplotlib Axes, optional
        Of ``warpstep.report.axes.figure``; a new figure unless given.

    Returns
    -------
    matplotlib Axes
    """
    points = list(points)
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
        if point.get("label"):
            place = point["predicted"] * 1e6, point["measured"] * 1e6
            ax.annotate(point["label"], place, (6, -3), textcoords="offset points", fontsize=7.5)
    ax.set(xscale="log", yscale="log", xlim=x, ylim=x, xlabel="predicted, us", ylabel="measured, us")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.legend(loc="upper left", fontsize=8)
    return ax
