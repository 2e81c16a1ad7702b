"""The number formats that tensor cores multiply, and how kernels hold them."""

from typing import Any, NamedTuple

from gpukit.backend import float32, int32, types

__all__ = ["FORMATS", "ROW", "Format"]

#: Bytes of a row of a tile in shared memory, as `wgmma` reads it; and of K of one instruction.
ROW, INSTRUCTION = 128, 32


class Format(NamedTuple):
    """A format of the operands' elements.

    Attributes
    ----------
    element, total, result : Numba type
        Of an element in memory, of a sum, and of an element of the result. bfloat16 is held as uint16.
    itemsize : int
    turns : bool
        Whether tensor cores read tiles that lie across K too.
    """

    element: Any
    total: Any
    result: Any
    itemsize: int
    turns: bool

    @property
    def depth(self) -> int:
        """K of a step: the elements of a row."""
        return ROW // self.itemsize

    @property
    def small(self) -> int:
        """K of an instruction."""
        return INSTRUCTION // self.itemsize


FORMATS = {
    "float16": Format(types.float16, float32, types.float16, 2, True),
    "bfloat16": Format(types.uint16, float32, types.uint16, 2, True),
    "tf32": Format(float32, float32, float32, 4, False),
    "int8": Format(types.int8, int32, int32, 1, False),
}
