"""Tiles of matrices: what loads, copies, multiplies and stores them in the way of tensor cores.

A *tile* is a C-contiguous array in shared memory; its last axis is a row. The rows of what `wgmma` reads have 32, 64 or
128 bytes, and the row's length is also how the tile is swizzled: in a tile with rows of 128 bytes, the 16 bytes at
place p of row r are at place p ^ (r % 8). With rows of 64 bytes that is p ^ (r // 2 % 4), of 32 bytes p ^ (r // 4 % 2).
Rows of 16 bytes are not swizzled. `copy_tensor` swizzles as it copies, by the `tensor_map`. The pattern belongs to the
addresses: a tile starts at a multiple of 8 rows, 1,024 bytes if they have 128.

The type of the elements decides how they are multiplied: float16, float32 (as TF32), int8, and uint16 for bfloat16.
Kernels of Numba hold a bfloat16 as the bits of a uint16, the upper half of a float32's: view a PyTorch tensor as
``torch.uint16``, an array of `ml_dtypes` as ``numpy.uint16``.
"""
