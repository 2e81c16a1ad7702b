"""The ceilings of a GPU: the highest rates that were measured on it."""

import functools
import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from warpstep.compiler.instructions import ITERATION
from warpstep.tracing.records import TENSOR
from warpstep.values import check_items, check_path, check_type, describe

__all__ = ["CASES", "RECORDED", "Ceilings", "from_records", "recorded"]

#: The record that ships with the package, for `recorded`.
RECORDED = "ceilings-h200"
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Ceilings:
    """The ceilings of a GPU, as ``gpukit bench ceilings`` measures them.

    Attributes
    ----------
    device, date : str
        The GPU, and when it was measured.
    multiprocessors : int
    dram_read, dram_copy : float
        Bytes per second of a kernel that reads memory, and of one that reads and writes it in equal parts.
    l2_loads, l2_stores : float
        Sectors of 32 bytes per second that all multiprocessors load from the L2 cache, and store to it.
    l2_lines : float
        Stores to different cache lines per second: a store to one sector of a line costs more than a fourth of a store
        to all four.
    wavefronts : float
        Wavefronts per second of all multiprocessors, in shared memory and L1, which are one memory.
    fp32, fp64 : float
        Floating-point operations per second; a multiply-add is two.
    tensor_fp16, tensor_tf32, tensor_fp64, tensor_int8 : float
        The same of tensor cores, by what they multiply; in records that do not have them, those of NVIDIA's datasheet.
    conversions : float
        Conversions from or to float64 per second.
    instructions : float
        Warp instructions per second.
    turns : float
        Iterations per second, by warp, of loops over a range with one multiply-add.
    blocks : float
        Empty blocks per second.
    steps : float
        Steps per second of one block that stores to shared memory, waits at a barrier and loads.
    launch, touch : float
        Seconds of an empty kernel, and of one whose only block reads and writes a value in each thread.
    written_back : tuple of (int, float)
        (bytes, seconds): the extra time of so many bytes through a cache full of modified lines, which must be written
        back first.
    link : float
        Bytes per second between two devices, each direction; unless given, those of copies between two H200.
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
    written_back: tuple[tuple[int, float], ...]
    link: float = 378e9
    tensor_fp16: float = 989.4e12
    tensor_tf32: float = 494.7e12
    tensor_fp64: float = 66.9e12
    tensor_int8: float = 1978.9e12

    def writing_back(self, nbytes: float) -> float:
        """Seconds to write back the modified lines that so many bytes replace in the cache."""
        sizes, seconds = zip((0, 0.0), *self.written_back, strict=True)
        return float(np.interp(nbytes, sizes, seconds))

    @property
    def dram_write(self) -> float:
        """float: bytes per second written to memory, from the time that a copy takes beyond its reads."""
        return 1 / (2 / self.dram_copy - 1 / self.dram_read)

    @property
    def shared_cost(self) -> float:
        """float: issue slots of an instruction whose value all lanes of a warp share."""
        return (self.instructions / self.turns - 1) / ITERATION

    @property
    def trip(self) -> float:
        """float: seconds of one round trip to memory."""
        return self.touch - self.launch


#: The case and variant of the record that holds each ceiling; for None the best of all variants.
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


def from_records(records: list[dict]) -> Ceilings:
    """Make `Ceilings` from the records that ``gpukit bench ceilings`` saves.

    LookupError if one is missing, TypeError or ValueError for what are no records.

    Examples
    --------
    >>> from_records(gpukit.results.load("ceilings-h200")) == recorded("ceilings-h200")
    True
    """
    records, values = check_items("records", records, "a list of dicts"), {}
    for i, record in enumerate(records):
        missing = {"case", "variant", "value", "gpu", "date"} - set(check_type(f"records[{i}]", record, dict, "a dict"))
        if missing:
            raise ValueError(f"records[{i}] is {describe(record)}; it must have {', '.join(sorted(missing))}")
    for name, (case, variant) in CASES.items():
        found = [r["value"] for r in records if r["case"] == case and variant in (None, r["variant"])]
        if not found:
            raise LookupError(f"no record of {case!r}{f', {variant!r}' if variant else ''} among the ceilings")
        values[name] = max(found)
    for kind in TENSOR:
        found = [r["value"] for r in records if (r["case"], r["variant"]) == ("tensor", kind)]
        values |= {kind: max(found)} if found else {}
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


def recorded(source: str | PathLike = RECORDED) -> Ceilings:
    """Load the `Ceilings` of a file, or of a record that ships with the package: ``recorded("ceilings-h200")``.

    FileNotFoundError if there is no such file, LookupError if a ceiling is missing in it, ValueError if it holds
    something else. Each message names the file.

    Examples
    --------
    >>> recorded("ceilings-h200").device
    'NVIDIA H200'
    """
    path = check_path("source", source)
    path = path if path.suffix == ".json" else FOLDER / f"{path}.json"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json")))
        raise FileNotFoundError(f"source is {str(source)!r}, and there is no {path}; recorded: {there}")
    return _load(path)


@functools.cache
def _load(path):
    try:
        head = json.loads(path.read_text(encoding="utf-8"))
        records = check_type("it", head, dict, "an object").pop("records", [])
        return from_records([head | record for record in check_type("records", records, list, "a list")])
    except LookupError as error:
        raise LookupError(f"{path}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a record of ceilings: {error}") from error
