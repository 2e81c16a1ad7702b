"""``warpstep.debug`` and ``breakpoint()`` in kernels, by scripts of commands and what they print."""

import os
import pdb
import re
import subprocess
import sys
from pathlib import Path
from pdb import set_trace

import numpy as np
import pytest

import warpstep
from warpstep import KernelError, cuda, debugger


@cuda.jit(device=True)
def half(value):
    result = value / 2
    return result  # noqa: RET504 - a variable to look at


@cuda.jit
def kernel(x, out, n):
    tile = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i]
    cuda.syncthreads()
    acc = 0.0
    for k in range(n):
        acc += half(tile[(t + k) % 64])
    if t % 2 == 0:
        y = acc + 1
        out[i] = y
    else:
        out[i] = acc


@cuda.jit
def recursive(x):
    i = cuda.grid(1)
    x[i] = factorial(i)


@cuda.jit(device=True)
def factorial(n):
    if n < 2:
        return 1
    return n * factorial(n - 1)


def at(code):
    """The line of this file that is this code."""
    return 1 + [line.partition("#")[0].strip() for line in Path(__file__).read_text().splitlines()].index(code)


def talk(capsys, launch, *args, commands, **options):
    """Run the debugger by a script, in which ``{code}`` is the line of that code; returns its answers."""
    commands = [re.sub(r"\{(.*)\}", lambda m: str(at(m[1])), c) for c in commands]
    debugger.debug(launch, *args, commands=commands, **options)
    parts = re.split(r"^\(gpukit\) (.*)$", capsys.readouterr().out, flags=re.M)
    return [parts[0], *(answer.strip("\n") for answer in parts[2::2])]


def arguments():
    return np.arange(128, dtype=np.float32), np.zeros(128, np.float32), 3


def expected(x):
    acc = sum((np.roll(x.reshape(2, 64), -k, axis=1) / 2).astype(np.float32) for k in range(3))
    return (acc + (np.arange(64) % 2 == 0)).reshape(-1)


def test_a_session_steps_through_functions_and_branches(capsys):
    x, out, n = arguments()
    commands = "break {acc += half(tile[(t + k) % 64])}, k == 1|c|step|p value|next|table value result|where|up"
    commands += "|p acc + 1, k|down|finish|until {if t % 2 == 0:}|n|thread 4|n|p out[i]|continue"
    answers = talk(capsys, kernel[2, 64], x, out, n, block=1, thread=5, commands=commands.split("|"))
    assert " in kernel, block (1, 0, 0), thread (5, 0, 0), with 32 of the 32 lanes" in answers[0]
    assert "-> tile = cuda.shared.array(64, np.float32)" in answers[0]
    assert answers[2].startswith("breakpoint 1: ") and "-> acc += half(tile[(t + k) % 64])" in answers[2]
    assert " in half," in answers[3] and answers[4] == "70.0"
    assert answers[5].startswith("-> return result", answers[5].index("->"))
    table = answers[6].splitlines()
    assert table[0].split() == ["thread", "at", "value", "result"] and len(table) == 33
    assert table[6].split() == [">", "5", "line", str(at("return result")), "70.0", "35.0"]
    assert answers[7].splitlines()[0].endswith(" in kernel: acc += half(tile[(t + k) % 64])")
    assert answers[9] == "(35.5, 1)"
    assert answers[11].endswith("-> for k in range(n):") and answers[12].endswith("-> if t % 2 == 0:")
    assert answers[13].endswith("-> out[i] = acc") and "with 16 of the 32 lanes" in answers[13]
    assert answers[14] == "block (1, 0, 0), thread (4, 0, 0), followed: returned"  # the other branch ran first
    assert answers[15].endswith("kernel has ended") and len(answers) == 16
    np.testing.assert_array_equal(out, expected(x))


def test_breakpoints_watches_and_arrays(capsys):
    x, out, n = arguments()
    commands = ["b test_debugger.py:{acc += half(tile[(t + k) % 64])}, acc > 94 and t > 3", "b 9999", "b x", "b 1, ("]
    commands += ["c", "p acc", "p tile[:2]", "p cuda.grid(1), threadIdx.y, blockDim, np.sqrt(16)", "watch acc", "c"]
    commands += ["unwatch", "b", "clear 1", "nonsense", "p 1 +", "thread 64", "block 0", "p i", "b {out[i] = y}"]
    commands += ["thread any", "c", "list", "help", "help break", "t"]
    answers = talk(capsys, kernel[2, 64], x, out, n, commands=commands)
    assert answers[1].endswith(f"{at('acc += half(tile[(t + k) % 64])')}, if acc > 94 and t > 3")
    assert answers[2].startswith("*** nothing runs at line 9999") and answers[3] == "*** 'x' is no line"
    assert answers[4].startswith("*** SyntaxError")
    assert "breakpoint 1" in answers[5] and "block (1, 0, 0), thread (30, 0, 0)" in answers[5]
    assert answers[6] == "94.5" and answers[7] == "float32 (2,) [64.0, 65.0]"
    assert answers[8] == "(94, 0, (64, 1, 1), 4.0)"
    assert re.search(r"^acc: 94\.5 -> 142\.5: .*with 32", answers[10], re.M)
    assert answers[14] == "*** NameError: name 'nonsense' is not defined" and answers[15].startswith("*** SyntaxError")
    assert answers[16].startswith("*** ValueError: thread is 64; this launch has 64 x 1 x 1")
    assert "block (0, 0, 0), thread (30, 0, 0), followed: line" in answers[17] and answers[18] == "30"
    assert "block (0, 0, 0), thread (30, 0, 0)" in answers[21] and answers[21].endswith("-> out[i] = y")
    assert "y = acc + 1" in answers[22] and f"->{at('out[i] = y'):5}" in answers[22]
    assert "table" in answers[23] and "until" in answers[23] and "CONDITION" in answers[24]
    assert answers[25].splitlines()[0].split() == ["thread", "at", "n", "t", "i", "acc", "k", "y"]
    assert "tile: float32 (64,) [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, ...]" in answers[25]
    np.testing.assert_array_equal(out, expected(x))


def test_an_error_stops_at_its_line_and_recursion_keeps_its_variables(capsys):
    with pytest.raises(KernelError, match="out of bounds"):
        debugger.debug(kernel[3, 64], *arguments(), commands=["c", "p i", "q"])
    shown = capsys.readouterr().out
    assert "out-of-bounds: index 128 is out of bounds for global array 'x'" in shown
    assert "-> tile[t] = x[i]\n(gpukit) p i\n128\n" in shown
    x = np.zeros(6)
    commands = ["b {if n < 2:}", *["c"] * 4, "p n", "c", "p n", "clear", "c"]
    answers = talk(capsys, recursive[1, 6], x, thread=5, commands=commands)
    assert answers[6] == "2" and answers[8] == "1", answers
    assert list(x) == [1, 1, 2, 6, 24, 120]


def test_quit_ends_the_launch_and_leaves_host_arrays(capsys):
    x, out, n = arguments()
    assert talk(capsys, kernel[2, 64], x, out, n, commands=["q"])[1].endswith("host arrays are as they were")
    assert not out.any()
    fresh = cuda.device_array(128, np.float32)  # what the debugged launch writes is initialised for the next trace
    talk(capsys, kernel[2, 64], x, fresh, n, commands=[])
    assert not warpstep.trace(kernel[2, 64], fresh, out, n).findings


def test_wrong_arguments_are_named():
    x, out, n = arguments()
    for options, message in (
        ({"thread": 64}, "thread is 64; this launch has 64 x 1 x 1"),
        ({"block": (0, 1)}, r"block is \(0, 1\); this launch has 2 x 1 x 1"),
    ):
        with pytest.raises(ValueError, match=message):
            debugger.debug(kernel[2, 64], x, out, n, commands=[], **options)
    with pytest.raises(TypeError, match="thread is 'a'; it must be an int or a tuple"):
        debugger.debug(kernel[2, 64], x, out, n, commands=[], thread="a")
    with pytest.raises(TypeError, match="commands is 'c'"):
        debugger.debug(kernel[2, 64], x, out, n, commands="c")
    with pytest.raises(RuntimeError, match=r"give commands=\[...\]"):
        debugger.debug(kernel[2, 64], x, out, n)
    with pytest.raises(TypeError, match=r"write kernel\[grid, block\]"):
        debugger.debug(kernel, x, out, n, commands=[])


# -- breakpoint() in a kernel ------------------------------------------------------------------------------------------


@cuda.jit
def with_builtin(x):
    i = cuda.grid(1)
    if i % 8 == 3:
        breakpoint()
    x[i] = i


@cuda.jit
def with_import(x):
    i = cuda.grid(1)
    if i % 8 == 3:
        from pdb import set_trace

        set_trace()
    x[i] = i


@cuda.jit
def with_module(x):
    i = cuda.grid(1)
    if i % 8 == 3:
        import pdb as debugger_of_python

        debugger_of_python.set_trace()
    x[i] = i


@cuda.jit
def with_global(x):
    i = cuda.grid(1)
    for k in range(7):
        if i == 3:
            set_trace()
        elif i == 5:
            pdb.set_trace()
        x[i] += k


@pytest.mark.parametrize("with_breakpoint", [with_builtin, with_import, with_module])
def test_where_nobody_can_answer_a_breakpoint_shows_its_lanes(with_breakpoint, capsys, monkeypatch):
    x = np.zeros(64)
    with_breakpoint[1, 64](x)
    shown = capsys.readouterr().out
    assert shown.count("nobody can answer here, so the kernel goes on") == 1
    assert re.search(r"^> +3 +line \d+ +3$", shown, re.M) and re.search(r"^ +4 +waits after line \d+ +4$", shown, re.M)
    assert list(x) == list(range(64))
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    with_breakpoint[1, 64](x)
    assert capsys.readouterr().out == ""


def test_a_breakpoint_in_a_loop_is_shown_a_few_times(capsys):
    x = np.zeros(8)
    with_global[1, 8](x)
    shown = capsys.readouterr().out
    assert shown.count("breakpoint() at") == 2 * (debugger.MAX_SHOWN + 1) and shown.count("are not shown") == 2
    assert (x == 21).all()


def test_a_plain_launch_runs_the_program_without_stops():
    overload = kernel.compile("void(float32[:], float32[:], int64)")
    assert overload.program.stops is None and "K.stop" not in overload.program.source
    assert "K.note" in overload.debugged.source
    assert not overload.program.breakpoints and with_builtin.compile("void(float64[:])").program.breakpoints


def test_a_terminal_is_asked(tmp_path):
    """As a user types it, in a script that knows nothing of gpukit, for either compiler."""
    pty = pytest.importorskip("pty")
    (tmp_path / "script.py").write_text(
        "import numpy as np\nfrom numba_cuda_mlir import cuda\n\n@cuda.jit\ndef kernel(x):\n    i = cuda.grid(1)\n"
        "    if i == 3:\n        breakpoint()\n    x[i] = i\n\nx = np.zeros(8)\nkernel[1, 8](x)\nprint(x.sum())\n"
        "kernel[1, 8](x)\n"
    )
    ours, theirs = pty.openpty()
    os.write(ours, b"i * 100\nn\n\nq\n")
    root = os.path.dirname(os.path.dirname(warpstep.__file__))
    command = [sys.executable, "-m", "gpukit", "run", "script.py"]
    env = os.environ | {"PYTHONPATH": root}
    done = subprocess.run(command, cwd=tmp_path, env=env, stdin=theirs, capture_output=True, text=True, timeout=100)
    os.close(ours)
    os.close(theirs)
    assert (
        "breakpoint(): script.py:8 in kernel, block (0, 0, 0), thread (3, 0, 0), with 1 of the 8 lanes" in done.stdout
    )
    assert "300\n" in done.stdout and "-> x[i] = i\n" in done.stdout and "28.0\n" in done.stdout
    assert done.returncode == 1 and done.stderr.rstrip().endswith("BdbQuit")
