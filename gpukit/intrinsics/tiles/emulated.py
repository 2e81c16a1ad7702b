"""The functions on the emulator."""

from typing import Any

from gpukit.backend import types
from gpukit.intrinsics.signatures import TENSOR_KINDS
from gpukit.intrinsics.tiles import functions
from gpukit.intrinsics.tiles.signatures import MATRICES, OPERANDS
from warpstep.compiler import calls, ops
from warpstep.compiler.expressions import NONE, Op, Trait, scalar
from warpstep.compiler.values import dtype_of

WRITES = ops.ACTION | Trait.WRITES_ANY


def _literal(kind) -> Any:
    return getattr(kind, "literal_value", getattr(kind, "value", None))


def _index(t, variable, owner):
    """The index of an element as a tuple of int64."""
    return t.index(variable, owner)[0]


def _numbers(t, variable, kind):
    """A tuple of ints, each as int64."""
    held = t.b.temporary(t.value(variable))
    return ops.TUPLE(*(t.cast(ops.ITEM(held, i), part, types.int64) for i, part in enumerate(kind.types)))


@calls.entry(functions.view_at)
def _view_at(t, call):
    buffer, offset, shape, _ = call.arguments
    kind = call.types[2]
    extents = _numbers(t, shape, kind) if isinstance(kind, types.BaseTuple) else t.value(shape, types.int64)
    offset = t.value(offset, types.int64)
    view = Op("K.view_at({}, {}, {}, {}, {}, m, {})", ops.STATE)
    name = t.array_name or buffer.unversioned_name
    return view(t.value(buffer), offset, extents, dtype_of(call.result.dtype), name, t.site()), call.result


@calls.entry(*MATRICES)
def _load_matrices(t, call):
    tile, index, *_ = call.arguments
    owner, result = call.types[0], call.result
    index, site = _index(t, index, owner), t.site(tile.unversioned_name, "load")
    array = t.b.temporary(t.value(tile))
    index = t.b.temporary(index)
    t.barrier("warp", calls.WHOLE_WARP)
    load = Op("M.tiles.load_matrices({}, {}, {}, {}, m, {})", ops.ACTION)
    words = t.b.temporary(load(array, index, MATRICES[call.key], bool(_literal(call.types[2])), site))
    if result.dtype == types.float16:
        return Op("halves_of")(words), result
    return Op("words_as")(words, dtype_of(result.dtype)), result


@calls.entry(functions.zeros)
def _zeros(t, call):
    return ops.TUPLE(*[scalar(0, dtype_of(call.result.dtype))] * call.result.count), call.result


@calls.entry(functions.store_fragment)
def _store_fragment(t, call):
    array, corner, values, *_ = call.arguments
    site = t.site(array.unversioned_name, "store")
    store = Op("M.tiles.store_fragment({}, {}, {}, {}, m, {})", WRITES)
    corner = _index(t, corner, call.types[0])
    t.b.emit(store(t.value(array), corner, t.value(values), bool(_literal(call.types[3])), site))


# -- barriers and copies ---------------------------------------------------------------------------


def _barrier_word(t, barriers, i, owner):
    return t.value(barriers), _index(t, i, owner)


@calls.entry(functions.mbarrier_init)
def _init(t, call):
    barriers, i, count = call.arguments
    site = t.site(barriers.unversioned_name, "store")
    word = _barrier_word(t, barriers, i, call.types[0])
    t.b.emit(Op("M.barriers.init({}, {}, {}, m, {})", WRITES)(*word, t.value(count, types.int64), site))


@calls.entry(functions.mbarrier_arrive, functions.mbarrier_expect)
def _arrive(t, call):
    t.pools.partial_warps = True
    barriers, i, *number = call.arguments
    site = t.site(barriers.unversioned_name, "barrier")
    word = _barrier_word(t, barriers, i, call.types[0])
    given = NONE if isinstance(call.types[2], types.Omitted) else t.value(number[0], types.int64)
    coming, rank = (given, NONE) if call.key is functions.mbarrier_expect else (NONE, given)
    t.b.emit(Op("M.barriers.arrive({}, {}, {}, {}, m, {})", WRITES)(*word, coming, rank, site))


@calls.entry(functions.cluster_sync)
def _cluster_sync(t, call):
    t.barrier("cluster", op="cluster_sync")


@calls.entry(functions.mbarrier_wait)
def _wait(t, call):
    t.pools.partial_warps = True
    barriers, i, parity = call.arguments
    site = t.site(barriers.unversioned_name, "barrier")
    word = _barrier_word(t, barriers, i, call.types[0])
    key = Op("M.barriers.key({}, {}, {}, m, {})", ops.ACTION)(*word, t.value(parity, types.int64), site)
    t.barrier("phase", t.b.temporary(key), op="mbarrier_wait")


@calls.entry(functions.named_barrier)
def _named(t, call):
    t.pools.partial_warps = True
    number, count = (t.value(argument, types.int64) for argument in call.arguments)
    key = Op("K.named_key({}, {}, m, {})", ops.ACTION)(number, count, t.site(op="named_barrier"))
    t.barrier("named", t.b.temporary(key), op="named_barrier")


@calls.entry(functions.copy_tensor)
def _copy_tensor(t, call):
    target, index, map, corner, barriers, i, *_ = call.arguments
    site = t.site(target.unversioned_name, "copy tensor")
    where = t.value(target), _index(t, index, call.types[0])
    what = t.value(map), _numbers(t, corner, call.types[3])
    word = _barrier_word(t, barriers, i, call.types[4])
    everywhere = bool(_literal(call.types[7]))
    t.b.emit(
        Op("M.barriers.copy_in({}, {}, {}, {}, {}, {}, {}, m, {})", WRITES)(*where, *what, *word, everywhere, site)
    )


@calls.entry(functions.copy_windows)
def _copy_windows(t, call):
    target, index, map, corner, pixel, barriers, i = call.arguments
    site = t.site(target.unversioned_name, "copy tensor")
    where = t.value(target), _index(t, index, call.types[0])
    parts = [
        (t.b.temporary(t.value(held)), j, part)
        for held, kind in ((corner, call.types[3]), (pixel, call.types[4]))
        for j, part in enumerate(kind.types)
    ]
    numbers = ops.TUPLE(*(t.cast(ops.ITEM(held, j), part, types.int64) for held, j, part in parts))
    what, word = (t.value(map), numbers), _barrier_word(t, barriers, i, call.types[5])
    t.b.emit(Op("M.barriers.copy_in({}, {}, {}, {}, {}, {}, False, m, {})", WRITES)(*where, *what, *word, site))


@calls.entry(functions.store_tensor)
def _store_tensor(t, call):
    map, corner, source, index = call.arguments
    site = t.site(source.unversioned_name, "store tensor")
    what = t.value(map), _numbers(t, corner, call.types[1])
    where = t.value(source), _index(t, index, call.types[2])
    t.b.emit(Op("M.barriers.copy_out({}, {}, {}, {}, m, {})", WRITES)(*what, *where, site))


def _hook(template, argument=None):
    """What calls a method that only a trace needs."""

    def emit(t, call):
        operands = [] if argument is None else [argument(t, call)]
        t.b.emit(Op(template, ops.ACTION)(*operands, t.site()))

    return emit


def _first_literal(t, call):
    return int(_literal(call.types[0]))


calls.entry(functions.fence_async, functions.fence_barrier_init)(_hook("M.barriers.fence(m, {})"))
calls.entry(functions.commit_stores)(_hook("M.barriers.commit(m, {})"))
calls.entry(functions.wait_stores)(_hook("M.barriers.wait_stores({}, m, {})", _first_literal))
calls.entry(functions.wgmma_fence)(_hook("M.tiles.fence(m, {})"))


@calls.entry(functions.fence_tensor_map, functions.decrease_registers, functions.increase_registers)
def _nothing(t, call):
    return None


# -- products of four warps ------------------------------------------------------------------------


@calls.entry(functions.wgmma)
def _multiply(t, call):
    sums, a, a_index, b, b_index, *flags = call.arguments
    kinds = call.types
    left = t.b.temporary(t.value(a))
    left_index = NONE if isinstance(kinds[2], types.NoneType) else t.b.temporary(_index(t, a_index, kinds[1]))
    right, right_index = t.b.temporary(t.value(b)), t.b.temporary(_index(t, b_index, kinds[3]))
    held = t.b.temporary(t.value(sums))
    add = NONE if isinstance(kinds[7], types.Omitted) else t.b.temporary(t.value(flags[2], types.boolean))
    t.barrier("group", op="wgmma")
    multiply = Op("M.tiles.multiply({}, {}, {}, {}, {}, {}, {}, {}, m, {})", ops.ACTION)
    flags = (bool(_literal(kind)) for kind in kinds[5:7])
    found = multiply(held, left, left_index, right, right_index, *flags, add, t.site(b.unversioned_name, "wgmma"))
    name, depth, _ = OPERANDS[kinds[3].dtype]
    # Each of 128 threads stands for so many of 2 * 64 * N * K operations.
    return found.counting((TENSOR_KINDS[name], 2 * call.result.count * depth)), call.result


@calls.entry(functions.wgmma_commit)
def _commit(t, call):
    t.barrier("group", op="wgmma_commit")
    t.b.emit(Op("M.tiles.commit(m, {})", ops.ACTION)(t.site(op="wgmma_commit")))


@calls.entry(functions.wgmma_wait)
def _wait_products(t, call):
    held = t.b.temporary(t.value(call.arguments[1]))
    t.barrier("group", op="wgmma_wait")
    wait = Op("M.tiles.wait({}, {}, m, {})", ops.ACTION)
    return wait(int(_literal(call.types[0])), held, t.site(op="wgmma_wait")), call.result


# -- words that order others -----------------------------------------------------------------------


@calls.entry(functions.load_acquire)
def _load_acquire(t, call):
    t.pools.fences = True
    array, index = call.arguments
    load = Op("M.load_acquire({}, {}, m, {})", ops.ACTION)
    return load(t.value(array), _index(t, index, call.types[0]), t.site(array.unversioned_name, "acquire")), call.result


@calls.entry(functions.store_release)
def _store_release(t, call):
    t.pools.fences = True
    array, index, value = call.arguments
    store = Op("M.store_release({}, {}, {}, m, {})", ops.ACTION | Trait.WRITES)
    value = t.value(value, call.types[0].dtype)
    t.b.emit(store(t.value(array), _index(t, index, call.types[0]), value, t.site(array.unversioned_name, "release")))


@calls.entry(functions.inc_acq_rel)
def _inc_acq_rel(t, call):
    t.pools.fences = True
    array, index, most = call.arguments
    fence = Op("K.fence(m, {})", ops.ACTION)(True)
    t.b.emit(fence)
    site = t.site(array.unversioned_name, "atomic")
    index, most = _index(t, index, call.types[0]), t.value(most, types.uint32)
    found = t.b.temporary(ops.ATOMIC(t.value(array), "inc", index, most, NONE, site))
    t.b.emit(fence)
    return found, call.result
