"""Save, load and show timings and counters that were recorded on a GPU, for machines without one.

A file holds what all of its records share (GPU, driver, versions, date) and a list of records, one for each (chapter,
case, variant, shape, dtype), with a value and its unit, and a spread if the value is a time.
"""

import csv
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import warpstep
from gpukit.show import Table
from warpstep.values import check_items, check_path, check_text, check_type, describe

if TYPE_CHECKING:
    from gpukit.timing import Timing

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
    "path_in",
    "read",
    "read_json",
    "record",
    "save",
    "table",
    "taken_on",
]

_HERE = Path(__file__).resolve().parent
#: The wheel has the folder in the package, a checkout beside it.
DATA = next(folder for folder in (_HERE / "data", _HERE.parent / "data") if folder.is_dir())
RECORDED = DATA / "results"
PROFILES = DATA / "profiles"
#: The ceilings of GPUs come with warpstep, which predicts with them.
CEILINGS = Path(warpstep.__file__).resolve().parent / "prediction"
DOCUMENTS = DATA / "documents.json"
#: Fields of a record that hold what was measured; the others say what it was measured of.
FOUND = ("value", "unit", "spread", "n", "quartiles", "invalid", "launch_bound", "clock", "sm_mhz")
PACKAGES = (
    *("numba", "numba-cuda", "numpy", "cuda-core", "torch", "torchvision", "cupy-cuda13x", "cupy-cuda12x"),
    *("opencv-python", "opencv-python-headless"),
)


def machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Describe this machine's GPU, for the records that are measured on it.

    Parameters
    ----------
    packages : sequence of str
        Packages whose versions are kept; those that are not installed are left out.

    Returns
    -------
    dict
        "gpu", "driver", "power_limit" in W, "most_mhz" of the multiprocessors and of the memory, "versions" by package,
        "date".

    Examples
    --------
    >>> about = machine()  # doctest: +SKIP
    """
    fields = "name,driver_version,power.limit,clocks.max.sm,clocks.max.memory"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(f"there is no GPU to describe here: nvidia-smi does not answer ({error})") from error
    gpu, driver, *numbers = answer.split("\n")[0].split(", ")
    power, sm, memory = (float(text) if text.replace(".", "").isdigit() else None for text in numbers)
    return {
        "gpu": gpu,
        "driver": driver,
        "power_limit": power,
        "most_mhz": {"sm": sm, "memory": memory},
        "versions": _versions(packages),
        "date": datetime.date.today().isoformat(),
    }


def host(packages: Sequence[str] = ("numba", "numba-cuda", "numpy")) -> dict[str, Any]:
    """Describe this machine's CPU, for the records: "cpu", "cores" to use, "python", "versions", "date".

    Examples
    --------
    >>> sorted(host())
    ['cores', 'cpu', 'date', 'python', 'versions']
    """
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "python": platform.python_version(),
        "versions": _versions(packages),
        "date": datetime.date.today().isoformat(),
    }


def cores() -> int:
    """Count the CPU's cores that this process may use.

    Examples
    --------
    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """Return the system's name of the CPU.

    Examples
    --------
    >>> isinstance(cpu_name(), str)
    True
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _versions(packages):
    found = {}
    for name in check_items("packages", packages, "names of packages"):
        try:
            found[name] = version(check_text("packages", name) or "?")
        except PackageNotFoundError:
            continue
    return found


def record(
    chapter: str, case: str, variant: str, shape: Sequence[int], dtype: Any, value: Any, unit: str = "s", **further: Any
) -> dict[str, Any]:
    """Make the record of a value. ``further`` tells the variant from others: a tile or a pad for example.

    Examples
    --------
    >>> record("transpose", "time", "tiled", (64, 64), "float32", 2e-6)["unit"]
    's'
    """
    sizes = check_items("shape", shape, "a sequence of ints")
    head = {"chapter": chapter, "case": case, "variant": variant, "shape": sizes, "dtype": _text("dtype", dtype)}
    return head | further | {"value": value, "unit": unit}


def _text(name, value):
    try:
        return str(value)
    except Exception as error:
        raise TypeError(f"{name} is {describe(value)}; it must have a text") from error


def of_timing(
    chapter: str, case: str, variant: str, shape: Sequence[int], dtype: Any, timing: "Timing", **further: Any
) -> dict[str, Any]:
    """Make the record of a `gpukit.timing.Timing`: its median in seconds, its quartiles, its spread.

    ``further`` is as for `record`. Present if they hold are "invalid" (the spread is too wide), "launch_bound" (the
    time may include the launch) and "clock" (the host's).

    Examples
    --------
    >>> timing = gpukit.timing.bench(lambda: sorted(range(99)), device="cpu", repeat=20)
    >>> of_timing("mine", "sort", "python", (99,), "int64", timing)["unit"]
    's'
    """
    from gpukit.timing import Timing  # it brings in Numba, which records do without

    check_type("timing", timing, Timing, "a Timing")
    made = record(chapter, case, variant, shape, dtype, timing.median, **further)
    made |= {"spread": timing.spread, "n": timing.n, "quartiles": list(timing.quartiles)}
    remarks = {"invalid": not timing.valid, "launch_bound": timing.launch_bound, "clock": timing.device == "cpu"}
    return made | {name: "host" if name == "clock" else True for name, holds in remarks.items() if holds}


def of_timings(
    chapter: str, case: str, shape: Sequence[int], dtype: Any, timings: "dict[str, Timing]", **further: Any
) -> list[dict[str, Any]]:
    """Turn what `timing.bench_many` gave, by variant, into records as `load` gives them, taken here and now.

    Examples
    --------
    >>> timing = gpukit.timing.bench(lambda: sorted(range(99)), device="cpu", repeat=20)
    >>> records = of_timings("mine", "sort", (99,), "int64", {"python": timing})  # doctest: +SKIP
    """
    records = [of_timing(chapter, case, name, shape, dtype, timed, **further) for name, timed in timings.items()]
    return joined(machine() | {"here": True}, records)


def by_variant(records: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Return {variant: value} of the records that have these values.

    Examples
    --------
    >>> records = load("transpose-h200", case="time", shape=(8192, 8192), dtype="float32")
    >>> sorted(by_variant(records))[:3]
    ['copy', 'copy_shared', 'cupy']
    """
    found = list(_having(wanted, _checked(records)))
    return dict(zip(_fields(found, "variant"), _fields(found, "value"), strict=True))


def taken_on(records: Sequence[dict[str, Any]]) -> str:
    """Say where records were taken and when: ``"NVIDIA H200, recorded 2026-11-21"``, for the mark of a figure.

    Records of several days give the first and the last one: ``"recorded 2026-11-23 to 2026-11-28"``.

    Examples
    --------
    >>> taken_on(load("transpose-h200")).split(",")[0]
    'NVIDIA H200'
    """
    found = _checked(records)
    if not found:
        raise ValueError("records is empty; it must have one record or more")
    days = sorted(set(_fields(found, "date")))
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{_fields(found, 'gpu')[0]}, {'' if found[0].get('here') else 'recorded '}{when}"


def save(path: str | Path, records: Iterable[dict[str, Any]], head: dict[str, Any] | None = None) -> None:
    """Write records to a file, one on a line, with ``machine()`` or another ``head`` before them.

    Examples
    --------
    >>> import tempfile
    >>> made = record("transpose", "time", "tiled", (64, 64), "float32", 2e-6)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/mine.json", [made], {"gpu": "mine"})
    ...     loaded = load(f"{folder}/mine.json")
    >>> loaded[0]["value"]
    2e-06
    """
    path = check_path("path", path)
    head = machine() if head is None else check_type("head", head, dict, "a dict or None")
    text = _as_json("head", head, indent=2)
    opening = text[: text.rindex("}")].rstrip() + ",\n" * bool(head)
    lines = ",\n".join("    " + _as_json("records", record) for record in _checked(records))
    path.write_text(f'{opening}  "records": [\n{lines}\n  ]\n}}\n', encoding="utf-8")


def _as_json(name, value, **options):
    try:
        return json.dumps(value, **options)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} has what JSON has no form for: {error}") from None


def load(source: str | Path, **wanted: Any) -> list[dict[str, Any]]:
    """Load records.

    Parameters
    ----------
    source : str or Path
        A .json file, or the name of one that comes with gpukit: "matmul-h200".
    **wanted
        Only records that have these values. A tuple or list stands for any of its values; a shape is a tuple of ints.

    Returns
    -------
    list of dict
        Each with the fields that the whole file shares ("gpu", "driver", "date" ...), and its shape as a tuple.

    Raises
    ------
    FileNotFoundError
        If there is no such file; the message lists those that come with gpukit.
    ValueError
        If the file holds no records; the message names it.

    Examples
    --------
    >>> from gpukit import results
    >>> records = results.load("transpose-h200", case="time", variant="tiled_padded", shape=(8192, 8192))
    >>> sorted({record["dtype"] for record in records})
    ['float32', 'uint16', 'uint64', 'uint8']
    """
    return list(_having(wanted, joined(*read(source))))


def joined(head: dict[str, Any], records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join a head with its records, as `load` returns them.

    Examples
    --------
    >>> joined({"gpu": "NVIDIA H200"}, [{"value": 1.0}])
    [{'gpu': 'NVIDIA H200', 'value': 1.0}]
    """
    check_type("head", head, dict, "a dict")
    return [
        head | record | ({"shape": tuple(record["shape"])} if "shape" in record else {}) for record in _checked(records)
    ]


def read(source: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a file of records: the ``head`` and the ``records`` that `save` took. ``source`` is as for `load`.

    Examples
    --------
    >>> head, records = read("transpose-h200")
    >>> head["gpu"]
    'NVIDIA H200'
    """
    path = check_path("source", source)
    path = path if path.suffix == ".json" else path_in(RECORDED, f"{source}.json")
    if not path.is_file():
        there = ", ".join(sorted(p.stem for folder in (RECORDED, CEILINGS) for p in folder.glob("*.json")))
        raise FileNotFoundError(f"{path} is not there; recorded are {there}")
    head = read_json(path, "file of records")
    if not (isinstance(head, dict) and _is_records(head.get("records"))):
        raise ValueError(f'{path} is no file of records: it needs "records", a list of objects')
    return head, head.pop("records")


def read_json(path: str | Path, what: str) -> Any:
    """Read a JSON file; a ValueError names the file if it is no ``what``.

    Examples
    --------
    >>> sorted(read_json(DOCUMENTS, "table of the documents"))[:2]
    ['A10', 'A12']
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no {what}: {error}") from None


def _is_records(value):
    return isinstance(value, list) and all(isinstance(record, dict) for record in value)


def path_in(folder: str | Path, name: str) -> Path:
    """Return the path of a file in a folder of records. Among gpukit's own, warpstep has those of the ceilings.

    Examples
    --------
    >>> path_in("records", "transpose-h200").name
    'transpose-h200'
    """
    own = Path(folder).resolve() == RECORDED.resolve()
    return (CEILINGS if own and name.startswith("ceilings-") else Path(folder)) / name


def _having(wanted, records):
    for key, value in wanted.items():
        if not isinstance(value, str | int | float | tuple | list | None):
            raise TypeError(
                f"{key} is {describe(value)}; it must be a str, a number, a tuple or list of these, or None"
            )
    return (record for record in records if all(_fits(record.get(key), value) for key, value in wanted.items()))


def _checked(records):
    """The records as a list."""
    found = check_items("records", records, "a list of dicts")
    for i, record in enumerate(found):
        check_type(f"records[{i}]", record, dict, "a dict")
    return found


def _fields(records, name):
    """One field of every record."""
    for i, record in enumerate(records):
        if name not in record:
            raise ValueError(f"records[{i}] is {describe(record)}; it must have a field {name!r}")
    return [record[name] for record in records]


def _fits(value, wanted):
    try:
        return _equals(value, wanted)
    except Exception as error:  # of an item's own class
        raise TypeError(f"a value asked for is {describe(wanted)}; it cannot be compared with records") from error


def _equals(value, wanted):
    if isinstance(wanted, list) or (isinstance(wanted, tuple) and not isinstance(value, tuple)):
        return value in wanted
    return value == wanted


def documents(row: str) -> dict[str, Any]:
    """Return what the documents measured for one of their rows.

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
        If they measured nothing for that row.

    Examples
    --------
    >>> documents("A12")["gpu"]
    'NVIDIA GeForce RTX 3090'
    """
    measured = read_json(DOCUMENTS, "file of the documents' figures")
    if check_text("row", row) not in measured:
        raise KeyError(f"row is {row!r}; the documents measured {', '.join(measured)}")
    return measured[row]


def profile(name: str) -> tuple[str, list[dict[str, str]]]:
    """Read a table that a profiler wrote and that comes with gpukit, "matmul-h200" for example.

    Returns
    -------
    str, list of dict
        The device, its driver and the date; and the rows of the table, all of whose values are text.

    Examples
    --------
    >>> device, rows = profile("matmul-h200")
    >>> device.split(",")[0]
    'NVIDIA H200'
    """
    path = check_path("name", PROFILES / f"{check_text('name', name)}.csv")
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in PROFILES.glob("*.csv")))
        raise FileNotFoundError(f"name is {name!r}, and there is no {path}; recorded are {there}")
    about, *lines = path.read_text(encoding="utf-8").splitlines()
    return about.removeprefix("# "), list(csv.DictReader(lines))


def first(records: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Find the first record that has these values; LookupError, naming them, if none has.

    Examples
    --------
    >>> first(load("transpose-h200", case="time"), variant="tiled")["unit"]
    's'
    """
    for record in _having(wanted, _checked(records)):
        return record
    raise LookupError(f"no record with {', '.join(f'{key}={describe(value)}' for key, value in wanted.items())}")


def table(
    records: Iterable[dict[str, Any]], columns: dict[str, str | Callable[[dict[str, Any]], Any]] | None = None
) -> Table:
    """Show records as a table.

    Parameters
    ----------
    records : list of dict
    columns : dict of str to (str or function), optional
        Heading and content of each column: the name of a field, or a function of a record. All fields unless given.

    Returns
    -------
    gpukit.show.Table

    Examples
    --------
    >>> print(table([{"n": 1, "us": 2.5}, {"n": 2, "us": 2.75}]))
    n    us
    1   2.5
    2  2.75
    """

    def cell(record, column):
        value = column(record) if callable(column) else record.get(column)
        return "" if value is None else str(value)

    records = _checked(records)
    if columns is None:
        columns = {str(field): field for record in records for field in record}
    check_type("columns", columns, dict, "a dict of headings to fields or functions")
    for heading, column in columns.items():
        check_text("columns", heading)
        if not callable(column):
            check_text(f"columns[{heading!r}]", column)
    return Table(list(columns), [[cell(record, column) for column in columns.values()] for record in records])
