"""In which order blocks compute the tiles of a result."""

from gpukit.backend import cuda, uint32

__all__ = ["RASTER", "spread"]

#: Rows of tiles that consecutive blocks share: they read the same parts of ``b`` while these are in the L2 cache. As
#: many blocks as an H200 runs at a time then make a square: with 4, a product of 8192 takes 2 % longer.
RASTER = 16


@cuda.jit(device=True, forceinline=True)
def spread(number, down, across):
    """Row and column of tile ``number`` of so many rows and columns of them: down `RASTER` rows, then in the next
    column.
    """
    band = uint32(across * uint32(RASTER))
    above = uint32(number // band * uint32(RASTER))
    inside, high = uint32(number % band), uint32(down - above)
    if high >= uint32(RASTER):  # a power of two: no division
        return uint32(above + inside % uint32(RASTER)), uint32(inside // uint32(RASTER))
    high = max(high, uint32(1))  # after the last tile
    return uint32(above + inside % high), uint32(inside // high)
