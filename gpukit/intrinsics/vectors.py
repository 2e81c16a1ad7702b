"""Device functions that load or store a given number of neighbouring elements, in as few accesses as there can be."""

import functools

from gpukit.backend import cuda, uint64
from gpukit.intrinsics.functions import load2, load4, load8, load16, store2, store4

__all__ = ["make_load", "make_store"]


@functools.cache
def make_load(vector: int):
    """Make ``load(x, at)``: a tuple of 1, 2, 4, 8 or 16 neighbouring elements, in one access."""
    if vector > 1:
        return {2: load2, 4: load4, 8: load8, 16: load16}[vector]

    @cuda.jit(device=True)
    def load(x, at):
        return (x[at],)

    return load


@functools.cache
def make_store(vector: int, itemsize: int):
    """Make ``store(out, at, tile, place)``: 1, 2 or 4 elements of a tile, in accesses of at most 16 bytes."""
    if vector == 4 and itemsize <= 4:

        @cuda.jit(device=True)
        def store(out, at, tile, place):
            store4(out, at, tile[place], tile[place + 1], tile[place + 2], tile[place + 3])

        return store
    if vector > 1:

        @cuda.jit(device=True)
        def store(out, at, tile, place):
            for v in range(0, vector, 2):
                store2(out, at + uint64(v), tile[place + v], tile[place + v + 1])

        return store

    @cuda.jit(device=True)
    def store(out, at, tile, place):
        out[at] = tile[place]

    return store
