"""Pictures of the hardware: the memories and their rates, a multiprocessor and its blocks, and waves of blocks."""

from types import SimpleNamespace

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from gpukit import device, results
from gpukit.plot.style import COLUMN, box, drawn, sheet, tint, write
from warpstep import device as emulated
from warpstep.integers import ceil_div
from warpstep.limits import LINE, SECTOR, WARP
from warpstep.prediction.ceilings import Ceilings, recorded
from warpstep.prediction.model import SCHEDULERS
from warpstep.report import axes
from warpstep.report.axes import FAINT, INK, abridge
from warpstep.values import check_int, check_type

__all__ = ["memory_hierarchy", "multiprocessor", "waves"]

MAX_SIZE = 2**31 - 1
LIMITS = {"threads": "warps"}  # the names in the picture of what the tracer calls otherwise
OPERANDS = 3 * 4  # bytes that a multiply-add of float32 reads from registers


# -- memories --------------------------------------------------------------------------------------


@drawn
def memory_hierarchy(
    info: device.DeviceInfo | None = None, measured: Ceilings | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw the memories of a GPU, from registers to the host, with their sizes, bandwidths and latencies.

    What is not known is left out: another device's rates do not stand beside this one's sizes.

    Parameters
    ----------
    info : device.DeviceInfo, optional
        Of ``device.info`` unless given.
    measured : Ceilings, optional
        Rates of the same device, by ``prediction.recorded``. Those that come with gpukit unless given.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError
        If an argument is of another type.

    Examples
    --------
    >>> axes = memory_hierarchy(gpukit.device.RTX_3090)
    """
    info = _known(info)
    measured = recorded() if measured is None else measured
    check_type("measured", measured, Ceilings, "Ceilings, or None")
    name = emulated.current().card if info.emulated else info.name
    facts = _rates(info, measured if measured.device == name else None)
    ax = sheet(ax, COLUMN, 4.35, f"Memory hierarchy of the {name}")
    tops = {"registers": 0.62, "shared": 1.12, "l2": 1.92, "dram": 2.62, "host": 3.42}
    _draw_multiprocessors(ax, info, 0.28)
    for level, face, text in (("l2", tint(0), "L2 cache"), ("dram", tint(2), "global memory (DRAM)")):
        box(ax, 0.1, tops[level], 3.5, 0.42, face, text)
    box(ax, 0.1, tops["host"], 3.5, 0.42, tint(7), "memory of the host")
    for above, below in ((1.6, tops["l2"]), (tops["l2"] + 0.42, tops["dram"]), (tops["dram"] + 0.42, tops["host"])):
        for x in (0.5, 1.85, 3.2) if above < 2 else (1.85,):
            look = {
                "arrowstyle": "<|-|>",
                "mutation_scale": 8,
                "color": INK,
                "linewidth": 0.9,
                "shrinkA": 0,
                "shrinkB": 0,
            }
            ax.add_patch(FancyArrowPatch((x, above), (x, below), **look))
    write(ax, 2.0, tops["host"] - 0.19, "bus", faint=True, ha="left")
    for column, (x, head) in enumerate(((4.2, "size"), (5.15, "total\nbandwidth"), (6.02, "latency"))):
        if any(cells[column] for cells in facts.values()):
            write(ax, x, 0.15, head, fontweight="bold")
        for level, cells in facts.items():
            write(ax, x, tops[level] + 0.21, cells[column])
    for row, note in enumerate(_notes(facts)):
        write(ax, 0.1, 4.02 + 0.16 * row, note, size=8, faint=True, ha="left")
    if measured.device == name:
        axes.stamp(ax.get_figure(root=True), f"{name}, rates recorded {measured.date}")
    else:
        axes.stamp(ax.get_figure(root=True), info.name)
    return ax


def _known(info: device.DeviceInfo | None) -> device.DeviceInfo:
    info = device.info() if info is None else info
    check_type("info", info, device.DeviceInfo, "a DeviceInfo, or None")
    return info


def _draw_multiprocessors(ax, info, top):
    """Draw the first multiprocessors and the last one, with the memories that each has for itself."""
    count = info.sm_count or 0
    places = (0.1, 1.15, 2.55)
    names = ("SM 0", "SM 1", f"SM {count - 1}" if count else "the last SM")
    for left, name in zip(places, names, strict=True):
        box(ax, left, top, 1.05 - 0.05, 1.32, "#FAFAFA", edge=FAINT)
        write(ax, left + 0.5, top + 0.15, name, faint=True)
        box(ax, left + 0.07, 0.62, 0.86, 0.42, tint(1), "registers")
        box(ax, left + 0.07, 1.12, 0.86, 0.42, tint(4), "shared\nmem., L1")
    write(ax, 2.35, top + 0.66, "⋯", size=12)


def _rates(info, measured):
    """{level: (size, bandwidth, latency)} as text, empty where it is not known."""
    each = f"\nx {info.sm_count} SMs" if info.sm_count else "\nper SM"
    size = {
        "registers": info.registers_per_sm and _bytes(4 * info.registers_per_sm) + each,
        "shared": info.shared_memory_per_sm and _bytes(info.shared_memory_per_sm) + each,
        "l2": info.l2_size and _bytes(info.l2_size),
        "dram": info.global_memory and _bytes(info.global_memory),
        "host": "",
    }
    theory = info.memory_bandwidth
    speed, wait = {"dram": theory and f"{_rate(theory)}\nin theory"}, {}
    if measured:
        speed = {
            "registers": f"{_rate(measured.fp32 / 2 * OPERANDS)} ¹",
            "shared": _rate(measured.wavefronts * LINE),
            "l2": _rate(measured.l2_loads * SECTOR),
            "dram": _rate(measured.dram_read),
        }
        speed |= _bus(measured.device)
        wait = {"shared": f"{1e9 / measured.steps:.0f} ns ²", "dram": f"{measured.trip * 1e9:.0f} ns ³"}
    return {level: (size[level] or "", speed.get(level) or "", wait.get(level, "")) for level in size}


def _bus(name):
    """The rate of the bus to this device, if it was recorded."""
    copies = [r["value"] for r in results.load("streams-h200", case="copy", variant="copy in") if r["gpu"] == name]
    return {"host": _rate(max(copies))} if copies else {}


def _notes(facts):
    meant = {
        "¹": "read by multiply-adds: three operands each",
        "²": "store, barrier, load",
        "³": "a kernel that loads and stores one value, less an empty one",
    }
    written = "".join(text for cells in facts.values() for text in cells)
    found = [f"{mark} {text}" for mark, text in meant.items() if mark in written]
    return [";  ".join(found[:2]), *found[2:]] if found else []


def _bytes(count):
    unit, size = next((u, s) for u, s in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10), ("B", 1)) if count >= s)
    return f"{count / size:.4g} {unit}"


def _rate(rate):
    return f"{rate / 1e12:.3g} TB/s" if rate >= 1e12 else f"{rate / 1e9:.3g} GB/s"


# -- a multiprocessor --------------------------------------------------------------------------------


@drawn
def multiprocessor(
    threads: int = 256,
    registers: int = 32,
    shared_bytes: int = 0,
    info: device.DeviceInfo | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw the blocks that fit on one multiprocessor: its warp schedulers with their warps, and what limits them.

    Parameters
    ----------
    threads : int
        Threads of a block.
    registers : int
        Registers of a thread.
    shared_bytes : int
        Shared memory of a block.
    info : device.DeviceInfo, optional
        Of ``device.info`` unless given.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If an argument is of another type or out of range, ``info`` lacks a limit, or no block fits.

    Examples
    --------
    >>> axes = multiprocessor(threads=256, registers=64)
    """
    info = _known(info)
    threads = check_int("threads", threads, 1, info.max_threads_per_block or 1024)
    registers, shared_bytes = check_int("registers", registers, 1, 255), check_int("shared_bytes", shared_bytes, 0)
    limits, warps = _limits(info), ceil_div(threads, WARP)
    bounds = emulated.resident_blocks(limits, warps, shared_bytes, registers)
    limited_by = min(bounds, key=bounds.__getitem__)
    blocks, max_warps = bounds[limited_by], limits.max_threads_per_multiprocessor // WARP
    if not blocks:
        raise ValueError(f"a block does not fit on an SM of {info.name}: its {limited_by} exceed what there is")
    resident = blocks * warps
    title = f"Blocks of {threads:,} threads: {blocks} on an SM, {resident} of {max_warps} warps, "
    title += f"{resident / max_warps:.0%} occupancy\n{registers} registers per thread, {shared_bytes:,} B of shared "
    title += f"memory per block; limit: {LIMITS.get(limited_by, limited_by)}"
    ax = sheet(ax, COLUMN, 4.0, title)
    _draw_warps(ax, warps, resident, max_warps)
    amounts = {
        "threads": ("warps", warps, max_warps, f"{max_warps} warps"),
        "blocks": ("blocks", 1, limits.max_blocks_per_multiprocessor, f"{limits.max_blocks_per_multiprocessor} blocks"),
        "registers": ("registers", registers * WARP * warps, limits.max_registers_per_multiprocessor, ""),
        "shared memory": ("shared memory", shared_bytes, limits.max_shared_memory_per_multiprocessor, ""),
    }
    for row, (name, (label, each, most, text)) in enumerate(amounts.items()):
        text = text or (f"{most:,}" if name == "registers" else _bytes(most))
        _draw_amount(ax, 2.68 + 0.34 * row, label, each, most, text, blocks, name == limited_by)
    axes.stamp(ax.get_figure(root=True), f"limits: {emulated.current().card if info.emulated else info.name}")
    return ax


def _limits(info):
    """The limits of a device under the names that the tracer's count of blocks asks for."""
    limits = {
        "warp_size": WARP,
        "max_threads_per_multiprocessor": info.max_threads_per_sm,
        "max_blocks_per_multiprocessor": info.max_blocks_per_sm,
        "max_shared_memory_per_multiprocessor": info.shared_memory_per_sm,
        "max_registers_per_multiprocessor": info.registers_per_sm,
    }
    missing = [name for name, value in limits.items() if value is None]
    if missing:
        raise ValueError(f"info of {info.name} does not state {', '.join(missing)}; they must be known")
    most = info.shared_memory_per_block_optin
    reserved = info.shared_memory_per_sm - most if most else 0
    return SimpleNamespace(reserved_shared_memory_per_block=reserved, **limits)


def _draw_warps(ax, warps, resident, max_warps):
    """Draw each scheduler with its slots for warps: the colour is the block, the number the warp in its block."""
    slots = max_warps // SCHEDULERS
    across = 4
    width, cell = (COLUMN - 0.2) / SCHEDULERS, 0.34
    box(ax, 0.05, 0.03, COLUMN - 0.1, 2.46, "#FAFAFA", edge=FAINT)
    for scheduler in range(SCHEDULERS):
        left = 0.1 + scheduler * width
        box(ax, left + 0.06, 0.12, width - 0.12, 0.34, "white", f"warp scheduler {scheduler}")
        down = 1.75 / ceil_div(slots, across)
        for slot in range(slots):
            number = slot * SCHEDULERS + scheduler  # warps go to the schedulers in turn
            x = left + 0.06 + slot % across * (width - 0.12) / across
            y = 0.56 + slot // across * down
            used = number < resident
            face = tint(number // warps) if used else "white"
            text = f"{number // warps}.{number % warps}" if used else ""
            look = {"size": 8, "edge": "white" if used else "#CCCCCC", "line": 0.8}
            box(ax, x, y, (width - 0.12) / across, min(down, cell), face, text, **look)
    write(ax, 0.16, 2.36, "in each cell a resident warp: block.warp in the block", size=8, faint=True, ha="left")


def _draw_amount(ax, top, label, each, most, text, blocks, limiting):
    """Draw how much of a resource the blocks take, to scale."""
    left, width = 1.3, 3.8
    weight = "bold" if limiting else "normal"
    write(ax, left - 0.1, top + 0.12, label, ha="right", fontweight=weight)
    box(ax, left, top, width, 0.24, "white", edge=FAINT)
    for block in range(blocks if each else 0):
        part = width * each / most
        box(ax, left + block * part, top, part, 0.24, tint(block), edge="white", line=0.5)
    write(
        ax,
        left + width + 0.1,
        top + 0.12,
        f"of {text}" + (" ◀ limit" if limiting else ""),
        ha="left",
        size=8,
        fontweight=weight,
    )


# -- waves of blocks ---------------------------------------------------------------------------------


@drawn
def waves(blocks: int, multiprocessors: int | None = None, resident: int = 1, *, ax: Axes | None = None) -> Axes:
    """Draw the blocks of a grid as they land on multiprocessors, for blocks that take equally long.

    Parameters
    ----------
    blocks : int
        Blocks of the grid.
    multiprocessors : int, optional
        Those of the device unless given.
    resident : int
        Blocks that fit on a multiprocessor at a time.
    ax : matplotlib Axes, optional

    Raises
    ------
    TypeError, ValueError
        If an argument is not an int of 1 or more.

    Examples
    --------
    >>> axes = waves(blocks=40, multiprocessors=6, resident=2)
    """
    blocks, resident = check_int("blocks", blocks, 1, MAX_SIZE), check_int("resident", resident, 1, 32)
    multiprocessors = device.info().sm_count if multiprocessors is None else multiprocessors
    count = check_int("multiprocessors", multiprocessors, 1, 2**16)
    places = count * resident
    number = ceil_div(blocks, places)
    rest = blocks - (number - 1) * places
    wave = f"{number} wave{'s' * (number > 1)}"
    title = f"{blocks:,} blocks on {count} SMs, {resident} at a time on each: {wave}"
    if rest < places:
        title += f"\nThe last wave fills {rest:,} of {places:,} places ({rest / places:.0%})"
    columns, rows = abridge(count, max(4, 16 // resident)), abridge(number, 6)
    left, top, gap = 0.75, 0.3, 0.08
    width = (COLUMN - left - 0.1) / len(columns)
    cell, down = (width - gap) / resident, 0.42
    ax = sheet(ax, COLUMN, top + down * len(rows) + 0.3, title)
    if width <= 0.5:  # too narrow for the word in every column
        write(ax, left - 0.1, 0.15, "SM", ha="right")
    for i, sm in enumerate(columns):
        write(ax, left + (i + 0.5) * width - gap / 2, 0.15, "⋯" if sm is None else f"SM {sm}" if width > 0.5 else sm)
    for j, turn in enumerate(rows):
        y = top + j * down
        write(ax, left - 0.1, y + 0.18, "⋮" if turn is None else f"wave {turn + 1}", ha="right")
        for i, sm in enumerate(columns):
            for slot in range(resident):
                if turn is None or sm is None:
                    continue
                block = turn * places + slot * count + sm
                used = block < blocks
                text = f"{block}" if used and len(str(blocks - 1)) * 0.085 < cell else ""
                face = tint(turn) if used else "white"
                edge = "white" if used else "#BBBBBB"
                box(ax, left + i * width + slot * cell, y, cell, 0.36, face, text, edge=edge, size=8)
    bottom = top + down * len(rows) + 0.12
    write(ax, left, bottom, "number: the block; white: a place without one", size=8, faint=True, ha="left")
    return ax
