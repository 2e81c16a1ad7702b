"""``gpukit run`` and ``%load_ext gpukit``, in processes of their own."""

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from warpstep import run

CLEAN = {k: v for k, v in os.environ.items() if k not in ("GPUKIT_BACKEND", "NUMBA_ENABLE_CUDASIM", "PYTHONSAFEPATH")}
COMMAND = ("-m", "gpukit", "run")


def python(folder, *arguments, **environment):
    """Run this Python in ``folder``, where gpukit can be imported whether it is installed or not."""
    root = os.path.dirname(os.path.dirname(run.__file__))
    path = os.pathsep.join([root, *filter(None, [CLEAN.get("PYTHONPATH")])])
    env = CLEAN | {"PYTHONPATH": path} | environment
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True)


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return name


def last_line(result):
    return result.stderr.rstrip("\n").rpartition("\n")[2]


# -- scripts -----------------------------------------------------------------------------------------------------------

FORMS = """
    import atexit, math, os, pickle, sys, warnings

    import numpy as np
    import numba, numba.cuda, numba.cuda as c
    from numba import cuda, float32, guvectorize, vectorize
    from numba.cuda import grid, gpus, jit, random, to_device
    from numba.cuda.api import to_device as from_api
    from numba.cuda.cudadrv import devicearray, devices, driver
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.cudadrv.driver import CudaAPIError, Device, Event, Stream
    from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

    import beside

    assert __name__ == "__main__" and vars(sys.modules["__main__"]) is globals()
    assert sys.argv == [os.path.join("scripts", "forms.py"), "--trace", "-m", "--", "x"], sys.argv
    assert sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sys.path[0]
    assert os.path.isabs(__file__) and __spec__ is None and __builtins__ is __import__("builtins")

    @jit("void(float32[:], float32)")
    def add(a, value):
        i = grid(1)
        if i < a.size:
            a[i] += value

    a = np.zeros(10, np.float32)
    add[1, 32](a, 1)
    beside.twice[1, 32](a)
    assert (a == 2).all()

    d = to_device(a)
    assert type(d) is type(from_api(a)) is DeviceNDArray is devicearray.DeviceNDArray
    assert isinstance(c.stream(), Stream) and isinstance(c.event(), Event)
    assert isinstance(c.get_current_device(), Device) and devices.get_context().device == c.get_current_device()
    assert {devices.__name__, devicearray.__name__} <= set(sys.modules)
    assert cuda.is_available() and numba.cuda.is_available() and len(gpus) == len(devices.gpus) == 1
    try:
        cuda.device_array(1 << 60)
    except CudaAPIError as error:
        assert "OUT_OF_MEMORY" in str(error)
    else:
        sys.exit("a device array of 2**63 bytes was made")

    def inside():
        from numba import cuda as k

        @k.jit
        def fill(a):
            if k.grid(1) < a.size:
                a[k.grid(1)] = 3

        fill.forall(d.size)(d)
        return d.copy_to_host()

    assert (inside() == 3).all()
    assert driver.driver.get_device().name == c.get_current_device().name == Device(0).name
    driver.device_memset(d, 0, 4), driver.host_to_device(d[9:], np.float32([7]), 4)
    b = np.zeros_like(a)
    driver.device_to_host(b, d, 40), driver.device_to_device(d, d[9:], 4)
    assert b.tolist() == [0, *[3] * 8, 7] and d[0] == 7 and driver.device_extents(d[3:])[1] > driver.device_pointer(d)
    d.copy_to_device(a)
    assert driver.get_version() == cuda.runtime.get_version() >= (12, 0)
    from numba.cuda.cudadrv import enums
    assert {name[20:] for name in dir(enums) if name.startswith("CU_DEVICE_ATTRIBUTE_MAX_GRID")} < set(dir(Device(0)))
    start, end = c.event(), cuda.event()
    start.record(), end.record()
    with warnings.catch_warnings(record=True):
        assert math.isnan(cuda.event_elapsed_time(start, end)) and math.isnan(start.elapsed_time(end))

    @vectorize(["float32(float32, float32)"], target="cuda")
    def plus(x, y):
        return x + y

    @guvectorize([(float32[:], float32[:])], "(n)->(n)", target="cuda")
    def double(x, out):
        for i in range(x.size):
            out[i] = x[i] * 2

    @cuda.vectorize(["float32(float32)"])
    def root(x):
        return math.sqrt(x)

    assert (plus(a, a) == 4).all() and (double(a) == 4).all() and (root(a * a) == 2).all()
    assert type(plus(d, d)) is DeviceNDArray
    assert cuda.reduce(lambda x, y: x + y)(a) == 20

    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        out[i] = xoroshiro128p_uniform_float32(states, i) + random.xoroshiro128p_uniform_float32(states, i)

    out = np.zeros(32)
    draw[1, 32](create_xoroshiro128p_states(32, seed=1), out)
    assert 0 < out.min() < out.max() < 2 and len(set(out)) == 32

    import gpukit
    assert not gpukit.on_gpu() and os.environ["GPUKIT_BACKEND"] == "emulator"
    assert pickle.loads(pickle.dumps(inside)) is inside

    atexit.register(lambda: (add[1, 32](a, 1), print("at exit", a[0])))
    print("done")
    sys.exit(7)
"""


def test_every_form_of_import_finds_the_emulator(tmp_path):
    write(tmp_path, "scripts/forms.py", FORMS)
    write(
        tmp_path,
        "scripts/beside.py",
        """
        from numba import cuda

        @cuda.jit
        def twice(a):
            i = cuda.grid(1)
            if i < a.size:
                a[i] *= 2
        """,
    )
    script = os.path.join("scripts", "forms.py")
    result = python(tmp_path, *COMMAND, "--", script, "--trace", "-m", "--", "x")
    assert (result.stdout, result.stderr, result.returncode) == ("done\nat exit 3.0\n", "", 7)


ENDINGS = {
    "an error": """
        import sys

        def inner(n):
            return 1 // n

        def outer():
            try:
                inner(0)
            except ZeroDivisionError as error:
                raise ValueError("two\\nlines") from error

        print("out", file=sys.stdout)
        outer()
        """,
    "an interrupt": """
        def wait():
            raise KeyboardInterrupt

        wait()
        """,
    "a syntax error": "print('one')\nprint('two'\n",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_it_does_under_python(tmp_path, ending):
    script = write(tmp_path, "script.py", ENDINGS[ending])
    ours, theirs = python(tmp_path, *COMMAND, script), python(tmp_path, script)
    assert theirs.returncode != 0
    assert (ours.stdout, ours.stderr, ours.returncode) == (theirs.stdout, theirs.stderr, theirs.returncode)


def test_a_module_runs_as_main_and_an_error_of_a_kernel_shows_its_lines_alone(tmp_path):
    write(tmp_path, "package/__init__.py", "")
    write(
        tmp_path,
        "package/__main__.py",
        """
        import sys
        import numpy as np
        from numba import cuda

        @cuda.jit
        def kernel(a):
            a[cuda.grid(1)] = 1

        def go():
            kernel[1, 64](np.zeros(10))

        print(__name__, __package__, sys.argv[1:])
        go()
        """,
    )
    result = python(tmp_path, *COMMAND, "-m", "package", "--strict", "x")
    assert result.returncode == 1
    assert result.stdout == "__main__ package ['--strict', 'x']\n"
    shown = re.findall(r'File "(.*)", line (\d+), in (\S+)', result.stderr)
    main = str(tmp_path / "package" / "__main__.py")
    assert shown == [(main, "14", "<module>"), (main, "11", "go")], result.stderr
    assert "index 10 is out of bounds for global array 'a'" in result.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "say which script to run"),
        (["-m"], "say which module to run"),
        (["--strict", "script.py"], "--strict needs --trace"),
        (["--tracing", "script.py"], "unrecognized arguments: --tracing"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        run.main(arguments)
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_what_cannot_be_run_says_why(tmp_path):
    missing = python(tmp_path, *COMMAND, "missing.py")
    assert missing.returncode == 2
    assert last_line(missing) == (
        f"gpukit run: can't open file '{tmp_path / 'missing.py'}': [Errno 2] No such file or directory"
    )
    simulated = python(tmp_path, *COMMAND, write(tmp_path, "script.py", "print('ran')"), NUMBA_ENABLE_CUDASIM="1")
    assert (simulated.returncode, simulated.stdout) == (2, "")
    assert "NUMBA_ENABLE_CUDASIM" in last_line(simulated) and "unset it" in last_line(simulated)
    (tmp_path / "folder").mkdir()
    empty = python(tmp_path, *COMMAND, "folder")
    assert (empty.returncode, empty.stderr) == (1, "gpukit run: can't find '__main__' module in 'folder'\n")


@pytest.mark.parametrize("limit", ["abc", "-5", "0", "1.5"])
def test_a_loop_limit_that_is_none_is_refused_in_one_line(tmp_path, limit):
    refused = python(tmp_path, *COMMAND, write(tmp_path, "script.py", "print('ran')"), GPUKIT_LOOP_LIMIT=limit)
    words = f"gpukit run: GPUKIT_LOOP_LIMIT is {limit!r}; it must be an int, 1 or more, or unset\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", words)


def test_a_folder_and_a_zip_file_run_as_under_python(tmp_path):
    write(tmp_path, "folder/beside.py", "x = 3")
    main = """
        import os, sys
        from numba import cuda
        import beside
        print(__name__, __package__ == "", os.path.relpath(__file__), sys.argv, sys.path[0], beside.x, inside())
        1 // 0
        """
    inside = "def inside():\n    return sys.modules['__main__'].__dict__ is globals()\n"
    (tmp_path / "folder" / "__main__.py").write_text(inside + textwrap.dedent(main))
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "folder")
    for target in ("folder", "packed.zip"):
        ours, theirs = python(tmp_path, *COMMAND, target, "-x"), python(tmp_path, target, "-x")
        assert ours.stdout == theirs.stdout != ""
        assert (ours.returncode, last_line(ours)) == (1, "ZeroDivisionError: integer division or modulo by zero")


CHILDREN = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    import numpy as np
    from numba import cuda

    @cuda.jit("void(int32[:])")
    def fill(a):
        if cuda.grid(1) < a.size:
            a[cuda.grid(1)] = 1

    def work():
        a = np.zeros(10, np.int32)
        fill[1, 32](a)
        return int(a.sum())

    def in_child(method, function, *args):
        with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
            return pool.submit(function, *args).result()

    if __name__ == "__main__":
        for method in multiprocessing.get_all_start_methods():
            print(in_child(method, work), in_child(method, in_child, method, work))
"""


def test_children_of_every_start_method_and_their_children_have_the_emulator(tmp_path):
    result = python(tmp_path, *COMMAND, write(tmp_path, "script.py", CHILDREN), CUDA_VISIBLE_DEVICES="")
    methods = len(multiprocessing.get_all_start_methods())
    assert (result.returncode, result.stdout) == (0, "10 10\n" * methods), result.stderr


# -- in place of numba.cuda, and back ----------------------------------------------------------------------------------

THERE_AND_BACK = """
    import os, sys
    import numpy as np
    import numba.np.ufunc.decorators as cpu
    from multiprocessing import spawn
    from numba import cuda
    from numba.cuda import dispatcher, jit, random, to_device
    import warpstep.cuda as emulator
    from gpukit import run

    def numbas():
        return {name: module for name, module in sys.modules.items() if name.startswith("numba.cuda")}

    def state():
        found = {(name, key): id(value) for name, m in numbas().items() for key, value in vars(m).items()}
        found.update({("dispatcher", key): id(value) for key, value in vars(dispatcher.CUDADispatcher).items()})
        for kind in (cpu.Vectorize, cpu.GUVectorize):
            found.update({(kind, key): id(value) for key, value in kind.target_registry.items()})
        found[spawn] = id(spawn.get_preparation_data)
        found.update({("environment", key): value for key, value in os.environ.items()})
        found.update({("here", key): id(globals()[key]) for key in ("cuda", "jit", "to_device")})
        return found

    @jit
    def earlier(a):
        i = cuda.grid(1)
        if i < a.size:
            a[i] += 1

    # The first launch loads parts of Numba, while the emulator is in place: they keep nothing of it.
    with run.emulated():
        earlier[1, 32](np.zeros(8))
    for name, module in numbas().items():
        for key, value in vars(module).items():
            assert not str(getattr(value, "__module__", "")).startswith(("gpukit", "warpstep")), (name, key)

    a = np.zeros(8)
    before = state()
    real = cuda.jit, jit
    with run.emulated():
        changed = {key for key, value in state().items() if before.get(key) != value}
        assert {("numba.cuda", "jit"), ("numba.cuda", "gpus"), ("here", "jit"), ("here", "to_device")} <= changed
        assert cuda.jit is jit is emulator.jit and cuda.random is random
        with run.emulated():
            earlier[1, 32](a)
        earlier.forall(8)(to_device(a))
        earlier.specialize(a).configure(1, 32)(a)
        assert run.installed() and (a == 2).all()
        to_device = "mine"
    assert to_device == "mine" and not run.installed() and (cuda.jit, jit) == real
    to_device = cuda.to_device
    after = state()
    assert after == before, {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}

    try:
        run._choose_emulator, kept = None, run._choose_emulator
        run.install()
    except TypeError:
        run._choose_emulator = kept
    assert not run.installed() and state() == before
    print("restored")
"""


def test_uninstall_gives_numba_cuda_back_exactly(tmp_path):
    result = python(tmp_path, write(tmp_path, "script.py", THERE_AND_BACK))
    assert (result.stdout, result.stderr) == ("restored\n", "")


# -- notebooks ---------------------------------------------------------------------------------------------------------

CELLS = [
    """
    import numpy as np
    from numba import cuda
    from numba.cuda import to_device

    @cuda.jit
    def earlier(a):
        i = cuda.grid(1)
        if i < a.size:
            a[i] += 1
    """,
    "%load_ext gpukit",
    """
    a = to_device(np.zeros(40))
    earlier[2, 32](a)
    assert a.copy_to_host().sum() == 40
    """,
    """
    %%trace
    @cuda.jit
    def later(a):
        s = cuda.shared.array(64, np.float64)
        i = cuda.grid(1)
        s[2 * cuda.threadIdx.x] = 1
        if i < a.size:
            a[i] += s[2 * cuda.threadIdx.x]

    later[2, 32](a)
    later[2, 32](a)
    """,
    "assert a.copy_to_host().sum() == 120",
    "%unload_ext gpukit",
    "import numba.cuda; assert to_device is numba.cuda.to_device is numba.cuda.api.to_device",
    "assert 'trace' not in get_ipython().magics_manager.magics['cell']",
]
NOTEBOOK = f"""
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in {[textwrap.dedent(cell).strip() for cell in CELLS]}:
    shell.run_cell(cell, store_history=True).raise_error()
"""


def test_a_notebook_gets_the_emulator_and_gives_it_back(tmp_path):
    pytest.importorskip("IPython")
    result = python(tmp_path, write(tmp_path, "script.py", NOTEBOOK), IPYTHONDIR=str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("numba.cuda is gpukit's emulator in this session; %unload_ext gpukit gives it back")
    assert "s[2 * cuda.threadIdx.x] = 1" in result.stdout
    assert result.stdout.count("later[") == 1, result.stdout


FAILING = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_cell("%load_ext gpukit").raise_error()
for cell in {cells}:
    result = shell.run_cell("%%trace\\n" + cell, store_history=True)
    print(f"ended: {{result.success}} {{type(result.error_in_exec).__name__}}")
assert "showtraceback" not in vars(shell)
"""


def test_an_error_in_a_traced_cell_is_an_error_of_the_cell_and_shown_once(tmp_path):
    pytest.importorskip("IPython")
    cells = ["1 / 0", "print((", "raise KeyboardInterrupt", "%no_magic", "print('went ' + 'well')"]
    result = python(tmp_path, write(tmp_path, "script.py", FAILING.format(cells=cells)), IPYTHONDIR=str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    ended = ["False ZeroDivisionError", "False SyntaxError", "False KeyboardInterrupt", "False UsageError"]
    assert re.findall("ended: (.*)", result.stdout) == [*ended, "True NoneType"]
    shown = re.sub("\x1b.*?m", "", result.stdout + result.stderr)
    for words in (
        "division by zero",
        "incomplete input|never closed",
        "KeyboardInterrupt: ",
        "UsageError: ",
        "went well",
    ):
        assert len(re.findall(f"(?:{words})$|{words}.*$", shown, re.MULTILINE)) == 1, (words, shown)


# -- gpukit run --trace ------------------------------------------------------------------------------------------------

TRACED = """
    import sys
    import numpy as np
    from numba import cuda

    @cuda.jit
    def fill(a):
        i = cuda.grid(1)
        a[i] = i

    def shifted():
        @cuda.jit
        def shift(a):
            i = cuda.threadIdx.x
            a[i] = a[(i + 1) % 32]
        return shift

    a = np.zeros(32)
    fill[1, 32](a)
    fill[2, 16](a)
    fill[2, 16](a)
    assert cuda.reduce(lambda x, y: x + y)(a) == 31 * 16
    if "race" in sys.argv:
        shifted()[1, 32](a)
        shifted()[1, 32](a)
    print("script ends")
"""


def test_trace_reports_each_kernel_once_and_strict_makes_findings_an_exit_status(tmp_path):
    script = write(tmp_path, "script.py", TRACED)
    result = python(tmp_path, *COMMAND, "--trace", "--strict", script, "race")
    assert (result.returncode, result.stderr) == (1, "")
    script_out, _, report = result.stdout.partition("script ends\n")
    assert script_out == ""
    for name in ("fill", "shift"):
        assert report.count(f"{name} was launched 2 times with this grid and block; the first:\ncomplete: {name}[") == 1
    assert report.count("was launched") == 2 and report.count("fill[1, 32]") == 1
    assert "a[i] = a[(i + 1) % 32]" in report
    assert report.splitlines()[-1] == f"Launches traced: 3; findings: race at {tmp_path / script}:15"
    assert python(tmp_path, *COMMAND, "--trace", "--strict", script).returncode == 0


def test_a_report_survives_output_that_cannot_hold_its_characters(tmp_path):
    script = write(tmp_path, "script.py", TRACED.replace("a[i] = i", "a[i] = i  # größer als ∑"))
    result = python(tmp_path, *COMMAND, "--trace", script, PYTHONIOENCODING="ascii")
    assert result.returncode == 0, result.stderr
    assert r"a[i] = i  # gr\xf6\xdfer als \u2211" in result.stdout
    assert result.stdout.splitlines()[-1] == "Launches traced: 2; findings: none"
