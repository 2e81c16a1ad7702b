"""The compilers that can type kernels, and the places where they, or what they import, are not installed."""

import ast
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from warpstep import _compilers

ROOT = Path(_compilers.__file__).parent.parent
CLEAN = {name: value for name, value in os.environ.items() if name not in ("GPUKIT_BACKEND", "GPUKIT_FRONTEND")}
MLIR = importlib.util.find_spec("numba_cuda_mlir") is not None
needs_mlir = pytest.mark.skipif(not MLIR, reason="needs numba-cuda-mlir")


def python(*arguments, **environment):
    env = CLEAN | {"PYTHONPATH": str(ROOT)} | environment
    result = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def run(tmp_path, program, *options, **environment):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    return python("-m", "gpukit", "run", *options, str(script), **environment)


# -- numba-cuda-mlir, installed or not ---------------------------------------------------------------------------------

EVERY_FORM = """
    from concurrent.futures import ProcessPoolExecutor
    import multiprocessing

    try:
        from numba_cuda_mlir import cuda
    except ImportError:
        from numba import cuda
    import numpy as np
    import numba_cuda_mlir, numba_cuda_mlir.cuda as c
    from numba_cuda_mlir import types
    from numba_cuda_mlir.cuda import grid, to_device
    from numba_cuda_mlir.cuda.cudadrv import devicearray
    from numba_cuda_mlir.numba_cuda.cudadrv.driver import Device

    @cuda.jit
    def half(a):
        i = grid(1)
        if i < a.size:
            a[i] = i + types.float32(0.5)

    def work():
        a = to_device(np.zeros(3, np.float32))
        half[1, 32](a)
        assert type(a) is c.devicearray.DeviceNDArray is devicearray.DeviceNDArray
        return a.copy_to_host().tolist()

    if __name__ == "__main__":
        assert c is cuda is numba_cuda_mlir.cuda and cuda.is_available() and isinstance(c.get_current_device(), Device)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            print(work(), pool.submit(work).result(), bool(numba_cuda_mlir.__version__))
        try:
            import numba_cuda_mlir.none
        except ModuleNotFoundError as error:
            print(error.name)
"""


def test_the_successor_is_the_emulator_whether_it_is_installed_or_not(tmp_path):
    assert run(tmp_path, EVERY_FORM) == "[0.5, 1.5, 2.5] [0.5, 1.5, 2.5] True\nnumba_cuda_mlir.none\n"


def test_uninstall_takes_the_other_name_away():
    program = """
    import importlib.util, sys
    from gpukit import run
    there = importlib.util.find_spec("numba_cuda_mlir") is not None
    hooks = list(sys.meta_path)
    with run.emulated():
        from numba_cuda_mlir import cuda
    assert sys.meta_path == hooks and (importlib.util.find_spec("numba_cuda_mlir") is not None) == there
    """
    python("-c", textwrap.dedent(program))


# -- which of them types kernels ---------------------------------------------------------------------------------------

TYPES = """
    import numpy as np
    from {module} import cuda

    @cuda.jit
    def place(out):
        i = cuda.grid(1)
        out[i] = i

    place[2, 32](np.zeros(64))
    import warpstep
    from warpstep import _compilers
    from warpstep.compiler.frontend import infer
    print(_compilers.chosen(), infer(place, next(iter(place.overloads))).typemap["i"])
    print(warpstep.trace(place[2, 32], np.zeros(64)).predict().seconds > 0)
"""
CHOICES = [("numba", "numba-cuda int64"), ("numba_cuda_mlir", "numba-cuda-mlir int32")]


@needs_mlir
@pytest.mark.parametrize("module, expected", CHOICES)
def test_the_compiler_that_is_imported_first_types_kernels(tmp_path, module, expected):
    if not _compilers.installed(expected.split()[0]):
        pytest.skip("it is not installed")
    assert run(tmp_path, TYPES.format(module=module)) == f"{expected}\nTrue\n"
    traced = run(tmp_path, TYPES.format(module=module), "--trace")
    assert traced.startswith(f"{expected}\nTrue\n") and traced.endswith("Launches traced: 1; findings: none\n")


@pytest.mark.parametrize("module", ["numba", "numba_cuda_mlir"])
@pytest.mark.parametrize("expected", [expected for _, expected in CHOICES])
def test_the_environment_variable_has_the_last_word(tmp_path, module, expected):
    compiler = expected.split()[0]
    if not _compilers.installed(compiler) or (module == "numba" and importlib.util.find_spec("numba") is None):
        pytest.skip("it is not installed")
    assert run(tmp_path, TYPES.format(module=module), GPUKIT_FRONTEND=compiler) == f"{expected}\nTrue\n"


@pytest.mark.parametrize(
    "asked, missing, message",
    [
        ("llvm", (), "GPUKIT_FRONTEND is 'llvm'; it must be one of numba-cuda, numba-cuda-mlir, or unset"),
        ("numba-cuda-mlir", ("numba_cuda_mlir",), "numba-cuda-mlir, but it is not installed: `pip install numba-cuda-"),
        ("", ("numba_cuda", "numba_cuda_mlir"), "numba-cuda is missing: `pip install numba-cuda`"),
    ],
)
def test_what_cannot_be_chosen_says_so(monkeypatch, asked, missing, message):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else find(name))
    monkeypatch.setattr(_compilers, "_chosen", None)
    monkeypatch.setenv("GPUKIT_FRONTEND", asked)
    with pytest.raises(ImportError) as error:
        _compilers.choose()
    assert message in str(error.value)


def names(file):
    """The names that a file defines for others."""
    found = set()
    for node in ast.parse((ROOT / "warpstep" / file).read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name))
    return {name for name in found if not name.startswith("_")}


def test_every_name_that_is_taken_from_numba_is_there_for_each_compiler():
    for file in ROOT.glob("warpstep/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "warpstep._numba":
                wanted = {alias.name for alias in node.names}
                for source in ("_numba_cuda.py", "_numba_cuda_mlir.py"):
                    assert wanted <= names(source), f"{file} takes {wanted - names(source)}, not in {source}"


# -- without the packages that only a GPU needs ------------------------------------------------------------------------

WITHOUT_CUDA = """
import importlib.machinery, sys

plain = importlib.machinery.PathFinder.find_spec

def find_spec(name, path=None, target=None):
    missing = name == "cuda" or name.startswith(("cuda.", "numba.cuda.cext.", "numba_cuda.numba.cuda.cext."))
    return None if missing else plain(name, path, target)

importlib.machinery.PathFinder.find_spec = find_spec

import numpy as np
import warpstep
from warpstep import cuda
from warpstep._numba import CudaAPIError, driver

@cuda.jit
def blur(x, out):
    tile = cuda.shared.array(32, cuda.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = x[i]
    cuda.syncthreads()
    out[i] = tile[t] + cuda.shfl_xor_sync(0xFFFFFFFF, tile[31 - t], 1)

x = cuda.to_device(np.arange(64, dtype=np.float32))
out = cuda.device_array_like(x)
trace = warpstep.trace(blur[2, 32], x, out)
print(trace.status, len(trace.findings), out.copy_to_host()[:3], trace.predict().seconds > 0)
try:
    cuda.device_array(1 << 60)
except CudaAPIError as error:
    print("OUT_OF_MEMORY" in str(error))
names = "cuda", "cuda.core", "cuda.bindings.driver"
print(sum(sys.modules[name].__spec__.origin is None for name in names))
try:
    driver.ExperimentalDevice(0)
except ImportError as error:
    print(error)
"""


def test_warnings_that_are_errors_do_not_stop_the_import():
    """Those of numba-cuda with NumPy 2.5 included, which another NumPy does not make."""
    numpys = "\"The 'generic' unit is deprecated\", DeprecationWarning, 'file', 31, 'numba.cuda.np.npdatetime_helpers'"
    python("-W", "error", "-c", f"import warnings; from gpukit import cuda; warnings.warn_explicit({numpys})")


def test_the_emulator_needs_none_of_cudas_packages():
    shown = python("-c", WITHOUT_CUDA).splitlines()
    assert shown[:3] == ["complete 0 [30. 32. 30.] True", "True", "3"]
    assert "cuda-core, which are not installed" in shown[3]


# -- what numba-cuda-mlir has and numba-cuda has not -------------------------------------------------------------------

VECTORS = """
    import numpy as np
    import warpstep
    from numba_cuda_mlir import cuda

    @cuda.jit
    def blend(x, y, out):
        i = cuda.threadIdx.x * 4
        a = cuda.vector.load(x, i, 4, alignment=16)
        b = cuda.vector.load(y, i, 4)
        c = 2.0 * cuda.float32x4(a) + cuda.float32x4(b) - cuda.float32x4(cuda.float32x2(1, 2), 3, 4)
        cuda.vector.store(out, i, c % 8.0, alignment=16)

    x, y = (np.random.default_rng(i).integers(-9, 9, 128).astype(np.float32) for i in (1, 2))
    out = np.zeros_like(x)
    trace = warpstep.trace(blend[1, 32], x, y, out)
    expected = (2 * x + y - np.tile([1, 2, 3, 4], 32)) % 8
    print((out == expected).all(), {a.array: a.requests for a in trace.accesses})

    @cuda.jit(device=True)
    def filled(shape, value):
        tile = cuda.local.array(shape, cuda.int32)
        for i in range(2):
            for j in range(3):
                tile[i, j] = value
        return tile[1, 2]

    @cuda.jit
    def annotated(a: cuda.types.float32, out: cuda.types.float64[::1]) -> None:
        out[0] = np.ceil(a) + filled((2, 3), 5)

    print(len(annotated.overloads), end=" ")
    annotated[1, 1](1.25, out64 := np.zeros(1))
    print(out64[0])

    @cuda.jit
    def copies(a):
        cuda.intrin.fence_mbarrier_init()

    for launch in (lambda: copies[1, 1](x), lambda: annotated[1, 1, 0, 0, (1, 2, 1)](1.0, out64)):
        try:
            launch()
        except warpstep.UnsupportedError as error:
            print(str(error).partition(" (/")[0])
"""


@needs_mlir
def test_vectors_and_what_else_only_the_successor_has(tmp_path):
    shown = run(tmp_path, VECTORS).splitlines()
    assert shown == [
        "True {'x': 1, 'y': 4, 'out': 1}",
        "1 7.0",
        "cuda.intrin.fence_mbarrier_init, an intrinsic of numba-cuda-mlir, cannot be emulated",
        "cluster is (1, 2, 1): the emulator has clusters of blocks along x only",
    ]


WITHOUT_THE_SUCCESSOR = """
    import numpy as np
    from numba_cuda_mlir import cuda

    @cuda.jit
    def copy(x):
        x[0] = cuda.vector.load(x, 1, 4).x

    try:
        copy[1, 1](np.zeros(8, np.float32))
    except Exception as error:
        print(type(error).__name__, str(error))
"""


def test_numba_cuda_names_what_only_the_successor_has_with_its_line(tmp_path):
    if not _compilers.installed("numba-cuda"):
        pytest.skip("it is not installed")
    shown = run(tmp_path, WITHOUT_THE_SUCCESSOR, GPUKIT_FRONTEND="numba-cuda")
    assert shown.startswith("TypingError") and 'program.py", line 7' in shown
    assert "cuda.vector belongs to numba-cuda-mlir" in shown and "`pip install numba-cuda-mlir`" in shown
