"""Which tile, and how many parts of K, for a product of a given shape."""

import functools

from gpukit.matmul.fast_kernel import Tile

__all__ = ["TILES", "choose"]

TILES = {
    "128x256": Tile(128, 256, 8, 8, 16, 4, 3),
    "128x128": Tile(128, 128, 8, 8, 8, 4, 4),
    "64x64": Tile(64, 64, 16, 8, 8, 4, 4, 2),
    "32x32": Tile(32, 32, 32, 4, 4, 4, 3, 4),
}


@functools.lru_cache(1024)
def choose(m, n, k, batch, aligned, multiprocessors):
    """(Tile, parts of K)."""
    for tile in TILES.values():
        blocks = -(-m // tile.rows) * -(-n // tile.columns) * batch
        if blocks >= multiprocessors // 2:
            return tile, 1
    parts = min(max(1, multiprocessors // blocks), max(1, k // (4 * tile.depth)))
    return tile, parts
