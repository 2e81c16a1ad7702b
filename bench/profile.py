"""``gpukit bench profile``: what the profilers say of the tiled matrix products, kept as tables that need no profiler.

Needs a GPU and ``ncu``, Nsight Compute's program; for the timeline PyTorch, whose profiler reads the same records of
the driver as Nsight Systems.
"""

import argparse
import csv
import io
import json
import re
import tempfile
import warnings
from pathlib import Path

import numpy as np
from numba.cuda.core.errors import NumbaPerformanceWarning

from bench import code, common
from bench.evidence import counters
from gpukit import matmul, results
from gpukit.backend import cuda

__all__ = ["FOLDER", "KERNELS", "REPORT", "SASS", "TIMELINE", "load", "main", "of_events", "of_ncu", "opcode"]

#: Where the tables are that come with gpukit.
FOLDER = results.RECORDED.parent / "profiles"
#: Kernels of a report: products of square matrices of this size, with tiles of 16.
KERNELS, SIZE, TILE = ("tiled", "tiled_conflict"), 1024, 16
REPORT, TIMELINE, SASS = "matmul-h200.csv", "timeline-h200.csv", "tiled-sm90.sass"


# -- Nsight Compute ----------------------------------------------------------------------------------------------------


def measure_kernels():
    """Rows of a report: dicts with the kernel, the section, the metric, its unit and its value.

    ProfilerError if ncu is missing or fails.
    """
    ncu = counters.find_ncu()
    if ncu is None:
        raise counters.ProfilerError("ncu is not installed")
    done = counters.run(ncu, "--set full --page details".split(), "bench.profile")
    rows = of_ncu(done.stdout)
    if done.returncode or {row["kernel"] for row in rows} != set(KERNELS):
        raise counters.ProfilerError(f"ncu failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return rows


def of_ncu(text):
    """The rows of ncu's page "details" as CSV, without its advice and without what names a machine."""
    found = []
    for _, row in counters.read_csv(text):
        if row.get("Metric Name"):
            value = (row["Metric Value"] or "").replace(",", "")
            names = ("Section Name", "Metric Name", "Metric Unit")
            section, metric, unit = (row[name] for name in names)
            kernel = KERNELS[int(row["ID"])]
            found.append({"kernel": kernel, "section": section, "metric": metric, "unit": unit, "value": value})
    return found


def _products():
    """What runs under ncu: each kernel once."""
    random = np.random.default_rng(1)
    a, b = (cuda.to_device(random.standard_normal((SIZE, SIZE)).astype(np.float32)) for _ in range(2))
    out = cuda.device_array_like(a)
    for variant in KERNELS:
        for launch, arguments in matmul.steps(variant, a, b, out, tile=TILE):
            launch(*arguments)
        cuda.synchronize()


# -- the timeline ------------------------------------------------------------------------------------------------------

#: Times that the application goes round, and rows of its matrices.
ROUNDS, ROWS = 3, 512


def application():
    """A program to look at: again and again it makes a matrix, copies it in, multiplies it, copies the product out."""
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
    """Rows of what the host called and the device did: dicts with the lane, the name, begin and duration in us."""
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


#: Categories of the profiler's events: what the host called, and what the device did.
LANES = {"cuda_driver": "host", "gpu_memcpy": "device", "kernel": "device"}


def of_events(events):
    """Rows of a timeline from the profiler's events, in the order of their begin."""
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
    """The machine code of the tiled product as nvdisasm writes it: labels and instructions."""
    launch, _ = matmul.configure("tiled", (SIZE, SIZE), tile=TILE)
    kernel, array = launch.dispatcher, cuda.device_array((SIZE, SIZE), np.float32)
    text = kernel.compile(tuple(kernel.typeof_pyval(array) for _ in range(3))).inspect_sass()
    found = (code.LABEL.match(line) or code.INSTRUCTION.match(line) for line in text.splitlines())
    return "".join(match.group().rstrip() + "\n" for match in found if match)


def opcode(instruction):
    """The first word of an instruction, without what it depends on: "LDS.128" of ``@!P0 LDS.128 R4, [R8]``."""
    return re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0]


# -- files -------------------------------------------------------------------------------------------------------------


def _write(path, rows, about):
    out = io.StringIO()
    out.write(f"# {about}\n")
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(out.getvalue(), encoding="utf-8")


def load(name, folder=FOLDER):
    """A table that was saved: (what it was measured with, as a line; list of dict)."""
    about, *lines = (Path(folder) / name).read_text(encoding="utf-8").splitlines()
    return about.removeprefix("# "), list(csv.DictReader(lines))


def main(argv=None):
    """Run ``gpukit bench profile``; give back the exit status."""
    parser = argparse.ArgumentParser(prog="gpukit bench profile", description=__doc__)
    parser.add_argument(
        "--save", metavar="FOLDER", type=Path, help=f"write the tables to FOLDER ({FOLDER.name} is one)"
    )
    options = parser.parse_args(argv)
    if not common.has_gpu():
        return 1
    warnings.simplefilter("ignore", NumbaPerformanceWarning)
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
        _write(folder / REPORT, rows, about)
        (folder / SASS).write_text(f"// {about}\n{machine_code}", encoding="utf-8")
    if "torch" in common.libraries():
        timeline = measure_timeline()
        print(f"timeline: {len(timeline)} events")
        if folder is not None:
            _write(folder / TIMELINE, timeline, about)
    return 0


if __name__ == "__main__":
    _products()
