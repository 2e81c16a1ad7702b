"""The model: from the counts of a trace to the least time of each resource."""

import math
from collections import defaultdict
from html import escape
from typing import NamedTuple

from warpstep.checks import as_dim3
from warpstep.integers import ceil_div
from warpstep.limits import SECTOR, WARP
from warpstep.prediction.ceilings import Ceilings, recorded
from warpstep.report import html
from warpstep.report.facts import plural
from warpstep.report.table import Table
from warpstep.report.units import format_seconds
from warpstep.tracing.records import TENSOR, Recording, check_trace
from warpstep.values import check_int, type_name

__all__ = ["Prediction", "Use", "predict"]

SCHEDULERS = 4  # per multiprocessor: each has a quarter of its lanes, and issues one instruction per cycle


# -- what a launch uses ----------------------------------------------------------------------------


class Use(NamedTuple):
    """One resource of a prediction.

    Attributes
    ----------
    amount : str
        What the launch asks of it, in words.
    seconds : float
        The least time that this takes.
    """

    amount: str
    seconds: float


class _Counts:
    """The counts of a trace for a launch of ``times`` as many blocks."""

    def __init__(self, trace, times):
        self.trace, self.times = trace, times

    def total(self, space, op, field):
        return self.times * getattr(self.trace.total(space, op), field)

    def traffic(self, name):
        return self.times * getattr(self.trace.traffic, name)

    def arithmetic(self, *names):
        """Operations in all lanes of the warps that ran them, idle lanes included."""
        return self.times * sum(
            getattr(line, name) * WARP / line.active_lanes
            for line in self.trace.operations
            for name in names
            if line.active_lanes
        )

    def instructions(self):
        """Warp instructions: those of the source, with each addition fused to a multiplication, and an estimate of the
        compiler's own.

        Accesses to local arrays are left out: they are in registers if their indices are constants.
        """
        arithmetic = self.arithmetic("fp16", "fp32", "fp64") / 2 + self.arithmetic("fp64_conversions")
        accesses = self.total("global", None, "requests") + self.total("shared", None, "requests")
        return accesses + arithmetic / WARP + self.times * self.trace.overhead


def _spread(blocks, warps, multiprocessors):
    """The work of the busiest multiprocessor, and of its busiest scheduler, over their even share.

    A block is not divided among multiprocessors, nor a warp among schedulers.
    """
    max_blocks = ceil_div(blocks, multiprocessors)
    max_warps = ceil_div(max_blocks * warps, SCHEDULERS)
    even = blocks / multiprocessors
    return max_blocks / even, max_warps * SCHEDULERS / (even * warps)


def _uses(counts, blocks, warps, instructions, ceilings):
    """{resource: Use} of everything but the launch itself."""
    uses = _memory_uses(counts, ceilings)
    per_multiprocessor, per_scheduler = _spread(blocks, warps, ceilings.multiprocessors)
    shared, lines = counts.total("shared", None, "wavefronts"), counts.total("global", None, "l1_wavefronts")
    if any(access.link_bytes for access in counts.trace.accesses):
        uses["link"] = _link(counts, ceilings)
    uses["shared memory, L1"] = Use(
        f"{_amount(shared, 'wavefronts')} in shared memory, {_amount(lines, '')} in L1",
        (shared + lines) / ceilings.wavefronts * per_multiprocessor,
    )
    fp32, fp64 = counts.arithmetic("fp16", "fp32"), counts.arithmetic("fp64")
    conversions = counts.arithmetic("fp64_conversions")
    uses["FP32"] = Use(_amount(fp32, "operations"), fp32 / ceilings.fp32 * per_scheduler)
    uses["FP64"] = Use(
        f"{_amount(fp64, 'operations')}, {_amount(conversions, 'conversions')}",
        max(fp64 / ceilings.fp64, conversions / ceilings.conversions) * per_scheduler,
    )
    tensor = {kind: counts.arithmetic(kind) for kind in TENSOR}
    if any(tensor.values()):
        seconds = sum(number / getattr(ceilings, kind) for kind, number in tensor.items() if number)
        uses["tensor cores"] = Use(_amount(sum(tensor.values()), "operations"), seconds * per_multiprocessor)
    executed = counts.instructions() if instructions is None else instructions
    how = "as written, with an estimate for addresses and loops" if instructions is None else "executed"
    # Instructions for values that a warp shares take longer.
    longer = counts.times * counts.trace.shared_overhead * (ceilings.shared_cost - 1)
    uses["issue"] = Use(
        f"{_amount(executed, 'instructions')} {how}", (executed + longer) / ceilings.instructions * per_scheduler
    )
    uses["blocks"] = Use(_amount(blocks, "blocks"), blocks / ceilings.blocks)
    uses["waiting"] = _waiting(counts, blocks, ceilings)
    return uses


def _memory_uses(counts, ceilings):
    """{resource: Use} of L2 and DRAM."""
    read, written = counts.traffic("cold_read"), counts.traffic("cold_written")
    writers = ("store", "atomic", "tensor store")
    stored, lines = (sum(counts.total("global", op, name) for op in writers) for name in ("sectors", "lines"))
    loads, stores = read / SECTOR / ceilings.l2_loads, stored / ceilings.l2_stores
    return {
        "DRAM": Use(
            f"{_amount(read, 'B')} read, {_amount(written, 'B')} written",
            read / ceilings.dram_read + written / ceilings.dram_write + ceilings.writing_back(read + written),
        ),
        "L2": Use(
            f"{_amount(read / SECTOR, '')} sectors loaded, {_amount(stored, '')} stored in {_amount(lines, 'lines')}",
            max(loads, stores, lines / ceilings.l2_lines),
        ),
    }


def _link(counts, ceilings):
    """The bytes to and from other devices; what is loaded again may be in L1."""
    distinct = {c.array: c.read * c.dtype.itemsize for c in counts.trace.coverage}
    loaded, stored = defaultdict(int), 0
    for access in counts.trace.accesses:
        if access.op == "load":
            loaded[access.array] += access.link_bytes
        else:
            stored += access.link_bytes
    loads = counts.times * sum(min(nbytes, distinct.get(array, nbytes)) for array, nbytes in loaded.items())
    stores = counts.times * stored
    amount = f"{_amount(loads, 'B')} from other devices, {_amount(stores, 'B')} to them"
    return Use(amount, max(loads, stores) / ceilings.link)


def _waiting(counts, blocks, ceilings):
    """Blocks that run one after the other on a multiprocessor, each with a trip to memory and its barriers."""
    rounds = ceil_div(blocks, ceilings.multiprocessors * counts.trace.occupancy.blocks)
    loads = counts.total("global", "load", "requests") + counts.total("global", "tensor load", "requests")
    trips = rounds if loads else 0
    passed = sum(barrier.passed for barrier in counts.trace.barriers if barrier.kind == "block")
    each = passed / math.prod(counts.trace.grid)
    barriers = f"{each:.3g} barrier{'s' * (each != 1)} per block"
    amount = f"{plural(rounds, 'block')} in a row, {plural(trips, 'trip')} to memory, {barriers}"
    return Use(amount, trips * ceilings.trip + rounds * each / ceilings.steps)


def _amount(number, what):
    """Write a number with a prefix and its unit: ``536.9 MB``, ``2.147 G wavefronts``."""
    size, prefix = next(((s, p) for s, p in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if number >= s), (1, ""))
    gap = " " if prefix and what != "B" else ""
    return f"{number / size:.4g} {prefix}{gap}{what}".rstrip()


# -- predictions -----------------------------------------------------------------------------------


class Prediction:
    """The least time of one launch, by resource; text when printed, a table in a notebook. `predict` makes it.

    Attributes
    ----------
    kernel : str
    grid, block : tuple of 3 int
    uses : dict of str to Use
        By resource: "launch", "DRAM", "L2", "shared memory, L1", "FP32", "FP64", "issue", "blocks", "waiting",
        "link" where memory of other devices is used, and "tensor cores" where they are.
    seconds : float
        The prediction: the largest of these bounds and the launch itself.
    limit : str
        The resource with that bound.
    instructions : float
        Warp instructions: those that were given, or the estimate.
    flops, nbytes : float
        Floating-point operations of the launch, and bytes that must move between DRAM and L2.
    ceilings : Ceilings
    """

    def __init__(self, trace: Recording, grid, uses: dict[str, Use], counts: _Counts, instructions, ceilings: Ceilings):
        self.kernel, self.grid, self.block, self.ceilings = trace.kernel, grid, trace.block, ceilings
        touches = bool(trace.total("global").requests)
        what = "the shortest kernel that touches memory" if touches else "an empty kernel"
        launch = Use(what, ceilings.touch if touches else ceilings.launch)
        self.uses = {"launch": launch} | uses
        busiest = max(uses, key=lambda name: uses[name].seconds)
        self.seconds = max(launch.seconds, ceilings.launch + uses[busiest].seconds)
        self.limit = busiest if uses[busiest].seconds > ceilings.launch else "launch"
        self.instructions: float = counts.instructions() if instructions is None else instructions
        self.flops = counts.traffic("flops")
        self.nbytes = counts.traffic("cold_read") + counts.traffic("cold_written")

    @property
    def intensity(self) -> float:
        """float: operations per byte of memory (FLOP/B); 0 without arithmetic, infinite without memory."""
        if not self.flops:
            return 0.0
        return self.flops / self.nbytes if self.nbytes else math.inf

    def _table(self):
        title = (
            f"{self.kernel}, grid {_dims(self.grid)}, block {_dims(self.block)}: at least "
            f"{format_seconds(self.seconds)} on {self.ceilings.device}, limited by {self.limit}"
        )
        rows = [
            [name, use.amount, format_seconds(use.seconds), f"{use.seconds / self.seconds:.0%}"]
            for name, use in sorted(self.uses.items(), key=lambda item: -item[1].seconds)
        ]
        words = ("resource", "demand of the launch")
        return Table([*words, "at least", "of the time"], rows, title, words=words)

    def __str__(self) -> str:
        return self._table().text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = self._table()
        return html.framed(f"<p><b>{escape(table.title)}</b></p>{html.scrolling(table)}")


def _dims(shape):
    return " x ".join(str(n) for n in (shape if shape[2] > 1 else shape[:2] if shape[1] > 1 else shape[:1]))


def predict(
    trace: Recording,
    *,
    grid: int | tuple[int, ...] | None = None,
    instructions: int | None = None,
    ceilings: Ceilings | None = None,
) -> Prediction:
    """Bound the time of a traced launch on a GPU from below, resource by resource (A9).

    Parameters
    ----------
    trace : Trace
        Of all blocks or of some of them.
    grid : int or tuple of 1 to 3 int, optional
        Predict a launch of the same kernel with this grid, whose blocks do on average the same as the traced ones:
        trace a small problem, predict a large one.
    instructions : int, optional
        Warp instructions executed, if they are known: Nsight Compute counts them as ``smsp__inst_executed.sum``.
        Unless given, those of the source and ``trace.overhead``, an estimate of those that the compiler adds.
    ceilings : Ceilings, optional
        The rates of the GPU: ``recorded()``, those of an H200, unless given. ``gpukit.prediction.measured()`` has those
        of your own.

    Returns
    -------
    Prediction

    Raises
    ------
    TypeError
        If ``trace``, ``instructions`` or ``ceilings`` is of another type.
    ValueError
        If ``grid`` or ``instructions`` is out of range.

    Notes
    -----
    The model has cold, perfect caches: each sector is fetched from memory once, and repeated loads from L2 are free. Of
    latency it counts one round trip to memory for each block, and its barriers. All uses are lower bounds but "issue",
    which is an estimate unless the instructions are given.

    Examples
    --------
    >>> @cuda.jit
    ... def scale(x, out):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         out[i] = 2 * x[i]
    >>> x, out = np.ones(10_000, np.float32), np.zeros(10_000, np.float32)
    >>> prediction = gpukit.predict(gpukit.trace(scale[40, 256], x, out), grid=100_000)
    >>> prediction.limit
    'blocks'
    """
    check_trace("trace", trace)
    grid = trace.grid if grid is None else as_dim3("grid", grid)
    if instructions is not None:
        check_int("instructions", instructions, 0)
    ceilings = recorded() if ceilings is None else ceilings
    if not isinstance(ceilings, Ceilings):
        raise TypeError(f"ceilings is {type_name(ceilings)}; it must be Ceilings, as recorded() returns")
    blocks, warps = math.prod(grid), ceil_div(math.prod(trace.block), WARP)
    counts = _Counts(trace, blocks / math.prod(trace.grid))
    uses = _uses(counts, blocks, warps, instructions, ceilings)
    return Prediction(trace, grid, uses, counts, instructions, ceilings)
