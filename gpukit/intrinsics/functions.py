"""The functions for kernels, and what they promise. Outside of a kernel they only say that they are for kernels."""

from typing import NoReturn


def _of_a_kernel(name) -> NoReturn:
    raise TypeError(f"{name} is for kernels and device functions: call it from a function under cuda.jit")


def load2(array, index) -> tuple:
    """Load two neighbouring elements in one access; for kernels and device functions.

    Parameters
    ----------
    array : C-contiguous array
        Of integers or floats of up to 8 bytes, in global or shared memory.
    index : int, or tuple of int
        Of the first element. Its address must be a multiple of the access's width, twice the size of an element: the
        GPU stops with a misaligned address otherwise. The two elements must lie in the array.

    Returns
    -------
    tuple of 2
        The elements, of the array's dtype.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: the array or the index is none of the above.
    """
    _of_a_kernel("load2")


def load4(array, index) -> tuple:
    """Load four neighbouring elements in one access: `load2` of twice as many, of up to 4 bytes each.

    For float32 that is 128 bits, the widest access there is: a quarter of the instructions of four plain loads.
    """
    _of_a_kernel("load4")


def load8(array, index) -> tuple:
    """Load eight neighbouring elements in one access: `load2` of four times as many, of up to 2 bytes each.

    Elements of 1 byte come as int32, which is how registers hold them: one instruction takes a byte out of a word.
    """
    _of_a_kernel("load8")


def load16(array, index) -> tuple:
    """Load sixteen neighbouring elements in one access: `load2` of eight times as many, of 1 byte each, as int32."""
    _of_a_kernel("load16")


def store2(array, index, a, b):
    """Store two neighbouring elements in one access; ``array`` and ``index`` as for `load2`.

    The values are converted to the array's dtype.
    """
    _of_a_kernel("store2")


def store4(array, index, a, b, c, d):
    """Store four neighbouring elements in one access: `store2` of twice as many, of up to 4 bytes each."""
    _of_a_kernel("store4")


def copy_async(target, index, source, source_index, guard=True):
    """Begin to copy an element from global to shared memory, and go on at once; for kernels and device functions.

    The element goes past the registers of the thread. It is there when the thread that began the copy has waited for
    it by `wait_copies`; for the other threads of the block, after a barrier that follows this wait. Until then nobody
    may read or write it there.

    Parameters
    ----------
    target : C-contiguous array in shared memory
    index : int, or tuple of int
        Where the element goes. For `copy_async2` and `copy_async4` it is that of the first element, and its address a
        multiple of the bytes copied; so is that of the source.
    source : C-contiguous array in global memory, of the same dtype
        A copy has 4, 8 or 16 bytes: one element of 4 or 8 bytes, two of 2, 4 or 8, or four of 1, 2 or 4.
    source_index : int, or tuple of int
    guard : bool
        False: the source is not read, and zeros are copied. ``source_index`` may then lie outside.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: an argument is none of the above.
    """
    _of_a_kernel("copy_async")


def copy_async2(target, index, source, source_index, guard=True):
    """Begin to copy two neighbouring elements from global to shared memory, otherwise like `copy_async`."""
    _of_a_kernel("copy_async2")


def copy_async4(target, index, source, source_index, guard=True):
    """Begin to copy four neighbouring elements from global to shared memory, otherwise like `copy_async`.

    For float32 these are 16 bytes, and they go past the L1 cache too.
    """
    _of_a_kernel("copy_async4")


def commit_copies():
    """Make the copies that this thread has begun since the last call a group that it can wait for.

    A group may be empty.
    """
    _of_a_kernel("commit_copies")


def wait_copies(most):
    """Wait until at most the ``most`` youngest groups of this thread's copies are still under way.

    Parameters
    ----------
    most : literal int, 0 or more
        0 waits for all groups. The hardware takes the number as part of the instruction, so it cannot be a variable.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: ``most`` is not a constant.
    """
    _of_a_kernel("wait_copies")


def clock64():
    """Cycles that the clock of the thread's multiprocessor has counted; for kernels and device functions.

    Every call reads anew. The clocks of two multiprocessors have nothing to do with each other. On the emulator the
    counter only says what came first: it is no time.

    Returns
    -------
    int64
    """
    _of_a_kernel("clock64")


def globaltimer():
    """Nanoseconds on a clock that all multiprocessors share, and all kernels; for kernels and device functions.

    It moves in steps: of 32 ns on an H200, of about a microsecond on some other cards. Every call reads anew. On the
    emulator it is the counter of `clock64`.

    Returns
    -------
    int64
    """
    _of_a_kernel("globaltimer")


def smid():
    """Number of the multiprocessor that the thread runs on, from 0; for kernels and device functions.

    On the emulator blocks are dealt out in turn; a GPU gives the next block to whichever has room.

    Returns
    -------
    int32
    """
    _of_a_kernel("smid")


def byte_perm(low, high, selector):
    """Any four of the eight bytes of two uint32, in one instruction; for kernels and device functions.

    Parameters
    ----------
    low, high : uint32
        With bytes 0 to 3 and 4 to 7, the lowest first.
    selector : uint32
        Its four lowest hexadecimal digits say which bytes: 0x5410 puts bytes 0 and 1 of low below those of high. A
        digit with 8 added gives 8 times that byte's highest bit.

    Returns
    -------
    uint32
    """
    _of_a_kernel("byte_perm")


def dp2a_lo(pair, values, total):
    """Two products and their sum in one instruction, for compute capability 6.1 and later; for kernels and device
    functions.

    Parameters
    ----------
    pair : uint32
        Two 16-bit numbers without a sign.
    values : uint32
        Four bytes, of which the two lowest count: the lower one is multiplied with the lower number.
    total : uint32
        What is added.

    Returns
    -------
    uint32
    """
    _of_a_kernel("dp2a_lo")


def dp2a_hi(pair, values, total):
    """`dp2a_lo` with the two highest bytes of ``values``."""
    _of_a_kernel("dp2a_hi")


def dp4a(a, b, total):
    """Four products, of bytes, and their sum in one instruction, for compute capability 6.1 and later; for kernels and
    device functions.

    Parameters
    ----------
    a, b : int32 or uint32, both alike
        Four int8 or four uint8 in one number.
    total : of the same type
        What is added.

    Returns
    -------
    int32 or uint32
    """
    _of_a_kernel("dp4a")
