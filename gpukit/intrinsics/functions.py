"""The functions for kernels, with their documentation. Called outside of a kernel they raise TypeError."""

from typing import NoReturn


def refuse(name) -> NoReturn:
    raise TypeError(f"{name} is for kernels and device functions: call it from a function under cuda.jit")


def load2(array, index, once=False) -> tuple:
    """Load two neighbouring elements in one access; for kernels and device functions.

    Parameters
    ----------
    array : C-contiguous array
        Of integers or floats of up to 8 bytes, in global or shared memory.
    index : int, or tuple of int
        Of the first element. Its address must be a multiple of the width of the access, twice the size of an element:
        otherwise the GPU stops with a misaligned address. Both elements must lie in the array.
    once : literal bool
        If True, caches evict these elements first: for arrays in global memory that are read only once.

    Returns
    -------
    tuple of 2
        The elements, of the array's dtype.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: the array or the index is none of the above.

    Examples
    --------
    >>> @cuda.jit
    ... def swap(a, out):
    ...     i = 2 * cuda.grid(1)
    ...     x, y = load2(a, i)
    ...     store2(out, i, y, x)
    >>> out = np.zeros(4, np.float32)
    >>> swap[1, 2](np.arange(4, dtype=np.float32), out)
    >>> out
    array([1., 0., 3., 2.], dtype=float32)
    """
    refuse("load2")


def load4(array, index, once=False) -> tuple:
    """Load four neighbouring elements in one access: `load2` of twice as many, of up to 4 bytes each.

    For float32 that is 128 bits, the widest access there is: a quarter of the instructions of four plain loads.

    Examples
    --------
    >>> @cuda.jit
    ... def turn(a, out):
    ...     i = 4 * cuda.grid(1)
    ...     x, y, z, w = load4(a, i)
    ...     store4(out, i, w, z, y, x)
    >>> out = np.zeros(8, np.float32)
    >>> turn[1, 2](np.arange(8, dtype=np.float32), out)
    >>> out
    array([3., 2., 1., 0., 7., 6., 5., 4.], dtype=float32)
    """
    refuse("load4")


def load8(array, index, once=False) -> tuple:
    """Load eight neighbouring elements in one access: `load2` of four times as many, of up to 2 bytes each.

    Elements of 1 byte are returned as int32: registers hold words, and one instruction extracts a byte.

    Examples
    --------
    >>> @cuda.jit
    ... def largest(a, out):
    ...     out[0] = max(load8(a, 0))
    >>> out = np.zeros(1, np.int16)
    >>> largest[1, 1](np.arange(8, dtype=np.int16), out)
    >>> out
    array([7], dtype=int16)
    """
    refuse("load8")


def load16(array, index, once=False) -> tuple:
    """Load sixteen neighbouring elements in one access: `load2` of eight times as many, of 1 byte each, as int32.

    Examples
    --------
    >>> @cuda.jit
    ... def largest(a, out):
    ...     out[0] = max(load16(a, 0))
    >>> out = np.zeros(1, np.int32)
    >>> largest[1, 1](np.arange(16, dtype=np.uint8), out)
    >>> out
    array([15], dtype=int32)
    """
    refuse("load16")


def store2(array, index, a, b):
    """Store two neighbouring elements in one access; ``array`` and ``index`` as for `load2`.

    The values are converted to the array's dtype.

    Examples
    --------
    See `load2`.
    """
    refuse("store2")


def store4(array, index, a, b, c, d):
    """Store four neighbouring elements in one access: `store2` of twice as many, of up to 4 bytes each.

    Examples
    --------
    See `load4`.
    """
    refuse("store4")


def copy_async(target, index, source, source_index, guard=True):
    """Begin to copy an element from global to shared memory without waiting; for kernels and device functions.

    The element bypasses the registers of the thread. The thread that began the copy may use it after `wait_copies`, the
    other threads of the block after a barrier that follows this wait. Until then no thread may read or write it.

    Parameters
    ----------
    target : C-contiguous array in shared memory
    index : int, or tuple of int
        Of the element in ``target``. For `copy_async2` to `copy_async16` it is the first element, whose
        address must be a multiple of the bytes copied; so must that of the source.
    source : C-contiguous array in global memory, of the same dtype
        A copy has 4, 8 or 16 bytes: one element of 4 or 8 bytes, two of 2, 4 or 8, four of 1, 2 or 4, or eight of 1
        or 2.
    source_index : int, or tuple of int
    guard : bool
        If False, zeros are copied and the source is not read: ``source_index`` may lie outside.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: an argument is none of the above.

    Examples
    --------
    >>> @cuda.jit
    ... def reverse(x, out):
    ...     tile = cuda.shared.array(32, np.float32)
    ...     t = cuda.threadIdx.x
    ...     copy_async(tile, t, x, t)
    ...     commit_copies()
    ...     wait_copies(0)
    ...     cuda.syncthreads()
    ...     out[t] = tile[31 - t]
    >>> out = np.zeros(32, np.float32)
    >>> reverse[1, 32](np.arange(32, dtype=np.float32), out)
    >>> out[:4]
    array([31., 30., 29., 28.], dtype=float32)
    """
    refuse("copy_async")


def copy_async2(target, index, source, source_index, guard=True):
    """Begin to copy two neighbouring elements from global to shared memory, otherwise like `copy_async`.

    Examples
    --------
    See `copy_async`.
    """
    refuse("copy_async2")


def copy_async4(target, index, source, source_index, guard=True):
    """Begin to copy four neighbouring elements from global to shared memory, otherwise like `copy_async`.

    For float32 these are 16 bytes, which bypass the L1 cache too.

    Examples
    --------
    See `copy_async`.
    """
    refuse("copy_async4")


def copy_async8(target, index, source, source_index, guard=True):
    """Begin to copy eight neighbouring elements from global to shared memory, otherwise like `copy_async`.

    For float16 these are 16 bytes, which bypass the L1 cache too.

    Examples
    --------
    See `copy_async`.
    """
    refuse("copy_async8")


def copy_async16(target, index, source, source_index, guard=True):
    """Begin to copy sixteen neighbouring elements from global to shared memory, otherwise like `copy_async`.

    Examples
    --------
    See `copy_async`.
    """
    refuse("copy_async16")


def commit_copies():
    """Commit the copies that this thread has begun since the last call as a group, which may be empty.

    Examples
    --------
    See `copy_async`.
    """
    refuse("commit_copies")


def wait_copies(most):
    """Wait until at most the ``most`` latest groups of this thread's copies are pending.

    Parameters
    ----------
    most : literal int, 0 or more
        0 waits for all groups. The number is part of the instruction, so it cannot be a variable.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: ``most`` is not a constant.

    Examples
    --------
    See `copy_async`.
    """
    refuse("wait_copies")


def mma(a, b, c, dtype=None) -> tuple:
    """Multiply small matrices on a tensor core, a b + c; for kernels and device functions.

    All lanes of a warp do it together. Each holds some elements of every matrix, as tuples: with g = lane // 4 and
    t = lane % 4, element i of ``c`` and of the result is in row g + 8 (i // 2) and column 2 t + i % 2. The types of the
    elements decide the product:

    ============================  ================  ===================================================================
    a, b (c)                      elements          where they lie
    ============================  ================  ===================================================================
    float64 (float64)             8, 4: K = 16      element i of a: row g + 8 (i % 2), column t + 4 (i // 2);
                                  4, 2: K = 8       of b: row t + 4 i, column g
                                  2, 1: K = 4
                                  1, 1 (2): K = 4   8 rows instead of 16
    float32 (float32), as TF32    4, 2: K = 8       as float64
                                  2, 1: K = 4
    float16 (float32)             8, 4: K = 16      element i of a: row g + 8 (i // 2 % 2), column 2 t + i % 2 +
                                  4, 2: K = 8       8 (i // 4); of b: row 2 t + i % 2 + 8 (i // 2), column g
    uint32 (float32), each two    4, 2: K = 16      word i has elements 2 i (low half) and 2 i + 1 of float16
    bfloat16 (or float16)         2, 1: K = 8
    int32 (int32), each four      4, 2: K = 32      byte j of word i of a: row g + 8 (i % 2), column 4 t + j +
    signed bytes                  2, 1: K = 16      16 (i // 2); of b: row 4 t + j + 16 i, column g
    ============================  ================  ===================================================================

    TF32 keeps 10 of the 23 bits of float32's fraction and ignores the others. Products are exact. To be added in
    float32, they and c are aligned to the largest exponent among them and truncated 25 bits below it; the sum is
    truncated to float32. float64 adds in the order of K, by fused multiply-adds. The emulator does as an H200 does, to
    the last bit.

    Parameters
    ----------
    a, b, c : tuples
        c has 4 elements (2 where the table says so), of the type in parentheses. Compute capability 9.0 is needed for
        float64 with 16 rows, 7.5 for float16 with K = 8, 8.0 for the rest.
    dtype : type, optional
        float16 if the words of uint32 hold pairs of float16. This is for operands that a loop carries from one
        iteration to the next: as single float16, a pair would take two registers.

    Returns
    -------
    tuple
        The sums, as many as in ``c``.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: the tuples are none of the above.

    Examples
    --------
    >>> @cuda.jit
    ... def multiply(a, b, out):
    ...     g, t = cuda.laneid // 4, cuda.laneid % 4
    ...     c = mma((a[g, t],), (b[t, g],), (0.0, 0.0))
    ...     out[g, 2 * t], out[g, 2 * t + 1] = c
    >>> a, b, out = np.ones((8, 4)), np.ones((4, 8)), np.zeros((8, 8))
    >>> multiply[1, 32](a, b, out)
    >>> bool((out == a @ b).all())
    True
    """
    refuse("mma")


def clock64():
    """Read the cycle counter of the thread's multiprocessor; for kernels and device functions.

    The counters of two multiprocessors are unrelated. On the emulator the counter only orders events: it is no time.

    Returns
    -------
    int64

    Examples
    --------
    >>> @cuda.jit
    ... def elapsed(out):
    ...     start = clock64()
    ...     cuda.syncthreads()
    ...     out[0] = clock64() - start
    >>> out = np.zeros(1, np.int64)
    >>> elapsed[1, 32](out)
    >>> bool(out[0] > 0)
    True
    """
    refuse("clock64")


def globaltimer():
    """Read the nanosecond clock that all multiprocessors and kernels share; for kernels and device functions.

    It advances in steps: of 32 ns on an H200, of about a microsecond on some other cards. On the emulator it is the
    counter of `clock64`.

    Returns
    -------
    int64

    Examples
    --------
    >>> @cuda.jit
    ... def now(out):
    ...     out[0] = globaltimer()
    >>> out = np.zeros(1, np.int64)
    >>> now[1, 1](out)
    >>> bool(out[0] > 0)
    True
    """
    refuse("globaltimer")


def smid():
    """Read the number of the multiprocessor that the thread runs on, from 0; for kernels and device functions.

    On the emulator blocks are assigned in turn; a GPU gives the next block to any multiprocessor with room.

    Returns
    -------
    int32

    Examples
    --------
    >>> @cuda.jit
    ... def where(out):
    ...     out[cuda.blockIdx.x] = smid()
    >>> out = np.full(4, -1, np.int32)
    >>> where[4, 32](out)
    >>> bool((out >= 0).all())
    True
    """
    refuse("smid")


def byte_perm(low, high, selector):
    """Select any four of the eight bytes of two uint32, in one instruction; for kernels and device functions.

    Parameters
    ----------
    low, high : uint32
        With bytes 0 to 3 and 4 to 7, the lowest first.
    selector : uint32
        Its four lowest hexadecimal digits select the bytes: 0x5410 puts bytes 0 and 1 of low below those of high. A
        digit plus 8 replicates that byte's sign bit.

    Returns
    -------
    uint32

    Examples
    --------
    >>> @cuda.jit
    ... def swap(x, out):
    ...     out[0] = byte_perm(x[0], x[0], 0x0123)
    >>> out = np.zeros(1, np.uint32)
    >>> swap[1, 1](np.array([0x11223344], np.uint32), out)
    >>> hex(out[0])
    '0x44332211'
    """
    refuse("byte_perm")


def round_to_bfloat16(x):
    """Round a float32 to the nearest bfloat16, the even one of two, in one instruction of compute capability 8.0; for
    kernels and device functions.

    Parameters
    ----------
    x : float32

    Returns
    -------
    uint16
        The bits. Of a NaN they are 0x7FFF.

    Examples
    --------
    >>> from gpukit.intrinsics.functions import round_to_bfloat16
    >>> @cuda.jit
    ... def convert(x, out):
    ...     out[0] = round_to_bfloat16(x[0])
    >>> out = np.zeros(1, np.uint16)
    >>> convert[1, 1](np.array([1.5], np.float32), out)
    >>> hex(out[0])
    '0x3fc0'
    """
    refuse("round_to_bfloat16")


def match_byte(value):
    """Find the lanes of the warp whose lowest byte is the same; for kernels and device functions.

    It is ``cuda.match_any_sync`` for the whole warp, made of eight votes: faster on a GPU if lanes hold many values.

    Parameters
    ----------
    value : uint32

    Returns
    -------
    uint32
        A bit for each lane.

    Examples
    --------
    >>> @cuda.jit
    ... def parity(out):
    ...     out[cuda.laneid] = match_byte(np.uint32(cuda.laneid % 2))
    >>> out = np.zeros(32, np.uint32)
    >>> parity[1, 32](out)
    >>> [hex(peers) for peers in out[:2]]
    ['0x55555555', '0xaaaaaaaa']
    """
    refuse("match_byte")


def dp2a_lo(pair, values, total):
    """Add two products of 16 by 8 bits in one instruction (compute capability 6.1 and later); for kernels and device
    functions.

    Parameters
    ----------
    pair : uint32
        Two unsigned 16-bit numbers.
    values : uint32
        Four bytes, of which the two lowest are used: the lower one is multiplied by the lower number.
    total : uint32
        Added to the products.

    Returns
    -------
    uint32

    Examples
    --------
    >>> @cuda.jit
    ... def dot(a, b, out):
    ...     out[0] = dp2a_lo(a[0], b[0], np.uint32(0))
    >>> out = np.zeros(1, np.uint32)
    >>> pair, values = np.array([3, 5], np.uint16), np.array([10, 20, 30, 40], np.uint8)
    >>> dot[1, 1](pair.view(np.uint32), values.view(np.uint32), out)
    >>> out
    array([130], dtype=uint32)
    """
    refuse("dp2a_lo")


def dp2a_hi(pair, values, total):
    """`dp2a_lo` with the two highest bytes of ``values``.

    Examples
    --------
    See `dp2a_lo`.
    """
    refuse("dp2a_hi")


def dp4a(a, b, total):
    """Add four products of bytes in one instruction (compute capability 6.1 and later); for kernels and device
    functions.

    Parameters
    ----------
    a, b : int32 or uint32, of the same type
        Four int8 or four uint8 in one number.
    total : of the same type
        Added to the products.

    Returns
    -------
    int32 or uint32

    Examples
    --------
    >>> @cuda.jit
    ... def dot(a, b, out):
    ...     out[0] = dp4a(a[0], b[0], np.int32(10))
    >>> out = np.zeros(1, np.int32)
    >>> bytes4 = np.array([1, 2, 3, 4], np.int8).view(np.int32)
    >>> dot[1, 1](bytes4, bytes4, out)
    >>> out
    array([40], dtype=int32)
    """
    refuse("dp4a")
