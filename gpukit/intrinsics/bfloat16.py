"""Device functions between float32 and bfloat16, which kernels of Numba hold as the bits of a uint16."""

from gpukit.backend import cuda, types, uint32

__all__ = ["bfloat16_of", "float_of"]


@cuda.jit(device=True, forceinline=True)
def float_of(bits):
    """The value of a bfloat16 as a float32."""
    return cuda.libdevice.int_as_float(uint32(bits) << uint32(16))


@cuda.jit(device=True, forceinline=True)
def bfloat16_of(x):
    """The bits of the bfloat16 nearest to a float32, the even one of two."""
    bits = uint32(cuda.libdevice.float_as_int(x))
    if x != x:
        return types.uint16(0x7FFF)
    return types.uint16((bits + uint32(0x7FFF) + (bits >> uint32(16) & uint32(1))) >> uint32(16))
