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
#: Tests of a project that knows nothing of gpukit. The second kernel has a race.
TESTS = """
import numpy as np
from numba import cuda

@cuda.jit
def move(x, distance):
    i = cuda.threadIdx.x
    x[i] = x[(i + distance) % 32]

def test_right():
    move[1, 32](np.zeros(32), 0)

def test_race():
    move[1, 32](np.arange(32.0), 1)
"""
#: A line for each extra that its packages must make possible.
EXTRAS = {
    "notebooks": "import cv2, jupyterlab, matplotlib.pyplot; from gpukit import plot, show",
    "multi": "import distributed; from gpukit.multi import map_frames",
    "test": "import hypothesis, jupytext, pytest, xdist, yaml",
    "docs": "import furo, myst_nb, sphinx",
    "dev": "import importlinter, pyright, pytest, ruff",
    "mlir": "import numba_cuda_mlir.cuda",
    "cu12": "from gpukit.doctor import probe; assert all(t['path'] for t in probe()['toolkit'].values())",
    "cu13": "from gpukit.doctor import probe; assert all(t['path'] for t in probe()['toolkit'].values())",
}


def main():
    parser = argparse.ArgumentParser(prog="tools/wheel.py", description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the wheel in this folder")
    parser.add_argument("--extra", choices=EXTRAS, help="install the wheel with this extra, and try that")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = build((arguments.keep or folder / "dist").resolve())
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes", flush=True)
        if arguments.extra:
            command = install(f"{wheel}[{arguments.extra}]", folder)
            run([command / "python", "-c", EXTRAS[arguments.extra]], folder)
        else:
            command = install(wheel, folder)
        use(command, folder)
    print(f"the wheel works in a bare environment{arguments.extra and ', with ' + arguments.extra or ''}")


def build(folder):
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, "."], ROOT)
    return max(folder.glob("gpukit-*.whl"), key=os.path.getmtime)


def install(requirement, folder):
    """Install the wheel in a new environment below ``folder``; return the folder of its commands."""
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    command = environment / ("Scripts" if os.name == "nt" else "bin")
    pip(command, requirement)
    return command


def pip(command, *requirements):
    run([command / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements], ROOT)


def use(command, folder):
    """Run what users of the wheel run."""
    python = command / "python"
    for package in ("gpukit", "warpstep"):
        run([python, write(folder, f"use_{package}.py", KERNEL.format(package=package))], folder)
    run([python, "-c", RECORDS], folder)
    run([command / "gpukit", "run", "--trace", write(folder, "script.py", SCRIPT)], folder)
    run([command / "gpukit", "check", folder / "script.py"], folder)
    run([command / "gpukit", "doctor"], folder)
    pip(command, "pytest")
    tests = ask([python, "-m", "pytest", "--gpukit=strict", write(folder, "test_script.py", TESTS)], folder)
    if "1 failed, 1 passed" not in tests.stdout or "race" not in tests.stdout:
        sys.exit(f"`pytest --gpukit=strict` must refuse the race, and it alone; it said\n{tests.stdout}{tests.stderr}")
    bench = ask([command / "gpukit", "bench"], folder)
    if bench.returncode == 0 or "clone" not in bench.stderr:
        sys.exit(f"`gpukit bench` must say where the measurements are; it said\n{bench.stdout}{bench.stderr}")


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def bare():
    """The environment variables without those that lead to this checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def ask(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=bare())


def run(command, folder):
    command = [os.fspath(part) for part in command]
    if subprocess.run(command, cwd=folder, env=bare()).returncode:
        sys.exit(f"failed: {' '.join(command)}")


if __name__ == "__main__":
    main()
