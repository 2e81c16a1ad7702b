"""What ran when: bars on streams and engines, how much of them lay beside each other, and the picture."""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["ENGINES", "Bar", "Timeline"]

#: What works at the same time on a device that has two copy engines or more.
ENGINES = ("copy in", "kernel", "copy out")


class Bar(NamedTuple):
    """One operation: its name, the number of its task, the number of its stream, its engine, and from when to when
    it ran, in seconds.
    """

    name: str
    task: int
    stream: int
    engine: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What ran when.

    Attributes
    ----------
    bars : tuple of Bar
        The first begins at 0 or a little later.
    source : str
        Where the times come from: the device they were measured on, or the model that they follow from.
    modelled : bool
        True if nothing was measured. Everything that is printed or drawn then says so.
    """

    bars: tuple
    source: str
    modelled: bool

    @property
    def duration(self):
        """float: seconds from the first beginning to the last end; 0 without bars."""
        return max((bar.end for bar in self.bars), default=0.0) - min((bar.start for bar in self.bars), default=0.0)

    def busy(self, engine):
        """float: seconds in which an engine had something to do."""
        return sum(length for length, active in self._intervals() if engine in active)

    @property
    def overlap(self):
        """float: the share of the busy time in which two engines or more were at work, from 0 to 1."""
        lengths = [(length, len(active)) for length, active in self._intervals() if active]
        busy = sum(length for length, _ in lengths)
        return sum(length for length, count in lengths if count > 1) / busy if busy else 0.0

    def _intervals(self):
        """(seconds, engines that were at work) of each stretch in which these did not change."""
        edges = sorted({time for bar in self.bars for time in (bar.start, bar.end)})
        for start, end in zip(edges, edges[1:], strict=False):
            yield end - start, {bar.engine for bar in self.bars if bar.start < end and bar.end > start}

    def record(self, source=None):
        """The timeline as what JSON can hold; `Timeline.of` makes one of it again."""
        bars = [[*bar[:4], round(bar.start, 8), round(bar.end, 8)] for bar in self.bars]
        return {"bars": bars, "source": source or self.source, "modelled": self.modelled}

    @classmethod
    def of(cls, record):
        """The timeline of what `record` gave, or of a record that has its fields among others."""
        source = record.get("source") or f"recorded on {record['gpu']}, {record['date']}"
        return cls(tuple(Bar(*bar) for bar in record["bars"]), source, record.get("modelled", False))

    def __str__(self):
        word = "modelled" if self.modelled else "measured"
        lines = [f"{self.duration * 1e3:.3f} ms, {self.overlap:.0%} of it overlapped ({word}: {self.source})"]
        for engine in ENGINES:
            busy = self.busy(engine)
            if busy:
                lines.append(f"  {engine:8} busy for {busy * 1e3:8.3f} ms, {busy / self.duration:4.0%} of the time")
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, by="stream", title=None, *, ax=None):
        """Draw the bars: a row for each stream or for each engine, a colour for each engine, the number of the task.

        Parameters
        ----------
        by : {"stream", "engine"}
        title : str, optional
            Says how long it took and how much overlapped unless given.
        ax : matplotlib Axes, optional
            Of a figure made by ``plot.figure`` with ``mark=timeline.mark``, for several timelines in one figure.

        Returns
        -------
        matplotlib Axes

        Raises
        ------
        ValueError
            If ``by`` is none of these.
        """
        from matplotlib.patches import Patch

        from gpukit import plot

        if by not in ("stream", "engine"):
            raise ValueError(f"by is {by!r}; it must be 'stream' or 'engine'")
        present = sorted({bar.stream for bar in self.bars}) if by == "stream" else ENGINES
        if ax is None:
            with plot.figure(size=(plot.WIDTH, 1.0 + 0.32 * max(len(present), 1)), mark=self.mark) as ax:
                return self.plot(by, title, ax=ax)
        unit, factor = ("us", 1e6) if self.duration < 1e-3 else ("ms", 1e3)
        colors = dict(zip(ENGINES, (plot.PALETTE[0], plot.PALETTE[1], plot.PALETTE[2]), strict=True))
        for bar in self.bars:
            row = present.index(getattr(bar, by))
            length = bar.end - bar.start
            look = {"color": colors[bar.engine], "edgecolor": "white", "linewidth": 0.6}
            ax.barh(row, length * factor, left=bar.start * factor, height=0.8, **look)
            if length > 0.02 * self.duration:
                middle = (bar.start + length / 2) * factor
                ax.text(middle, row, str(bar.task), ha="center", va="center", fontsize=8)
        if by == "stream":
            used = [engine for engine in ENGINES if any(bar.engine == engine for bar in self.bars)]
            boxes = [Patch(facecolor=colors[engine], label=engine) for engine in used]
            ax.legend(handles=boxes, loc="upper left", bbox_to_anchor=(1.0, 1.02), borderpad=0)
        names = [f"stream {stream}" for stream in present] if by == "stream" else ENGINES
        ax.set_yticks(range(len(present)), names)
        ax.set(xlabel=f"{unit} ({'modelled' if self.modelled else 'measured'})", xlim=(0, None))
        ax.invert_yaxis()
        ax.set_title(self._title(unit, factor) if title is None else title)
        return ax

    def _title(self, unit, factor):
        word = "modelled: " if self.modelled else ""
        return f"{word}{self.duration * factor:.4g} {unit}, {self.overlap:.0%} of it overlapped"

    @property
    def mark(self):
        """str: what is written under a figure."""
        return f"modelled, not measured: {self.source}" if self.modelled else self.source
