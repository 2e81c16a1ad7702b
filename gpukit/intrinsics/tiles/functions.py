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

    Examples
    --------
    >>> @cuda.jit
    ... def fill(out):
    ...     buffer = cuda.shared.array(1024, np.uint8, alignment=1024)
    ...     tile = view_at(buffer, 256, (2, 8), np.float32)
    ...     t = cuda.threadIdx.x
    ...     tile[t // 8, t % 8] = t
    ...     cuda.syncthreads()
    ...     out[t] = tile[1, t % 8]
    >>> out = np.zeros(16, np.float32)
    >>> fill[1, 16](out)
    >>> out[:4]
    array([ 8.,  9., 10., 11.], dtype=float32)
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

    Examples
    --------
    >>> @cuda.jit
    ... def load(out):
    ...     tile = cuda.shared.array((8, 8), np.uint16, alignment=16)
    ...     lane = cuda.threadIdx.x
    ...     tile[lane // 4, 2 * (lane % 4)] = lane
    ...     tile[lane // 4, 2 * (lane % 4) + 1] = 100
    ...     cuda.syncthreads()
    ...     out[lane] = ldmatrix1(tile, (lane % 8, 0))[0]
    >>> out = np.zeros(32, np.uint32)
    >>> load[1, 32](out)
    >>> out.view(np.uint16)[:6]
    array([  0, 100,   1, 100,   2, 100], dtype=uint16)
    """
    refuse("ldmatrix1")


def ldmatrix2(tile, index, trans=False) -> tuple:
    """Load two matrices like `ldmatrix1`: lanes 8 to 15 give the rows of the second one.

    Examples
    --------
    See `ldmatrix1`.
    """
    refuse("ldmatrix2")


def ldmatrix4(tile, index, trans=False) -> tuple:
    """Load four matrices like `ldmatrix1`: lane i gives row i % 8 of matrix i // 8.

    For an operand of 16 x 16 of 2 bytes, lane i gives the address of row i % 16, column 8 (i // 16).

    Examples
    --------
    See `ldmatrix1`.
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

    Examples
    --------
    See `store_fragment`.
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

    Examples
    --------
    >>> @cuda.jit
    ... def multiply(a, b, out):
    ...     g, t = cuda.laneid // 4, cuda.laneid % 4
    ...     left = a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4]
    ...     store_fragment(out, (0, 0), mma(left, (b[t, g], b[t + 4, g]), zeros(4)))
    >>> a, b, out = np.ones((16, 8), np.float32), np.ones((8, 8), np.float32), np.zeros((16, 8), np.float32)
    >>> multiply[1, 32](a, b, out)
    >>> bool((out == a @ b).all())
    True
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

    Examples
    --------
    >>> @cuda.jit
    ... def hand_over(out):
    ...     word, barriers = cuda.shared.array(1, np.int32), cuda.shared.array(1, np.uint64)
    ...     t = cuda.threadIdx.x
    ...     if t == 0:
    ...         mbarrier_init(barriers, 0, 1)
    ...     cuda.syncthreads()
    ...     if t == 0:
    ...         word[0] = 7
    ...         mbarrier_arrive(barriers, 0)
    ...     if t >= 32:
    ...         mbarrier_wait(barriers, 0, 0)
    ...         out[t - 32] = word[0]
    >>> out = np.zeros(32, np.int32)
    >>> hand_over[1, 64](out)
    >>> bool((out == 7).all())
    True
    """
    refuse("mbarrier_init")


def fence_barrier_init():
    """Make this thread's new barriers visible to copies of tensors; for kernels and device functions.

    Needs compute capability 9.0.

    Examples
    --------
    See `copy_tensor`.
    """
    refuse("fence_barrier_init")


def mbarrier_arrive(barriers, i, rank=None):
    """Arrive at a barrier without waiting; for kernels and device functions.

    What the thread did before is visible to threads that have waited for the phase. Needs compute capability 8.0.

    Parameters
    ----------
    barriers, i
        The barrier, as for `mbarrier_init`.
    rank : int, optional
        Of the block in the cluster whose barrier it is, at the same place in shared memory; this block's own unless
        given. It tells another block what has been read, not what has been written: see `cluster_sync`. Needs compute
        capability 9.0.

    Examples
    --------
    See `mbarrier_init`.
    """
    refuse("mbarrier_arrive")


def mbarrier_expect(barriers, i, nbytes):
    """Arrive at a barrier, and announce bytes that copies will bring; for kernels and device functions.

    The phase ends when the bytes have come and all other arrivals have happened. Needs compute capability 9.0.

    Examples
    --------
    See `copy_tensor`.
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

    Examples
    --------
    See `mbarrier_init`.
    """
    refuse("mbarrier_wait")


def cluster_sync(relaxed=False):
    """Wait until all threads of the cluster's blocks that have not returned are here; for kernels and device functions.

    A cluster has as many blocks along x as `set_cluster_size` says; a block's rank in it is ``blockIdx.x`` % size. All
    blocks make their barriers and meet before the first of them arrives at, or copies to, another one. They meet again
    before they return. Threads may wait at different places in the kernel. Needs compute capability 9.0.

    Parameters
    ----------
    relaxed : literal bool
        If True, threads meet without waiting for their memory accesses. These are not ordered then, except for barriers
        that `fence_barrier_init` has published.

    Examples
    --------
    >>> @cuda.jit
    ... def share(source, out):
    ...     tile = cuda.shared.array((8, 4), np.float32, alignment=1024)
    ...     barriers = cuda.shared.array(2, np.uint64)
    ...     t, rank = cuda.threadIdx.x, cuda.blockIdx.x % 2
    ...     if t == 0:
    ...         mbarrier_init(barriers, 0, 1)
    ...         mbarrier_init(barriers, 1, 2)
    ...         fence_barrier_init()
    ...         mbarrier_expect(barriers, 0, 128)
    ...     cluster_sync()
    ...     if t == 0 and rank == 0:
    ...         copy_tensor(tile, (0, 0), source, (0, 0), barriers, 0, False, True)
    ...     mbarrier_wait(barriers, 0, 0)
    ...     out[cuda.blockIdx.x, t] = tile[t // 4, t % 4]
    ...     if t < 2:
    ...         mbarrier_arrive(barriers, 1, t)
    ...     mbarrier_wait(barriers, 1, 0)
    ...     cluster_sync()
    >>> x, out = cuda.to_device(np.arange(32, dtype=np.float32).reshape(8, 4)), np.zeros((2, 32), np.float32)
    >>> set_cluster_size(share, 2)
    >>> share[2, 32](tensor_map(x, (8, 4)), out)
    >>> bool((out == np.arange(32)).all())
    True
    """
    refuse("cluster_sync")


def copy_tensor(target, index, map, corner, barriers, i, once=False, everywhere=False):
    """Begin to copy a box of a tensor from global to shared memory; for kernels and device functions.

    One thread does it. The copy arrives at a barrier with its bytes, which `mbarrier_expect` has to announce.
    Elements outside of the tensor become zeros; their bytes count. Needs compute capability 9.0.

    Parameters
    ----------
    target : C-contiguous array in shared memory
    index : int, or tuple of int
        Of the box's first element in ``target``. Its address must be a multiple of 128, and of 8 rows if they are
        swizzled.
    map : array of `tensor_map`
    corner : tuple of int
        Of the box in the tensor, an int for each axis; along the last one a multiple of 16 bytes. It may lie outside,
        also before the tensor.
    barriers, i
        The barrier, as for `mbarrier_init`.
    once : bool
        If True, the L2 cache evicts these elements first: for tensors that are read only once.
    everywhere : literal bool
        If True, copy the box to the same place in all blocks of the cluster, and arrive at the barrier of each. It is
        read from memory once.

    Examples
    --------
    >>> @cuda.jit
    ... def negate(source, target):
    ...     tile = cuda.shared.array((8, 4), np.float32, alignment=1024)
    ...     barriers = cuda.shared.array(1, np.uint64)
    ...     t = cuda.threadIdx.x
    ...     if t == 0:
    ...         mbarrier_init(barriers, 0, 1)
    ...         fence_barrier_init()
    ...     cuda.syncthreads()
    ...     if t == 0:
    ...         mbarrier_expect(barriers, 0, 128)
    ...         copy_tensor(tile, (0, 0), source, (2, 4), barriers, 0)
    ...     mbarrier_wait(barriers, 0, 0)
    ...     tile[t // 4, t % 4] = -tile[t // 4, t % 4]
    ...     fence_async()
    ...     cuda.syncthreads()
    ...     if t == 0:
    ...         store_tensor(target, (2, 4), tile, (0, 0))
    ...         commit_stores()
    ...         wait_stores(0)
    >>> x = np.arange(256, dtype=np.float32).reshape(16, 16)
    >>> a, b = cuda.to_device(x), cuda.to_device(np.zeros_like(x))
    >>> negate[1, 32](tensor_map(a, (8, 4)), tensor_map(b, (8, 4)))
    >>> bool((b.copy_to_host()[2:10, 4:8] == -x[2:10, 4:8]).all())
    True
    """
    refuse("copy_tensor")


def copy_windows(target, index, map, corner, pixel, barriers, i):
    """Begin to copy one pixel of many windows on images to shared memory; for kernels and device functions.

    Each pixel is a row of the tile, with its channels. The windows follow one another along rows of an image, then in
    the next row, then in the next image. What lies outside of the images becomes zeros. Otherwise like `copy_tensor`.

    Parameters
    ----------
    target, index, barriers, i
        As for `copy_tensor`.
    map : array of `window_map`
    corner : (int, int, int, int)
        Where the first window begins: its image; its row and column there, which are negative in the padding; and the
        first channel, at a multiple of 16 bytes. At or after the last image everything is zero.
    pixel : (int, int)
        The row and column of the pixel in each window: 0 to 255, dilation included.

    Examples
    --------
    >>> @cuda.jit
    ... def next_pixels(x, out):
    ...     tile, barriers = cuda.shared.array((8, 4), np.float32, alignment=1024), cuda.shared.array(1, np.uint64)
    ...     t = cuda.threadIdx.x
    ...     if t == 0:
    ...         mbarrier_init(barriers, 0, 1)
    ...         fence_barrier_init()
    ...     cuda.syncthreads()
    ...     if t == 0:
    ...         mbarrier_expect(barriers, 0, 128)
    ...         copy_windows(tile, (0, 0), x, (0, 0, 0, 0), (0, 1), barriers, 0)
    ...     mbarrier_wait(barriers, 0, 0)
    ...     out[t] = tile[t, 0]
    >>> x = cuda.to_device(np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4))
    >>> out = np.zeros(8, np.float32)
    >>> next_pixels[1, 8](window_map(x, (8, 4), 2), out)
    >>> out
    array([ 4.,  8., 12., 20., 24., 28.,  0.,  0.], dtype=float32)
    """
    refuse("copy_windows")


def store_tensor(map, corner, source, index):
    """Begin to copy a box from shared memory to a tensor in global memory; for kernels and device functions.

    One thread does it, after `fence_async` by those that have written the box, and a barrier. Elements outside of the
    tensor are left out. Needs compute capability 9.0.

    Parameters
    ----------
    map, corner, source, index
        As for `copy_tensor`; but a corner with a negative number is an error.

    Examples
    --------
    See `copy_tensor`.
    """
    refuse("store_tensor")


def commit_stores():
    """Commit the calls of `store_tensor` since the last commit of this thread as a group.

    Examples
    --------
    See `copy_tensor`.
    """
    refuse("commit_stores")


def wait_stores(most):
    """Wait until at most the ``most`` latest groups of this thread still read shared memory, which then may change.

    Parameters
    ----------
    most : literal int, 0 or more

    Examples
    --------
    See `copy_tensor`.
    """
    refuse("wait_stores")


def fence_async():
    """Make what this thread has written to shared memory visible to `copy_tensor`, `store_tensor` and `wgmma`.

    For kernels and device functions. These access memory through the asynchronous proxy, which barriers alone do
    not order. Needs compute capability 9.0.

    Examples
    --------
    See `copy_tensor`.
    """
    refuse("fence_async")


def fence_tensor_map(map):
    """Make a tensor map that has changed since the last launch that used it visible; for kernels and device functions.

    Needs compute capability 9.0.

    Examples
    --------
    See `copy_tensor`.
    """
    refuse("fence_tensor_map")


def wgmma(accumulators, a, a_index, b, b_index, trans_a=False, trans_b=False, add=True) -> tuple:
    """Begin to multiply tiles on the tensor cores, a b + accumulators, by four warps; for kernels and device functions.

    The product has 64 rows, and two columns for each accumulator of a lane. Warp w of the four has rows 16 w to 16 w +
    15, in the order of `store_fragment`. K is 32 bytes: 16 elements of 2 bytes, 8 of TF32, 32 of int8. The call only
    begins the product: the result may be used after `wgmma_wait`, and the tiles must not change until then. The first
    one, and the first after other instructions have written accumulators, needs a `wgmma_fence` before it. Needs
    compute capability 9.0.

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

    Examples
    --------
    >>> @cuda.jit
    ... def multiply(a, b, out):
    ...     left = cuda.shared.array((64, 16), np.float16, alignment=1024)
    ...     right = cuda.shared.array((8, 16), np.float16, alignment=1024)
    ...     t = cuda.threadIdx.x
    ...     for i in range(t, 64 * 16, 128):
    ...         row, place = i // 16, (i % 16 // 8 ^ i // 64 % 2) * 8 + i % 8  # rows of 32 bytes are swizzled
    ...         left[row, place] = a[row, i % 16]
    ...         if row < 8:
    ...             right[row, place] = b[row, i % 16]
    ...     fence_async()
    ...     cuda.syncthreads()
    ...     sums = zeros(4)
    ...     wgmma_fence()
    ...     sums = wgmma(sums, left, (0, 0), right, (0, 0))
    ...     wgmma_commit()
    ...     sums = wgmma_wait(0, sums)
    ...     store_fragment(out, (16 * (t // 32), 0), sums)
    >>> a, b = (np.random.default_rng(0).integers(-3, 4, (n, 16)).astype(np.float16) for n in (64, 8))
    >>> out = np.zeros((64, 8), np.float32)
    >>> multiply[1, 128](a, b, out)
    >>> bool((out == a @ b.T).all())
    True
    """
    refuse("wgmma")


def wgmma_fence():
    """Order the registers and shared memory that the four warps have written before the `wgmma` that follow.

    Examples
    --------
    See `wgmma`.
    """
    refuse("wgmma_fence")


def wgmma_commit():
    """Commit the `wgmma` that the four warps have begun since the last call as a group.

    Examples
    --------
    See `wgmma`.
    """
    refuse("wgmma_commit")


def wgmma_wait(most, accumulators) -> tuple:
    """Wait until at most the ``most`` latest groups of `wgmma` are pending.

    Parameters
    ----------
    most : literal int, 0 or more
    accumulators : tuple
        Of a product: use the tuple that is returned.

    Examples
    --------
    See `wgmma`.
    """
    refuse("wgmma_wait")


def decrease_registers(count):
    """Give back registers, down to ``count`` a thread, for `increase_registers` of other warps.

    All four warps of a group do it. The kernel needs ``launch_bounds=(threads, blocks)``: without the second number
    the compiler leaves the instruction out. Needs compute capability 9.0.

    Parameters
    ----------
    count : literal int
        A multiple of 8 from 24 to 256.

    Examples
    --------
    >>> @cuda.jit(launch_bounds=(256, 1))
    ... def share(out):
    ...     if cuda.threadIdx.x < 128:
    ...         decrease_registers(40)
    ...     else:
    ...         increase_registers(160)
    ...     out[cuda.threadIdx.x] = 1
    >>> out = np.zeros(256)
    >>> share[1, 256](out)
    >>> bool((out == 1).all())
    True
    """
    refuse("decrease_registers")


def increase_registers(count):
    """Wait for registers that other warps give back, and have ``count`` a thread from here on.

    The counterpart of `decrease_registers`.

    Examples
    --------
    See `decrease_registers`.
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

    Examples
    --------
    >>> @cuda.jit
    ... def turn(out):
    ...     tile = cuda.shared.array(64, np.int32)
    ...     t = cuda.threadIdx.x
    ...     if t >= 32:
    ...         tile[t - 32] = t
    ...         named_barrier(1, 64)
    ...         out[t - 32] = tile[95 - t]
    >>> out = np.zeros(64, np.int32)
    >>> turn[1, 96](out)
    >>> out[:3]
    array([95, 94, 93], dtype=int32)
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

    Examples
    --------
    >>> @cuda.jit
    ... def pass_on(flags, data):
    ...     i = cuda.blockIdx.x
    ...     if i > 0:
    ...         while load_acquire(flags, i - 1) == 0:
    ...             pass
    ...         data[i] = data[i - 1] + 1
    ...     store_release(flags, i, 1)
    >>> data = np.zeros(4, np.int32)
    >>> pass_on[4, 1](np.zeros(4, np.int32), data)
    >>> data
    array([0, 1, 2, 3], dtype=int32)
    """
    refuse("load_acquire")


def store_release(array, index, value):
    """Store an element after all earlier accesses of this thread; ``array`` and ``index`` as for `load_acquire`.

    Examples
    --------
    See `load_acquire`.
    """
    refuse("store_release")


def inc_acq_rel(array, index, most):
    """Add 1 to an element, or set it to 0 if it is ``most`` or more, as ``cuda.atomic.inc`` does; return what it was.

    All earlier accesses of this thread come before it, and all later ones after it, so there is no need for a
    ``cuda.threadfence()`` on either side, which takes longer. Needs compute capability 7.0.

    Parameters
    ----------
    array : C-contiguous array of uint32
    index : int, or tuple of int
    most : uint32

    Returns
    -------
    uint32

    Examples
    --------
    >>> @cuda.jit
    ... def add_all(x, parts, counters, out):
    ...     parts[cuda.blockIdx.x] = x[cuda.blockIdx.x]
    ...     last = np.uint32(cuda.gridDim.x - 1)
    ...     if inc_acq_rel(counters, 0, last) == last:
    ...         for part in parts:
    ...             out[0] += part
    >>> out = np.zeros(1, np.int32)
    >>> add_all[4, 1](np.arange(4, dtype=np.int32), np.zeros(4, np.int32), np.zeros(1, np.uint32), out)
    >>> out
    array([6], dtype=int32)
    """
    refuse("inc_acq_rel")
