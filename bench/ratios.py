"""Compare gpukit with the libraries of one run, and one run with another."""

import json
import re
from dataclasses import dataclass

from gpukit import results, timing
from warpstep.report.table import Table

__all__ = [
    "Change",
    "Pair",
    "changes",
    "falls",
    "is_copy",
    "library_of",
    "pair_up",
    "pairs",
    "problem_of",
    "size_of",
    "table_of_changes",
    "table_of_pairs",
]

#: What a library's variants begin with, in lower case, and the library's name as it writes it.
LIBRARIES = {
    "cublas": "cuBLAS",
    "cub": "CUB",
    "cuda.core": "cuda.core",
    "cudnn": "cuDNN",
    "cupy": "CuPy",
    "cupyx": "CuPy",
    "opencv": "OpenCV",
    "torch": "PyTorch",
    "torchvision": "torchvision",
}
#: Chapters and cases of references on the CPU, where no side is gpukit's, and random problems, with their own tables.
NOT_COMPARED = {"any", "cpu", "emulator"}
_SAME = ("chapter", "case", "shape", "dtype", "unit")
#: Two runs of the same program differ by up to this share.
NOISE = 0.03


def library_of(record: dict) -> str | None:
    """Return the key in `LIBRARIES` of the library that a record timed; None for gpukit's kernels and for copies."""
    variant = record["variant"].lower()
    if is_copy(record):
        return None
    return next((name for name in LIBRARIES if re.match(rf"{re.escape(name)}\b", variant)), None)


def is_copy(record: dict) -> bool:
    """Tell the copies, which are controls on no side, by their variants."""
    return re.search("copy|memcpy", record["variant"]) is not None


def problem_of(record: dict) -> dict:
    """Return the problem of a library's record: all of its fields but the variant and the measured values."""
    return {key: _plain(value) for key, value in record.items() if key != "variant" and key not in results.FOUND}


def _plain(value):
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Pair:
    """The fastest of gpukit's kernels and the fastest library on one problem, by the same clock.

    Attributes
    ----------
    problem : dict
        "chapter", "case", "shape", "dtype" and whatever else tells it from other problems.
    ours, theirs : dict
        Records.
    """

    problem: dict
    ours: dict
    theirs: dict

    @property
    def key(self) -> str:
        """str: the same for the same problem in another run."""
        return json.dumps(self.problem, sort_keys=True)

    @property
    def ratio(self) -> float:
        """float: the library's time over ours: above 1, gpukit is faster."""
        return self.theirs["value"] / self.ours["value"]

    @property
    def remark(self) -> str:
        """str: a reason to distrust the ratio, or ""."""
        for name, side in (("gpukit", self.ours), ("library", self.theirs)):
            if side.get("invalid"):
                return f"INVALID: {name}'s spread {side['spread']:.0%}"
        bound = any(side.get("launch_bound") for side in (self.ours, self.theirs))
        return "launches may be in the times" if bound else ""

    @property
    def valid(self) -> bool:
        """bool: whether both sides were steady enough to be compared."""
        return not (self.ours.get("invalid") or self.theirs.get("invalid"))


def pairs(records: list[dict]) -> list[Pair]:
    """Pair gpukit with the fastest library, for every problem that both were timed on.

    Parameters
    ----------
    records : list of dict
        Records of one run, as ``results.read`` gives them. A file may hold several runs, told apart by a field "run";
        only records of the same run are compared. Times without a spread are left out.

    Returns
    -------
    list of Pair
        In the order in which the libraries' records come.
    """
    return pair_up([record for record in records if _is_compared(record)])


def pair_up(records: list[dict]) -> list[Pair]:
    """Do the same for records all of which are to be compared."""
    ours, rivals = {}, {}
    for record in records:
        if library_of(record):
            problem = problem_of(record)
            key = json.dumps([problem, _clock(record)], sort_keys=True)
            if key not in rivals or record["value"] < rivals[key][1]["value"]:
                rivals[key] = problem, record
        elif not is_copy(record):
            ours.setdefault(_place(record), []).append(record)
    found = []
    for problem, theirs in rivals.values():
        fitting = [r for r in ours.get(_place(theirs), ()) if all(_plain(r.get(k, v)) == v for k, v in problem.items())]
        if fitting:
            found.append(Pair(problem, min(fitting, key=lambda r: r["value"]), theirs))
    return found


def _is_compared(record):
    timed = record["unit"] == "s" and record.get("spread") is not None
    return timed and not NOT_COMPARED & {record["chapter"], record["case"]}


def _clock(record):
    return record.get("clock", "device")


def _place(record):
    return (*(_plain(record[name]) for name in _SAME), _clock(record), record.get("run"))


def size_of(problem: dict) -> str:
    """Format the shape and dtype of a problem or a record."""
    return f"{' x '.join(f'{n:,}' for n in problem['shape'])} {problem['dtype']}"


def _case(problem):
    """Format the case, and the fields of the problem that the case does not name."""
    further = [value for key, value in problem.items() if key not in _SAME and str(value) not in problem["case"]]
    return ", ".join(map(str, [problem["case"], *further]))


def table_of_pairs(found: list[Pair]) -> Table:
    """Make a table with a line for each pair."""
    rows = []
    for pair in found:
        ours, theirs = pair.ours, pair.theirs
        rows.append(
            (
                *(pair.problem["chapter"], _case(pair.problem), size_of(pair.problem)),
                *(ours["variant"], timing.format_seconds(ours["value"])),
                *(theirs["variant"], timing.format_seconds(theirs["value"])),
                *(f"{pair.ratio:.2f}", pair.remark),
            )
        )
    header = ("chapter", "what", "size", "gpukit", "its time", "library", "its time", "ratio", "remark")
    return Table(header, rows, words=("chapter", "what", "size", "gpukit", "library", "remark"))


# -- against an earlier run --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A value before and now.

    Attributes
    ----------
    what : str
    before, now : float
        Seconds, or ratios to a library.
    unit : {"s", "ratio"}
    judged : bool
        False if one of the two spread too widely to compare.
    sides : str
        The times of a ratio's two sides.
    """

    what: str
    before: float
    now: float
    unit: str
    judged: bool = True
    sides: str = ""

    @property
    def gain(self) -> float:
        """float: the factor by which it is better now: faster, or a higher ratio."""
        return self.before / self.now if self.unit == "s" else self.now / self.before


def changes(now: list[dict], before: list[dict], times: bool = True) -> list[Change]:
    """Compare the records that two runs have in common.

    Parameters
    ----------
    now, before : list of dict
        Records of two runs.
    times : bool
        Compare times too. Of two different GPUs, only the ratios can be compared.

    Returns
    -------
    list of Change
        Of times, then of ratios to the fastest library.
    """
    found = []
    if times:
        known = {_name(r): r for r in before if r["unit"] == "s"}
        for record in now:
            old = known.get(_name(record)) if record["unit"] == "s" else None
            if old and old["value"] > 0 and record["value"] > 0:
                steady = not (old.get("invalid") or record.get("invalid") or record.get("spread") is None)
                found.append(Change(_name(record), old["value"], record["value"], "s", steady))
    known = {pair.key: pair for pair in pairs(before)}
    for pair in pairs(now):
        old = known.get(pair.key)
        if old:
            what = f"{pair.problem['chapter']}, {_case(pair.problem)}, {size_of(pair.problem)}"
            found.append(Change(what, old.ratio, pair.ratio, "ratio", old.valid and pair.valid, _sides(old, pair)))
    return found


def _sides(before, now):
    """Format the times of both sides, before and now: they show which side changed."""
    kinds = (("gpukit", before.ours, now.ours), ("library", before.theirs, now.theirs))
    return "; ".join(f"{kind} {_timed(old)}, now {_timed(new)}" for kind, old, new in kinds)


def _timed(record):
    return f"{timing.format_seconds(record['value'])} ({record['variant']})"


def _name(record):
    """Name a record in a line."""
    further = {k: v for k, v in problem_of(record).items() if k not in _SAME}
    tail = "".join(f", {key} {value}" for key, value in sorted(further.items()))
    return f"{record['chapter']}, {record['case']}, {size_of(record)}, {record['variant']}{tail}"


def falls(found: list[Change], percent: float) -> list[Change]:
    """List the ratios that fell by more than ``percent`` among those that can be judged, the worst first."""
    fallen = [c for c in found if c.unit == "ratio" and c.judged and c.gain < 1 - percent / 100]
    return sorted(fallen, key=lambda c: c.gain)


def table_of_changes(found: list[Change]) -> str:
    """Format the changes that are larger than those of two runs of the same program, the worst first."""
    shown = sorted((c for c in found if c.judged and abs(c.gain - 1) > NOISE), key=lambda c: c.gain)
    header, rows = ("change", "before", "now", "by", "what"), []
    for change in shown:
        seconds = change.unit == "s"
        values = [timing.format_seconds(v) if seconds else f"{v:.2f}" for v in (change.before, change.now)]
        words = ("slower", "faster") if seconds else ("ratio fell", "ratio rose")
        # A time that doubles is 100 % slower; a ratio that halves fell by 50 %, of which --max-fall speaks too.
        by = max(change.gain, 1 / change.gain) - 1 if seconds else abs(change.gain - 1)
        rows.append((words[change.gain > 1], *values, f"{by:.0%}", change.what))
    judged = sum(c.judged for c in found)
    rest = f"{judged - len(shown)} of {judged} are within {NOISE:.0%}"
    unsteady = len(found) - judged
    tail = f"{rest}; {unsteady} were not steady enough to compare." if unsteady else f"{rest}."
    return f"{Table(header, rows, words=('change', 'what'))}\n{tail}" if shown else tail
