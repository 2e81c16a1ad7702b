"""``gpukit bench code``: print registers, occupancy and instructions of compiled matrix products or convolutions.

No GPU is needed, but the libraries that Numba compiles with, which the extras ``cu12`` and ``cu13`` bring, and
``nvdisasm``, from a CUDA toolkit or from ``pip install nvidia-cuda-nvdisasm``. The kernels are compiled in a child
process, where gpukit uses ``numba.cuda`` even without a GPU.
"""

import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from bench import _child
from gpukit import results
from warpstep.integers import ceil_div
from warpstep.limits import WARP
from warpstep.report.table import Table

__all__ = ["find_tool", "inner_loops", "loop_of", "measure", "mix", "occupancy", "opcode", "resources"]

#: The compute capability to compile for.
TARGET = (9, 0)
#: The instruction set: that of this capability alone, as numba-cuda compiles for a device of it.
INSTRUCTIONS = (*TARGET, "a")
#: Limits of its multiprocessors: registers, bytes of shared memory, bytes of it that the system reserves per block,
#: threads, blocks.
REGISTERS, SHARED, SYSTEM, THREADS, BLOCKS = 65536, 227 * 1024, 1024, 2048, 32
#: Registers are allocated in units of 8 per thread, or 256 per warp.
UNIT = 8
#: Attributes of a compiled kernel, and the format of those with a size.
REGISTER_COUNT, FRAME_SIZE, SIZED = 0x2F, 0x11, 4
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
LABEL = re.compile(r"^(\.L_x_\d+):")
BRANCH = re.compile(r"BRA(?:\.\S+)?\s.*`\((\.L_x_\d+)\)")
#: What a loop with most of the work has most of.
MULTIPLIES = re.compile(r"FFMA|MMA\b|MMA\.")
#: Groups of instructions by the prefixes of their names; the first group that fits counts.
GROUPS = {
    "multiply-add": ("FFMA",),
    "tensor cores": ("HMMA", "IMMA", "DMMA", "HGMMA", "IGMMA"),
    "shared, 16 bytes": ("LDS.128", "STS.128"),
    "shared, less": ("LDS", "STS"),
    "copies": ("LDGSTS",),
    "global": ("LDG", "STG"),
    "local": ("LDL", "STL"),
    "float64": ("DADD", "DMUL", "DFMA", "DSETP", "F2F.F64", "F2F.F32.F64"),
    "barriers": ("BAR",),
}


def find_tool(name):
    """Find a tool of the CUDA toolkit in a wheel or on the PATH; None if it is not there."""
    wheels = Path(sysconfig.get_paths()["purelib"], "nvidia").glob(f"*/bin/{name}")
    return next(map(str, wheels), None) or shutil.which(name)


def occupancy(registers, shared, threads):
    """Return the resident blocks of a multiprocessor, and its occupancy."""
    per_block = ceil_div(registers, UNIT) * UNIT * ceil_div(threads, WARP) * WARP
    blocks = min(REGISTERS // per_block, SHARED // (shared + SYSTEM), THREADS // threads, BLOCKS)
    return blocks, blocks * threads / THREADS


def inner_loops(disassembly):
    """List the instructions of each innermost loop."""
    code, labels = [], {}
    for line in disassembly.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(code)
        elif found := INSTRUCTION.match(line):
            code.append(found[1])
    loops = []
    for last, text in enumerate(code):
        branch = BRANCH.search(text)
        if branch and labels.get(branch[1], last + 1) < last:
            loops.append((labels[branch[1]], last))
    inner = [loop for loop in loops if not any(loop[0] <= a and b <= loop[1] and (a, b) != loop for a, b in loops)]
    return [code[first : last + 1] for first, last in inner]


def loop_of(disassembly):
    """Return the instructions of the inner loop with the most multiply-adds, or products of tensor cores; [] without
    one.
    """
    return max(inner_loops(disassembly), key=lambda loop: sum(map(bool, map(MULTIPLIES.search, loop))), default=[])


def opcode(instruction):
    """Return the opcode of an instruction, without its predicate: "LDS.128" of ``@!P0 LDS.128 R4, [R8]``."""
    return re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0]


def mix(code):
    """Count instructions by group; those of no group are "other", and those that never run are left out."""
    counts = dict.fromkeys((*GROUPS, "other"), 0)
    for text in code:
        if text.startswith("@!PT "):
            continue
        name = opcode(text)
        counts[next((group for group, starts in GROUPS.items() if name.startswith(starts)), "other")] += 1
    return counts


def resources(binary):
    """Read registers, bytes of local memory and bytes of static shared memory of a kernel from its ELF file.

    The section .nv.info is a list of attributes: a format, a name, the size of what follows, the number of a symbol and
    a value.
    """
    (start,), (size, count, strings) = struct.unpack_from("<Q", binary, 0x28), struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", binary, start + i * size) for i in range(count)]
    sections = {}
    for name, _, _, _, offset, length in headers:
        first = headers[strings][4] + name
        sections[binary[first : binary.index(b"\0", first)].decode()] = offset, length
    found, (at, length) = {}, sections[".nv.info"]
    stop = at + length
    while at < stop:
        kind, name, more = struct.unpack_from("<BBH", binary, at)
        if kind == SIZED and more == 8:
            found[name] = struct.unpack_from("<I", binary, at + 8)[0]
        at += 4 + (more if kind == SIZED else 0)
    shared = sum(n for name, (_, n) in sections.items() if name.startswith(".nv.shared.") and "reserved" not in name)
    return found[REGISTER_COUNT], found.get(FRAME_SIZE, 0), max(0, shared - SYSTEM)


# -- in the child process --------------------------------------------------------------------------


def force_numba_backend():
    """Make gpukit use numba.cuda, and Numba compile for `TARGET`, without a device; before any kernel is imported."""
    import numba.cuda.codegen
    import numba.cuda.dispatcher
    from numba import cuda

    from gpukit import backend

    backend.cuda, backend.NAME = cuda, "gpu"
    device = SimpleNamespace(compute_capability=TARGET)
    numba.cuda.dispatcher.get_current_device = lambda: device
    numba.cuda.codegen.devices = SimpleNamespace(get_context=lambda: SimpleNamespace(device=device))


def compile_chapter(chapter, variants):
    """Compile the kernels of a chapter, or those with these names; return a record of each."""
    force_numba_backend()
    return [_compiled(*kernel) for kernel in CHAPTERS[chapter]() if not variants or kernel[0] in variants]


def products():
    """List (variant, tile or None) of all products; those with tiles are in the form for aligned rows."""
    from gpukit import matmul
    from gpukit.matmul.cost import SPEEDS

    return [(variant, None) for variant in ("naive", "tiled", *matmul.LADDER[:-1])] + [
        ("fast", speed.tile) for speed in SPEEDS
    ]


def blocked_convolutions():
    """List (variant, (out channels, rows) of a thread): its sums, from one to more than there are registers."""
    return [("blocked", (6, rows)) for rows in (1, 4, 8, 16, 24, 32, 40)]


def tensor_products():
    """List (variant, tile) of the products on tensor cores: bfloat16, float32 as TF32 with an operand across K."""
    from gpukit.matmul.cost import TENSOR_SPEEDS
    from gpukit.matmul.shallow import ShallowTile
    from gpukit.matmul.sliced import SlicedTile
    from gpukit.matmul.small import SmallTile

    names = {"groups": "warpgroups", "few": "warpgroups", "across a": "turned", "across b": "turned"}
    names["loaded"] = "loaded"
    small = {SmallTile: "small", ShallowTile: "shallow", SlicedTile: "sliced"}
    found = [
        (names.get(kind) or small.get(type(speed.tile), "warps"), speed.tile)
        for kind, speeds in TENSOR_SPEEDS.items()
        for speed in speeds
    ]
    return list(dict.fromkeys(found))


#: Those products, by kernel.
TENSOR_PRODUCTS = ("warpgroups", "loaded", "turned", "warps", "small", "shallow", "sliced")
#: Kernels to compile, by chapter.
CHAPTERS = {"fast_matmul": products, "conv": blocked_convolutions, "tensor": tensor_products}


def kernel_of(variant, tile):
    """Return (kernel, types of its arguments, threads) of a product or a convolution."""
    from numba.cuda import types

    from gpukit import matmul
    from gpukit._numba import argument_type
    from gpukit.matmul import ladder, operands
    from gpukit.matmul.fast import sizes_of

    number = types.float32
    if variant == "blocked":
        return _blocked_convolution(tile)
    if variant in TENSOR_PRODUCTS:
        return _tensor_product(variant, tile)
    matrices = (types.Array(number, 2, "C"),) * 3
    if variant == "naive":
        return matmul.naive, matrices, 256
    if variant == "tiled":
        return matmul.tiled(number, 16), matrices, 256
    if variant == "fast":
        one, flat = operands.Operand(None, "N", 1, 0, (1, 1), True), types.Array(number, 1, "C")
        found = sizes_of(tile, 1, 1, 1, (1, 1, 1)), operands.which_of(0, one, one), operands.steps_of(one, one)
        sizes, which, steps = map(argument_type, found)
        wide = tile.thread_columns < 16  # as for large K
        return matmul.fast(tile, True, wide), (flat, flat, flat, sizes, which, steps, number, number), tile.threads
    kernel = matmul.VARIANTS[variant](number if variant.startswith("registers") else True)
    return kernel, matrices, ladder.THREADS_1D if variant == "registers_1d" else ladder.THREADS


def _tensor_product(variant, tile):
    from numba.cuda import types

    from gpukit._numba import argument_type
    from gpukit.matmul import loaded, shallow, sliced, small, warpgroups, warps
    from gpukit.matmul.raster import make_order

    word, map_type = types.uint32, types.Array(types.uint8, 1, "C")
    order = argument_type(make_order(1, 1, 1, 1, 1, ((1, 1), (1, 1))))
    factors = types.UniTuple(types.float32, 2)
    pair = types.UniTuple(word, 2)
    numbers = pair, order, pair, factors, types.Array(types.float32, 1, "C")
    if variant == "turned":
        layout = "NN" if tile.columns == warpgroups.GROUP_ROWS * tile.groups else "TT"  # b across K, or a
        kernel = warpgroups.warpgroups(tile, "tf32", layout, True, True)
        return kernel, (map_type, map_type, types.Array(types.float32, 1, "C"), *numbers), tile.threads
    out, flat = types.Array(word, 1, "C"), types.Array(types.uint16, 1, "C")
    if variant == "warpgroups":
        out = types.Array(types.uint16, 1, "C") if tile.swapped else out
        kernel = warpgroups.warpgroups(tile, "bfloat16", "NN", False, True)
        return kernel, (map_type, map_type, out, *numbers), tile.threads
    steps, sizes = types.UniTuple(types.uint64, 2), types.UniTuple(word, 5)
    if variant == "warps":
        kernel = warps.warps(tile, "bfloat16", "NN", False, True)
        return kernel, (flat, flat, out, sizes, types.UniTuple(word, 5), steps, factors), tile.threads
    steps = types.UniTuple(types.uint64, 4)
    if variant == "shallow":
        return (
            shallow.shallow(tile, "bfloat16", "NN", False, True),
            (flat, flat, out, sizes, order, steps, factors),
            tile.threads,
        )
    more = factors, types.Array(types.float32, 1, "C"), types.Array(word, 1, "C")
    if variant == "sliced":
        kernel = sliced.sliced(tile, "bfloat16", "NN")
        return kernel, (flat, flat, flat, sizes, order, steps, *more), tile.threads
    words = types.Array(word, 1, "C")
    operands = flat, flat, words, words, out, types.UniTuple(word, 7), order, steps
    if variant == "loaded":
        return loaded.loaded(tile, "bfloat16", "NN", False, True), (*operands, *more[:2]), tile.threads
    return small.small(tile, "bfloat16", "NN", False, True), (*operands, *more), tile.threads


def _blocked_convolution(sums):
    from numba.cuda import types

    from gpukit.conv import ladder

    divisor = types.NamedUniTuple(types.uint32, 3, ladder.Divisor)
    scalars = {"Divisor": divisor, "uint32": types.uint32, "bool": types.boolean}
    fields = [scalars[kind.__name__] for kind in ladder.Sizes.__annotations__.values()]
    images, bias = types.Array(types.float32, 4, "C"), types.Array(types.float32, 1, "C")
    arguments = images, images, bias, images, types.NamedTuple(fields, ladder.Sizes)
    return ladder.blocked(*sums), arguments, ladder.BLOCKED[0] * ladder.BLOCKED[1]


def _compiled(variant, tile):
    """Compile a kernel; return its record."""
    from numba.cuda.dispatcher import _Kernel

    kernel, arguments, threads = kernel_of(variant, tile)
    began = time.perf_counter()
    binary = _Kernel(kernel.py_func, arguments, **kernel.targetoptions)._codelibrary.get_cubin(cc=INSTRUCTIONS).code
    seconds, (registers, local, shared) = time.perf_counter() - began, resources(binary)
    if variant in TENSOR_PRODUCTS:
        shared += tile.shared_bytes
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        done = subprocess.run([find_tool("nvdisasm"), "-c", file.name], capture_output=True, text=True, check=True)
    blocks, share = occupancy(registers, shared, threads)
    shape = tile and (f"{tile.rows} x {tile.columns}" if hasattr(tile, "rows") else f"{tile[0]} x {tile[1]}")
    record = {"variant": variant, "tile": shape, "threads": threads, "seconds": seconds}
    record |= {"registers": registers, "local": local, "shared": shared, "blocks": blocks, "occupancy": share}
    return record | {"loop": mix(loop_of(done.stdout))}


# -- the command -----------------------------------------------------------------------------------


def measure(variants=(), report=print, chapter="fast_matmul"):
    """Compile kernels of a chapter and examine their machine code.

    Parameters
    ----------
    variants : sequence of str
        "naive", "tiled", or of ``matmul.LADDER``; "blocked" of ``conv``; one of `TENSOR_PRODUCTS` of ``tensor``.
        None for all of the chapter.
    report : callable
    chapter : str
        "fast_matmul"; "tensor": the products of `matmul.matmul` on tensor cores; or "conv":
        `gpukit.conv.ladder.blocked` with more and more sums per thread.

    Returns
    -------
    list of dict
        For each kernel "variant", "tile", "threads", "seconds" to compile it, "registers" per thread, bytes of "local"
        memory, to which registers are spilled, bytes of "shared" memory, resident "blocks" of a multiprocessor, its
        "occupancy", and "loop": the number of instructions of each kind in the loop with most of the work.

    Raises
    ------
    FileNotFoundError
        If nvdisasm is missing.
    RuntimeError
        If the kernels cannot be compiled; the message has the compiler's.
    """
    if find_tool("nvdisasm") is None:
        raise FileNotFoundError("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    child = _child.run(compile_chapter, chapter, list(variants), environment={"GPUKIT_BACKEND": "emulator"})
    if not child.answers:
        raise RuntimeError(f"the kernels could not be compiled:\n{child.output}")
    records = child.answers[-1]
    report(_table(records))
    return records


def _table(records):
    shown = ("multiply-add", "tensor cores", "shared, 16 bytes", "shared, less", "copies", "global", "other")
    header = ["kernel", "threads", "seconds", "registers", "local", "shared", "blocks", "occupancy", *shown, "share"]
    rows = []
    for record in records:
        loop, name = record["loop"], " ".join(filter(None, (record["variant"], record["tile"])))
        counts = [loop[group] for group in shown]
        share = sum(counts[:2]) / max(1, sum(loop.values()))
        numbers = [record["threads"], f"{record['seconds']:.1f}"]
        numbers += [record[key] for key in ("registers", "local", "shared", "blocks")]
        rows.append([name, *map(str, numbers), f"{record['occupancy']:.0%}", *map(str, counts), f"{share:.0%}"])
    return Table(header, rows, words=["kernel"])


def add_options(parser):
    """Add the options of ``gpukit bench code``."""
    parser.add_argument("--variants", nargs="*", default=(), help="of gpukit.matmul.LADDER, naive, tiled; or else all")
    parser.add_argument(
        "--chapter", choices=CHAPTERS, default="fast_matmul", help="whose kernels (default: %(default)s)"
    )
    parser.add_argument("--save", metavar="FILE", help="write the records to FILE")


def run(options):
    """Run ``gpukit bench code``; return the exit status."""
    try:
        found = measure(options.variants, chapter=options.chapter)
    except (FileNotFoundError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.save:
        fixed = {"chapter": options.chapter, "case": "code", "shape": [], "dtype": "float32", "unit": "1"}
        head = results.host(("numba-cuda", "nvidia-nvjitlink", "nvidia-nvvm")) | {"target": "compute capability 9.0"}
        results.save(options.save, [fixed | {"value": record["registers"]} | record for record in found], head)
    return 0
