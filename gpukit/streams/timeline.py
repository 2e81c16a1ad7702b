"""Timelines: what ran when on which stream and engine, how much of it overlapped, and its plot."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from warpstep.values import check_choice, check_type, describe

__all__ = ["ENGINES", "PEER_COPY", "Bar", "Timeline"]

#: The engines of a device: with two copy engines or more they all work at the same time.
ENGINES = ("copy in", "kernel", "copy out")
#: What moves data from one device to another.
PEER_COPY = "peer copy"


class Bar(NamedTuple):
    """One operation of a timeline."""

    name: str
    task: int
    stream: int
    engine: str
    start: float  # seconds
    end: float
    device: int = 0


@dataclass(frozen=True)
class Timeline:
    """What ran when.

    Attributes
    ----------
    bars : tuple of Bar
        The first starts at 0 or a little later.
    source : str
        The device on which the times were measured, or the model that they follow from.
    modelled : bool
        True if nothing was measured. Everything printed or drawn then says so.
    """

    bars: tuple[Bar, ...]
    source: str
    modelled: bool

    @classmethod
    def from_zero(cls, bars: list[Bar], source: str, modelled: bool) -> "Timeline":
        """Make a timeline of bars in the order of their starts, moved so that the first starts at 0."""
        first = min((bar.start for bar in bars), default=0.0)
        moved = (bar._replace(start=bar.start - first, end=bar.end - first) for bar in bars)
        return cls(tuple(sorted(moved, key=lambda bar: bar.start)), source, modelled)

    @property
    def duration(self) -> float:
        """Seconds from the first start to the last end; 0 without bars."""
        return max((bar.end for bar in self.bars), default=0.0) - min((bar.start for bar in self.bars), default=0.0)

    def busy(self, engine: str) -> float:
        """Seconds in which an engine was busy; of several devices, on any of them."""
        check_choice("engine", engine, (*ENGINES, PEER_COPY))
        return sum(length for length, active in self._intervals() if engine in active)

    @property
    def overlap(self) -> float:
        """The share of the busy time in which two engines or more were busy, from 0 to 1."""
        lengths = [(length, len(active)) for length, active in self._intervals() if active]
        busy = sum(length for length, _ in lengths)
        return sum(length for length, count in lengths if count > 1) / busy if busy else 0.0

    def _intervals(self) -> Iterator[tuple[float, set[str]]]:
        """(seconds, busy engines) of each stretch in which the busy engines do not change."""
        edges = sorted({time for bar in self.bars for time in (bar.start, bar.end)})
        for start, end in zip(edges, edges[1:], strict=False):
            yield end - start, {bar.engine for bar in self.bars if bar.start < end and bar.end > start}

    def record(self, source: str | None = None) -> dict[str, Any]:
        """Convert to a dict for JSON; `Timeline.of` converts back."""
        bars = [[*bar[:4], round(bar.start, 8), round(bar.end, 8), *bar[6:]] for bar in self.bars]
        return {"bars": bars, "source": source or self.source, "modelled": self.modelled}

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Timeline":
        """Make a timeline from the dict of `record`, or from a recorded result with these fields among others."""
        check_type("record", record, dict, "a dict with bars, as Timeline.record makes it")
        try:
            source = record.get("source") or f"recorded on {record['gpu']}, {record['date']}"
            return cls(tuple(Bar(*bar) for bar in record["bars"]), source, record.get("modelled", False))
        except (KeyError, TypeError) as error:
            raise ValueError(f"record is {describe(record)}; it must have bars, as Timeline.record makes it") from error

    def __str__(self) -> str:
        word = "modelled" if self.modelled else "measured"
        lines = [f"{self.duration * 1e3:.3f} ms, {self.overlap:.0%} of it overlapped ({word}: {self.source})"]
        for engine in (*ENGINES, PEER_COPY):
            busy = self.busy(engine)
            if busy:
                lines.append(f"  {engine:8} busy for {busy * 1e3:8.3f} ms, {busy / self.duration:4.0%} of the time")
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, by: str = "stream", title: str | None = None, *, ax: Any = None) -> Any:
        """Plot the bars: a row for each stream or engine, a colour for each engine, and the number of the task.

        Parameters
        ----------
        by : {"stream", "engine", "device"}
            "device": a row for each engine of each device.
        title : str, optional
            Duration and overlap unless given.
        ax : matplotlib Axes, optional
            For several timelines in one figure: axes of a figure made by ``plot.figure(mark=timeline.mark)``.

        Raises
        ------
        ValueError
            If ``by`` is neither of these.
        """
        from matplotlib.patches import Patch

        from gpukit import plot
        from warpstep.report.axes import check_axes

        check_choice("by", by, ("stream", "engine", "device"))
        check_axes(ax)
        rows = self._rows(by)
        colors: dict[str, str] = dict(zip((*ENGINES, PEER_COPY), plot.PALETTE, strict=False))
        if ax is None:
            with plot.figure(size=(plot.WIDTH, 1.0 + 0.32 * max(len(rows), 1)), mark=self.mark) as ax:
                return self.plot(by, title, ax=ax)
        unit, factor = ("us", 1e6) if self.duration < 1e-3 else ("ms", 1e3)
        places = {name: row for row, name in enumerate(rows)}
        longest_first = sorted(self.bars, key=lambda bar: bar.start - bar.end)
        for bar in longest_first:
            row, look = places[self._row_of(bar, by)], {"color": colors[bar.engine], "edgecolor": "white"}
            length = (bar.end - bar.start) * factor
            ax.barh(row, length, left=bar.start * factor, height=0.8, linewidth=0.6, **look)
        named: dict[int, list[float]] = {row: [] for row in places.values()}  # where a number stands already
        for bar in reversed(longest_first):  # of those at one place, that of the bar on top
            row, middle, least = places[self._row_of(bar, by)], (bar.start + bar.end) / 2, 0.02 * self.duration
            if bar.end - bar.start > least and all(abs(middle - at) > least for at in named[row]):
                named[row].append(middle)
                ax.text(middle * factor, row, str(bar.task), ha="center", va="center", fontsize=8)
        if by == "stream":
            used = [engine for engine in colors if any(bar.engine == engine for bar in self.bars)]
            boxes = [Patch(facecolor=colors[engine], label=engine) for engine in used]
            ax.legend(handles=boxes, loc="upper left", bbox_to_anchor=(1.0, 1.02), borderpad=0)
        ax.set_yticks(range(len(rows)), rows.values())
        ax.set(xlabel=f"{unit} ({'modelled' if self.modelled else 'measured'})", xlim=(0, None))
        ax.invert_yaxis()
        ax.set_title(self._title(unit, factor) if title is None else title)
        return ax

    def _row_of(self, bar, by):
        """The key of the row that a bar is in."""
        streams = (bar.device, bar.stream)
        return {"stream": streams, "engine": bar.engine, "device": (bar.device, bar.engine)}[by]

    def _rows(self, by):
        """{key: name} of the rows of a plot, in their order."""
        if by == "engine":
            shared = dict.fromkeys(ENGINES) | dict.fromkeys(bar.engine for bar in self.bars)
            return {engine: engine for engine in shared}
        order = {engine: number for number, engine in enumerate((*ENGINES, PEER_COPY))}
        found = {self._row_of(bar, by): bar for bar in self.bars}
        several = by == "device" or len({bar.device for bar in self.bars}) > 1
        rows = sorted(found, key=lambda key: (key[0], order.get(key[1], key[1])))
        names = {key: f"stream {key[1]}" if by == "stream" else key[1] for key in rows}
        return {key: f"GPU {key[0]}, {name}" if several else name for key, name in names.items()}

    def _title(self, unit, factor):
        word = "modelled: " if self.modelled else ""
        return f"{word}{self.duration * factor:.4g} {unit}, {self.overlap:.0%} of it overlapped"

    @property
    def mark(self) -> str:
        """The note under a figure: where the times come from."""
        return f"modelled, not measured: {self.source}" if self.modelled else self.source
