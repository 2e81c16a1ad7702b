"""Build the wheel, install it in a bare environment, and use it there: what `pip install gpukit` gives a stranger."""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

KERNEL = """
import numpy as np
import {package}
from {package} import cuda

@cuda.jit
def scale(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]

x = np.arange(1000, dtype=np.float32)
out = np.zeros_like(x)
trace = {package}.trace(scale[4, 256], x, out)
np.testing.assert_array_equal(out, 2 * x)
assert trace.total("global", "load").sectors == 125, trace
trace.save_html("trace.html")
print(trace.predict())
"""
RECORDS = """
from gpukit import results
assert results.load("matmul-h200") and results.load("ceilings-h200") and results.documents("A12")
"""
SCRIPT = """
from numba import cuda
import numpy as np

@cuda.jit
def add_one(x):
    x[cuda.grid(1)] += 1

x = np.zeros(32)
add_one[1, 32](x)
assert (x == 1).all()
"""


def main():
    parser = argparse.ArgumentParser(prog="tools/wheel.py", description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the wheel in this folder")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = build(keep or folder / "dist")
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes", flush=True)
        use(wheel, folder)
    print("the wheel works in a bare environment")


def build(folder):
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder.resolve(), "."], ROOT)
    return max(folder.glob("gpukit-*.whl"), key=os.path.getmtime)


def use(wheel, folder):
    """Install the wheel in a new environment below ``folder`` and run what its users run."""
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    command = environment / ("Scripts" if os.name == "nt" else "bin")
    python = command / "python"
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel], folder)
    for package in ("gpukit", "warpstep"):
        run([python, write(folder, f"use_{package}.py", KERNEL.format(package=package))], folder)
    run([python, "-c", RECORDS], folder)
    run([command / "gpukit", "run", "--trace", write(folder, "script.py", SCRIPT)], folder)
    run([command / "gpukit", "doctor"], folder)
    bench = subprocess.run([command / "gpukit", "bench"], cwd=folder, capture_output=True, text=True, env=bare())
    if bench.returncode == 0 or "clone" not in bench.stderr:
        sys.exit(f"`gpukit bench` must say where the measurements are; it said\n{bench.stdout}{bench.stderr}")


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def bare():
    """The environment variables without those that lead to this checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(command, folder):
    command = [os.fspath(part) for part in command]
    if subprocess.run(command, cwd=folder, env=bare()).returncode:
        sys.exit(f"failed: {' '.join(command)}")


if __name__ == "__main__":
    main()
