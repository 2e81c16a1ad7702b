"""Calls of functions that are compiled already: the inner loops of NumPy's ufuncs, and the C library."""

import ctypes
import functools
import re

import numpy as np

from warpstep.threadwise.engine import ir
from warpstep.threadwise.table import HANDLERS
from warpstep.threadwise.values import I32, I64, POINTER, Buffer, Complex, NotNative, Number

# -- NumPy's own functions ---------------------------------------------------------------------------------------------


@functools.cache
def ufunc_handler(template):
    """Return what calls a ufunc of NumPy for one element; None if the template names none."""
    named = re.fullmatch(r"np\.(\w+)", template)
    ufunc = getattr(np, named[1], None) if named else None
    if not isinstance(ufunc, np.ufunc):
        return None
    return lambda f, *operands: call_ufunc(f, ufunc, *operands)


class _UfuncStruct(ctypes.Structure):
    """The head of a ``PyUFuncObject``, which NumPy's C API documents."""

    _fields_ = [
        ("head", ctypes.c_char * object.__basicsize__),
        *((name, ctypes.c_int) for name in ("nin", "nout", "nargs", "identity")),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
    ]


def _ufunc_loop(ufunc, dtypes):
    """Return the address of a ufunc's inner loop for these types, and of its data."""
    wanted = f"{''.join(d.char for d in dtypes[: ufunc.nin])}->{''.join(d.char for d in dtypes[ufunc.nin :])}"
    struct = _UfuncStruct.from_address(id(ufunc))
    if (struct.nin, struct.nout, struct.ntypes) != (ufunc.nin, ufunc.nout, ufunc.ntypes):
        raise NotNative("a ufunc of an unknown layout")
    place = ufunc.types.index(wanted) if wanted in ufunc.types else None
    if place is None or not struct.functions[place]:
        raise NotNative(f"{ufunc.__name__} of {wanted}")
    data = struct.data[place] if struct.data else None
    return struct.functions[place], data or 0


def call_ufunc(f, ufunc, *operands):
    """Call NumPy's inner loop for one element: the value is the one of the lockstep program, to the last bit."""
    if ufunc.nout != 1 or not all(isinstance(o, Number | Complex) for o in operands):
        raise NotNative(f"np.{ufunc.__name__}")
    try:
        dtypes = ufunc.resolve_dtypes((*(o.dtype for o in operands), None))
    except TypeError:
        raise NotNative(f"np.{ufunc.__name__}") from None
    address, data = _ufunc_loop(ufunc, dtypes)
    b, s = f.b, f.slots
    slots = [s.alloca(ir.IntType(8 * 16)) for _ in dtypes]
    places = [s.bitcast(slot, POINTER) for slot in slots]
    table = s.alloca(ir.ArrayType(POINTER, len(dtypes)))
    steps = s.alloca(ir.ArrayType(I64, len(dtypes)))
    count = s.alloca(I64)
    zero = ir.Constant(I32, 0)
    for i, (place, dtype) in enumerate(zip(places, dtypes, strict=True)):
        b.store(place, b.gep(table, [zero, ir.Constant(I32, i)]))
        b.store(ir.Constant(I64, dtype.itemsize), b.gep(steps, [zero, ir.Constant(I32, i)]))
    b.store(ir.Constant(I64, 1), count)
    for operand, place, dtype in zip(operands, places, dtypes, strict=False):
        value = f.cast(operand, dtype)
        parts = [(value.real, 0), (value.imag, dtype.itemsize // 2)] if dtype.kind == "c" else [(value.value, 0)]
        for part, at in parts:
            if dtype.kind == "b":
                part = b.zext(part, ir.IntType(8))
            b.store(part, b.bitcast(b.gep(place, [ir.Constant(I64, at)]), part.type.as_pointer()))
    arguments = [
        b.bitcast(table, POINTER),
        b.bitcast(count, POINTER),
        b.bitcast(steps, POINTER),
        ir.Constant(I64, data).inttoptr(POINTER),
    ]
    _call_address(f, address, ir.VoidType(), arguments)
    return _read_result(f, places[-1], dtypes[-1])


def _read_result(f, place, dtype):
    return f.load(Buffer("result", "local", place), place, dtype, note=False)


# -- the C library -----------------------------------------------------------------------------------------------------


def _c_library(name):
    """``math.erf`` and its like: Python computes in float64, with this function of the C library."""

    def handler(f, a):
        wide = f.cast(a, np.float64)
        return f.cast(
            Number(_call_address(f, _symbol_address(name), wide.value.type, [wide.value]), wide.dtype), a.dtype
        )

    return handler


HANDLERS["erf"], HANDLERS["erfc"] = _c_library("erf"), _c_library("erfc")


def _symbol_address(name):
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    except (AttributeError, OSError, TypeError):
        raise NotNative(f"{name}, which this C library lacks") from None


def _call_address(f, address, result, arguments):
    type_ = ir.FunctionType(result, [a.type for a in arguments])
    function = f.b.inttoptr(ir.Constant(I64, address), type_.as_pointer())
    return f.b.call(function, arguments)
