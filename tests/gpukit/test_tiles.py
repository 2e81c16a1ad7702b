"""Tiles for tensor cores: what loads, copies, multiplies and stores them, against NumPy."""

import re
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import TypingError

import gpukit
import warpstep
from bench.corpus.tiles import (
    PRODUCTS,
    as_tile,
    launch_product,
    matrix_loader,
    numba_type,
    numbers,
    product_pipeline,
    swizzled,
    tile_multiplier,
    values_of,
)
from gpukit import intrinsics, on_gpu
from gpukit.backend import cuda, float32, int32, types, uint8, uint32, uint64
from gpukit.intrinsics import (
    cluster_sync,
    commit_stores,
    copy_tensor,
    copy_windows,
    decrease_registers,
    fence_async,
    fence_barrier_init,
    inc_acq_rel,
    increase_registers,
    load_acquire,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    mma,
    named_barrier,
    set_cluster_size,
    store_release,
    store_tensor,
    tensor_map,
    view_at,
    wait_stores,
    window_map,
    zeros,
)
from warpstep import KernelError, LaunchError
from warpstep.machine.tensor import add_products, exact

uint16, float16 = types.uint16, types.float16


# -- ldmatrix --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(
    ("dtype", "trans"), [(np.float16, False), (np.uint16, True), (np.float32, False), (np.int8, False)]
)
def test_ldmatrix_gives_each_lane_its_bytes_of_any_rows(count, dtype, trans):
    random = np.random.default_rng(count)
    size = 16 // np.dtype(dtype).itemsize
    source = numbers(random, dtype, (64, 5 * size))
    rows, columns = random.integers(0, 64, 32), size * random.integers(0, 5, 32)
    kind = {np.uint16: np.uint32, np.int8: np.int32}.get(dtype, dtype)
    out = np.zeros((32, 2 * count if dtype == np.float16 else count), kind)
    matrix_loader(count, dtype, trans, 5 * size)[1, 32](source, rows, columns, out)
    matrices = np.stack([source[r, c : c + size] for r, c in zip(rows, columns, strict=True)])
    matrices = matrices[: 8 * count].reshape(count, 8, size)
    if trans:
        matrices = matrices.transpose(0, 2, 1)
    expected = np.ascontiguousarray(matrices).view(np.uint8).reshape(count, 32, 4).transpose(1, 0, 2)
    np.testing.assert_array_equal(out.view(np.uint8).reshape(32, count, 4), expected)


# -- copies of tensors -----------------------------------------------------------------------------


def box_copier(box, dtype):
    held, extents, size = numba_type(dtype), box, int(np.prod(box))
    nbytes = size * np.dtype(dtype).itemsize

    @cuda.jit
    def copy_boxes(source, corners, copies, target, out):
        """Copy a box in, its bytes as they lie to ``out``, and the box to the other tensor."""
        buffer = cuda.shared.array(nbytes, uint8, alignment=1024)
        tile, flat = view_at(buffer, 0, extents, held), view_at(buffer, 0, size, held)
        barriers = cuda.shared.array(1, uint64)
        tid = cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(barriers, 0, 1)
            fence_barrier_init()
        cuda.syncthreads()
        for i in range(corners.shape[0]):
            if tid == 0:
                mbarrier_expect(barriers, 0, nbytes)
                copy_tensor(tile, first, source, corner_of(corners, i), barriers, 0)
            mbarrier_wait(barriers, 0, i % 2)
            for k in range(tid, size, 64):
                out[i, k] = flat[k]
            cuda.syncthreads()
            if tid == 0:
                store_tensor(target, corner_of(copies, i), tile, first)
                commit_stores()
                wait_stores(0)
            cuda.syncthreads()

    first = (0,) * len(box)
    corner_of = {
        1: cuda.jit(device=True)(lambda c, i: (c[i, 0],)),
        2: cuda.jit(device=True)(lambda c, i: (c[i, 0], c[i, 1])),
        3: cuda.jit(device=True)(lambda c, i: (c[i, 0], c[i, 1], c[i, 2])),
        5: cuda.jit(device=True)(lambda c, i: (c[i, 0], c[i, 1], c[i, 2], c[i, 3], c[i, 4])),
    }[len(box)]
    return copy_boxes


def box_of(array, corner, box):
    """A box of an array, zeros outside of it; and the slices of what is inside: (of the array, of the box)."""
    found, inside, within = np.zeros(box, array.dtype), [], []
    for at, extent, n in zip(corner, array.shape, box, strict=True):
        first, last = min(max(at, 0), extent), min(max(at + n, 0), extent)
        inside.append(slice(first, last))
        within.append(slice(first - at, last - at))
    found[tuple(within)] = array[tuple(inside)]
    return found, tuple(inside), tuple(within)


BOXES = [
    ((300,), (64,), np.float32, None),
    ((50, 80), (16, 64), np.float16, None),
    ((50, 80), (24, 32), np.uint16, None),
    ((30, 40), (16, 16), np.float16, 0),
    ((30, 48), (40, 16), np.int8, None),
    ((20, 22), (9, 4), np.float64, None),
    ((9, 21, 48), (2, 8, 32), np.float32, None),
    ((3, 4, 5, 6, 16), (2, 1, 3, 2, 16), np.uint8, None),
]


@pytest.mark.parametrize(("shape", "box", "dtype", "swizzle"), BOXES)
def test_boxes_are_copied_swizzled_and_cut_at_the_edges(shape, box, dtype, swizzle):
    random = np.random.default_rng(len(shape))
    source = random.integers(0, 100, shape).astype(dtype)
    target = np.zeros_like(source)
    boxes = [-(-m // n) for n, m in zip(box, shape, strict=True)]
    corners, copies = (
        [[n * int(random.integers(0, m)) for n, m in zip(box, boxes, strict=True)] for _ in "012"] for _ in "01"
    )
    corners[0], copies[0] = [0] * len(box), [n * (m - 1) for n, m in zip(box, boxes, strict=True)]
    arrays = [cuda.to_device(x) for x in (source, target)]
    maps = [tensor_map(array, box, swizzle) for array in arrays]
    out, kernel = np.zeros((3, int(np.prod(box))), dtype), box_copier(box, dtype)
    for i in range(3):
        kernel[1, 64](maps[0], np.array(corners[i : i + 1]), np.array(copies[i : i + 1]), maps[1], out[i : i + 1])
    for row, corner, copy in zip(out, corners, copies, strict=True):
        found, _, _ = box_of(source, corner, box)
        _, inside, within = box_of(target, copy, box)
        target[inside] = found[within]
        if swizzle is None:
            np.testing.assert_array_equal(row.reshape(box), swizzled(found))
    np.testing.assert_array_equal(arrays[1].copy_to_host(), target)


def window_copier(box, dtype):
    held, size = numba_type(dtype), box[0] * box[1]
    nbytes = size * np.dtype(dtype).itemsize

    @cuda.jit
    def copy_pixels(images, corners, pixels, out):
        """Copy one pixel of windows for each corner, its bytes as they lie to ``out``."""
        buffer, barriers = cuda.shared.array(nbytes, uint8, alignment=1024), cuda.shared.array(1, uint64)
        tile, flat = view_at(buffer, 0, box, held), view_at(buffer, 0, size, held)
        tid = cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(barriers, 0, 1)
            fence_barrier_init()
        cuda.syncthreads()
        for i in range(corners.shape[0]):
            if tid == 0:
                mbarrier_expect(barriers, 0, nbytes)
                corner = corners[i, 0], corners[i, 1], corners[i, 2], corners[i, 3]
                copy_windows(tile, (0, 0), images, corner, (pixels[i, 0], pixels[i, 1]), barriers, 0)
            mbarrier_wait(barriers, 0, i % 2)
            for k in range(tid, size, 64):
                out[i, k] = flat[k]
            cuda.syncthreads()

    return copy_pixels


@pytest.mark.parametrize(
    ("shape", "box", "dtype", "how"),
    [
        ((3, 7, 9, 40), (64, 32), np.float16, ((3, 3), (1, 1), (1, 1), (1, 1))),
        ((2, 12, 11, 16), (48, 16), np.float32, ((2, 5), (2, 3), (0, 4), (3, 2))),
        ((5, 4, 4, 8), (256, 64), np.uint16, ((1, 1), (1, 1), (0, 0), (1, 1))),
        ((1, 9, 30, 24), (40, 8), np.float16, ((4, 3), (8, 5), (100, 1), (1, 9))),
    ],
)
def test_pixels_of_windows_are_copied_from_image_to_image(shape, box, dtype, how):
    random, (kernel, stride, padding, dilation) = np.random.default_rng(len(shape)), how
    images = random.integers(1, 100, shape).astype(dtype)
    padded = np.pad(images, [(0, 0), *((n, n) for n in padding), (0, box[1])])
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(shape[1:3], kernel, stride, padding, dilation, strict=True)
    ]
    windows = np.array(list(np.ndindex(shape[0], *counts)))
    firsts, taps = random.integers(0, len(windows), 5), [random.integers(0, n, 5) for n in kernel]
    firsts[0], unit = len(windows) - 1, 16 // np.dtype(dtype).itemsize
    channels = unit * random.integers(0, shape[3] // unit, 5)
    rows, columns = (windows[firsts, 1 + axis] * stride[axis] - padding[axis] for axis in (0, 1))
    corners = np.stack([windows[firsts, 0], rows, columns, channels], 1)
    pixels = np.stack([taps[axis] * dilation[axis] for axis in (0, 1)], 1)
    out = np.zeros((5, box[0] * box[1]), dtype)
    window_copier(box, dtype)[1, 64](window_map(cuda.to_device(images), box, *how), corners, pixels, out)
    for i in range(5):
        expected, own = np.zeros(box, dtype), windows[firsts[i] :][: box[0]]
        found = padded[own[:, 0], own[:, 1] * stride[0] + pixels[i, 0], own[:, 2] * stride[1] + pixels[i, 1]]
        expected[: len(own)] = found[:, channels[i] : channels[i] + box[1]]
        np.testing.assert_array_equal(out[i].reshape(box), swizzled(expected))


def test_which_windows_have_a_map():
    images = cuda.to_device(np.zeros((1, 9, 9, 8), np.float16))
    for how in ((3, 9), (3, 1, 129), (15, 1, 0, 10)):
        with pytest.raises(ValueError, match="windows must begin and end"):
            window_map(images, (8, 8), *how)
    with pytest.raises(ValueError, match="array has 3 axes"):
        window_map(cuda.to_device(np.zeros((9, 9, 8), np.float16)), (8, 8), 3)


# -- products of four warps ------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "columns", "trans_a", "trans_b", "registers", "row_bytes"), PRODUCTS)
def test_wgmma_multiplies_tiles_of_all_layouts(dtype, columns, trans_a, trans_b, registers, row_bytes):
    random = np.random.default_rng(columns)
    depth, span = 64 // np.dtype(dtype).itemsize, row_bytes // np.dtype(dtype).itemsize
    a, b = numbers(random, dtype, (64, depth)), numbers(random, dtype, (columns, depth))
    kernel, nbytes = tile_multiplier(dtype, columns, trans_a, trans_b, registers, row_bytes)
    intrinsics.allow_dynamic_shared(kernel, nbytes)
    left = as_tile(a, span, trans_a)
    if registers:  # rows of 32 bytes that ldmatrix4 reads where they are: not swizzled
        left = (
            as_tile(a.view(np.uint8), 32, False)
            if False
            else np.concatenate([a[:, :span].ravel(), a[:, span:].ravel()])
        )
    out = np.full((64, columns), 77, np.int32 if np.dtype(dtype).itemsize == 1 else np.float32)
    kernel[1, 128, 0, nbytes](left, as_tile(b, span, trans_b), out)
    np.testing.assert_array_equal(out, values_of(a) @ values_of(b).T)


# -- pipelines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "k"), [(128, 64, 64), (200, 100, 264), (64, 130, 512)])
def test_a_pipeline_of_copies_and_products(m, n, k):
    kernel, arguments, out, expected = launch_product(product_pipeline(), m, n, k)
    kernel(*arguments)
    np.testing.assert_array_equal(out, expected)


# -- words that order others -----------------------------------------------------------------------


@cuda.jit
def pass_on(data, flags, out):
    """Each block waits for the block before it, adds to its number and passes it on."""
    block, tid = cuda.blockIdx.x, cuda.threadIdx.x
    if tid == 0:
        before = np.int64(0)
        if block > 0:
            while load_acquire(flags, block - 1) == 0:
                pass
            before = data[block - 1]
        data[block] = before + block
        store_release(flags, block, 1)
        out[block] = data[block]


@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float32])
def test_words_pass_on_what_was_written_before(dtype):
    data, flags, out = np.zeros(20, np.int64), np.zeros(20, dtype), np.zeros(20, np.int64)
    pass_on[20, 32](data, flags, out)
    np.testing.assert_array_equal(out, np.cumsum(np.arange(20)))


@cuda.jit
def add_parts(data, parts, counters, out):
    """Each block writes a part; the one that arrives last adds them all."""
    last, arrived = np.uint32(cuda.gridDim.x - 1), cuda.shared.array(1, uint32)
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = data[cuda.blockIdx.x]
        arrived[0] = inc_acq_rel(counters, 1, last)
    cuda.syncthreads()
    if arrived[0] == last and cuda.threadIdx.x == 0:
        for part in parts:
            out[0] += part


def test_the_last_to_arrive_sees_all_parts():
    data, counters, out = np.arange(70), np.zeros(2, np.uint32), np.zeros(1, np.int64)
    trace = gpukit.trace(add_parts[70, 32], data, np.zeros(70, np.int64), counters, out)
    assert trace.findings == [] and out[0] == data.sum() and not counters.any()
    with pytest.raises(TypingError, match="array holds int32; it must hold uint32"):
        add_parts[70, 32](data, np.zeros(70, np.int64), np.zeros(2, np.int32), out)


@cuda.jit
def exchange(out):
    """Two halves of a block that meet in pairs of warps."""
    tile = cuda.shared.array(128, int32)
    tid = cuda.threadIdx.x
    half = tid // 64
    tile[tid] = tid
    named_barrier(1 + half, 64)
    found = tile[64 * half + 63 - tid % 64]
    if half == 0:
        named_barrier(3, 64)
    out[tid] = found


def test_named_barriers_order_some_warps():
    out = np.zeros(128, np.int32)
    exchange[1, 128](out)
    np.testing.assert_array_equal(out, np.arange(128).reshape(2, 64)[:, ::-1].ravel())


# -- mistakes --------------------------------------------------------------------------------------


def findings_of(launch, arguments):
    """(kind, message) of each finding of a trace, also of one that a deadlock ends."""
    try:
        trace = gpukit.trace(launch, *arguments)
    except KernelError as error:
        assert error.kind == "no-progress"
        return [*((f.kind, f.message) for f in error.trace.findings), ("no-progress", str(error))]
    return [(f.kind, f.message) for f in trace.findings]


MISTAKES = {
    "wait": (False, r"left\[0, 0, 0\] \(shared\) is read, but was never written"),
    "release": (False, r"reads right\[.*\] .* copies to it .* has not been waited for"),
    "expect": (False, r"does not end: 16,384 bytes more have come than it expects"),
    "done": (False, r"copies to left\[.*\] .* reads it at line \d+, and may not have finished"),
    "fence": (False, "changes sums that other instructions have written, without a wgmma_fence"),
    "parity": (1, "does not end: 2 of 2 arrivals are missing"),
}


def test_a_right_pipeline_has_no_findings():
    kernel, arguments, out, expected = launch_product(product_pipeline(), 200, 100, 320)
    trace = gpukit.trace(kernel, *arguments)
    assert trace.findings == [] and np.array_equal(out, expected)
    boxes = trace.total("global", "tensor load")
    # Rows of 128 bytes of a, in 4 sectors each, but 72 rows of the second box. Rows of 128 and 80 bytes of b, which
    # start at odd multiples of 16 bytes by turns: 4 and 3 sectors, or 5 and 3.
    assert (boxes.requests, boxes.sectors) == (40, 2 * 5 * (128 + 72) * 4 + 2 * 320 * 15 // 2)


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_of_a_pipeline_is_found(name):
    value, message = MISTAKES[name]
    kernel, arguments, _, _ = launch_product(product_pipeline(**{name: value}), 128, 64, 512)
    found = findings_of(kernel, arguments)
    assert any(re.search(message, text) for _, text in found), found


def box_exchange(init_barrier=True, fence=True, barrier=True, wait_in=True, wait_out=True, order=True):
    """A kernel that copies a box in, changes it, copies it out, and changes it again."""

    @cuda.jit
    def exchange_box(source, target, out):
        tile = cuda.shared.array((16, 32), float32, alignment=1024)
        barriers = cuda.shared.array(1, uint64)
        tid = cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(barriers, 0, 1)
            fence_barrier_init()
        if init_barrier:
            cuda.syncthreads()
        if tid == 0:
            mbarrier_expect(barriers, 0, 2048)
            copy_tensor(tile, (0, 0), source, (0, 0), barriers, 0)
        if wait_in:
            mbarrier_wait(barriers, 0, 0)
        for row in range(16):
            tile[row, tid] = -tile[row, tid]
        if fence:
            fence_async()
        if barrier:
            cuda.syncthreads()
        if tid == 0:
            store_tensor(target, (0, 0), tile, (0, 0))
            commit_stores()
            if wait_out:
                wait_stores(0)
        if order:
            cuda.syncthreads()
        tile[0, tid] = 1
        mbarrier_wait(barriers, 0, 0)
        out[tid] = tile[0, tid]

    return exchange_box


BOX_MISTAKES = {
    "init_barrier": r"of barriers|barriers\[0\] .* nothing orders the two",
    "fence": r"a copy of a tensor reads 'tile' .* no fence_async",
    "barrier": r"reads tile\[.*\] .* writes it .* nothing orders the two",
    "wait_in": "the phase in which the copy arrives has not been waited for",
    "wait_out": "reads it at line .*, and may not have finished",
    "order": r"writes tile\[.*\] .* nothing orders the two",
}


@pytest.mark.parametrize("name", ["", *BOX_MISTAKES])
def test_each_mistake_around_a_copy_is_found(name):
    source = np.random.default_rng(0).standard_normal((16, 32), np.float32)
    arrays = [cuda.to_device(x) for x in (source, np.zeros_like(source))]
    maps = [tensor_map(array, (16, 32), 0) for array in arrays]
    kernel = box_exchange(**{name: False} if name else {})
    found = findings_of(kernel[1, 32], (*maps, np.zeros(32, np.float32)))
    if not name:
        assert found == []
        np.testing.assert_array_equal(arrays[1].copy_to_host(), -source)
    else:
        assert any(re.search(BOX_MISTAKES[name], text) for _, text in found), found


def cluster_relay(wait=True, sync=True):
    @cuda.jit
    def relay(source, out):
        """The first block of a cluster copies one box after the other to both, when both have read the last one."""
        tile = cuda.shared.array((8, 4), np.float32, alignment=1024)
        barriers = cuda.shared.array(2, np.uint64)
        t, rank = cuda.threadIdx.x, cuda.blockIdx.x % 2
        if t == 0:
            mbarrier_init(barriers, 0, 1)
            mbarrier_init(barriers, 1, 2)
            fence_barrier_init()
        if sync:
            cluster_sync()
        for i in range(3):
            if t == 0:
                mbarrier_expect(barriers, 0, 128)
                if rank == 0:
                    if wait:
                        mbarrier_wait(barriers, 1, (i + 1) % 2)
                    copy_tensor(tile, (0, 0), source, (8 * i, 0), barriers, 0, False, True)
            mbarrier_wait(barriers, 0, i % 2)
            out[cuda.blockIdx.x, i, t] = tile[t // 4, t % 4]
            cuda.syncwarp()
            if t == 0:
                mbarrier_arrive(barriers, 1, 0)
        cluster_sync()

    set_cluster_size(relay, 2)
    return relay


def relay_arguments(blocks):
    x = np.random.default_rng(0).standard_normal((24, 4)).astype(np.float32)
    return x, (tensor_map(cuda.to_device(x), (8, 4)), cuda.to_device(np.zeros((blocks, 3, 32), np.float32)))


def test_blocks_of_a_cluster_share_what_one_of_them_copies():
    x, arguments = relay_arguments(6)
    cluster_relay()[6, 32](*arguments)
    assert (arguments[1].copy_to_host() == x.reshape(3, 32)).all()


@pytest.mark.skipif(on_gpu(), reason="mistakes are planted; the GPU might not come back")
def test_mistakes_among_the_blocks_of_a_cluster_are_found():
    def findings(launch):
        return {finding.kind for finding in gpukit.trace(launch, *relay_arguments(2)[1]).findings}

    assert findings(cluster_relay()[2, 32]) == set()
    assert "race" in findings(cluster_relay(wait=False)[2, 32])  # the second block may not have read yet
    assert "race" in findings(cluster_relay(sync=False)[2, 32])  # its barrier may not have been made yet
    with pytest.raises(LaunchError, match="clusters have 2 blocks along x"):
        cluster_relay()[3, 32](*relay_arguments(3)[1])
    alone = cluster_relay()
    set_cluster_size(alone, 1)
    with pytest.raises(KernelError, match="never ends|does not end"):
        alone[2, 32](*relay_arguments(2)[1])


def test_words_that_order_others_are_needed():
    @cuda.jit
    def pass_plainly(data, flags, out):
        if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 0:
            data[0] = 5
            flags[0] = 1
        if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 1:
            while load_acquire(flags, 0) == 0:
                pass
            out[0] = data[0]

    arrays = np.zeros(20, np.int64), np.zeros(20, np.int32), np.zeros(20, np.int64)
    assert findings_of(pass_on[20, 32], arrays) == []
    arrays = [np.zeros(20, x.dtype) for x in arrays]
    found = findings_of(pass_plainly[2, 32], arrays)
    assert {re.search(r"(reads|changes) (\w+)\[0\]", text)[2] for _, text in found} == {"data", "flags"}, found


def test_named_barriers_order_only_those_that_meet():
    @cuda.jit
    def too_few(out):
        tile = cuda.shared.array(96, int32)
        tid = cuda.threadIdx.x
        tile[tid] = tid
        if tid < 64:
            named_barrier(1, 64)
        out[tid] = tile[(tid + 32) % 96] if tid < 64 else 0

    assert findings_of(exchange[1, 128], (np.zeros(128, np.int32),)) == []
    ((kind, message),) = findings_of(too_few[1, 96], (np.zeros(96, np.int32),))
    assert kind == "race" and "reads tile[64]" in message


@pytest.mark.skipif(on_gpu(), reason="how many registers there are to hand over is up to the compiler")
def test_registers_that_are_handed_over_change_nothing():
    @cuda.jit(launch_bounds=256)
    def hand_over(out):
        if cuda.threadIdx.x < 128:
            decrease_registers(40)
        else:
            increase_registers(232)
        out[cuda.threadIdx.x] = 1

    out = np.zeros(256, np.int32)
    assert findings_of(hand_over[1, 256], (out,)) == [] and out.all()


@pytest.mark.skipif(on_gpu(), reason="a GPU has one compute capability")
def test_an_older_device_names_what_it_lacks():
    kernel, arguments, _, _ = launch_product(product_pipeline(), 128, 64, 64)
    with warpstep.use_device("8.0"):
        with pytest.raises(TypingError, match=r"needs compute capability 9\.0, and the device has 8\.0"):
            kernel(*arguments)
        with pytest.raises(LaunchError, match=r"compute capability 9\.0, and the device has 8\.0"):
            tensor_map(cuda.to_device(np.zeros((64, 64), np.float16)), (8, 64))


# -- the emulator against a GPU ----------------------------------------------------------------------------------------


@pytest.mark.skipif(on_gpu(), reason="a GPU has one compute capability")
def test_each_product_of_a_warp_has_its_capability():
    @cuda.jit
    def multiply(a, b):
        mma((a[0], a[1]), (b[0],), zeros(4))

    with warpstep.use_device("7.5"), pytest.raises(TypingError, match=r"mma of float32 .* K = 4 needs .* 8\.0"):
        multiply[1, 32](*np.zeros((2, 2), np.float32))
    halves = np.zeros((2, 4), np.float16)

    @cuda.jit
    def multiply_halves(a, b):
        mma((a[0], a[1], a[2], a[3]), (b[0], b[1]), zeros(4))

    with warpstep.use_device("7.5"):
        multiply_halves[1, 32](*halves)
    with warpstep.use_device("7.0"), pytest.raises(TypingError, match=r"mma of float16 .* K = 8 needs .* 7\.5"):
        multiply_halves[1, 32](*halves)


@pytest.mark.gpu
@pytest.mark.skipif(not on_gpu(), reason="needs a GPU to compare with")
@pytest.mark.parametrize(("dtype", "columns", "trans_a", "trans_b", "registers", "row_bytes"), PRODUCTS)
def test_the_emulator_rounds_sums_as_the_gpu_does(dtype, columns, trans_a, trans_b, registers, row_bytes):
    """To the last bit; a trace runs on the emulator."""
    random = np.random.default_rng(columns)
    size = np.dtype(dtype).itemsize
    a, b = (numbers(random, dtype, (rows, 64 // size), exact=size == 1) for rows in (64, columns))
    kernel, nbytes = tile_multiplier(dtype, columns, trans_a, trans_b, registers, row_bytes)
    intrinsics.allow_dynamic_shared(kernel, nbytes)
    span = row_bytes // size
    left = np.concatenate([a[:, :span].ravel(), a[:, span:].ravel()]) if registers else as_tile(a, span, trans_a)
    results = [np.zeros((64, columns), np.int32 if size == 1 else np.float32) for _ in "12"]
    arguments = left, as_tile(b, span, trans_b)
    kernel[1, 128, 0, nbytes](*arguments, results[0])
    gpukit.trace(kernel[1, 128, 0, nbytes], *arguments, results[1])
    np.testing.assert_array_equal(*(x.view(np.uint32) for x in results))


@pytest.mark.skipif(on_gpu(), reason="a GPU ends the process")
@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ((0, 0), (0, -4), r"store_tensor copies a box to corner \(0, -4\)"),
        ((0, 3), (0, 0), "a box of a tensor of float32 begins at column 3"),
        ((0, 0), (5, 77), "a box of a tensor of float32 begins at column 77"),
    ],
)
def test_where_no_box_may_begin(source, target, message):
    arrays = [cuda.to_device(np.zeros((50, 80), np.float32)) for _ in "12"]
    maps = [tensor_map(array, (8, 32)) for array in arrays]
    out = np.zeros((1, 256), np.float32)
    with pytest.raises(KernelError, match=message):
        box_copier((8, 32), np.float32)[1, 64](maps[0], np.array([source]), np.array([target]), maps[1], out)


RECORDED_SUMS = np.load(Path(__file__).with_name("tensor_core_sums.npz"))


@pytest.mark.parametrize("name", sorted({key.rpartition(" ")[0] for key in RECORDED_SUMS.files}))
def test_sums_are_rounded_as_on_an_h200(name):
    """Random products that an H200 has added, of all kinds (wg: by `wgmma`), subnormal and infinite ones too."""
    a, b, c, sums = (RECORDED_SUMS[f"{name} {part}"] for part in ("a", "b", "c", "sums"))
    found = add_products(exact(a), exact(b), c)
    assert found.dtype == sums.dtype and found.tobytes() == sums.tobytes()


@pytest.mark.skipif(on_gpu(), reason="has not been tried on a GPU")
def test_boxes_begin_in_any_row_and_one_after_the_other():
    random = np.random.default_rng(4)
    source = random.standard_normal((50, 80)).astype(np.float16)
    corners = np.array([[-3, -8], [45, 72], [-16, 16], [0, 0]])
    array, target = (cuda.to_device(x) for x in (source, np.zeros_like(source)))
    out = np.zeros((4, 16 * 64), np.float16)
    maps = tensor_map(array, (16, 64)), tensor_map(target, (16, 64))
    box_copier((16, 64), np.float16)[1, 64](maps[0], corners, np.zeros_like(corners), maps[1], out)
    for row, corner in zip(out, corners.tolist(), strict=True):
        np.testing.assert_array_equal(row.reshape(16, 64), swizzled(box_of(source, corner, (16, 64))[0]))


def test_what_some_threads_have_told_one_it_passes_on_to_other_blocks():
    def announced(barrier):
        @cuda.jit
        def announce(data, flags, out):
            tid, block = cuda.threadIdx.x, cuda.blockIdx.x
            if block == 0 and tid < 64:
                data[tid] = tid
                if barrier:
                    named_barrier(1, 64)
                if tid == 0:
                    store_release(flags, 0, 1)
            if block == 1 and tid == 0:
                while load_acquire(flags, 0) == 0:
                    pass
                for i in range(64):
                    out[i] = data[i]

        return announce[2, 96], [np.zeros(64, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)]

    assert findings_of(*announced(True)) == []
    ((kind, message),) = findings_of(*announced(False))
    assert kind == "race" and "reads data[1] " in message
