"""Runs kernels on the GPU and in the emulator, in child processes, and compares what they wrote.

A kernel that breaks the CUDA context ends its child only. A case is named ``random:<seed>``, for
`random_kernels.generate`, or ``table:<name>``, for `kernels.on_device`.
"""

import collections
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

TESTS = Path(__file__).resolve().parent
#: Seconds that one case may take, compilation included.
CASE_SECONDS = 120
#: Cases that a child runs before a fresh one takes over: what numba keeps of each kernel adds up.
CASES_PER_CHILD = 150


def load(case):
    """The kernel that a name stands for: it has ``run(module)``, ``differences(found, expected)`` and ``source``."""
    kind, _, name = case.partition(":")
    if kind == "random":
        import random_kernels

        return random_kernels.generate(int(name), f"random_{name}")
    from kernels import on_device

    return on_device.CASES[name]


def table():
    """Names of the written kernels."""
    from kernels import on_device

    return [f"table:{name}" for name in on_device.CASES]


def judge(case, reference):
    """Run a case on ``reference`` (numba.cuda, or None to run the emulator alone) and in the emulator.

    Returns
    -------
    dict
        ``status``: "same", "both refuse", "different", "emulator fails", "device fails" or "generator fails";
        ``detail``: text; ``differences``: [array, index, emulator's, device's, more] of the first few;
        ``fatal``: True if this process must end.
    """
    from warpstep import cuda as emulated

    try:
        kernel = load(case)
    except Exception:
        return {"status": "generator fails", "detail": traceback.format_exc(limit=-4)}
    found, emulator_error = _attempt(kernel, emulated)
    if reference is None:
        return _report("emulator fails", emulator_error) if emulator_error else {"status": "same"}
    expected, device_error = _attempt(kernel, reference)
    fatal = device_error is not None and not _is_compile_error(device_error[0])
    if emulator_error and device_error:
        return _report("both refuse", device_error, emulator_error) | {"fatal": fatal}
    if device_error:
        return _report("device fails", device_error) | {"fatal": fatal}
    if emulator_error:
        return _report("emulator fails", emulator_error)
    differences = kernel.differences(found, expected)
    if not differences:
        return {"status": "same"}
    counts = collections.Counter(name for name, *_ in differences)
    shown, result = collections.Counter(), []
    for name, at, ours, theirs in differences:
        shown[name] += 1
        if shown[name] <= 6:
            result.append([name, list(at), _plain(ours), _plain(theirs), kernel.describe(name, at)])
    detail = ", ".join(
        f"{name}: {count} of {expected[name].size} {expected[name].dtype}" for name, count in counts.items()
    )
    return {"status": "different", "detail": detail, "differences": result[:120]}


def _attempt(kernel, module):
    try:
        return kernel.run(module), None
    except Exception as error:
        return None, (error, traceback.format_exc(limit=-5))


def _is_compile_error(error):
    names = {c.__name__ for c in type(error).__mro__}
    return bool(names & {"NumbaError", "NotImplementedError", "TypeError", "ValueError", "NvvmError", "LinkerError"})


def _report(status, *errors):
    return {
        "status": status,
        "detail": "\n".join(f"{type(e).__name__}: {str(e)[:1500]}\n{text[-1500:]}" for e, text in errors),
    }


def _plain(value):
    return repr(value.item() if hasattr(value, "item") else value)


# the child


def child(on_gpu):
    """Answer case names on standard input with one line of JSON each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print must not get between the answers
    reference = None
    if on_gpu:
        from numba import cuda as reference
    for line in sys.stdin:
        started = time.perf_counter()
        answer = judge(line.strip(), reference)
        answer["seconds"] = round(time.perf_counter() - started, 3)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if answer.get("fatal"):
            os._exit(3)
    os._exit(0)


class Child:
    """A child process and the file that takes what it says on standard error."""

    def __init__(self, on_gpu):
        self.errors = tempfile.TemporaryFile("w+")
        self.cases = 0
        path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
        program = f"import device_runs; device_runs.child({on_gpu})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "OMP_NUM_THREADS": "1"},
        )

    def ask(self, case):
        """The answer to one case; None if the child did not survive it."""
        self.cases += 1
        timer = threading.Timer(CASE_SECONDS, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(case + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        return {
            "status": "crash",
            "detail": f"exit status {self.process.returncode}\n{self.errors.read()[-2000:]}",
            "fatal": True,
        }

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def run_all(cases, on_gpu, jobs=None, minutes=None, progress=None):
    """Run cases in ``jobs`` children at once, for at most ``minutes``; gives {case: answer} of those that ran."""
    waiting = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    answers = {}

    def work():
        process = None
        while time.monotonic() < deadline:
            try:
                case = waiting.get_nowait()
            except queue.Empty:
                break
            process = process or Child(on_gpu)
            answers[case] = answer = process.ask(case)
            if progress:
                progress(case, answer, len(answers))
            if answer.get("fatal") or process.cases >= CASES_PER_CHILD:
                process.close()
                process = None
        if process:
            process.close()

    threads = [threading.Thread(target=work) for _ in range(min(jobs or default_jobs(), len(cases)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def default_jobs():
    return max(1, min(12, (os.cpu_count() or 2) - 2))


GOOD = ("same", "both refuse")


def summary(answers):
    """A few lines of text: how many cases had which outcome, and the failures with their first differences."""
    counts = collections.Counter(a["status"] for a in answers.values())
    lines = [f"{len(answers)} kernels: " + ", ".join(f"{n} {status}" for status, n in counts.most_common())]
    for case, answer in sorted(answers.items()):
        if answer["status"] in GOOD:
            continue
        lines.append(f"{case}: {answer['status']}: {answer['detail'].strip().splitlines()[0][:200]}")
        for name, at, ours, theirs, what in answer.get("differences", ())[:4]:
            lines.append(f"    {name}{at} emulator {ours}, device {theirs}  {what}")
    return "\n".join(lines)


def write_report(file, answers):
    """Everything but the plain successes as JSON, with the source of each failed random kernel."""
    cases = {}
    for case, answer in sorted(answers.items()):
        if answer["status"] == "same":
            continue
        cases[case] = dict(answer)
        if answer["status"] not in GOOD and answer["status"] != "generator fails":
            cases[case]["source"] = load(case).source
    counts = collections.Counter(a["status"] for a in answers.values())
    Path(file).write_text(json.dumps({"counts": counts, "cases": cases}, indent=1))
