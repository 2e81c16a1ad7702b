"""Randomly written CUDA kernels, as Python source, with the error that their floating point may have.

``generate(random)`` writes one, from a seed or from hypothesis, which then shrinks it. A kernel has no data race and no
undefined behaviour (no signed integer overflows), so two machines that run it must agree: on every bit of integers, and
on floats within the error bound that the writer carries along with each expression (a device may fuse a*b+c). A float
that is not exact feeds no branch, no index and no integer.

Run as a script on a GPU machine, this file compares the GPU with the emulator in bulk; ``--help`` lists the options.
"""

import argparse
import math
import random as python_random
import sys
from itertools import product

import device_runs
from kernels.bounds import Value, cast, integer
from kernels.cases import Case, Code
from kernels.cooperation import Cooperation, types_of
from kernels.statements import Statements
from numba.cuda import types
from numba.cuda.np import numpy_support

FLAT_BLOCKS = ((1, 1, 1), (7, 1, 1), (32, 1, 1), (33, 1, 1), (40, 1, 1), (64, 1, 1), (96, 1, 1))
DEEP_BLOCKS = ((8, 4, 1), (5, 7, 1), (16, 3, 1), (32, 2, 1), (4, 3, 2), (2, 3, 7), (8, 2, 4), (1, 40, 1), (1, 1, 33))
GRIDS = ((1, 1, 1), (2, 1, 1), (3, 1, 1), (5, 1, 1), (2, 2, 1), (1, 3, 1), (2, 1, 3), (1, 2, 2))

#: Variables that every kernel starts with: name, expression, type. The linear ones are int64, as Numba computes them.
INDICES = (
    *((f"t{a}", f"cuda.threadIdx.{a}", types.int32) for a in "xyz"),
    *((f"b{a}", f"cuda.blockIdx.{a}", types.int32) for a in "xyz"),
    ("t", "tx + cuda.blockDim.x * (ty + cuda.blockDim.y * tz)", types.int64),
    ("b", "bx + cuda.gridDim.x * (by + cuda.gridDim.y * bz)", types.int64),
    ("i", "t + b * {threads}", types.int64),
    ("lane", "{lane}", types.int32),
)


def start(random, name):
    """A writer with a launch configuration, the thread indices as variables, and some scalar arguments."""
    writer = Statements(random, Case(name))
    case = writer.case
    case.block, case.grid = writer.pick(*FLAT_BLOCKS, *DEEP_BLOCKS), writer.pick(*GRIDS)
    threads = math.prod(case.block)
    writer.total = threads * math.prod(case.grid)
    flat = case.block[1:] == case.grid[1:] == (1, 1)
    filled = {"threads": threads, "lane": writer.pick("cuda.laneid", "np.int32(t % 32)")}
    for variable, expression, type_ in INDICES:
        expression = "cuda.grid(1)" if variable == "i" and flat else expression.format(**filled)
        case.prologue.append((variable, expression, type_))
        writer.env[variable] = integer(variable, type_, 0, writer.total)
    for k in range(writer.number(0, 2)):
        type_ = writer.pick(types.int64, types.int32, types.uint8, types.float64, types.float32)
        number = writer.number(0 if type_ == types.uint8 else -20, 20)
        value = numpy_support.as_dtype(type_).type(number)
        case.scalars.append((f"g{k}", value.item() if type_ in (types.int64, types.float64) else value))
        writer.env[f"g{k}"] = Value(f"g{k}", type_, number, number)
    return writer


def save_all(writer):
    """Store what the variables and local arrays hold at the end."""
    for name, type_, shape in writer.locals:
        for at in product(*(range(n) for n in shape)):
            writer.save(writer.local_element(name, type_, ", ".join(map(str, at))))
    for name in [n for n in writer.env if n.startswith("v")]:
        writer.save(writer.env[name])


def independent(random, name):
    """A kernel of threads that do not wait for each other."""
    writer = start(random, name)
    if writer.chance(60):
        writer.total = writer.number(1, writer.total)
        writer.case.scalars.append(("n", writer.total))
        writer.write("if i >= n:")
        writer.write("    return")
    writer.may_return = writer.chance(30)
    writer.budget = writer.number(6, 26)
    before = types_of(writer.env)
    for _ in range(writer.pick(0, 0, 1, 2)):
        writer.local_array()
    while writer.budget > 0:
        writer.statement(3)
    if writer.chance(20):
        grid_stride_loop(writer)
    save_all(writer)
    writer.case.nodes.append(Code(writer.lines, before, {}))
    return writer.case


def grid_stride_loop(writer):
    """Every element of an array of another size than the grid gets written."""
    case = writer.case
    data = writer.contents((writer.number(1, 300),), types.int32)
    array = writer.add_argument("q", data, written=True)
    size = math.prod(case.block) * math.prod(case.grid)
    writer.write(f"for j in range(i, {array.name}.size, {size}):")
    writer.write(f"    {array.name}[j] {writer.pick('=', '+=')} {cast(writer.integer(2), types.int32).text} + j")


def cooperative(random, name):
    """A kernel of threads that meet at barriers and exchange values."""
    cooperation = Cooperation(start(random, name))
    writer, nodes = cooperation.w, cooperation.case.nodes
    for _ in range(writer.number(2, 5)):
        writer.budget = 8
        cooperation.step(nodes, 2)
    cooperation.code()
    save_all(writer)
    cooperation.flush(nodes)
    return writer.case


def generate(random, name="random"):
    """A random kernel.

    Parameters
    ----------
    random : int or random.Random
        A seed, or anything with ``randrange`` and ``randint``.

    Returns
    -------
    kernels.cases.Case
    """
    if isinstance(random, int):
        random = python_random.Random(random)
    return (independent if random.randrange(100) < 55 else cooperative)(random, name)


# The command line


def _parser():
    parser = argparse.ArgumentParser(
        description="Run random kernels in the emulator, with --gpu on a GPU too; compare."
    )
    parser.add_argument("--gpu", action="store_true", help="compare with the GPU; else the kernels only have to run")
    parser.add_argument("--count", type=int, default=100, help="number of kernels (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first kernel; the others follow (default 1)")
    parser.add_argument("--table", nargs="*", metavar="TEXT", help="the written kernels instead, those named like TEXT")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--jobs", type=int, help="processes at once")
    parser.add_argument("--report", metavar="FILE", help="write what is not equal to FILE as JSON")
    parser.add_argument("--show", action="store_true", help="only print the kernel of --seed")
    return parser


def main(arguments=None):
    options = _parser().parse_args(arguments)
    if options.show:
        print(generate(options.seed).source)
        return 0
    cases = [f"random:{seed}" for seed in range(options.seed, options.seed + options.count)]
    if options.table is not None:
        cases = [c for c in device_runs.table() if not options.table or any(text in c for text in options.table)]

    def progress(case, answer, done):
        if answer["status"] not in device_runs.GOOD or done % 100 == 0:
            print(f"[{done}/{len(cases)}] {case} {answer['status']}", flush=True)

    answers = device_runs.run_all(cases, options.gpu, options.jobs, options.minutes, progress)
    print(device_runs.summary(answers))
    if options.report:
        device_runs.write_report(options.report, answers)
    return 0 if all(answer["status"] in device_runs.GOOD for answer in answers.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
