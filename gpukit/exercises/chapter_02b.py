"""Exercises of chapter 02b, errors."""

from math import prod

from gpukit import results
from gpukit.exercises.exercise import AnswerExercise, Case, FunctionExercise, Wrong
from warpstep.device import current

# -- 02b-fits -------------------------------------------------------------------------------------------------------


def launches(rng):
    grids = [(1, 1, 1), (64, 64, 1), (2**31 - 1, 1, 1), (2**31, 1, 1), (1, 65535, 1), (1, 65536, 1), (1, 1, 70_000)]
    grids += [(100_000, 1, 1), (0, 1, 1), (4, 0, 4), (100_000, 60_000, 1)]
    blocks = [(32, 32, 1), (64, 64, 1), (1024, 1, 1), (1025, 1, 1), (1, 1, 64), (1, 1, 128), (1, 1024, 1), (16, 16, 4)]
    blocks += [(0, 16, 1), (8, 8, 17)]
    for grid in grids:
        yield Case((grid, (256, 1, 1)), label=f"grid {grid}, block (256, 1, 1)")
    for block in blocks:
        yield Case(((2, 2, 2), block), label=f"grid (2, 2, 2), block {block}")


def fits(grid, block):
    # HOLE about 4 lines: return True if the device takes this launch, else False. The limits are in the table above
    if min(*grid, *block) < 1 or prod(block) > 1024:
        return False
    limits = (2**31 - 1, 65535, 65535, 1024, 1024, 64)
    return all(size <= limit for size, limit in zip((*grid, *block), limits, strict=True))
    # END


def fits_by_axis(grid, block):
    threads = 1
    for axis in range(3):
        if grid[axis] <= 0 or block[axis] <= 0:
            return False
        if grid[axis] > (65535 if axis else 2147483647) or block[axis] > (64 if axis == 2 else 1024):
            return False
        threads *= block[axis]
    return threads <= 1024


def may_launch(grid, block):
    """The specification, from what the device says of itself."""
    limits = current()
    return bool(
        all(1 <= size <= limit for size, limit in zip(grid, limits.max_grid_dim, strict=True))
        and all(1 <= size <= limit for size, limit in zip(block, limits.max_block_dim, strict=True))
        and prod(block) <= limits.max_threads_per_block
    )


FITS = FunctionExercise(
    "02b-fits",
    task="Tell whether a launch of this grid and this block, three sizes each, keeps the limits of the device.",
    spec=may_launch,
    cases=launches,
    solutions=[fits, fits_by_axis],
    wrong=[
        Wrong(
            "64 x 64 x 1 keeps each limit of its dimensions, but these are 4096 threads, and a block has 1024 at most.",
            {" or prod(block) > 1024": ""},
        ),
        Wrong(
            "A block is at most 64 threads deep in z, however few it has in all.",
            {"1024, 1024, 64)": "1024, 1024, 1024)"},
        ),
        Wrong(
            "Only x of the grid goes up to 2**31 - 1; y and z end at 65,535.",
            {"65535, 65535, 1024": "2**31 - 1, 2**31 - 1, 1024"},
        ),
        Wrong("The limits may be reached: compare with <=.", {"size <= limit": "size < limit", "> 1024": ">= 1024"}),
        Wrong("A launch of no blocks or no threads is refused as well.", {"min(*grid, *block) < 1 or ": ""}),
        Wrong("x of the grid goes up to 2**31 - 1, since compute capability 3.0.", {"(2**31 - 1,": "(65535,"}),
        Wrong(
            "The number of blocks in all has no limit of its own; each dimension has.",
            {"prod(block) > 1024": "prod(block) > 1024 or prod(grid) > 2**31 - 1"},
        ),
    ],
    hints=[
        "There are seven limits: one for each dimension of grid and block, and one for the threads of a block in all.",
        "And a size of 0 is refused too. math.prod(block) is the number of threads.",
    ],
    why="A block has at most 1024 threads in all, and 64 in z. A grid has at most 65,535 blocks in y and z.",
)


# -- 02b-when -------------------------------------------------------------------------------------------------------


def when():
    """When a GPU reports each mistake, as recorded; a grid that is too small keeps all limits."""
    told = {r["mistake"]: r["stage"] for r in results.load("errors-h200", backend="gpu", checked=False)}
    words = {"launch": "at once", "synchronize": "later", "nowhere": "never"}
    mistakes = ("block_too_large", "far_out_of_bounds", "past_the_end")
    return (*(words[told[mistake]] for mistake in mistakes), "never")


WHEN = AnswerExercise(
    "02b-when",
    task="Predict when a GPU reports each of the four mistakes: at once, later or never.",
    spec=when,
    variable="my_when",
    wrong=[
        Wrong(
            "An index a little past the end mostly hits memory that belongs to something else, and nobody notices.",
            ("at once", "later", "later", "never"),
        ),
        Wrong(
            "A launch only queues the kernel, so what goes wrong inside it shows later, when the host waits.",
            ("at once", "at once", "never", "never"),
        ),
        Wrong(
            "A grid that is too small breaks no limit: the launch is legal.", ("at once", "later", "never", "at once")
        ),
        Wrong(
            "A block of 4096 threads breaks a limit, and limits are checked at the launch.",
            ("later", "later", "never", "never"),
        ),
    ],
    hints=[
        "What does the driver know at the launch: the sizes of grid and block. What does it not know: the indices.",
        "Hardware notices an address that no allocation has. Does every index past the end have such an address?",
    ],
    why="Limits are checked at the launch. Wild addresses stop the kernel, and the host learns of it when it waits.\n"
    "An element past the end, or a missing block, is nothing that the hardware could notice.",
)

EXERCISES = [FITS, WHEN]
