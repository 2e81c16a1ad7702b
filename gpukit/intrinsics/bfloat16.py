"""Device functions between float32 and bfloat16, which kernels of Numba hold as the bits of a uint16."""

from gpukit._numba import overload, target_capability
from gpukit.backend import cuda, types, uint32
from gpukit.intrinsics.functions import round_to_bfloat16

__all__ = ["bfloat16_of", "element_of", "float_of", "value_of"]


@cuda.jit(device=True, forceinline=True)
def float_of(bits):
    """The value of a bfloat16 as a float32."""
    return cuda.libdevice.int_as_float(uint32(bits) << uint32(16))


def bfloat16_of(x):
    """Return the bits of the bfloat16 nearest to a float32, the even one of two."""
    raise TypeError("bfloat16_of is for kernels: call it from a function under cuda.jit")


@overload(bfloat16_of)
def _bfloat16_of_type(x):
    found = target_capability()
    has_instruction = found is not None and found >= (8, 0)
    return (lambda x: round_to_bfloat16(x)) if has_instruction else (lambda x: _rounded(x))


@cuda.jit(device=True, forceinline=True)
def _rounded(x):
    bits = uint32(cuda.libdevice.float_as_int(x))
    if x != x:
        return types.uint16(0x7FFF)
    return types.uint16((bits + uint32(0x7FFF) + (bits >> uint32(16) & uint32(1))) >> uint32(16))


def value_of(x):
    """The value of an element of an array: a uint16 is taken as a bfloat16, all else as it is."""
    raise TypeError("value_of is for kernels: call it from a function under cuda.jit")


@overload(value_of)
def _value_of_type(x):
    return (lambda x: float_of(x)) if x == types.uint16 else (lambda x: x)


def element_of(x, array):
    """What to store in an array for a float32: a bfloat16 if it is of uint16. Other arrays convert it themselves."""
    raise TypeError("element_of is for kernels: call it from a function under cuda.jit")


@overload(element_of)
def _element_of_type(x, array):
    return (lambda x, array: bfloat16_of(x)) if array.dtype == types.uint16 else (lambda x, array: x)
