"""More than 48 KB of dynamic shared memory, which a kernel has to opt in to."""

from gpukit._numba import current_gpu, function_of, numba_driver
from warpstep.checks import check_optin
from warpstep.launch import Kernel
from warpstep.values import check_int, describe, has_attributes

__all__ = ["allow_dynamic_shared"]


def allow_dynamic_shared(kernel, nbytes: int):
    """Let launches of a kernel ask for more dynamic shared memory than the 48 KB that any kernel may have.

    Call it once, before the launch: ``allow_dynamic_shared(kernel, nbytes)``, then
    ``kernel[grid, block, stream, nbytes](...)``. It holds for the argument types that are compiled already, on the
    current device, and for those compiled later, on the device that is current then. A kernel made by
    ``kernel.specialize`` needs a call of its own.

    Parameters
    ----------
    kernel : a kernel of ``cuda.jit``
        Of `gpukit.cuda`, or of ``numba.cuda`` where there is a GPU.
    nbytes : int
        The most that a launch may ask for, in bytes. A call with less than before changes nothing.

    Raises
    ------
    TypeError, ValueError
        If ``kernel`` is not a kernel, or ``nbytes`` is not an int of 0 or more.
    LaunchError
        If the device does not allow so much, beside the kernel's static shared memory: now, or for argument types that
        come later when they are compiled. ``gpukit.device.info().shared_memory_per_block_optin`` is what it allows.

    Examples
    --------
    >>> @cuda.jit
    ... def fill(out):
    ...     tile = cuda.shared.array(0, np.float32)
    ...     tile[cuda.threadIdx.x] = 1
    ...     out[0] = tile.size
    >>> allow_dynamic_shared(fill, 65536)
    >>> out = np.zeros(1)
    >>> fill[1, 1, 0, 65536](out)
    >>> out
    array([16384.])
    """
    check_kernel(kernel)
    check_int("nbytes", nbytes, 0)
    if isinstance(kernel, Kernel):
        kernel.allow_dynamic_shared(nbytes)
        return
    check_optin(kernel.py_func.__name__, 0, nbytes, current_gpu().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    nbytes = max(nbytes, getattr(kernel, "dynamic_shared", 0))
    for compiled in kernel.overloads.values():
        _allow_compiled(kernel.py_func.__name__, compiled, nbytes)
    if not hasattr(kernel, "dynamic_shared"):
        call_when_compiled(
            kernel, lambda compiled: _allow_compiled(kernel.py_func.__name__, compiled, kernel.dynamic_shared)
        )
    kernel.dynamic_shared = nbytes


def check_kernel(kernel):
    """Raise TypeError unless this is a kernel of ``cuda.jit``."""
    if not has_attributes(kernel, "py_func", "targetoptions") or kernel.targetoptions.get("device"):
        raise TypeError(f"kernel is {describe(kernel)}; it must be a kernel made by cuda.jit")


def call_when_compiled(kernel, function):
    """Call ``function(compiled)`` for each form of a kernel of ``numba.cuda`` that is compiled from now on."""
    add_overload = kernel.add_overload

    def call_and_add(compiled, argument_types):
        function(compiled)
        add_overload(compiled, argument_types)

    # Numba calls this for every kernel that it has compiled, or found in its cache on disk.
    kernel.add_overload = call_and_add


def _allow_compiled(name, compiled, nbytes):
    """Set the driver's limit of one compiled kernel, where it is not higher already."""
    from cuda.bindings.driver import CUfunction_attribute

    function = function_of(compiled)
    static = function.attrs.shared
    check_optin(name, static, nbytes, function.device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    # Without a call of its own a kernel may have as much as is left of 48 KB; the attribute must not go below that.
    if static + nbytes > function.device.MAX_SHARED_MEMORY_PER_BLOCK:
        attribute = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        numba_driver().cuKernelSetAttribute(attribute, nbytes, function.handle, function.device.id)
