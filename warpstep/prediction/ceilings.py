"""What a GPU can do at most."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warpstep.compiler.instructions import TURN

__all__ = ["CASES", "RECORDED", "Ceilings", "of_records", "recorded"]

#: The record that comes with gpukit, for `recorded`.
RECORDED = "ceilings-h200"
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Ceilings:
    """What a GPU can do at most, as ``gpukit bench ceilings`` measures it.

    Attributes
    ----------
    device, date : str
        The GPU, and when it was measured.
    multiprocessors : int
    dram_read, dram_copy : float
        Bytes per second that a kernel reads from memory, and that one reads and writes which does both alike.
    l2_loads, l2_stores : float
        Sectors of 32 bytes per second that the L2 cache gives to all multiprocessors, and that it takes from them.
    l2_lines : float
        Pieces of different lines per second that it takes: a store to one sector of a line costs more than a fourth of
        a store to all of them.
    wavefronts : float
        Wavefronts per second of all multiprocessors, in shared memory and in L1, which are one memory.
    fp32, fp64 : float
        Floating-point operations per second; a multiply-add is two.
    conversions : float
        Conversions from or to float64 per second.
    instructions : float
        Instructions per second, each for a warp.
    turns : float
        Turns per second of loops over a range, each of a warp and with one multiply-add.
    blocks : float
        Blocks per second that do nothing.
    steps : float
        Steps per second of a block that stores to shared memory, waits at a barrier and loads, again and again.
    launch, touch : float
        Seconds of a kernel that does nothing, and of one whose only block reads and writes a value in each thread.
    written_back : tuple of (int, float)
        For some numbers of bytes that go through a cache full of what others stored, the seconds that it takes longer
        to have that in memory first.
    """

    device: str
    date: str
    multiprocessors: int
    dram_read: float
    dram_copy: float
    l2_loads: float
    l2_stores: float
    l2_lines: float
    wavefronts: float
    fp32: float
    fp64: float
    conversions: float
    instructions: float
    turns: float
    blocks: float
    steps: float
    launch: float
    touch: float
    written_back: tuple

    def writing_back(self, nbytes):
        """Seconds until a cold cache has written to memory what others stored and so many bytes replace."""
        sizes, seconds = zip((0, 0.0), *self.written_back, strict=True)
        return float(np.interp(nbytes, sizes, seconds))

    @property
    def dram_write(self):
        """float: bytes per second that go to memory, by what a copy takes longer than to read its half."""
        return 1 / (2 / self.dram_copy - 1 / self.dram_read)

    @property
    def shared_cost(self):
        """float: instructions that could be issued in the time of one whose value all lanes of a warp share."""
        return (self.instructions / self.turns - 1) / TURN

    @property
    def trip(self):
        """float: seconds of a trip to memory, by what a kernel takes longer that makes one."""
        return self.touch - self.launch


#: Case and variant of the record that each ceiling is; the best of all variants where none is named.
CASES = {
    "multiprocessors": ("multiprocessors", None),
    "dram_read": ("dram", "read"),
    "dram_copy": ("dram", "copy"),
    "l2_loads": ("l2 loads", None),
    "l2_stores": ("l2 stores", "stride 1"),
    "l2_lines": ("l2 stores", "stride 2048"),
    "wavefronts": ("shared", None),
    "fp32": ("fp32", None),
    "fp64": ("fp64", None),
    "conversions": ("conversions", None),
    "instructions": ("issue", None),
    "turns": ("turns", None),
    "blocks": ("blocks", "256 threads"),
    "steps": ("steps", None),
    "launch": ("launch", "nothing"),
    "touch": ("launch", "touch"),
}


def of_records(records):
    """`Ceilings` from records as ``gpukit bench ceilings`` saves them; LookupError if one is missing."""
    values = {}
    for name, (case, variant) in CASES.items():
        found = [r["value"] for r in records if r["case"] == case and variant in (None, r["variant"])]
        if not found:
            raise LookupError(f"no record of {case!r}{f', {variant!r}' if variant else ''} among the ceilings")
        values[name] = max(found)
    values["multiprocessors"] = int(values["multiprocessors"])
    values["written_back"] = _written_back(records)
    return Ceilings(records[0]["gpu"], records[0]["date"], **values)


def _written_back(records):
    times = {(tuple(r["shape"]), r["variant"]): r["value"] for r in records if r["case"] == "replacing"}
    try:
        sizes = sorted(size for size, variant in times if variant == "after stores")
        return tuple((*size, max(0.0, times[size, "after stores"] - times[size, "after loads"])) for size in sizes)
    except KeyError as error:
        raise LookupError(f"no record of 'replacing', {error} among the ceilings") from None


@functools.cache
def recorded(source=RECORDED):
    """Load the `Ceilings` of a file, or of a record that comes with the package: ``recorded("ceilings-h200")``.

    FileNotFoundError if there is no such file, LookupError if a ceiling is missing in it.
    """
    path = Path(source) if Path(source).suffix == ".json" else FOLDER / f"{source}.json"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json")))
        raise FileNotFoundError(f"{path} is not there; recorded are {there}")
    head = json.loads(path.read_text(encoding="utf-8"))
    return of_records([head | record for record in head.pop("records")])
