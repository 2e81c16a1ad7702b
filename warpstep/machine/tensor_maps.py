"""Descriptions of tensors for copies of boxes, as the emulated device holds them: 128 bytes of its own form."""

import struct
from typing import NamedTuple

#: Bytes of a description, what it begins with, and its format: address, type, axes, swizzle; then five of each extent,
#: stride and extent of the box; then `Windows`, of which a step is 0 if there are none.
NBYTES = 128
MAGIC = b"warpmap\0"
FORMAT = "<8sQ3sBH5Q5Q5H6h"
#: Elements that it may have.
ELEMENTS = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
#: Bytes of the rows that are swizzled.
SWIZZLES = (32, 64, 128)


class Windows(NamedTuple):
    """Where windows on images begin: from ``top`` and ``left`` on, and as far beyond the last row and column as
    ``bottom`` and ``right`` say, in steps of ``down`` and ``across``.
    """

    top: int
    left: int
    bottom: int
    right: int
    down: int
    across: int

    def counts(self, shape: tuple) -> tuple[int, int]:
        """Windows down and across images of a shape (N, H, W, C)."""
        _, height, width, _ = shape
        down = (height - 1 + self.bottom - self.top) // self.down + 1
        return down, (width - 1 + self.right - self.left) // self.across + 1


class TensorMap(NamedTuple):
    """A tensor and a box of it, in the order of the array's axes; strides are in bytes.

    With ``windows`` the box is (1, 1, pixels, channels): one pixel of so many windows, which follow one another.
    """

    address: int
    dtype: str
    shape: tuple
    strides: tuple
    box: tuple
    swizzle: int
    windows: Windows | None = None

    def to_bytes(self) -> bytes:
        count = len(self.shape)
        filled = (tuple(part) + (0,) * (5 - count) for part in (self.shape, self.strides, self.box))
        parts = (self.address, self.dtype.encode(), count, self.swizzle)
        numbers = (*(n for part in filled for n in part), *(self.windows or (0,) * 6))
        return struct.pack(FORMAT, MAGIC, *parts, *numbers).ljust(NBYTES, b"\0")

    @classmethod
    def from_bytes(cls, data: bytes) -> "TensorMap | None":
        """Read a description; None if these bytes are none."""
        if len(data) < NBYTES or data[:8] != MAGIC:
            return None
        _, address, dtype, count, swizzle, *rest = struct.unpack_from(FORMAT, data)
        shape, strides, box = (tuple(rest[i : i + count]) for i in (0, 5, 10))
        windows = Windows._make(rest[15:]) if rest[-1] else None
        return cls(address, dtype.decode(), shape, strides, box, swizzle, windows)
