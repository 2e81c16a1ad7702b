"""What a variable of typed IR can stand for while a kernel is lowered, and the NumPy dtype of its values."""

import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support
from numba.cuda.types.ext_types import Dim3, GridGroup

from warpstep.compiler.frontend import unliteral
from warpstep.errors import UnsupportedError

#: Types that exist only while compiling: their variables hold nothing at run time.
COMPILE_TIME = (
    types.Module,
    types.Function,
    types.BoundFunction,
    types.NumberClass,
    types.Dispatcher,
    types.DType,
    types.StringLiteral,
    types.UnicodeType,
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


def dtype_of(type_):
    """NumPy dtype of the elements or values of a Numba type."""
    type_ = unliteral(type_)
    if isinstance(type_, types.EnumMember):
        type_ = type_.dtype
    if type_ == types.float16:
        return np.dtype(np.float16)
    try:
        return numpy_support.as_dtype(type_)
    except NotImplementedError:
        raise UnsupportedError(f"values of type {type_} cannot be emulated: NumPy has no dtype for them") from None


class Known:
    """A variable's value known while compiling."""

    def __init__(self, value):
        self.value = value


class Items(list):
    """The (expression, type) of each item of a tuple built in this function."""


class Method:
    """A bound method: the variable it belongs to."""

    def __init__(self, owner):
        self.owner = owner
