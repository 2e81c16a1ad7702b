"""Compiled kernels on disk: what their names depend on, the files, and a kernel there and back."""

import functools
import json
import math
import os
import stat
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from gpukit import _numba, backend, compiling, matmul, reduce, scan
from gpukit._host import call, kernel_cache, kernel_files
from gpukit._host.fingerprint import Unknown, fingerprint
from gpukit.backend import cuda, float32, float64, types
from warpstep.errors import UnsupportedError

LIMIT = 8
VECTOR = types.Array(float32, 1, "C")


def make(constant=1, step=lambda x: x + 1, dtype=float32, default=0, source="", **options):
    """A kernel that reaches all of its arguments."""
    step, table = cuda.jit(device=True)(step), np.arange(3, dtype=np.float32)

    @cuda.jit(**options)
    def kernel(x, out, more=default):
        i = cuda.grid(1)
        if i < min(x.size, LIMIT):
            out[i] = dtype(step(x[i]) * constant + table[0] + math.pi)

    return kernel


def outer(x):
    return inner(x)


def inner(x):
    return x + 1


def test_fingerprints_tell_apart_all_that_decides_the_code(monkeypatch):
    bound = {"launch_bounds": 64}, {"max_registers": 32}, {"fastmath": True}, {"lineinfo": True}
    kernels = [make(), make(2), make(1.0), make(True), make(step=lambda x: x + 2), make(dtype=float64), make(default=1)]
    kernels += [make(**options) for options in bound] + [make(step=outer), matmul.naive, matmul.tiled(float32, 16)]
    found = [fingerprint(kernel, (VECTOR,)) for kernel in kernels]
    others = types.Array(float32, 2, "C"), types.Array(float32, 1, "A"), types.Array(float64, 1, "C"), float32
    found += [fingerprint(make(), other) for other in ((), *((type_,) for type_ in others))]
    called = fingerprint(make(step=outer))
    for name, value in (("LIMIT", 9), ("inner", lambda x: x + 2)):
        monkeypatch.setitem(globals(), name, value)
        found.append(fingerprint(make(step=outer), (VECTOR,)))
    assert fingerprint(make(step=outer)) != called
    assert len(set(found)) == len(found)
    monkeypatch.undo()
    assert fingerprint(make(), (VECTOR,)) == found[0] and fingerprint(make(step=outer)) == called


@pytest.mark.parametrize(
    "value", [object(), json, SimpleNamespace(a=1), [].append, {"a": object()}, cuda.to_device([1])]
)
def test_no_fingerprint_is_a_guess(value):
    with pytest.raises(Unknown):
        fingerprint(make(constant=value))


def reached():
    """Fingerprints of the kernels that some host functions would launch."""
    found = set()

    def note(launches):
        for launch, arguments in launches:
            found.add(fingerprint(launch.dispatcher, tuple(map(_numba.argument_type, arguments))).hex())

    with call.without_launches(note):
        for n in (3, 3000):
            x = cuda.device_array((n, 40), np.float32)
            matmul.matmul(x, x.T)
            reduce.reduce(x, 0)
            scan.scan(x)
    return sorted(found)


def test_another_process_finds_the_same():
    code = "import json; from tests.gpukit.test_kernel_cache import reached; print(json.dumps(reached()))"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found = reached()
    assert len(found) >= 5 and json.loads(done.stdout.splitlines()[-1]) == found


def test_sources_that_have_changed_since_the_start_have_no_hash(tmp_path, monkeypatch):
    path = tmp_path / "part" / "kernels.py"
    path.parent.mkdir()
    monkeypatch.setattr(kernel_cache, "PACKAGE", tmp_path)
    with pytest.raises(RuntimeError, match="no sources"):
        kernel_cache.hash_sources()
    found = []
    for text in ("x = 1", "x = 2"):
        path.write_text(text)
        monkeypatch.setattr(_numba, "LOADED", time.time() + 1)
        found.append(kernel_cache.hash_sources())
    assert found[0] != found[1]
    monkeypatch.setattr(_numba, "LOADED", time.time() - 1)
    with pytest.raises(RuntimeError, match="kernels.py has changed"):
        kernel_cache.hash_sources()


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kernel_files.ENVIRONMENT_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_folder_is_the_users_or_the_named_one(monkeypatch, tmp_path):
    monkeypatch.delenv(kernel_files.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert kernel_files.folder() == tmp_path / "gpukit"
    monkeypatch.setenv(kernel_files.ENVIRONMENT_VARIABLE, "Off")
    assert kernel_files.folder() is None


def test_a_file_that_is_not_whole_counts_as_none(folder):
    path, blocks = folder / "a.kernel", (b"code", b"", bytes(1000))
    assert kernel_files.read(path) is None
    kernel_files.write(path, {"name": "a"}, *blocks)
    assert kernel_files.read(path) == ({"name": "a"}, *blocks)
    whole = path.read_bytes()
    for broken in (
        b"",
        whole[:40],
        whole[:-1],
        whole + b"x",
        whole[:60] + b"?" + whole[61:],
        b"{}",
        b"gpukit kernel 2\n",
    ):
        path.write_bytes(broken)
        assert kernel_files.read(path) is None
    kernel_files.write(path, {"name": "b"})
    assert kernel_files.read(path) == ({"name": "b"},)
    assert [found.name for *_, found in kernel_files.files(folder)] == ["a.kernel"]


def test_files_are_whole_while_others_write_them(folder):
    path, blocks = folder / "a.kernel", [bytes([i]) * 100_000 for i in range(4)]
    kernel_files.write(path, {}, blocks[0])
    code = "import sys; from pathlib import Path; from gpukit._host.kernel_files import write\n"
    code += "for _ in range(100): write(Path(sys.argv[1]), {}, bytes([int(sys.argv[2])]) * 100_000)"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), str(i)]) for i in (1, 2)]
    while any(writer.poll() is None for writer in writers):
        found = kernel_files.read(path)
        assert found is not None and found[1] in blocks
    assert [writer.returncode for writer in writers] == [0, 0] and len(kernel_files.files(folder)) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have no modes here")
def test_files_from_a_folder_that_others_may_write_are_not_read(folder, monkeypatch):
    path = folder / "a.kernel"
    kernel_files.write(path, {})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for mode in (0o770, 0o702):
        folder.chmod(mode)
        assert kernel_files.read(path) is None
        kernel_files.write(folder / "b.kernel", {})
        assert not (folder / "b.kernel").exists()
    folder.chmod(0o700)
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert kernel_files.is_private(folder) == (owner == 0)


def test_files_not_used_for_longest_are_dropped_first(folder):
    for i in range(5):
        kernel_files.write(folder / f"{i}.kernel", {}, bytes(1000))
        os.utime(folder / f"{i}.kernel", (1000 + i, 1000 + i))
    (folder / "left.kernel.1.partial").write_bytes(b"")
    os.utime(folder / "left.kernel.1.partial", (1, 1))
    (folder / "being written.kernel.2.partial").write_bytes(b"")
    (folder / "notes.txt").write_bytes(bytes(9999))
    kernel_files.read(folder / "0.kernel")  # is used now
    size = (folder / "0.kernel").stat().st_size
    kernel_files.tidy(folder, 2 * size + 100)
    left = {"0.kernel", "4.kernel", "being written.kernel.2.partial", "notes.txt"}
    assert {path.name for path in folder.iterdir()} == left


# -- a kernel there and back -----------------------------------------------------------------------


def test_a_kernel_comes_back_as_it_was_compiled(folder, monkeypatch):
    from numba.cuda import dispatcher

    from warpstep import native
    from warpstep.api.context import get_current_device

    monkeypatch.setattr(dispatcher._Kernel, "bind", lambda self: self._codelibrary.get_cubin())
    monkeypatch.setattr(kernel_cache, "on_gpu", lambda: True)
    monkeypatch.setattr(_numba, "compiler_settings", lambda: ("a compiler",))
    monkeypatch.setattr(_numba, "LOADED", time.time() + 3600)
    try:
        with native.compiling_for(get_current_device()):
            there_and_back(folder, monkeypatch)
    except UnsupportedError as missing:
        pytest.skip(str(missing))


def there_and_back(folder, monkeypatch):
    import numba.cuda

    @numba.cuda.jit(device=True)
    def twice(value):
        return 2 * value

    def double(x, out):
        i = numba.cuda.grid(1)
        if i < x.size:
            out[i] = twice(x[i])

    double.__module__ = "gpukit.tests"

    def compiled(**options):
        kernel = numba.cuda.jit(double, **options)
        kernel_cache.keep_compiled(SimpleNamespace(dispatcher=kernel))
        return kernel.compile((VECTOR, VECTOR)), bool(kernel.stats.cache_hits)

    (first, found), (again, found_again) = compiled(), compiled()
    assert not found and found_again
    for name in ("entry_name", "signature", "cooperative", "argument_types", "lineinfo"):
        assert getattr(again, name) == getattr(first, name)
    library, before = again._codelibrary, first._codelibrary
    with _numba.quickly():  # as where a kernel is loaded for a device of another compute capability
        assert library.llvm_strs == before.llvm_strs
    assert library.get_cubin().code == before.get_cubin().code
    assert library.get_llvm_str() == before.get_llvm_str() and library.get_asm_str() == before.get_asm_str()
    assert not compiled(max_registers=32)[1]
    with monkeypatch.context() as patch:
        patch.setattr(_numba, "LOADED", 0)  # sources are newer than the process: it leaves nothing
        assert not compiled(max_registers=40)[1]
    assert not compiled(debug=True, opt=False)[1] and not compiled(debug=True, opt=False)[1]  # has more than its code
    assert len(kernel_files.files(folder)) == 2
    monkeypatch.setattr(kernel_files, "MAGIC", b"gpukit kernel 0\n")
    assert [compiled()[1], compiled()[1]] == [False, True]  # a file in another format is replaced
    for other in ("off", "/dev/null/none"):
        monkeypatch.setenv(kernel_files.ENVIRONMENT_VARIABLE, other)
        assert not compiled()[1]
    monkeypatch.setenv(kernel_files.ENVIRONMENT_VARIABLE, str(folder))
    double.__module__ = "mine"
    assert not compiled()[1] and not compiled()[1]


# -- compiled beforehand ---------------------------------------------------------------------------


@pytest.mark.parametrize("function", compiling.FUNCTIONS)
def test_kernels_of_all_shapes_are_found_without_launches(function, monkeypatch):
    monkeypatch.setattr(_numba, "compiled_kernel", None)
    found = compiling.find_forms(function, "float32", 1 << 10, 5)
    assert found and all(configured.dispatcher is kernel for (kernel, _), (configured, _) in found.items())
    assert compiling.find_forms(function, "float32", 1 << 10, 5).keys() == found.keys()


def test_calls_of_other_shapes_need_no_other_kernels():
    found = {(kernel.py_func, types) for kernel, types in compiling.find_forms("matmul", "float32", 1 << 12, 100)}
    needed = set()

    def note(launches):
        for launch, arguments in launches:
            needed.add((launch.dispatcher.py_func, tuple(map(_numba.argument_type, arguments))))

    with call.without_launches(note):
        for m, n, k in ((1, 40, 60), (33, 1, 17), (48, 64, 16), (5, 7, 9), (60, 60, 60)):
            matmul.matmul(cuda.device_array((m, k), np.float32), cuda.device_array((k, n), np.float32))
    assert needed and needed <= found


def test_each_kernel_is_compiled_by_one_process_unless_it_is_there(folder, monkeypatch):
    compiled = []
    monkeypatch.setattr(kernel_cache, "path_of", lambda *form: folder / fingerprint(*form).hex())
    monkeypatch.setattr(_numba, "share_memory", lambda most: None)
    monkeypatch.setattr(_numba, "compiled_kernel", lambda *launch: compiled.append(launch[0].dispatcher))
    monkeypatch.setattr(compiling, "find_forms", functools.partial(compiling.find_forms, most=1 << 10))

    def compile_part(part, wanted, taken):
        ((name, dtype, files),) = compiling._compile(["scan"], ["float32"], 3, part, wanted, taken)
        assert (name, dtype) == ("scan", "float32") and files <= set(wanted) | {path.name for path in folder.iterdir()}
        return files

    folder.mkdir()
    wanted, taken = {}, {}
    files = [compile_part(part, wanted, taken) for part in range(3)]
    assert set.union(*files) == set(wanted) == set(taken) and len(compiled) == len(taken)
    assert sum(map(len, files)) > len(taken)  # some are found by several
    for file in wanted:
        (folder / file).touch()
    compile_part(0, {}, {})
    assert len(compiled) == len(taken)


def test_a_dtype_that_a_function_does_not_take_is_said():
    with pytest.raises(TypeError, match="a has dtype uint8"):
        compiling.find_forms("matmul", "uint8")


def test_the_command_needs_a_gpu_and_a_folder(monkeypatch, capsys):
    for on_gpu, reason in ((False, backend.REASON), (True, "GPUKIT_CACHE=off")):
        monkeypatch.setenv(kernel_files.ENVIRONMENT_VARIABLE, "off")
        monkeypatch.setattr(backend, "on_gpu", lambda on_gpu=on_gpu: on_gpu)
        with pytest.raises(SystemExit):
            compiling.main(["matmul"])
        assert reason in capsys.readouterr().err
