"""`gpukit._native`: bound calls of C functions, by machine code and without it."""

import ctypes
import gc
import threading
from types import BuiltinFunctionType

import pytest

from gpukit import _native

WORD = ctypes.c_uint64


@pytest.mark.parametrize("compiles", [True, False])
def test_a_bound_call_passes_its_arguments_and_returns_the_code(monkeypatch, compiles):
    if not compiles:
        monkeypatch.setattr(_native, "_make_maker", lambda count: None)
    for count in (0, 1, 4, 9):  # more than registers have room for
        taken, codes = [], [0, 700, -5]

        def function(*arguments, taken=taken, codes=codes):
            taken.append(arguments)
            return codes.pop(0)

        callback = ctypes.CFUNCTYPE(ctypes.c_int, *[WORD] * count)(function)
        arguments = tuple(2**64 - 1 - 2**60 * i for i in range(count))
        call = _native.bind(ctypes.cast(callback, ctypes.c_void_p).value or 0, *arguments)
        assert isinstance(call, BuiltinFunctionType) == compiles
        gc.collect(0)  # what was just made; a whole collection takes seconds in a process that has loaded all of gpukit
        assert [call() for _ in range(3)] == [0, 700, -5]
        assert taken == [arguments] * 3


@pytest.mark.parametrize("compiles", [True, False])
def test_other_threads_run_during_a_bound_call(monkeypatch, compiles):
    if not compiles:
        monkeypatch.setattr(_native, "_make_maker", lambda count: None)
    met = threading.Barrier(2, timeout=30)
    callback = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: met.wait() * 0)
    call = _native.bind(ctypes.cast(callback, ctypes.c_void_p).value or 0)
    other = threading.Thread(target=call)
    other.start()
    assert call() == 0
    other.join()
