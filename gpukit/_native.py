"""Call C functions with fixed arguments: a repeated launch is such a call, and costs the host hardly more than that.

ctypes converts the arguments anew at each call, which shows in the time of a launch. So the call is compiled, by the
LLVM that Numba brings, to a built-in function of Python. Where that is impossible, ctypes makes the call.
"""

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

__all__ = ["bind"]

_NO_ARGUMENTS = 4  # METH_NOARGS


def bind(function: int, *arguments: int) -> Callable[[], int]:
    """Make a function that calls a C function with these arguments, without the GIL, and returns its int.

    Parameters
    ----------
    function : int
        Its address.
    *arguments : int
        From 0 to 2**64 - 1: numbers, and addresses of what the caller keeps alive.

    Examples
    --------
    >>> absolute = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value
    >>> bind(absolute, 7)()
    7
    """
    make = _make_maker(len(arguments))
    if make is None:
        return functools.partial(ctypes.CFUNCTYPE(ctypes.c_int)(function), *map(ctypes.c_void_p.from_param, arguments))
    return make(struct.pack(f"{1 + len(arguments)}Q", function, *arguments))


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@functools.cache
def _make_maker(count: int) -> Callable[[bytes], Any] | None:
    """Make the function that binds so many arguments, given in bytes after a C function's address; None where there can
    be no machine code.
    """
    try:
        method = _Method(b"call", _compile(count), _NO_ARGUMENTS, None)
        prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        new = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
    except Exception:  # another llvmlite or Python; where no memory may be executable, Numba is not imported
        return None
    _keep(method)
    return lambda block: new(ctypes.addressof(method), block, None)


def _compile(count):
    """Compile a function of Python's C interface whose ``self`` is bytes: a function's address, and its arguments."""
    from warpstep.threadwise.engine import Engine, ir

    word, module = ir.IntType(64), ir.Module()  # words are passed as pointers are
    function = ir.Function(module, ir.FunctionType(word, (word, word)), "call")
    code = ir.IRBuilder(function.append_basic_block())

    def call(address, result, *arguments):
        return code.call(
            code.inttoptr(address, ir.FunctionType(result, [word] * len(arguments)).as_pointer()), arguments
        )

    def call_python(name, result, *arguments):
        return call(word(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value), result, *arguments)

    block = code.inttoptr(call_python("PyBytes_AsString", word, function.args[0]), word.as_pointer())
    target, *arguments = (code.load(code.gep(block, [word(i)]), align=1) for i in range(1 + count))
    thread = call_python("PyEval_SaveThread", word)
    error = call(target, ir.IntType(32), *arguments)
    call_python("PyEval_RestoreThread", ir.VoidType(), thread)
    code.ret(call_python("PyLong_FromLongLong", word, code.sext(error, word)))
    engine = Engine(module)
    _keep(engine)
    return engine.address("call")


def _keep(thing):
    """Keep what built-in functions refer to alive for good: at the end of the process they can outlive this module."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
