"""Functions of the CUDA driver that take addresses, for emulated memory; ``numba.cuda.cudadrv.driver`` calls them.

An address on the host is a real one, an address on the device an emulated one.
"""

import ctypes

from warpstep._numba import CudaAPIError, CUresult
from warpstep.api.allocations import address_of, find_allocation


def _locate(address, size):
    """The allocation and the ``size`` bytes of it that an address stands for."""
    allocation = find_allocation(int(address))
    start = 0 if allocation is None else int(address) - allocation.address
    if allocation is None or not 0 <= size <= allocation.nbytes - start:
        code = CUresult.CUDA_ERROR_INVALID_VALUE
        raise CudaAPIError(code, f"{code.name}: {size:,} bytes at {int(address):#x} are not in emulated memory")
    return allocation, allocation.bytes[start : start + size]


def copy_to_device(driver, target, source, size, stream=0):
    """``cuMemcpyHtoD``"""
    allocation, memory = _locate(target, size)
    ctypes.memmove(address_of(memory), int(source), size)
    allocation.mark(memory)


def copy_to_host(driver, target, source, size, stream=0):
    """``cuMemcpyDtoH``"""
    ctypes.memmove(int(target), address_of(_locate(source, size)[1]), size)


def copy_on_device(driver, target, source, size, stream=0):
    """``cuMemcpyDtoD``"""
    allocation, memory = _locate(target, size)
    memory[:] = _locate(source, size)[1]
    allocation.mark(memory)


def fill(driver, target, byte, size, stream=0):
    """``cuMemsetD8``"""
    allocation, memory = _locate(target, size)
    memory[:] = int(byte) & 0xFF
    allocation.mark(memory)


def find_range(driver, address):
    """``cuMemGetAddressRange``: where the allocation of an address begins, and its bytes."""
    allocation, _ = _locate(address, 0)
    return allocation.address, allocation.nbytes


#: {name of the driver's function: what stands for it}
FUNCTIONS = {
    "cuMemcpyHtoD": copy_to_device,
    "cuMemcpyHtoDAsync": copy_to_device,
    "cuMemcpyDtoH": copy_to_host,
    "cuMemcpyDtoHAsync": copy_to_host,
    "cuMemcpyDtoD": copy_on_device,
    "cuMemcpyDtoDAsync": copy_on_device,
    "cuMemsetD8": fill,
    "cuMemsetD8Async": fill,
    "cuMemGetAddressRange": find_range,
}
