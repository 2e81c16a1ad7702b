"""From the counts of a trace to the least time of each resource."""

import math
from html import escape
from typing import NamedTuple

from warpstep.checks import as_dim3, check_int
from warpstep.prediction.ceilings import Ceilings, recorded
from warpstep.report import html as page
from warpstep.report import text
from warpstep.report.sections import Section
from warpstep.report.units import format_seconds
from warpstep.tracing.trace import Trace

__all__ = ["Prediction", "Use", "predict"]

SECTOR = 32
WARP = 32
SCHEDULERS = 4  # of a multiprocessor: each has a quarter of its lanes, and issues one instruction in a cycle


# -- what a launch uses ----------------------------------------------------------------------------


class Use(NamedTuple):
    """One resource of a prediction.

    Attributes
    ----------
    amount : str
        What the launch asks of it, in words.
    seconds : float
        How long that takes at least.
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
        """Operations in the lanes of all warps that ran them, those of lanes that were idle included."""
        return self.times * sum(
            getattr(line, name) * WARP / line.active_lanes
            for line in self.trace.operations
            for name in names
            if line.active_lanes
        )

    def instructions(self):
        """Instructions of warps that a kernel needs as it is written, if a multiplication goes with each addition, and
        those that a compiler is thought to add.

        Accesses to local arrays are not counted, which are in registers if their indices are constants.
        """
        arithmetic = self.arithmetic("fp16", "fp32", "fp64") / 2 + self.arithmetic("fp64_conversions")
        accesses = self.total("global", None, "requests") + self.total("shared", None, "requests")
        return accesses + arithmetic / WARP + self.times * self.trace.overhead


def _spread(blocks, warps, multiprocessors):
    """How much longer the busiest multiprocessor, and its busiest scheduler, work than all would if they shared evenly.

    Blocks are not divided among multiprocessors, nor warps among schedulers.
    """
    most_blocks = math.ceil(blocks / multiprocessors)
    most_warps = math.ceil(most_blocks * warps / SCHEDULERS)
    even = blocks / multiprocessors
    return most_blocks / even, most_warps * SCHEDULERS / (even * warps)


def _uses(counts, blocks, warps, instructions, ceilings):
    """{resource: Use} of everything but the launch itself."""
    uses = _memory_uses(counts, ceilings)
    per_multiprocessor, per_scheduler = _spread(blocks, warps, ceilings.multiprocessors)
    shared, lines = counts.total("shared", None, "wavefronts"), counts.total("global", None, "l1_wavefronts")
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
    executed = counts.instructions() if instructions is None else instructions
    how = "as written, with an estimate for addresses and loops" if instructions is None else "executed"
    # Those for what a warp's lanes share take longer.
    longer = counts.times * counts.trace.shared_overhead * (ceilings.shared_cost - 1)
    uses["issue"] = Use(
        f"{_amount(executed, 'instructions')} {how}", (executed + longer) / ceilings.instructions * per_scheduler
    )
    uses["blocks"] = Use(_amount(blocks, "blocks"), blocks / ceilings.blocks)
    uses["waiting"] = _waiting(counts, blocks, ceilings)
    return uses


def _memory_uses(counts, ceilings):
    """{resource: Use} of what lies beyond the multiprocessors."""
    read, written = counts.traffic("cold_read"), counts.traffic("cold_written")
    stored, lines = (
        counts.total("global", "store", name) + counts.total("global", "atomic", name) for name in ("sectors", "lines")
    )
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


def _waiting(counts, blocks, ceilings):
    """Blocks that come after each other on a multiprocessor, each with a trip to memory and its barriers."""
    rounds = math.ceil(blocks / (ceilings.multiprocessors * counts.trace.occupancy.blocks))
    trips = rounds if counts.total("global", "load", "requests") else 0
    passed = sum(barrier.passed for barrier in counts.trace.barriers if barrier.kind == "block")
    each = passed / math.prod(counts.trace.grid)
    amount = f"{rounds} blocks one after the other, {trips} trips to memory, {each:.3g} barriers for each"
    return Use(amount, trips * ceilings.trip + rounds * each / ceilings.steps)


def _amount(number, what):
    """A number with a prefix and what it counts: ``536.9 MB``, ``2.147 G wavefronts``."""
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
        By resource: "launch", "DRAM", "L2", "shared memory, L1", "FP32", "FP64", "issue", "blocks", "waiting".
    seconds : float
        The prediction: the largest of these bounds, and the launch itself besides.
    limit : str
        The resource that limits.
    instructions : float
        Of warps: those that were given, or an estimate.
    flops, nbytes : float
        Floating-point operations of the launch, and bytes that must cross between memory and L2.
    ceilings : Ceilings
    """

    def __init__(self, trace, grid, uses, counts, instructions, ceilings):
        self.kernel, self.grid, self.block, self.ceilings = trace.kernel, grid, trace.block, ceilings
        touches = bool(trace.total("global").requests)
        what = "the shortest kernel that touches memory" if touches else "a kernel that does nothing"
        launch = Use(what, ceilings.touch if touches else ceilings.launch)
        self.uses = {"launch": launch} | uses
        busiest = max(uses, key=lambda name: uses[name].seconds)
        self.seconds = max(launch.seconds, ceilings.launch + uses[busiest].seconds)
        self.limit = busiest if uses[busiest].seconds > ceilings.launch else "launch"
        self.instructions = counts.instructions() if instructions is None else instructions
        self.flops = counts.traffic("flops")
        self.nbytes = counts.traffic("cold_read") + counts.traffic("cold_written")

    @property
    def intensity(self):
        """float: operations per byte of memory (FLOP/B); 0 without arithmetic, infinite without memory."""
        if not self.flops:
            return 0.0
        return self.flops / self.nbytes if self.nbytes else math.inf

    def _section(self):
        title = (
            f"{self.kernel}, grid {_dims(self.grid)}, block {_dims(self.block)}: at least "
            f"{format_seconds(self.seconds)} on {self.ceilings.device}; what limits is {self.limit}"
        )
        rows = [
            [name, use.amount, format_seconds(use.seconds), f"{use.seconds / self.seconds:.0%}"]
            for name, use in sorted(self.uses.items(), key=lambda item: -item[1].seconds)
        ]
        words = ("resource", "what the launch asks of it")
        return Section(title, [*words, "at least", "of the time"], rows, words)

    def __str__(self):
        section = self._section()
        return "\n".join([section.title, *text.table(section, "  ")])

    __repr__ = __str__

    def _repr_html_(self):
        section = self._section()
        return page.framed(f'<p class="heading">{escape(section.title)}</p>{page.table(section)}')


def _dims(shape):
    return " x ".join(str(n) for n in (shape if shape[2] > 1 else shape[:2] if shape[1] > 1 else shape[:1]))


def predict(trace, *, grid=None, instructions=None, ceilings=None):
    """The least time of a traced launch on a GPU, resource by resource (A9).

    Parameters
    ----------
    trace : Trace
        As ``gpukit.trace`` gives it, of all blocks or of some of them.
    grid : int or tuple of 1 to 3 int, optional
        Predict a launch of the same kernel with this grid, whose blocks do on average what those of the traced one did:
        trace a small problem, predict a large one.
    instructions : int, optional
        Instructions that warps execute, if they are known: Nsight Compute counts them as ``smsp__inst_executed.sum``.
        Unless given, those that the kernel needs as it is written, and ``trace.overhead``, an estimate of what the
        compiler adds.
    ceilings : Ceilings, optional
        What the GPU can do: ``recorded()``, those of an H200, unless given. ``measured()`` has those of your own.

    Returns
    -------
    Prediction

    Raises
    ------
    TypeError, ValueError
        For an argument that is not as above.

    Notes
    -----
    The caches are cold, full of what others stored, and as good as caches can be: each sector of memory is fetched
    once, and what L2 has to send again because L1 does not hold it is not counted. Of waiting only the least is: one
    trip to memory for each block, and its barriers. All are bounds from below but "issue", which rests on an estimate
    unless the instructions are given.
    """
    if not isinstance(trace, Trace):
        raise TypeError(f"trace is a {type(trace).__name__}; it must be a trace, as gpukit.trace gives")
    grid = trace.grid if grid is None else as_dim3("grid", grid)
    if instructions is not None:
        check_int("instructions", instructions, 0)
    ceilings = recorded() if ceilings is None else ceilings
    if not isinstance(ceilings, Ceilings):
        raise TypeError(f"ceilings is a {type(ceilings).__name__}; it must be Ceilings, as recorded() gives")
    blocks, warps = math.prod(grid), -(-math.prod(trace.block) // WARP)
    counts = _Counts(trace, blocks / math.prod(trace.grid))
    uses = _uses(counts, blocks, warps, instructions, ceilings)
    return Prediction(trace, grid, uses, counts, instructions, ceilings)
