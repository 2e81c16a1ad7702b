"""`gpukit._numba` is the only file of gpukit that names numba-cuda's internals."""

import ast
import gc
from pathlib import Path
from types import SimpleNamespace

import numba.cuda
import pytest

import gpukit

PACKAGE = Path(gpukit.__file__).parent
#: Modules that name ``numba.cuda`` at all: the switch between it and the emulator, and the doctor, who looks at it.
NAMES_NUMBA_CUDA = {"backend.py", "doctor.py"}
#: Attributes of Numba's kernels and arrays that begin with an underscore.
PRIVATE = {"_codelibrary", "_cuda_call", "_dispatcher", "_func", "_get_libdevice_path"}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_numba.py")


def imported(tree):
    """(module, name or None) of every import in a file, lazy ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def test_private_modules_are_named_in_one_file():
    for path in modules():
        tree, where = ast.parse(path.read_text()), str(path.relative_to(PACKAGE))
        for module, name in imported(tree):
            assert not module.startswith("numba.cuda."), f"{where} imports {module}"
            if module == "numba.cuda" or (module, name) == ("numba", "cuda"):
                assert where in NAMES_NUMBA_CUDA, f"{where} imports {module}"
                assert name is None or not name.startswith("_"), f"{where} imports {module}.{name}"
            if module.partition(".")[0] == "llvmlite":
                assert where.startswith("intrinsics/") and where.endswith("/gpu.py"), f"{where} imports {module}"
        found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & PRIVATE
        assert not found, f"{where} uses {', '.join(found)}"


def test_internals_that_need_no_device():
    from gpukit import _numba

    assert _numba.FOLDER == str(Path(numba.cuda.__file__).parent)
    assert all(isinstance(make(), type) for make in (_numba.launch_configuration_class, _numba.device_array_class))
    assert issubclass(_numba.cuda_api_error(), Exception)
    path, by = _numba.find_libdevice()
    assert path is None or Path(path).exists() or by


@pytest.mark.parametrize("value", [1, 2.0, True, 1j])
def test_types_of_arguments(value):
    from gpukit import _numba

    assert _numba.dtype_of_type(_numba.argument_type(value)).type(value) == value


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_pauses_while_a_kernel_compiles(enabled, monkeypatch):
    from numba.cuda import dispatcher

    from gpukit import _numba

    seen = []
    compiling = SimpleNamespace(_cuda_call=lambda *_, **__: seen.append(gc.isenabled()))
    monkeypatch.setattr(dispatcher, "_dispatcher", SimpleNamespace(Dispatcher=compiling))
    try:
        (gc.enable if enabled else gc.disable)()
        _numba.compiled_kernel(SimpleNamespace(dispatcher=SimpleNamespace(specialized=False)), ())
        assert gc.isenabled() == enabled and seen == [False]
    finally:
        gc.enable()


@pytest.mark.parametrize(("lto", "memory", "text"), [(True, False, "IR"), (True, True, "PTX"), (False, False, "PTX")])
def test_kernels_are_compiled_without_ptx_where_nothing_reads_it(lto, memory, text, monkeypatch):
    from numba.cuda.codegen import CUDACodeLibrary

    from gpukit import _numba

    plain, asked = CUDACodeLibrary.get_asm_str, []
    library = SimpleNamespace(_lto=lto, get_llvm_str=lambda: "IR", get_asm_strs=lambda cc: ["PTX"])
    compiling = SimpleNamespace(_cuda_call=lambda *_, **__: asked.append(CUDACodeLibrary.get_asm_str(library)))
    monkeypatch.setattr("numba.cuda.dispatcher._dispatcher", SimpleNamespace(Dispatcher=compiling))
    monkeypatch.setattr(_numba.config, "CUDA_ENABLE_NRT", memory, raising=False)
    _numba.compiled_kernel(SimpleNamespace(dispatcher=SimpleNamespace(specialized=False)), ())
    assert asked == [text] and CUDACodeLibrary.get_asm_str is plain


def test_a_function_that_two_others_call_is_printed_once(monkeypatch):
    from numba.cuda.codegen import CUDACodeLibrary

    from gpukit import _numba

    class Module:
        times, functions = 0, ()

        def __str__(self):
            self.times += 1
            return f"module {self.times}"

    plain, (kernel, another, shared, own) = CUDACodeLibrary.llvm_strs, (Module() for _ in range(4))
    libraries = [CUDACodeLibrary(None, "kernel") for _ in range(2)]
    with monkeypatch.context() as patch, _numba.quickly():
        patch.setattr(CUDACodeLibrary, "modules", property(lambda self: modules))
        modules = [kernel, shared, own, shared]
        assert libraries[0].llvm_strs == ["module 1"] * 3
        modules = [another, shared]
        assert libraries[1].get_llvm_str() == "module 1\n\nmodule 1"
        assert [module.times for module in (kernel, another, shared, own)] == [1] * 4
        shared.functions = [SimpleNamespace(linkage="weak_odr")]
        assert _numba._texts_of(CUDACodeLibrary(None, "kernel"))[1] == "module 2"
    assert CUDACodeLibrary.llvm_strs is plain


def test_a_plain_launch_of_a_kernel_that_is_kept_on_disk_compiles_without_the_collector():
    from numba.cuda.dispatcher import NullCache

    from gpukit import _numba

    seen = []
    kernel = SimpleNamespace(_cache=NullCache(), compile=lambda types: seen.append((types, gc.isenabled())))
    _numba.cache_compiled(kernel, lambda *_: None, lambda *_: None)
    kernel.compile("types")
    assert seen == [("types", False)] and gc.isenabled()
