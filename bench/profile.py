"""``gpukit bench profile``: save the profilers' reports of the tiled matrix products as tables.

Needs a GPU and ``ncu``, Nsight Compute's program; for the timeline PyTorch, whose profiler reads the same records of
the driver as Nsight Systems.
"""

import csv
import io
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench import code, common
from bench.evidence import counters
from gpukit import matmul, results
from gpukit.backend import cuda, on_gpu

__all__ = ["FOLDER", "KERNELS", "REPORT", "SASS", "TIMELINE", "of_events", "of_ncu"]

#: The folder of the tables that come with gpukit.
FOLDER = results.PROFILES
#: Kernels of a report: products of square matrices of this size, with tiles of 16.
KERNELS, SIZE, TILE = ("tiled", "tiled_conflict"), 1024, 16
REPORT, TIMELINE, SASS = "matmul-h200.csv", "timeline-h200.csv", "tiled-sm90.sass"


# -- Nsight Compute ----------------------------------------------------------------------------------------------------


def measure_kernels():
    """Profile the kernels; return rows with kernel, section, metric, unit and value. ProfilerError if ncu fails."""
    ncu = counters.find_ncu()
    if ncu is None:
        raise counters.ProfilerError("ncu is not installed")
    child = counters.run_ncu(ncu, "--set full --page details".split(), launch_products)
    rows = of_ncu(child.output)
    if child.status or {row["kernel"] for row in rows} != set(KERNELS):
        raise counters.ProfilerError(f"ncu failed:\n{child.output[-4000:]}")
    return rows


def of_ncu(text):
    """Read the rows of ncu's page "details" from CSV, without its advice and without the machine's names."""
    found = []
    for _, row in counters.read_csv(text):
        if row.get("Metric Name"):
            value = (row["Metric Value"] or "").replace(",", "")
            names = ("Section Name", "Metric Name", "Metric Unit")
            section, metric, unit = (row[name] for name in names)
            kernel = KERNELS[int(row["ID"])]
            found.append({"kernel": kernel, "section": section, "metric": metric, "unit": unit, "value": value})
    return found


def launch_products():
    """Launch each kernel once, under ncu."""
    random = np.random.default_rng(1)
    a, b = (cuda.to_device(random.standard_normal((SIZE, SIZE)).astype(np.float32)) for _ in range(2))
    out = cuda.device_array_like(a)
    for variant in KERNELS:
        for launch, arguments in matmul.steps(variant, a, b, out, tile=TILE):
            launch(*arguments)
        cuda.synchronize()


# -- the timeline ------------------------------------------------------------------------------------------------------

#: Rounds of the application, and rows of its matrices.
ROUNDS, ROWS = 3, 512


def application():
    """Return a program to profile: in each round it makes a matrix, copies it in, multiplies and copies out."""
    b, out = (cuda.to_device(np.random.rand(ROWS, ROWS).astype(np.float32)) for _ in range(2))
    launch, further = matmul.configure("tiled", (ROWS, ROWS))

    def run():
        for _ in range(ROUNDS):
            a = cuda.to_device(np.random.rand(ROWS, ROWS).astype(np.float32))
            launch(a, b, out, *further)
            product = out.copy_to_host()
        return product

    return run


def measure_timeline():
    """Profile the application; return rows with lane (host or device), name, begin and duration in us."""
    from torch.profiler import ProfilerActivity, profile

    run = application()
    run()
    cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        run()
        cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        return of_events(json.loads(path.read_text())["traceEvents"])


#: Lanes of the profiler's categories of events.
LANES = {"cuda_driver": "host", "gpu_memcpy": "device", "kernel": "device"}


def of_events(events):
    """Make the rows of a timeline from the profiler's events, in the order of their begin."""
    rows = []
    for event in events:
        lane = LANES.get(event.get("cat"))
        if lane and not event["name"].startswith("cuDevice"):
            name = re.sub(r"\[abi.*|\(.*", "", event["name"]).strip().split("::")[-1]
            rows.append({"lane": lane, "name": name, "begin": event["ts"], "duration": event["dur"]})
    rows.sort(key=lambda row: row["begin"])
    first = rows[0]["begin"] if rows else 0
    return [row | {"begin": round(row["begin"] - first, 3)} for row in rows]


# -- SASS --------------------------------------------------------------------------------------------------------------


def sass():
    """Return the machine code of the tiled product as nvdisasm prints it: labels and instructions."""
    launch, _ = matmul.configure("tiled", (SIZE, SIZE), tile=TILE)
    kernel, array = launch.dispatcher, cuda.device_array((SIZE, SIZE), np.float32)
    text = kernel.compile(tuple(kernel.typeof_pyval(array) for _ in range(3))).inspect_sass()
    found = (code.LABEL.match(line) or code.INSTRUCTION.match(line) for line in text.splitlines())
    return "".join(match.group().rstrip() + "\n" for match in found if match)


# -- files -------------------------------------------------------------------------------------------------------------


def write_table(path, rows, about):
    """Write a table that ``results.profile`` reads."""
    out = io.StringIO()
    out.write(f"# {about}\n")
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(out.getvalue(), encoding="utf-8")


def add_options(parser):
    """Add the options of ``gpukit bench profile``."""
    parser.add_argument(
        "--save", metavar="FOLDER", type=Path, help=f"write the tables to FOLDER ({FOLDER.name} is one)"
    )


def run(options):
    """Run ``gpukit bench profile``; return the exit status."""
    if not on_gpu():
        print("There is no GPU here, so there is nothing to profile.", file=sys.stderr)
        return 1
    machine = results.machine()
    about = f"{machine['gpu']}, driver {machine['driver']}, {machine['date']}"
    folder = options.save
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    rows = measure_kernels()
    for row in rows:
        print(f"{row['kernel']:16}{row['section']:36}{row['metric']:56}{row['value']:>16} {row['unit']}")
    machine_code = sass()
    print(f"tiled: {len(code.loop_of(machine_code))} instructions in the loop over tiles")
    if folder is not None:
        write_table(folder / REPORT, rows, about)
        (folder / SASS).write_text(f"// {about}\n{machine_code}", encoding="utf-8")
    if "torch" in common.libraries():
        timeline = measure_timeline()
        print(f"timeline: {len(timeline)} events")
        if folder is not None:
            write_table(folder / TIMELINE, timeline, about)
    return 0
