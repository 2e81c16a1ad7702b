"""Run numba-cuda's own tests on gpukit's emulator, and beside it on Numba's simulator and on numba.cuda as it is.

    python tools/compatibility.py                      # everything, then the table; bench/records/compatibility.json
    python tools/compatibility.py --ways emulator      # one way anew, the others from the recorded results
    python tools/compatibility.py --table              # the table of the recorded results
    python tools/compatibility.py --only cudapy.test_sync --ways emulator   # a few modules, nothing recorded
    python tools/compatibility.py --only cudapy.test_sync --ways emulator --store   # these anew in the record
    python tools/compatibility.py --tests ../numba-cuda-mlir/tests --ways numba emulator      # those of the successor

The tests come with numba-cuda and need ``pip install numba-cuda[cu13] pytest filecheck psutil cffi ml_dtypes
nvidia-cuda-nvdisasm``; the first brings the compiler that many of them ask for. A GPU is hidden from all three ways:
numba.cuda by itself shows which tests need neither a GPU nor something in its place.

The tests of numba-cuda-mlir come with its sources, not with its wheel, and are run by pytest. They need ``pip install
numba-cuda-mlir[cu13] pytest filecheck ml_dtypes`` in an environment of their own, and have a record of their own.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import datetime
import importlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ROOT / "bench" / "records"
TESTS = "numba.cuda.tests."
#: The environment variable that holds the folder of numba-cuda-mlir's tests, if those are asked for.
SUCCESSOR = "GPUKIT_COMPATIBILITY_TESTS"
#: The ways to run the tests, with their titles.
WAYS = {
    "numba": "numba.cuda without a GPU",
    "simulator": "Numba's simulator",
    "emulator": "gpukit's emulator",
}
TITLES = {
    "pass": "passes",
    "fail": "fails",
    "skip": "is skipped",
    "timeout": "is not done in the time limit",
    "unloaded": "its module cannot be loaded",
}
#: What can become of a test. "unloaded": its module, or a decorator in it, raises when it is imported.
OUTCOMES = tuple(TITLES)
#: In place of a test's name: the module as a whole. And the outcome where a way has no such test.
ALL = "*"
ABSENT = ("unloaded", "there is no such test")
SECONDS = 120

#: Why a test does not pass on the emulator: the first pattern that is found in its reason, so the order matters.
GROUPS = {
    "skipped by the tests themselves": r"^skip: ",
    "looks at compiled code: PTX, LLVM IR, SASS, registers, debug information": (
        r"the (PTX|LLVM IR|SASS|number of registers) of a kernel|inspect_asm|inspect_types|_type_annotation|nvdisasm|"
        r"_codelibrary|--ASSEMBLY|LLVM DUMP|get_(const_mem|local_mem|max_threads)|_dbg_optnone|InvalidConfigWarning|"
        r"the code of a kernel for a GPU|inspect_mlir|abi_info|FileCheck|compile_device|test_(ice|lineinfo|dump_nvvm)"
    ),
    "compiles for a GPU with the CUDA toolkit (NVRTC, NVVM, nvJitLink)": (
        r"libnvrtc|libnvvm|NvvmSupport|nvjitlink_err|compiler, which is not"
    ),
    "links code in CUDA C++ or PTX": (
        r"link= brings in|ExternFunction|CalledFromPTX|declare_device|how to link|linking files"
    ),
    "needs a package that is not installed": r"^ModuleNotFoundError|[Cc]ould not import|requires CuPy",
    "the driver itself: contexts, memory managers, other processes": (
        r"CudaSupportError|NVIDIA driver library|manages the memory of a GPU|version 1 required|by its address|"
        r"the emulator's context has no|DevicePointer|_NothingPending|mempin|"
        r"ipc_handle|memory_manager|__cuda_stream__|cannot be pickled or copied|test_deallocations|TestInit\b"
    ),
    "addresses of emulated arrays for other libraries (__cuda_array_interface__)": r"__cuda_array_interface__",
    "attributes of numba.cuda's dispatcher and its launch configurations": (
        r"'(Kernel|Overload|Configured|_Dispatcher)' object has no attribute|No launch config set|Can't pickle|"
        r"test_descriptor_launch_config|test_post_inline_planners"
    ),
    "times of events": r"the emulator has no time",
    "NumPy functions of whole arrays inside a kernel": (
        r"of arrays, or with several|the (array )?method \w+ of array|the operator \w+ on array|builtins.next|"
        r"of arrays without an array|an array whose shape differs|a call of numpy\.\w+|the method item"
    ),
    "strings, bytes and dates in a kernel": r"(unichr|char) x|datetime64",
    "functions with *arguments, and functions passed to functions": r"with \*arguments|constant of type type\(",
    "pointers to memory of C (CPointer, carray, farray)": r"subscript of \w+\*|function [cf]array",
    "fp8 and bfloat16 bindings": r"fp8|bfloat16|bf16|narrow_float|exotic_float|complex32",
    "clusters of blocks, and intrinsics of numba-cuda-mlir": (
        r"clusters of several|an intrinsic of numba-cuda-mlir|consteval|class_poly|inline_ptx"
    ),
    "the extension API, where it generates LLVM IR (intrinsic, lower, data models)": (
        r"test_extending|StructModelType|the attribute cuda_only of"
    ),
    "other things in a kernel that the emulator refuses": r"UnsupportedError|cannot be represented as a NumPy dtype",
    "no warning about a slow launch": r"DID NOT WARN",
    "another message, or another type of error": r"not found in '|LaunchError|KernelError",
    "no error where numba.cuda raises one": r"not raised|unexpected success",
    "files of compiled kernels (cache=True)": r"test_caching",
    "the time limit": r"not done when",
}
REST = "other reasons"


# -- one module of tests, in a process of its own ----------------------------------------------------------------------


class Recorder(unittest.TestResult):
    """Writes what becomes of each test to a file as soon as it is known: the process may be stopped."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def startTest(self, test):
        super().startTest(test)
        self.outcome, self.reason = "pass", ""

    def _not_passed(self, outcome, reason):
        # A test with subtests has the outcome of its first that fails.
        if self.outcome == "pass" or (self.outcome == "skip" and outcome == "fail"):
            self.outcome, self.reason = outcome, reason

    def addSkip(self, test, reason):
        self._not_passed("skip", reason)

    def addError(self, test, error):
        self._not_passed("skip" if is_skip(error[1]) else "fail", describe(error[1]))

    addFailure = addError

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addError(test, error)

    def addUnexpectedSuccess(self, test):
        self._not_passed("fail", "unexpected success")

    def stopTest(self, test):
        super().stopTest(test)
        self.write(test=name_of(test), outcome=self.outcome, reason=self.reason)


def is_skip(error):
    """True for what unittest and pytest raise to skip a test."""
    return type(error).__name__ in ("SkipTest", "Skipped")


def name_of(test):
    """``Class.method`` of a test."""
    return ".".join(test.id().split(".")[-2:])


def describe(error):
    """An exception in one line without anything that belongs to one machine."""
    return clean(f"{type(error).__name__}: {error}")


def clean(text):
    text = " ".join(text.split())
    text = re.sub(r"[^\s'\"]*/site-packages/", "", text.replace(sys.executable, "python"))
    tests = os.path.dirname(os.environ.get(SUCCESSOR, ""))
    for folder in filter(None, (tests, str(ROOT), os.getcwd(), tempfile.gettempdir(), sys.prefix, sys.base_prefix)):
        text = text.replace(os.path.join(folder, ""), "")
    return re.sub(r"0x[0-9a-f]{6,}", "0x...", text)[:300]


def flatten(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


def run_module(way, module, file):
    """Run the tests of a module here, and write one line of JSON for each to ``file``."""
    with open(file, "a", buffering=1) as out:

        def write(**record):
            out.write(json.dumps(record) + "\n")

        if SUCCESSOR in os.environ:
            run_pytest(pathlib.Path(os.environ[SUCCESSOR]), module, write)
            return
        try:
            if way != "simulator":
                answer_probes(way)
            loaded = importlib.import_module(TESTS + module)
        except BaseException as error:  # pytest's Skipped is no Exception
            write(test=ALL, outcome="skip" if is_skip(error) else "unloaded", reason=describe(error))
            return
        tests = list(flatten(unittest.defaultTestLoader.loadTestsFromModule(loaded)))
        for test in tests:
            write(known=name_of(test))
        unittest.TestSuite(tests).run(Recorder(write))


class PytestRecorder:
    """A plugin of pytest that writes what becomes of each test."""

    def __init__(self, write):
        self.write = write

    def pytest_collectreport(self, report):
        if report.outcome != "passed":
            self.write(test=ALL, outcome="skip" if report.skipped else "unloaded", reason=reason_of(report))

    def pytest_itemcollected(self, item):
        self.write(known=item.nodeid.partition("::")[2])

    def pytest_runtest_logreport(self, report):
        if report.passed and report.when != "call":
            return
        passed = report.passed or hasattr(report, "wasxfail")
        outcome, reason = ("pass", "") if passed else ("skip" if report.skipped else "fail", reason_of(report))
        self.write(test=report.nodeid.partition("::")[2], outcome=outcome, reason=reason)


def reason_of(report):
    """What a report of pytest says of an error, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return clean(crash.message if crash else str(report.longrepr[-1] if report.skipped else report.longrepr))


def run_pytest(folder, module, write):
    import pytest

    options = ["-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", "-q", "--tb=no", "-W", "ignore"]
    pytest.main([*options, str(folder / f"{module}.py")], plugins=[PytestRecorder(write)])


def answer_probes(way):
    """Let decorators such as ``skip_if_curand_kernel_missing`` skip where there is no CUDA toolkit.

    They expect FileNotFoundError, but what they call raises another error if NVRTC is missing too.
    """
    from cuda.pathfinder import DynamicLibNotFoundError
    from numba.cuda import testing
    from numba.cuda.cudadrv import libs

    def asking(function):
        def ask(*args, **named):
            try:
                return function(*args, **named)
            except DynamicLibNotFoundError as error:
                raise FileNotFoundError(str(error)) from error

        return ask

    libs.get_cuda_include_dir, libs.get_cudalib = asking(libs.get_cuda_include_dir), asking(libs.get_cudalib)
    if way == "emulator":
        # The library is linked for the synchronisation of a grid, for which the emulator needs none.
        testing.cudadevrt_missing = lambda: False


# -- all modules -------------------------------------------------------------------------------------------------------


def modules():
    """Names of the test modules of the installed numba-cuda, without ``numba.cuda.tests.``, or of its successor."""
    if SUCCESSOR in os.environ:
        return sorted(path.stem for path in pathlib.Path(os.environ[SUCCESSOR]).glob("test_*.py"))
    import numba.cuda

    folder = pathlib.Path(numba.cuda.__file__).parent / "tests"
    return sorted(".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("test_*.py"))


def environment(way):
    """Environment of a process that runs tests one way."""
    names = ("GPUKIT_BACKEND", "NUMBA_ENABLE_CUDASIM")
    env = {name: value for name, value in os.environ.items() if name not in names}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    env["PYTHONWARNINGS"] = "ignore"
    env["CUDA_VISIBLE_DEVICES"] = ""
    if way == "simulator":
        env["NUMBA_ENABLE_CUDASIM"] = "1"
    return env


#: Puts the emulator in place in every Python that the tests start, as ``gpukit run`` does in its own.
SITE = "from gpukit import run; run.install()\n"


def run_apart(way, module, seconds):
    """{test: (outcome, reason)} of a module, run in a process with a time limit."""
    with tempfile.TemporaryDirectory() as folder:
        records = pathlib.Path(folder, "records")
        records.touch()
        env = {**environment(way), "NUMBA_CACHE_DIR": folder, "TMPDIR": folder}
        if way == "emulator":
            pathlib.Path(folder, "sitecustomize.py").write_text(SITE)
            env["PYTHONPATH"] = os.pathsep.join([folder, env["PYTHONPATH"]])
        command = [sys.executable, __file__, "--child", way, module, str(records)]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=env, cwd=folder, start_new_session=True, **quiet)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # A test may have started processes of its own, which are in the same group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return read_records(records.read_text(), status, seconds)


def read_records(text, status, seconds):
    """Outcomes from the lines that a child wrote; ``status`` is None if it was stopped after ``seconds``."""
    found = {}
    if status is None:
        unfinished = ("timeout", f"not done when the module's {seconds} s were over")
    else:
        unfinished = ("fail", f"the process ended with status {status}")
    for line in text.splitlines():
        record = json.loads(line)
        if "known" in record:
            found[record["known"]] = unfinished
        else:
            found[record["test"]] = (record["outcome"], record["reason"])
    return found if found or status == 0 else {ALL: unfinished}


def run_all(ways, names, seconds, jobs):
    """{way: {module: {test: (outcome, reason)}}}"""
    found = {way: {} for way in ways}
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(run_apart, way, name, seconds): (way, name) for name in names for way in ways}
        for done, future in enumerate(concurrent.futures.as_completed(waiting), 1):
            way, name = waiting[future]
            found[way][name] = future.result()
            counts = collections.Counter(outcome for outcome, _ in found[way][name].values())
            text = ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) or "no tests"
            spent = time.monotonic() - began
            print(f"[{done}/{len(waiting)} {spent:5.0f} s] {name}, {way}: {text}", file=sys.stderr, flush=True)
    return found


# -- the record --------------------------------------------------------------------------------------------------------


def merge(found):
    """{module: {test: {way: (outcome, reason)}}}; a module that one way cannot load has the tests of the others."""
    merged = {}
    for name in sorted({name for by_module in found.values() for name in by_module}):
        of_module = {way: by_module.get(name, {}) for way, by_module in found.items()}
        tests = sorted({test for outcomes in of_module.values() for test in outcomes if test != ALL}) or [ALL]
        merged[name] = {
            test: {way: outcomes.get(test) or outcomes.get(ALL, ABSENT) for way, outcomes in of_module.items()}
            for test in tests
            if any(of_module.values())
        }
    return {name: tests for name, tests in merged.items() if tests}


def record(merged, seconds):
    """What is stored: outcomes of each test in the order of ``WAYS``, and why those on the emulator do not pass."""
    tests = {
        name: {test: " ".join(outcomes[way][0] for way in WAYS) for test, outcomes in tests.items()}
        for name, tests in merged.items()
    }
    reasons = collections.defaultdict(list)
    for name, of_module in merged.items():
        for test, outcomes in of_module.items():
            outcome, reason = outcomes["emulator"]
            if outcome != "pass":
                reasons[f"{outcome}: {reason}"].append(f"{name}.{test}")
    sys.path.append(str(ROOT))
    import gpukit

    packages = ("numba-cuda-mlir", "numpy") if SUCCESSOR in os.environ else ("numba-cuda", "numba", "numpy")
    return {
        "versions": {name: importlib.metadata.version(name) for name in packages} | {"gpukit": gpukit.__version__},
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "seconds": seconds,
        "ways": list(WAYS),
        "reasons": dict(sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))),
        "tests": tests,
    }


def recorded(stored):
    """The outcomes of a record by way, as `run_all` gives them; reasons are known for the emulator only."""
    why = {test: reason.partition(": ")[2] for reason, tests in stored["reasons"].items() for test in tests}
    return {
        way: {
            name: {test: (text.split()[i], why.get(f"{name}.{test}", "")) for test, text in tests.items()}
            for name, tests in stored["tests"].items()
        }
        for i, way in enumerate(stored["ways"])
    }


# -- the table ---------------------------------------------------------------------------------------------------------


def table(stored):
    """The record as Markdown."""
    outcomes = {
        f"{name}.{test}": dict(zip(stored["ways"], text.split(), strict=True))
        for name, tests in stored["tests"].items()
        for test, text in tests.items()
    }
    versions = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    lines = [
        f"The {len(outcomes):,} tests of {next(iter(stored['versions']))} in {len(stored['tests'])} modules, without a "
        f"GPU; at most {stored['seconds']} s for a module. {versions}; Python {stored['python']}; "
        f"{stored['date']}.",
        "",
        *counts(outcomes, stored["ways"]),
        "",
        *(comparison(outcomes) if "simulator" in stored["ways"] else ()),
        "",
        *why_not(outcomes, stored["reasons"]),
    ]
    return "\n".join(lines)


def counts(outcomes, ways):
    yield row("", *(WAYS[way] for way in ways))
    yield row("---", *("---:" for _ in ways))
    for outcome in OUTCOMES:
        numbers = [sum(found[way] == outcome for found in outcomes.values()) for way in ways]
        yield row(TITLES[outcome], *(f"{number:,}" for number in numbers))
    if "simulator" not in ways:
        return
    examples = [found for test, found in outcomes.items() if test.startswith("doc_examples.")]
    passed = [sum(found[way] == "pass" for found in examples) for way in ways]
    yield row(f"of the {len(examples)} examples of its documentation, passes", *(str(number) for number in passed))


def comparison(outcomes):
    yield row("Numba's simulator", "tests", "of these the emulator passes")
    yield row("---", "---:", "---:")
    for outcome in OUTCOMES:
        chosen = [found["emulator"] for found in outcomes.values() if found["simulator"] == outcome]
        if chosen:
            yield row(TITLES[outcome], f"{len(chosen):,}", f"{chosen.count('pass'):,}")
    needy = [found for found in outcomes.values() if found["numba"] != "pass"]
    passed = {way: sum(found[way] == "pass" for found in needy) for way in ("simulator", "emulator")}
    yield ""
    yield (
        f"Of the {len(needy):,} tests that numba.cuda does not pass without a GPU, the simulator passes "
        f"{passed['simulator']:,} and the emulator {passed['emulator']:,}."
    )


def why_not(outcomes, reasons):
    grouped = collections.defaultdict(list)
    for reason, tests in reasons.items():
        for test in tests:
            grouped[group_of(f"{reason} {test}")].append((test, reason))
    yield row("Why a test does not pass on the emulator", "tests", "of these the simulator passes", "the first")
    yield row("---", "---:", "---:", "---")
    for group in (*GROUPS, REST):
        if tests := grouped[group]:
            simulated = sum(outcomes[test].get("simulator") == "pass" for test, _ in tests)
            yield row(group, f"{len(tests):,}", str(simulated), f"`{tests[0][0]}`")
    yield ""
    yield f"{REST[0].upper()}{REST[1:]}, one by one:"
    yield ""
    yield from (f"- `{test}`: {reason[:160]}" for test, reason in grouped[REST])


def row(*cells):
    return f"| {' | '.join(cells)} |"


def group_of(reason):
    return next((group for group, pattern in GROUPS.items() if re.search(pattern, reason)), REST)


# -- the command -------------------------------------------------------------------------------------------------------


def main(argv=None):
    arguments = parse(argv)
    if arguments.child:
        run_module(*arguments.child)
        return 0
    if arguments.tests:
        os.environ[SUCCESSOR] = os.path.abspath(arguments.tests)
        del WAYS["simulator"]  # there is none
    results = RECORDS / ("compatibility-mlir.json" if arguments.tests else "compatibility.json")
    stored = json.loads(results.read_text()) if results.exists() else None
    if not arguments.table:
        names = [name for name in modules() if not arguments.only or any(part in name for part in arguments.only)]
        found = run_all(arguments.ways or list(WAYS), names, arguments.seconds, arguments.jobs)
        if arguments.only and not arguments.store:
            for name, tests in merge(found).items():
                for test, outcomes in tests.items():
                    shown = (f"{way} {': '.join(filter(None, outcomes[way]))}" for way in found)
                    print(f"{name}.{test}: {'; '.join(shown)}")
            return 0
        if stored:
            before = recorded(stored)
            found = before | {
                way: before.get(way, {}) | of_way if arguments.only else of_way for way, of_way in found.items()
            }
        stored = record(merge({way: found.get(way, {}) for way in WAYS}), arguments.seconds)
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(stored, indent=1) + "\n")
    if stored is None:
        print(f"nothing is recorded in {results}", file=sys.stderr)
        return 1
    print(table(stored))
    return 0


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="run these ways (default: all)")
    parser.add_argument("--tests", metavar="FOLDER", help="the tests of numba-cuda-mlir, in a checkout of its sources")
    parser.add_argument(
        "--only", nargs="+", help="modules, or parts of their names: every test is printed, none stored"
    )
    parser.add_argument("--store", action="store_true", help="with --only: store them, and print the table")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"limit for one module (default: {SECONDS})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time (default: one per core)")
    parser.add_argument("--table", action="store_true", help="print the table of the stored results and run nothing")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
