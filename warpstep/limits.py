"""Constants of the hardware that hold for every device. What differs by device is in `warpstep.device`."""

__all__ = ["BANKS", "GROUP", "LINE", "MAX_GRID_YZ", "POISON", "SECTOR", "SHARED_ALIGNMENT", "WARP", "WORD"]

#: Lanes of a warp, and threads of a group of four warps, which multiply tiles together.
WARP, GROUP = 32, 128
#: Banks of shared memory, and bytes of the word that each serves.
BANKS, WORD = 32, 4
#: Each shared array, and dynamic shared memory, begins at a multiple of so many bytes.
SHARED_ALIGNMENT = 16
#: Bytes of a sector, the unit in which global memory moves, and of a cache line of four sectors.
SECTOR, LINE = 32, 128
#: Blocks along y and z of a grid, at most.
MAX_GRID_YZ = 65535
#: The byte that fresh memory is filled with on the emulator: NaN in every float type, -1 in every signed integer.
POISON = 0xFF
