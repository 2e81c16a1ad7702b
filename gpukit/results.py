"""Timings and counters that were recorded on a GPU, for those who have none: save them, load them, show them.

A file holds what all of its records share (the GPU, its driver, the versions, the date) and a list of records, one for
each (chapter, case, variant, shape, dtype), each with a value, its unit, and where it is a time its spread.
"""

import csv
import datetime
import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpukit.show import Table
from warpstep.prediction import ceilings

__all__ = [
    "DOCUMENTS",
    "FOUND",
    "PROFILES",
    "RECORDED",
    "by_variant",
    "cores",
    "cpu_name",
    "documents",
    "first",
    "host",
    "joined",
    "load",
    "machine",
    "of_timing",
    "of_timings",
    "profile",
    "read",
    "save",
    "table",
    "taken_on",
]

_HERE = Path(__file__).resolve().parent
#: The wheel has the folder in the package, a checkout beside it.
DATA = next(folder for folder in (_HERE / "data", _HERE.parent / "data") if folder.is_dir())
RECORDED = DATA / "results"
PROFILES = DATA / "profiles"
CEILINGS = Path(ceilings.__file__).resolve().parent
DOCUMENTS = DATA / "documents.json"
#: Fields of a record that say what was found; the others say of what.
FOUND = ("value", "unit", "spread", "n", "quartiles", "invalid", "launch_bound", "clock", "sm_mhz")
PACKAGES = (
    *("numba", "numba-cuda", "numpy", "cuda-core", "torch", "torchvision", "cupy-cuda13x", "cupy-cuda12x"),
    *("opencv-python", "opencv-python-headless"),
)


def machine(packages=PACKAGES):
    """What a measurement on this GPU is to be kept with.

    Parameters
    ----------
    packages : sequence of str
        Whose versions count; those that are not installed are left out.

    Returns
    -------
    dict
        "gpu", "driver", "power_limit" in W, "most_mhz" of the multiprocessors and of the memory, "versions" by package,
        "date".
    """
    fields = "name,driver_version,power.limit,clocks.max.sm,clocks.max.memory"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    gpu, driver, *numbers = (
        subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].split(", ")
    )
    power, sm, memory = (float(text) if text.replace(".", "").isdigit() else None for text in numbers)
    return {
        "gpu": gpu,
        "driver": driver,
        "power_limit": power,
        "most_mhz": {"sm": sm, "memory": memory},
        "versions": _versions(packages),
        "date": datetime.date.today().isoformat(),
    }


def host(packages=("numba", "numba-cuda", "numpy")):
    """What a measurement on this CPU is to be kept with: "cpu", "cores" to use, "python", "versions", "date"."""
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "python": platform.python_version(),
        "versions": _versions(packages),
        "date": datetime.date.today().isoformat(),
    }


def cores():
    """How many of the CPU's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name():
    """What the system calls the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _versions(packages):
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def of_timing(chapter, case, variant, shape, dtype, timing, **further):
    """The record of a `gpukit.timing.Timing`: its median in seconds, its quartiles, its spread.

    ``further`` is what else tells the variant from others, a tile or a pad for example. What a reader must know to
    judge it is there if it is so: "invalid" (spread too wide), "launch_bound" (the launch may be in the time), "clock"
    (the host's).
    """
    record = {"chapter": chapter, "case": case, "variant": variant, "shape": list(shape), "dtype": str(dtype)}
    value = {"value": timing.median, "unit": "s", "spread": timing.spread, "n": timing.n}
    remarks = {"invalid": not timing.valid, "launch_bound": timing.launch_bound, "clock": timing.device == "cpu"}
    said = {name: "host" if name == "clock" else True for name, holds in remarks.items() if holds}
    return record | further | value | {"quartiles": list(timing.quartiles)} | said


def of_timings(chapter, case, shape, dtype, timings, **further):
    """Turn what `timing.bench_many` gave, by variant, into records as `load` gives them, taken here and now."""
    records = [of_timing(chapter, case, name, shape, dtype, timed, **further) for name, timed in timings.items()]
    return joined(machine() | {"here": True}, records)


def by_variant(records, **wanted):
    """Return {variant: value} of the records that have these values."""
    return {r["variant"]: r["value"] for r in records if all(_fits(r.get(key), value) for key, value in wanted.items())}


def taken_on(records):
    """Say where records were taken and when: ``"NVIDIA H200, recorded 2026-11-21"``, for the mark of a figure."""
    return f"{records[0]['gpu']}{'' if records[0].get('here') else ', recorded'} {records[0]['date']}"


def save(path, records, head=None):
    """Write records to a file, one on a line, with ``machine()`` or another ``head`` before them."""
    head = machine() if head is None else head
    text = json.dumps(head, indent=2)
    lines = ",\n".join("    " + json.dumps(record) for record in records)
    Path(path).write_text(f'{text[: text.rindex("}")].rstrip()},\n  "records": [\n{lines}\n  ]\n}}\n', encoding="utf-8")


def load(source, **wanted):
    """Read records.

    Parameters
    ----------
    source : str or Path
        A file, or the name of one that comes with gpukit: "matmul-h200".
    **wanted
        Keep the records that have these values; a tuple or list of values: any of them (a shape is a tuple of ints).

    Returns
    -------
    list of dict
        Each with what the whole file shares too ("gpu", "driver", "date" ...), and its shape as a tuple.

    Raises
    ------
    FileNotFoundError
        If there is no such file; the message lists those that come with gpukit.
    """
    head, records = read(source)
    return [
        record
        for record in joined(head, records)
        if all(_fits(record.get(key), value) for key, value in wanted.items())
    ]


def joined(head, records):
    """Records as `load` gives them: each with what ``head`` says of all, and its shape as a tuple."""
    return [head | record | ({"shape": tuple(record["shape"])} if "shape" in record else {}) for record in records]


def read(source):
    """What a file of records says once, and its records: the ``head`` and the ``records`` that `save` took.

    ``source`` is as for `load`, and so is what is raised.
    """
    path = Path(source) if Path(source).suffix == ".json" else _find(f"{source}.json")
    if not path.is_file():
        there = ", ".join(sorted(p.stem for folder in (RECORDED, CEILINGS) for p in folder.glob("*.json")))
        raise FileNotFoundError(f"{path} is not there; recorded are {there}")
    head = json.loads(path.read_text(encoding="utf-8"))
    return head, head.pop("records")


def _find(name):
    """The path of a record that comes with gpukit; of the ceilings, warpstep has it."""
    return CEILINGS / name if (CEILINGS / name).is_file() else RECORDED / name


def _fits(value, wanted):
    if isinstance(wanted, list) or (isinstance(wanted, tuple) and not isinstance(value, tuple)):
        return value in wanted
    return value == wanted


def documents(row):
    """What the documents measured for one of their rows.

    Parameters
    ----------
    row : str
        "A12" for example.

    Returns
    -------
    dict
        "what" was measured, on which "gpu", and "tables", each with its "rows": dicts with a "case" and "milliseconds".

    Raises
    ------
    KeyError
        If they measured nothing there.
    """
    return json.loads(DOCUMENTS.read_text(encoding="utf-8"))[row]


def profile(name):
    """Read a table that a profiler wrote and that comes with gpukit, "matmul-h200" for example.

    Returns
    -------
    str, list of dict
        The device, its driver and the date; and the rows of the table, all of whose values are text.
    """
    about, *lines = (PROFILES / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return about.removeprefix("# "), list(csv.DictReader(lines))


def first(records, **wanted):
    """The first of the records that has these values; LookupError, naming them, if none has."""
    for record in records:
        if all(_fits(record.get(key), value) for key, value in wanted.items()):
            return record
    raise LookupError(f"no record with {', '.join(f'{key}={value!r}' for key, value in wanted.items())}")


def table(records, columns):
    """Show records as a table.

    Parameters
    ----------
    records : list of dict
    columns : dict of str to (str or function)
        For each heading the field of a record, or what makes the cell's text from a record.

    Returns
    -------
    gpukit.show.Table
    """

    def cell(record, column):
        value = column(record) if callable(column) else record.get(column)
        return "" if value is None else str(value)

    return Table(list(columns), [[cell(record, column) for column in columns.values()] for record in records])
