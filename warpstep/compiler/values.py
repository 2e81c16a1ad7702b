"""What a variable of typed IR can stand for while a kernel is lowered; NumPy dtypes and counts by Numba type."""

import functools

import numpy as np

from warpstep._numba import NOT_IMPLEMENTED, Dim3, GridGroup, numpy_support, struct_members, types, unliteral
from warpstep.errors import UnsupportedError

#: Types that exist only while compiling: their variables hold nothing at run time.
COMPILE_TIME = (
    types.Module,
    types.Function,
    types.BoundFunction,
    types.NumberClass,
    types.Dispatcher,
    types.DType,
    types.DTypeSpec,
    types.StringLiteral,
    types.NamedTupleClass,
    types.NoneType,
    types.Omitted,
    types.EnumClass,
    types.ClassType,
    types.RecursiveCall,
    types.ExceptionClass,
    types.ExceptionInstance,
    Dim3,
    GridGroup,
)
#: What a trace calls an operation on (float or not, bytes).
_OPERATION_KINDS = {
    (True, 2): "fp16",
    (True, 4): "fp32",
    (True, 8): "fp64",
    (False, 1): "int32",
    (False, 2): "int32",
    (False, 4): "int32",
    (False, 8): "int64",
}


@functools.cache
def dtype_of(type_):
    """Return the NumPy dtype of the values of a Numba type."""
    type_ = unliteral(type_)
    if isinstance(type_, types.EnumMember):
        type_ = type_.dtype
    if type_ == types.float16:
        return np.dtype(np.float16)
    if isinstance(type_, types.Complex) and type_.bitwidth < 64:  # complex32 of numba-cuda-mlir
        raise UnsupportedError(f"values of type {type_} cannot be emulated: NumPy has no arithmetic of them")
    try:
        return numpy_support.as_dtype(type_)
    except NOT_IMPLEMENTED:
        if members := struct_members(type_):
            return np.dtype([(name, dtype_of(member)) for name, member in members], align=True)
        raise UnsupportedError(f"values of type {type_} cannot be emulated: NumPy has no dtype for them") from None


def counted(expression, type_, times=1):
    """Return the expression, for which a trace counts ``times`` operations on values of a Numba type."""
    type_ = unliteral(type_)
    if isinstance(type_, types.Complex):
        type_ = type_.underlying_float
    if not isinstance(type_, types.Number | types.EnumMember):
        return expression
    dtype = dtype_of(type_)
    kind = _OPERATION_KINDS[dtype.kind == "f", dtype.itemsize]
    return expression.counting(*[kind] * times)


class Constant:
    """The value of a variable that is known while compiling."""

    def __init__(self, value):
        self.value = value


def constant_of(type_):
    """Return the value that a type fixes as a `Constant`, or None."""
    if isinstance(type_, types.Literal):
        return Constant(type_.literal_value)
    if isinstance(type_, types.NoneType):
        return Constant(None)
    return Constant(type_.value) if isinstance(type_, types.Omitted) else None


class TupleValue(list):
    """The (expression, type) of each item of a tuple built in this function."""


class BoundMethod:
    """A bound method: the variable it belongs to."""

    def __init__(self, owner):
        self.owner = owner
