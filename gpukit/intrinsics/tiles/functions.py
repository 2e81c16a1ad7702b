"""The functions for kernels, with their documentation. Called outside of a kernel they raise TypeError."""

from gpukit.intrinsics.functions import refuse


def view_at(buffer, offset, shape, dtype):
    """View a part of an array of bytes as an array of its own; for kernels and device functions.

    Tiles and barriers share a block's dynamic shared memory this way.

    Parameters
    ----------
    buffer : 1-D C-contiguous array of uint8
        Such as ``cuda.shared.array(0, uint8, alignment=1024)``.
    offset : int
        Of the first byte, a multiple of the size of an element.
    shape : int, or tuple of int
        The part must lie in the buffer: a GPU does not check it.
    dtype : Numba type
        Of integers or floats.

    Returns
    -------
    C-contiguous array
    """
    refuse("view_at")


def ldmatrix1(tile, index, trans=False) -> tuple:
    """Load a matrix of 8 rows of 16 bytes for `mma`, by all lanes of a warp; for kernels and device functions.

    Lane i of the first 8 gives the address of row i. Lane n then has the 4 bytes at place n % 4 of row n // 4: what it
    holds of an operand of `mma`. Needs compute capability 7.5.

    Parameters
    ----------
    tile : C-contiguous array in shared memory
        Of elements of 1, 2 or 4 bytes.
    index : int, or tuple of int
        Of the first element of the lane's row, whose address must be a multiple of 16.
    trans : literal bool
        For elements of 2 bytes: transpose the matrix, so that lane n has elements 2 (n % 4) and the next of column
        n // 4.

    Returns
    -------
    tuple
        Of 2 float16, or of one word: uint32 with two elements of uint16 or int16, int32 with four int8, uint32 with
        four uint8, or an element of 4 bytes.

    Raises
    ------
    numba.cuda.core.errors.TypingError
        When the kernel is compiled: an argument is none of the above, or the device is older than the instruction.
    """
    refuse("ldmatrix1")


def ldmatrix2(tile, index, trans=False) -> tuple:
    """Load two matrices like `ldmatrix1`: lanes 8 to 15 give the rows of the second one."""
    refuse("ldmatrix2")


def ldmatrix4(tile, index, trans=False) -> tuple:
    """Load four matrices like `ldmatrix1`: lane i gives row i % 8 of matrix i // 8.

    For an operand of 16 x 16 of 2 bytes, lane i gives the address of row i % 16, column 8 (i // 16).
    """
    refuse("ldmatrix4")


def zeros(count, dtype=None) -> tuple:
    """Make a tuple of zeros, to begin a sum of `mma` or `wgmma` with; for kernels and device functions.

    Parameters
    ----------
    count : literal int
        4 for `mma` in a warp; half the columns of the product for `wgmma`.
    dtype : Numba type
        float32 unless given.
    """
    refuse("zeros")


def store_fragment(array, corner, values, guard=False):
    """Store the sums that a warp holds after `mma` or `wgmma`; for kernels and device functions.

    Lane n has row n // 4 and columns 2 (n % 4) and the next, then the same 8 rows below, then 8 columns on, and so on.
    The values are converted to the array's dtype, rounded to nearest even; a uint16 takes them as bfloat16.

    Parameters
    ----------
    array : 2-D C-contiguous array
        In global or shared memory. Of float32, float64, float16, uint16 (bfloat16) or int32.
    corner : (int, int)
        Row and column in ``array`` of the first element of the warp's 16 rows. Pairs are stored in one access: the
        column and the array's rows must be even, unless ``guard`` is True.
    values : tuple
        4 for every 8 columns.
    guard : literal bool
        Leave out what lies outside of the array, and store elements one by one.
    """
    refuse("store_fragment")


def mbarrier_init(barriers, i, count):
    """Make a barrier in shared memory, whose phases end after ``count`` arrivals; for kernels and device functions.

    One thread does it. A phase also needs that all bytes have come that `mbarrier_expect` has announced. Other threads
    may use the barrier after `fence_barrier_init` and ``cuda.syncthreads()``. Needs compute capability 8.0.

    Parameters
    ----------
    barriers : C-contiguous array of uint64 in shared memory
    i : int, or tuple of int
        Of the barrier.
    count : int
        1 or more.
    """
    refuse("mbarrier_init")


def fence_barrier_init():
    """Make this thread's new barriers visible to copies of tensors; for kernels and device functions.

    Needs compute capability 9.0.
    """
    refuse("fence_barrier_init")


def mbarrier_arrive(barriers, i):
    """Arrive at a barrier without waiting; for kernels and device functions.

    What the thread did before is visible to threads that have waited for the phase. Needs compute capability 8.0.
    """
    refuse("mbarrier_arrive")


def mbarrier_expect(barriers, i, nbytes):
    """Arrive at a barrier, and announce bytes that copies will bring; for kernels and device functions.

    The phase ends when the bytes have come and all other arrivals have happened. Needs compute capability 9.0.
    """
    refuse("mbarrier_expect")


def mbarrier_wait(barriers, i, parity):
    """Wait until a phase of a barrier has ended; for kernels and device functions.

    Needs compute capability 8.0.

    Parameters
    ----------
    parity : int
        0 for the first phase, the third and so on; 1 for the others. The phase before the first counts as ended: a
        producer that waits for 1 first goes on at once.
    """
    refuse("mbarrier_wait")


def copy_tensor(target, index, map, corner, barriers, i):
    """Begin to copy a box of a tensor from global to shared memory; for kernels and device functions.

    One thread does it. The copy arrives at a barrier with its bytes, of which `mbarrier_expect` has to know. Elements
    outside of the tensor become zeros; their bytes count. Needs compute capability 9.0.

    Parameters
    ----------
    target : C-contiguous array in shared memory
    index : int, or tuple of int
        Of the box's first element in ``target``. Its address must be a multiple of 128, and of 8 rows if they are
        swizzled.
    map : array of `tensor_map`
    corner : tuple of int
        Of the box in the tensor, an int for each axis; it may lie outside.
    barriers, i
        The barrier, as for `mbarrier_init`.
    """
    refuse("copy_tensor")


def store_tensor(map, corner, source, index):
    """Begin to copy a box from shared memory to a tensor in global memory; for kernels and device functions.

    One thread does it, after `fence_async` by those that have written the box, and a barrier. Elements outside of the
    tensor are left out. Needs compute capability 9.0.

    Parameters
    ----------
    map, corner, source, index
        As for `copy_tensor`; but a corner with a negative number is an error.
    """
    refuse("store_tensor")


def commit_stores():
    """Commit the `store_tensor`s that this thread has begun since the last call as a group."""
    refuse("commit_stores")


def wait_stores(most):
    """Wait until at most the ``most`` latest groups of this thread still read shared memory, which then may change.

    Parameters
    ----------
    most : literal int, 0 or more
    """
    refuse("wait_stores")


def fence_async():
    """Make what this thread has written to shared memory visible to `copy_tensor`, `store_tensor` and `wgmma`.

    For kernels and device functions. These reach memory on a way of their own, the asynchronous proxy, that barriers
    alone do not order. Needs compute capability 9.0.
    """
    refuse("fence_async")


def fence_tensor_map(map):
    """Make a tensor map that has changed since the last launch that used it visible; for kernels and device functions.

    Needs compute capability 9.0.
    """
    refuse("fence_tensor_map")


def wgmma(accumulators, a, a_index, b, b_index, trans_a=False, trans_b=False, add=True) -> tuple:
    """Begin to multiply tiles on the tensor cores, a b + accumulators, by four warps; for kernels and device functions.

    The product has 64 rows, and two columns for each accumulator of a lane. Warp w of the four has rows 16 w to
    16 w + 15, in the order of `store_fragment`. K is 32 bytes: 16 elements of 2 bytes, 8 of TF32, 32 of int8. It
    begins only: the result may be used after `wgmma_wait`, and the tiles must not change before. The first one, and the
    first after other instructions have written accumulators, needs `wgmma_fence` before. Needs compute capability 9.0.

    Parameters
    ----------
    accumulators : tuple
        4 to 128, a multiple of 4, of float32, or of int32 for int8 (then 4, 8, 12, 16 or a multiple of 8).
    a : tile, or tuple
        Its last two axes are rows of M along K; in registers, what `ldmatrix4` loads for each warp's 16 rows.
    a_index : tuple of int, or None
        Of the first row (a multiple of 8) and column; None for registers.
    b : tile
        Its last two axes are rows of N along K: the second factor transposed.
    b_index : tuple of int
    trans_a, trans_b : literal bool
        For elements of 2 bytes: the tile's rows are those of K along M, or along N: ``b`` as it is. A product of more
        columns than a row has needs a third axis before: tile[p] has the p-th part of the columns.
    add : bool
        If False, the accumulators are not added: they may hold anything.

    Returns
    -------
    tuple
        The accumulators.
    """
    refuse("wgmma")


def wgmma_fence():
    """Order the registers and shared memory that the four warps have written before the `wgmma` that follow."""
    refuse("wgmma_fence")


def wgmma_commit():
    """Commit the `wgmma` that the four warps have begun since the last call as a group."""
    refuse("wgmma_commit")


def wgmma_wait(most, accumulators) -> tuple:
    """Wait until at most the ``most`` latest groups of `wgmma` are pending.

    Parameters
    ----------
    most : literal int, 0 or more
    accumulators : tuple
        Of a product: use the tuple that is returned.
    """
    refuse("wgmma_wait")


def decrease_registers(count):
    """Give back registers, down to ``count`` a thread, for `increase_registers` of other warps.

    All four warps of a group do it. The kernel needs ``launch_bounds``. Needs compute capability 9.0.

    Parameters
    ----------
    count : literal int
        A multiple of 8 from 24 to 256.
    """
    refuse("decrease_registers")


def increase_registers(count):
    """Wait for registers that other warps give back, and have ``count`` a thread from here on.

    The counterpart of `decrease_registers`.
    """
    refuse("increase_registers")


def named_barrier(number, count):
    """Wait until ``count`` threads of the block have arrived at barrier ``number``; for kernels and device functions.

    Parameters
    ----------
    number : int
        1 to 15: 0 is that of ``cuda.syncthreads()``.
    count : int
        A multiple of 32: warps arrive as a whole.
    """
    refuse("named_barrier")


def load_acquire(array, index):
    """Load an element so that all later accesses of this thread come after it; for kernels and device functions.

    A thread that sees the value of a `store_release` sees all that the other thread did before. Needs compute
    capability 7.0.

    Parameters
    ----------
    array : C-contiguous array
        Of integers or floats of 4 or 8 bytes.
    index : int, or tuple of int
    """
    refuse("load_acquire")


def store_release(array, index, value):
    """Store an element after all earlier accesses of this thread; ``array`` and ``index`` as for `load_acquire`."""
    refuse("store_release")
