"""The types that the functions take and return, the same on a GPU and on the emulator."""

import inspect
from typing import Any

from gpukit._numba import NumbaTypeError
from gpukit.backend import types
from gpukit.intrinsics.signatures import check_capability, flag_type, register
from gpukit.intrinsics.tiles import functions

#: How many matrices each loads.
MATRICES = {functions.ldmatrix1: 1, functions.ldmatrix2: 2, functions.ldmatrix4: 4}
#: The compute capability of each function, from which on GPUs have its instruction.
CAPABILITIES = {
    (7, 0): (functions.load_acquire, functions.store_release, functions.inc_acq_rel),
    (7, 5): MATRICES,
    (8, 0): (functions.mbarrier_init, functions.mbarrier_arrive, functions.mbarrier_wait),
    (9, 0): (
        functions.cluster_sync,
        functions.fence_barrier_init,
        functions.mbarrier_expect,
        functions.copy_tensor,
        functions.copy_windows,
        functions.store_tensor,
        functions.commit_stores,
        functions.wait_stores,
        functions.fence_async,
        functions.fence_tensor_map,
        functions.wgmma,
        functions.wgmma_fence,
        functions.wgmma_commit,
        functions.wgmma_wait,
        functions.decrease_registers,
        functions.increase_registers,
    ),
}
#: Products of `wgmma` by the type of a tile's elements: its name in PTX, K, and the type of the accumulators.
OPERANDS = {
    types.float16: ("f16", 16, types.float32),
    types.uint16: ("bf16", 16, types.float32),
    types.float32: ("tf32", 8, types.float32),
    types.int8: ("s8", 32, types.int32),
    types.uint8: ("u8", 32, types.int32),
}
#: What registers hold of an operand a: by the type and the count of the elements, the type of the tile's.
HELD = {
    (types.float16, 8): types.float16,
    (types.uint32, 4): types.uint16,
    (types.float32, 4): types.float32,
    (types.int32, 4): types.int8,
}


def check(right, message):
    if not right:
        raise NumbaTypeError(message)


def _check_index(name, index_name, index, array_name, array):
    parts = index.types if isinstance(index, types.BaseTuple) else (index,)
    check(
        len(parts) == array.ndim and all(isinstance(part, types.Integer) for part in parts),
        f"{name}: {index_name} is {index}; it must be one integer for each of the {array_name}'s {array.ndim} axes",
    )


def _check_array(name, array_name, array, allowed, what):
    check(
        isinstance(array, types.Array) and array.layout == "C",
        f"{name}: {array_name} is {array}; it must be a C-contiguous array",
    )
    check(allowed(array.dtype), f"{name}: {array_name} holds {array.dtype}; it must hold {what}")


def _check_literal(name, argument, value, kind) -> Any:
    """Check a value that is part of an instruction, and return it."""
    found: Any = getattr(value, "literal_value", getattr(value, "value", None))
    if kind is bool and isinstance(value, types.Boolean | types.Omitted) and isinstance(found, bool):
        return found
    check(
        kind is int and isinstance(found, int) and not isinstance(found, bool),
        f"{name}: {argument} is {value}; it must be a constant {'True or False' if kind is bool else 'int'}",
    )
    return found


def _check_barrier(name, barriers, i):
    _check_array(name, "barriers", barriers, lambda dtype: dtype == types.uint64, "uint64")
    _check_index(name, "i", i, "barriers", barriers)


def _is_short(dtype):
    return isinstance(dtype, types.Integer | types.Float) and dtype.bitwidth in (8, 16, 32)


def _check_ints(name, **values):
    for argument, value in values.items():
        check(isinstance(value, types.Integer), f"{name}: {argument} is {value}; it must be an int")


def view_types(name, _, buffer, offset, shape, dtype):
    _check_array(name, "buffer", buffer, lambda held: held == types.uint8 and buffer.ndim == 1, "uint8, in one axis")
    _check_ints(name, offset=offset)
    extents = shape.types if isinstance(shape, types.BaseTuple) else (shape,)
    check(
        all(isinstance(extent, types.Integer) for extent in extents),
        f"{name}: shape is {shape}; it must be an int or a tuple of ints",
    )
    held = getattr(dtype, "dtype", None)
    check(
        isinstance(dtype, types.NumberClass | types.DType) and isinstance(held, types.Integer | types.Float),
        f"{name}: dtype is {dtype}; it must be a type of integers or floats",
    )
    return types.Array(held, len(extents), "C"), buffer, offset, shape, dtype


def matrix_types(name, count, tile, index, trans):
    _check_array(name, "tile", tile, _is_short, "integers or floats of 1, 2 or 4 bytes")
    _check_index(name, "index", index, "tile", tile)
    across, size = _check_literal(name, "trans", trans, bool), tile.dtype.bitwidth
    check(size == 16 or not across, f"{name}: tile holds {tile.dtype}; with trans it must hold elements of 2 bytes")
    if tile.dtype == types.float16:
        return types.UniTuple(types.float16, 2 * count), tile, index, trans
    word = tile.dtype
    if size < 32:
        word = types.int32 if tile.dtype == types.int8 else types.uint32
    return types.UniTuple(word, count), tile, index, trans


def zeros_types(name, _, count, dtype):
    number = _check_literal(name, "count", count, int)
    check(number > 0, f"{name}: count is {number}; it must be 1 or more")
    held = types.float32 if isinstance(dtype, types.Omitted) else getattr(dtype, "dtype", dtype)
    check(isinstance(held, types.Number), f"{name}: dtype is {dtype}; it must be a type of numbers")
    return types.UniTuple(held, number), count, dtype


#: Types of the array that a fragment can be stored to, by that of its elements.
STORED = {
    types.float32: (types.float32, types.float16, types.uint16, types.float64),
    types.float64: (types.float64, types.float32),
    types.int32: (types.int32, types.float32),
}


def store_types(name, _, array, corner, values, guard):
    held = values.dtype if isinstance(values, types.UniTuple) else None
    check(
        held in STORED and len(values) % 4 == 0,
        f"{name}: values is {values}; it must be a tuple of 4 float32, float64 or int32 for every 8 columns",
    )
    _check_array(
        name,
        "array",
        array,
        lambda dtype: array.ndim == 2 and dtype in STORED[held],
        f"{' or '.join(map(str, STORED[held]))}, in two axes",
    )
    _check_index(name, "corner", corner, "array", array)
    _check_literal(name, "guard", guard, bool)
    return types.void, array, corner, values, guard


def barrier_types(name, _, barriers, i, *number):
    _check_barrier(name, barriers, i)
    if number:
        _check_ints(name, **{BARRIER_NUMBERS[name]: number[0]})
    return types.void, barriers, i, *[types.uint32] * len(number)


def sync_types(name, _, relaxed):
    _check_literal(name, "relaxed", relaxed, bool)
    return types.void, relaxed


def arrive_types(name, _, barriers, i, rank):
    _check_barrier(name, barriers, i)
    if isinstance(rank, types.Omitted):
        return types.void, barriers, i, rank
    check_capability(f"{name} with a rank", (9, 0))
    _check_ints(name, rank=rank)
    return types.void, barriers, i, types.uint32


#: What the last argument is called.
BARRIER_NUMBERS = {"mbarrier_init": "count", "mbarrier_expect": "nbytes", "mbarrier_wait": "parity"}


def _check_map(name, map, corner):
    check(
        isinstance(map, types.Array) and map.dtype == types.uint8 and map.ndim == 1 and map.layout == "C",
        f"{name}: map is {map}; it must be what tensor_map has made",
    )
    check(
        isinstance(corner, types.BaseTuple)
        and 1 <= len(corner) <= 5
        and all(isinstance(part, types.Integer) for part in corner.types),
        f"{name}: corner is {corner}; it must be a tuple of 1 to 5 ints",
    )


def copy_types(name, _, target, index, map, corner, barriers, i, once, everywhere):
    _check_copy(name, target, index, map, corner, barriers, i)
    _check_literal(name, "everywhere", everywhere, bool)
    return types.void, target, index, map, corner, barriers, i, flag_type(name, "once", once), everywhere


def copy_windows_types(name, _, target, index, map, corner, pixel, barriers, i):
    for argument, part, count in (("corner", corner, 4), ("pixel", pixel, 2)):
        check(
            isinstance(part, types.BaseTuple)
            and len(part) == count
            and all(isinstance(number, types.Integer) for number in part.types),
            f"{name}: {argument} is {part}; it must be a tuple of {count} ints",
        )
    _check_copy(name, target, index, map, corner, barriers, i)
    return types.void, target, index, map, corner, pixel, barriers, i


def _check_copy(name, target, index, map, corner, barriers, i):
    _check_array(name, "target", target, lambda dtype: hasattr(dtype, "bitwidth"), "numbers")
    _check_index(name, "index", index, "target", target)
    _check_map(name, map, corner)
    _check_barrier(name, barriers, i)


def store_tensor_types(name, _, map, corner, source, index):
    _check_map(name, map, corner)
    _check_array(name, "source", source, lambda dtype: hasattr(dtype, "bitwidth"), "numbers")
    _check_index(name, "index", index, "source", source)
    return types.void, map, corner, source, index


def map_types(name, _, map):
    _check_map(name, map, types.UniTuple(types.int64, 1))
    return types.void, map


def literal_types(name, bounds, number):
    low, high, step = bounds
    found = _check_literal(name, "count" if high else "most", number, int)
    check(
        low <= found <= (high or found) and found % step == 0,
        f"{name}: {'count' if high else 'most'} is {found}; it must be "
        + (f"a multiple of {step} from {low} to {high}" if high else f"{low} or more"),
    )
    return types.void, number


def product_types(name, _, accumulators, a, a_index, b, b_index, trans_a, trans_b, add):
    across = [_check_literal(name, n, t, bool) for n, t in (("trans_a", trans_a), ("trans_b", trans_b))]
    tiles = [(("b"), b, b_index)]
    if isinstance(a, types.UniTuple):
        held: Any = HELD.get((a.dtype, len(a)))
        check(held is not None, f"{name}: a is {a}; it must be a tile, or what ldmatrix4 has loaded")
        check(not across[0] and isinstance(a_index, types.NoneType), f"{name}: a is in registers: a_index must be None")
    else:
        tiles.insert(0, ("a", a, a_index))
        held = getattr(a, "dtype", None)
    for letter, tile, index in tiles:
        _check_array(name, letter, tile, lambda dtype: dtype in OPERANDS, "float16, uint16, float32, int8 or uint8")
        check(tile.ndim >= 2, f"{name}: {letter} has {tile.ndim} axis; a tile has two or more")
        _check_index(name, f"{letter}_index", index, letter, tile)
    check(held == b.dtype, f"{name}: a holds {held} and b {b.dtype}; they must be alike")
    check(held.bitwidth == 16 or not any(across), f"{name}: trans_a and trans_b need elements of 2 bytes, not {held}")
    total = OPERANDS[held][2]
    count = len(accumulators) if isinstance(accumulators, types.UniTuple) else 0
    step = 8 if total == types.int32 and count > 16 else 4
    check(
        count and accumulators.dtype == total and count <= 128 and count % step == 0,
        f"{name}: accumulators is {accumulators}; it must be a tuple of {total}, 4 to 128 and a multiple of {step}",
    )
    check(isinstance(add, types.Boolean | types.Omitted), f"{name}: add is {add}; it must be a bool")
    return accumulators, accumulators, a, a_index, b, b_index, trans_a, trans_b, add


def wait_types(name, _, most, accumulators):
    check(_check_literal(name, "most", most, int) >= 0, f"{name}: most is {most}; it must be 0 or more")
    check(isinstance(accumulators, types.UniTuple), f"{name}: accumulators is {accumulators}; it must be a tuple")
    return accumulators, most, accumulators


def named_types(name, _, number, count):
    _check_ints(name, number=number, count=count)
    return types.void, types.uint32, types.uint32


def no_types(name, _):
    return (types.void,)


def acquire_types(name, _, array, index):
    _check_array(name, "array", array, _is_word, "integers or floats of 4 or 8 bytes")
    _check_index(name, "index", index, "array", array)
    return array.dtype, array, index


def release_types(name, _, array, index, value):
    acquire_types(name, _, array, index)
    check(isinstance(value, types.Number | types.Boolean), f"{name}: value is {value}; it must be a number")
    return types.void, array, index, array.dtype


def inc_types(name, _, array, index, most):
    _check_array(name, "array", array, lambda dtype: dtype == types.uint32, "uint32")
    _check_index(name, "index", index, "array", array)
    check(isinstance(most, types.Integer), f"{name}: most is {most}; it must be an integer")
    return types.uint32, array, index, types.uint32


def _is_word(dtype):
    return isinstance(dtype, types.Integer | types.Float) and dtype.bitwidth in (32, 64)


#: The function that finds the types of each function's arguments, and what it needs to know.
TYPES = {
    functions.view_at: (view_types, None),
    functions.zeros: (zeros_types, None),
    functions.store_fragment: (store_types, None),
    functions.cluster_sync: (sync_types, None),
    functions.mbarrier_init: (barrier_types, None),
    functions.mbarrier_arrive: (arrive_types, None),
    functions.mbarrier_expect: (barrier_types, None),
    functions.mbarrier_wait: (barrier_types, None),
    functions.copy_tensor: (copy_types, None),
    functions.copy_windows: (copy_windows_types, None),
    functions.store_tensor: (store_tensor_types, None),
    functions.fence_tensor_map: (map_types, None),
    functions.wait_stores: (literal_types, (0, None, 1)),
    functions.decrease_registers: (literal_types, (24, 256, 8)),
    functions.increase_registers: (literal_types, (24, 256, 8)),
    functions.wgmma: (product_types, None),
    functions.wgmma_wait: (wait_types, None),
    functions.named_barrier: (named_types, None),
    functions.load_acquire: (acquire_types, None),
    functions.store_release: (release_types, None),
    functions.inc_acq_rel: (inc_types, None),
} | dict.fromkeys(
    (
        functions.fence_barrier_init,
        functions.commit_stores,
        functions.fence_async,
        functions.wgmma_fence,
        functions.wgmma_commit,
    ),
    (no_types, None),
)
TYPES |= {function: (matrix_types, count) for function, count in MATRICES.items()}


#: Arguments that are part of an instruction, or of the result's type.
LITERALS = {"trans", "trans_a", "trans_b", "guard", "most", "everywhere", "relaxed"}
_COUNTED = (functions.zeros, functions.decrease_registers, functions.increase_registers)


def _finder(function, types_of, needed):
    """Make what checks the target's compute capability and finds the types of a call's result and arguments."""
    parameters = list(inspect.signature(function).parameters)
    literals = LITERALS | ({"count"} if function in _COUNTED else set())

    def find(name, parameter, *arguments):
        check_capability(name, needed)
        arguments = [
            argument if argument_name in literals else types.unliteral(argument)
            for argument_name, argument in zip(parameters, arguments, strict=True)
        ]
        return types_of(name, parameter, *arguments)

    return find


_NEEDED = {function: capability for capability, those in CAPABILITIES.items() for function in those}
for _function, (_types_of, _parameter) in TYPES.items():
    register(_function, _parameter, _finder(_function, _types_of, _NEEDED.get(_function, (0, 0))), literals=True)
