"""`Trace`: what ``gpukit.trace`` gives back, and the ways to look at it."""

from warpstep.report import comparison, text
from warpstep.report import html as page
from warpstep.tracing.records import Total

SPACES = ("global", "shared", "local")
OPERATIONS = ("load", "store", "atomic")


class Trace:
    """What one launch did, by line of its source.

    Attributes
    ----------
    kernel : str
    grid, block : tuple of 3 int
    shared_bytes : int
        Dynamic shared memory of the launch.
    blocks : int
        Blocks that were traced; if not all of the grid, the counts are scaled to it.
    accesses : list of Access
        By line, array, space and operation: requests, wavefronts, bank conflicts, sectors, active lanes.
    branches : list of Branch
    barriers : list of Barrier
    operations : list of Operations
        Arithmetic by line.
    overhead : int
        Instructions of warps besides those that are written, by estimate: for addresses, for the counting of loops,
        and for whole numbers.
    shared_overhead : int
        Of these, the instructions whose values all lanes of a warp share.
    findings : list of Finding
        Errors: races, accesses out of bounds, uninitialised reads, divergent barriers.
    advice : list of Advice
        What is slow rather than wrong.
    coverage : list of Coverage
        Elements of each array that were read and written.
    traffic : Traffic
    occupancy : Occupancy
    """

    def __init__(self, recording):
        self._recording = recording

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._recording, name)

    def __dir__(self):
        return sorted({*super().__dir__(), *vars(self._recording)})

    def total(self, space=None, op=None):
        """The counts of all accesses of one kind, summed.

        Parameters
        ----------
        space : "global" | "shared" | "local", optional
        op : "load" | "store" | "atomic", optional
            All of them unless given.

        Returns
        -------
        Total

        Raises
        ------
        ValueError
            For any other word.
        """
        for name, value, allowed in (("space", space, SPACES), ("op", op, OPERATIONS)):
            if value is not None and value not in allowed:
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}, or None for all")
        chosen = [a for a in self.accesses if space in (None, a.space) and op in (None, a.op)]
        requests = sum(a.requests for a in chosen)
        lanes = sum(a.active_lanes * a.requests for a in chosen) / requests if requests else 0.0
        names = (
            "wavefronts",
            "ideal_wavefronts",
            "bank_conflicts",
            "sectors",
            "ideal_sectors",
            "lines",
            "l1_wavefronts",
        )
        sums = {name: sum(getattr(a, name) for a in chosen) for name in (*names, "l1_wavefronts")}
        return Total(requests, active_lanes=lanes, **sums)

    def __str__(self):
        return text.report(self._recording)

    __repr__ = __str__

    def _repr_html_(self):
        return page.html(self._recording)

    def plot_banks(self, line=None, array=None):
        """Draw the lanes and banks of a line's worst request to shared memory.

        Parameters
        ----------
        line : int, optional
            A line with an access to shared memory; the worst unless given.
        array : str, optional
            Which array, where the line accesses several.

        Returns
        -------
        matplotlib Axes
        """
        from warpstep.report import plots  # Matplotlib takes its time to load

        return plots.banks(self._recording, line, array=array)

    def plot_sectors(self, line=None, array=None):
        """Draw the footprint of a line's worst request to global memory on sectors of 32 bytes; as `plot_banks`."""
        from warpstep.report import plots  # Matplotlib takes its time to load

        return plots.sectors(self._recording, line, array=array)

    def plot_lines(self):
        """Draw what each line costs: wavefronts in shared memory, sectors elsewhere, beside the fewest possible."""
        from warpstep.report import plots  # Matplotlib takes its time to load

        return plots.lines(self._recording)

    def predict(self, **options):
        """Bound the time of the launch on a GPU from below, by resource: see `warpstep.prediction.predict`."""
        from warpstep.prediction import predict  # it builds on this module

        return predict(self, **options)

    def compare(self, other):
        """This trace beside another: see `warpstep.tracing.compare`."""
        return compare(self, other)


def compare(first, second):
    """Two traces side by side: totals, arithmetic, findings, and lines of the same text.

    Parameters
    ----------
    first, second : Trace

    Returns
    -------
    Comparison
        Text when printed, HTML in a notebook.
    """
    for name, value in (("first", first), ("second", second)):
        if not isinstance(value, Trace):
            raise TypeError(f"{name} is a {type(value).__name__}; it must be a trace, as gpukit.trace gives")
    return comparison.compare(first._recording, second._recording)
