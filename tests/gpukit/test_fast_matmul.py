"""`gpukit.matmul`, the fast product: its tiles in all forms, what is chosen for a shape, batches, alpha and beta."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from layouts import laid_out
from products import check, operands, poisoned

import gpukit
from gpukit import matmul, on_gpu
from gpukit._host.call import forget
from gpukit._host.work_memory import state_of
from gpukit.backend import cuda
from gpukit.matmul import api as host
from gpukit.matmul import cost as choice
from gpukit.matmul.cost import (
    DOUBLE_SPEEDS,
    SPEEDS,
    Choice,
    Piece,
    choose,
    choose_turns,
    prefers_packed,
    time_to_stream,
)
from gpukit.matmul.fast import LAYOUTS, TURN_TILE
from gpukit.matmul.slim import choose_slim
from gpukit.matmul.vector import choose_vector
from warpstep.integers import ceil_div

# -- the fast product ------------------------------------------------------------------------------


@pytest.fixture
def chosen(monkeypatch):
    """Lets a test say what is chosen for the next products: the pieces, whether b is widened, and both streamed."""

    def set_choice(pieces, widens=False, streams=False):
        monkeypatch.setattr(host, "choose", lambda *_: Choice(pieces, widens, streams))
        forget()

    return set_choice


def forms():
    """(tile, columns beyond a whole tile, whether b is widened): all forms of one tile, one of the others."""
    every = (12, False), (13, False), (13, True)
    for i, speed in enumerate(SPEEDS):
        chosen_forms = every if i == 2 else every[:1] if i % 2 else every[1:2]
        yield from ((speed.tile, *form) for form in chosen_forms)


@pytest.mark.parametrize(("tile", "more", "widen"), list(forms()))
def test_every_tile(tile, more, widen, chosen):
    n = tile.columns + more
    for k, parts in ((tile.depth + 3, 1), (5 * tile.depth + 1, 3), (2 * tile.depth, 5)):
        m = tile.rows + 3 if parts == 1 else 9
        a, b, out = *operands((m, k), (k, n)), poisoned(m, n)
        chosen([Piece(0, 0, m, n, tile, parts)], widen)
        matmul.matmul(a, b, out=out)
        check(out, a, b)


@pytest.mark.parametrize("turns", [(True, False), (False, True), (True, True)])
def test_operands_along_k_are_transposed_first(turns, monkeypatch):
    """Where that pays: for one matrix, for several, and with another for each result."""
    monkeypatch.setattr(host, "choose_turns", lambda *_: turns)
    forget()
    for leading in ((), (2,)):
        a, b, c = operands((*leading, 37, 70), (*leading, 70, 20), (*leading, 37, 20))
        on_device, out = laid_out(b, (*range(len(leading)), b.ndim - 1, b.ndim - 2)), cuda.to_device(c)
        matmul.matmul(cuda.to_device(a), on_device, alpha=-1.5, beta=0.5, out=out)
        check(out.copy_to_host(), a, b, -1.5, 0.5, c)
    product = matmul.matmul(cuda.to_device(a[0]), on_device)
    check(product.copy_to_host(), np.broadcast_to(a[0], a.shape), b)


@pytest.mark.parametrize(
    ("layout", "names", "more"),
    [
        ("TN", [], 4),
        ("TN", ["widen", "widen"], 1),
        ("NN", ["turn"], 4),
        ("NT", ["turn", "turn"], 1),
        ("TT", ["turn"], 4),
    ],
)
def test_products_are_streamed_across_k(layout, names, more, chosen):
    """More steps than stages, some blocks with several tiles; ragged, in parts of K, one of two matrices for each."""
    m, n, k = 128 + more, 256 + more, 4 * 32 + 9
    a, b = operands((m, k), (2, k, n))
    on_device = laid_out(a, ORDERS[layout[0]]), laid_out(b, (0, *(1 + i for i in ORDERS[layout[1]])))
    for parts in (1, 2):
        chosen([Piece(0, 0, m, n, SPEEDS[0].tile, parts)], streams=True)
        out = cuda.to_device(poisoned(2, m, n))
        steps = matmul.steps("auto", *on_device, out)
        used = [launch.dispatcher.py_func.__name__ for launch, _ in steps]
        assert used == [*names, "streamed", *["sum_parts"][: parts - 1]]
        for launch, arguments in steps:
            if launch.dispatcher.py_func.__name__ == "streamed":
                launch = launch.dispatcher[3, launch.blockdim, 0, launch.sharedmem]
            launch(*arguments)
        check(out.copy_to_host(), a, b)


def test_deep_products_of_the_largest_tile(chosen):
    tile = SPEEDS[0].tile
    a, b, out = *operands((5, host.SINGLE_STORES_MIN_K + 5), (host.SINGLE_STORES_MIN_K + 5, 20)), poisoned(5, 20)
    chosen([Piece(0, 0, 5, 20, tile, 1)])
    matmul.matmul(a, b, out=out)
    check(out, a, b)


@pytest.mark.parametrize(("speed", "n"), [(SPEEDS[0], 20), (SPEEDS[2], 21), (SPEEDS[5], 20), (SPEEDS[8], 97)])
def test_no_tile_has_a_finding(speed, n, chosen):
    tile, m = speed.tile, speed.tile.rows + 1
    k = tile.depth * tile.stages + 5
    a, b = operands((m, k), (k, n))
    out = cuda.to_device(poisoned(m, n))
    chosen([Piece(0, 0, m, n, tile, 2)], n % 4 != 0)
    for launch, arguments in matmul.steps("fast", cuda.to_device(a), cuda.to_device(b), out):
        trace = gpukit.trace(launch, *arguments)
        assert trace.findings == []
    check(out.copy_to_host(), a, b)


def test_pieces_meet_without_a_gap(chosen):
    tile, other = SPEEDS[-1].tile, SPEEDS[-2].tile
    m, n, k = 70, 41, 200
    a, b, c = operands((m, k), (k, n), (m, n))
    pieces = [Piece(0, 0, 64, 32, tile, 1), Piece(0, 32, 64, 9, other, 3)]
    pieces += [Piece(64, 0, 6, 32, other, 2), Piece(64, 32, 6, 9, tile, 1)]
    chosen(pieces, True)
    check(matmul.matmul(a, b, out=poisoned(m, n)), a, b)
    chosen(pieces, False)
    check(matmul.matmul(a, b, alpha=-1.5, beta=0.5, out=c.copy()), a, b, -1.5, 0.5, c)


@settings(max_examples=60)
@given(
    m=st.integers(1, 20000),
    n=st.integers(1, 20000),
    k=st.integers(0, 50000),
    batch=st.sampled_from([1, 1, 7, 70000]),
    wide=st.booleans(),
    streaming=st.sampled_from([0.0, 20.0, math.inf]),
)
@example(m=4096, n=4097, k=4096, batch=1, wide=False, streaming=math.inf)
@example(m=4097, n=4097, k=64, batch=1, wide=False, streaming=0.0)
def test_what_is_chosen_covers_the_result_once(m, n, k, batch, wide, streaming):
    pieces, widen, streams = choose(m, n, k, batch, wide, 132, streaming=streaming)
    assert sum(piece.rows * piece.columns for piece in pieces) == m * n
    assert len({(piece.row, piece.col) for piece in pieces}) == len(pieces)
    for piece in pieces:
        assert 0 <= piece.row and piece.row + piece.rows <= m and 0 <= piece.col and piece.col + piece.columns <= n
        assert piece.col % 4 == 0 and piece.tile in [speed.tile for speed in SPEEDS]
        assert piece.parts == 1 or batch * piece.parts * piece.rows * piece.columns <= choice.MAX_ELEMENTS
    assert not (widen and (wide or streams)) and (streaming < math.inf or not streams)


def test_choices_that_matter():
    """Whole multiples of large tiles, thin ones and deep ones, one more than a multiple."""
    ((piece,), *_) = choose(4096, 4096, 4096, 1, True, 132)
    assert piece.tile == SPEEDS[0].tile and piece.parts == 1
    ((piece,), *_) = choose(16, 4096, 4096, 1, True, 132)
    assert piece.tile.rows == 16 and piece.parts > 1
    ((piece,), *_) = choose(64, 64, 32768, 1, True, 132)
    assert piece.parts > 16
    whole, rest = choose(2560, 2560, 2560, 1, True, 132)[0]
    assert whole.parts == 1 and rest.parts > 1 and whole.rows * whole.columns > rest.rows * rest.columns
    turns = [choose_turns(SPEEDS[0].tile, layout, n, n, n, 1, (1, 1), 132) for n in (4096, 1024) for layout in LAYOUTS]
    assert turns == [(True, False), (True, True), (False, False), (False, True), *[(False, False)] * 4]
    tall = [choose_turns(SPEEDS[-1].tile, layout, 14_752, 187, 3928, 1, (1, 1), 132) for layout in ("NT", "NN")]
    assert tall == [(False, True), (False, False)]  # b is small, and its elements would be copied one by one
    assert choose_turns(SPEEDS[4].tile, "NT", 8960, 136, 41, 1, (1, 1), 132) == (False, False)
    pieces, widen, _ = choose(4096, 4097, 4096, 1, False, 132)
    assert [piece.columns for piece in pieces] == [4096, 1] and widen
    times = [time_to_stream(layout, (True, True), n, n, n, (1, 1)) for n in (4096, 512) for layout in LAYOUTS]
    sizes = [n for n in (4096, 512) for _ in LAYOUTS]
    streams = [choose(n, n, n, 1, True, 132, streaming=time).streams for n, time in zip(sizes, times, strict=True)]
    assert streams == [True] * 4 + [False] * 4


ORDERS = {"N": (0, 1), "T": (1, 0)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("more", [4, 1])
def test_operands_that_lie_row_by_row_or_column_by_column(layout, more, chosen):
    """Read as they are: nothing is copied first. With sizes in multiples of 4, and with others."""
    for speed in SPEEDS[2], SPEEDS[6]:
        tile = speed.tile
        m, n, k = tile.rows + more, tile.columns + 4 * more, tile.depth * 2 + 3 + more
        a, b = operands((m, k), (k, n))
        for parts in (1, 2):
            chosen([Piece(0, 0, m, n, tile, parts)], layout[1] == "N" and n % 4 != 0 and parts == 2)
            on_device = [laid_out(x, ORDERS[letter]) for x, letter in zip((a, b), layout, strict=True)]
            out = cuda.to_device(poisoned(m, n))
            matmul.matmul(*on_device, out=out)
            check(out.copy_to_host(), a, b)
            assert not any("copy" in purpose for _, purpose in state_of(0).buffers)


@pytest.mark.parametrize("speed", DOUBLE_SPEEDS, ids=lambda speed: f"{speed.tile.rows} x {speed.tile.columns}")
def test_every_tile_of_tensor_cores(speed, chosen):
    tile, forms = speed.tile, [("NN", 2, 1), ("TN", 1, 2), ("NT", 2, 3), ("TT", 1, 1)]
    at = DOUBLE_SPEEDS.index(speed)
    for layout, more, parts in forms if at == 4 else forms[at % 4 : at % 4 + 1]:
        m, n, k = tile.rows + more, tile.columns + 2 * more, 2 * tile.depth + 3 + more
        a, b, c = (x.astype(np.float64) for x in operands((m, k), (k, n), (m, n)))
        chosen([Piece(0, 0, m, n, tile, parts)])
        out = cuda.to_device(c)
        on_device = [laid_out(x, ORDERS[letter]) for x, letter in zip((a, b), layout, strict=True)]
        matmul.matmul(*on_device, alpha=2, beta=-1, out=out)
        check(out.copy_to_host(), a, b, 2, -1, c)


def test_tensor_cores_are_used_without_a_finding_or_a_bank_conflict(chosen):
    tile = DOUBLE_SPEEDS[4].tile
    a, b = (x.astype(np.float64) for x in operands((33, 40), (40, 20)))
    out = np.full((33, 20), np.nan)
    chosen([Piece(0, 0, 33, 20, tile, 1)])
    ((launch, arguments),) = matmul.steps("auto", a, b, out)
    trace = gpukit.trace(launch, *arguments)
    assert trace.findings == [] and trace.total("shared", "load").bank_conflicts == 0
    check(out, a, b)


def test_vectors_of_float64_need_no_tensor_cores(monkeypatch):
    """Batches of single rows and columns, which would be one product of larger matrices."""
    monkeypatch.setattr(host, "_has_tensor_cores", lambda: False)
    monkeypatch.setattr(host, "double", None)
    for m, n in ((1, 7), (7, 1)):
        a, b = (x.astype(np.float64) for x in operands((5, m, 40), (40, n)))
        check(matmul.matmul(a, b), a, b)


@settings(max_examples=60)
@given(data=st.data())
def test_operands_of_any_layout(data):
    """Batches, gaps between rows, matrices in any order, vectors; NumPy's result."""
    sizes = st.one_of(st.just(1), st.integers(1, 40), st.sampled_from([4, 8, 64]))
    m, n, k = (data.draw(sizes, name) for name in "mnk")
    lead_a, lead_b = data.draw(st.sampled_from([*LEADS[:6], ((), ()), ((), ()), ((2,), (2,))]), "leads")
    dtype = data.draw(st.sampled_from(["f4", "f4", "f8"]), "dtype")
    arrays = []
    for x in operands((*lead_a, m, k), (*lead_b, k, n)):
        order = data.draw(st.permutations(range(x.ndim)), "order in memory")
        arrays.append((x.astype(dtype), laid_out(x.astype(dtype), tuple(order), data.draw(st.sampled_from([1, 1, 2])))))
    (a, on_device_a), (b, on_device_b) = arrays
    for _ in range(2):
        check(matmul.matmul(on_device_a, on_device_b).copy_to_host(), a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layout", ["N", "T"])
@pytest.mark.parametrize(("count", "k"), [(1, 1), (3, 20_000), (5, 2179), (700, 130), (129, 4100), (20, 64)])
def test_a_matrix_by_a_vector(count, k, layout, dtype, monkeypatch):
    """In one part or several, of aligned rows or others, with alpha and beta; what a trace finds."""
    monkeypatch.setattr(host, "takes_apart", lambda count, *_: count >= 128)
    forget()
    matrix, vector, c = (x.astype(dtype) for x in operands((count, k), (k, 1), (count, 1)))
    on_device = laid_out(matrix, ORDERS[layout])
    out = cuda.to_device(np.full((count, 1), np.nan, dtype))
    matmul.matmul(on_device, cuda.to_device(vector), out=out)
    check(out.copy_to_host(), matrix, vector)
    row = laid_out(np.ascontiguousarray(vector.T), (0, 1), 3)
    turned = laid_out(np.ascontiguousarray(matrix.T), ORDERS[layout])
    out = cuda.to_device(np.ascontiguousarray(c.T))
    matmul.matmul(row, turned, alpha=2, beta=-1, out=out)
    check(out.copy_to_host(), vector.T, matrix.T, 2, -1, c.T)
    if dtype == np.float32 and (layout == "N" or count == 129):
        result = cuda.to_device(np.full((count, 1), np.nan, dtype))
        for launch, arguments in matmul.steps("auto", on_device, cuda.to_device(vector), result):
            assert gpukit.trace(launch, *arguments).findings == []
        check(result.copy_to_host(), matrix, vector)


def test_what_shares_a_row_of_a_long_matrix():
    """A warp if there are rows enough for all multiprocessors, otherwise a block, or half of one."""
    assert choose_vector(4096, 4096, 1, True, 4, 132).lanes == 32
    assert choose_vector(100, 4096, 1, True, 4, 132).lanes == 256
    assert choose_vector(100, 1000, 1, True, 4, 132).lanes == 128


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_few_columns_have_no_more_lanes_than_they_need(count):
    shape = choose_vector(count, 2600, 1, False, 1, 132)
    assert shape.lanes == count + (count == 3) and (shape.parts > 1) == (count > 2)
    vector, matrix = operands((1, 2600), (2600, count))
    ((launch, arguments),) = matmul.steps("auto", vector, matrix, out := np.full((1, count), np.nan, np.float32))
    assert gpukit.trace(launch, *arguments).findings == []
    check(out, vector, matrix)


@pytest.mark.parametrize("shape", [(3, 1030, 700), (1025, 4, 256), (2, 1024, 262), (1026, 3, 259)])
def test_a_matrix_by_a_few_vectors(shape, monkeypatch):
    """Rows or columns, aligned or not, in one launch; what a trace finds."""
    monkeypatch.setattr("gpukit.matmul.vector.MIN_SEVERAL", 1)
    m, n, k = shape
    (a, b), c = operands((m, k), (k, n)), np.ones((m, n), np.float32)
    on_device = laid_out(a, ORDERS["N"]), laid_out(b, ORDERS["T"])
    out = cuda.to_device(c)
    ((launch, arguments),) = matmul.steps("auto", *on_device, out)
    assert arguments[3][:2] == (max(m, n), k) and gpukit.trace(launch, *arguments).findings == []
    check(out.copy_to_host(), a, b)
    out = cuda.to_device(c)
    matmul.matmul(*on_device, alpha=2, beta=-1, out=out)
    check(out.copy_to_host(), a, b, 2, -1, c)


#: Rows that are not aligned, and a few aligned ones, each as wide as the tiles of two blocks or more.
SLIM = [
    (np.float32, "NN", (70, 131, 13)),
    (np.float32, "TT", (3, 1028, 5)),
    (np.float64, "TN", (70, 131, 20)),
    (np.float64, "NN", (2, 1100, 1)),
    (np.float32, "NT", (130, 26, 4)),
    (np.float32, "NN", (129, 20, 16)),
    (np.float64, "NN", (66, 39, 3)),
    (np.float32, "NN", (30, 301, 23)),
]


@pytest.mark.parametrize(("dtype", "layout", "shape"), SLIM)
def test_a_small_k(dtype, layout, shape, monkeypatch):
    """In batches with one b, with alpha and beta; what a trace finds."""
    monkeypatch.setattr("gpukit.matmul.slim.MIN_MANY", 1)
    (m, n, k), matrices = shape, 2
    if k > 20:
        monkeypatch.setattr("gpukit.matmul.slim.MIN_LARGE", 1)
    a, b = (x.astype(dtype) for x in operands((matrices, m, k), (k, n)))
    c = np.ones((matrices, m, n), dtype)
    last = [(*range(x.ndim - 2), *(x.ndim - 2 + i for i in ORDERS[way])) for x, way in zip((a, b), layout, strict=True)]
    on_device = [laid_out(x, order) for x, order in zip((a, b), last, strict=True)]
    out = cuda.to_device(c)
    matmul.matmul(*on_device, alpha=2, beta=-1, out=out)
    result = out.copy_to_host()
    for i in range(matrices):
        check(result[i], a[i], b, 2, -1, c[i])
    if layout != "TN":
        result = np.full((m, n), np.nan, dtype)
        steps = matmul.steps("auto", a[0], b, result)
        assert choose_slim(m, n, k, 1, dtype().itemsize, n % 4 == 0) is not None
        assert len(steps) == 1 and gpukit.trace(steps[0][0], *steps[0][1]).findings == []
        check(result, a[0], b)


#: Batches, and many rows by a few columns: aligned, or not; of one row; with parts of K; one b for all.
PACKED = [
    *(("float32", layout, (5,), (5,), (12, 8, 16)) for layout in LAYOUTS),
    ("float32", "TN", (3,), (3,), (40, 9, 5)),
    ("float32", "NT", (70,), (70,), (1, 5, 7)),
    ("float64", "NN", (4,), (), (33, 3, 20)),
    ("float32", "NT", (2, 3), (2, 1), (8, 4, 1300)),
    ("float32", "NN", (), (), (1400, 3, 3)),
    ("float16", "NN", (6,), (6,), (16, 12, 28)),
    ("float16", "NT", (5,), (), (12, 6, 10)),
    ("float16", "TN", (3,), (3,), (4, 4, 1300)),
]


@pytest.mark.parametrize(("dtype", "layout", "lead_a", "lead_b", "shape"), PACKED)
def test_many_small_products(dtype, layout, lead_a, lead_b, shape, monkeypatch):
    """What a trace finds; with alpha and beta."""
    monkeypatch.setattr(host, "_takes_packed", lambda *_: True)
    forget()
    (m, n, k), lead = shape, np.broadcast_shapes(lead_a, lead_b)
    a, b, c = (x.astype(dtype) for x in operands((*lead_a, m, k), (*lead_b, k, n), (*lead, m, n)))
    last = [(*range(x.ndim - 2), *(x.ndim - 2 + i for i in ORDERS[w])) for x, w in zip((a, b), layout, strict=True)]
    on_device = [laid_out(x, order) for x, order in zip((a, b), last, strict=True)]
    result, out = cuda.to_device(poisoned(*lead, m, n, dtype=dtype)), cuda.to_device(c)
    for launch, arguments in matmul.steps("auto", *on_device, result):
        assert gpukit.trace(launch, *arguments).findings == []
    check(result.copy_to_host(), a, b)
    matmul.matmul(*on_device, alpha=2, beta=-1, out=out)
    check(out.copy_to_host(), a, b, 2, -1, c)


@pytest.mark.parametrize(("layout", "shape"), [("NN", (1040, 2, 260)), ("TT", (3, 1030, 256))])
def test_a_few_vectors_across_k_are_transposed_for_a_large_matrix(layout, shape, monkeypatch):
    monkeypatch.setattr(host, "MIN_TURNED_FOR", 1)
    m, n, k = shape
    a, b = operands((2, m, k), (2, k, n))
    orders = [(0, *(1 + i for i in ORDERS[letter])) for letter in layout]
    arrays = [laid_out(x, order) for x, order in zip((a, b), orders, strict=True)]
    out = cuda.to_device(poisoned(2, m, n))
    steps = matmul.steps("auto", *arrays, out)
    assert [launch.dispatcher.py_func.__name__ for launch, _ in steps] == ["turn", "several"]
    for launch, arguments in steps:
        assert gpukit.trace(launch, *arguments).findings == []
    check(out.copy_to_host(), a, b)
    monkeypatch.setattr(host, "MAX_BLOCKS", ceil_div(k, TURN_TILE) - 1)  # the launch of "turn" would have more
    assert matmul.steps("auto", *arrays, out)[0][0].dispatcher.py_func.__name__ != "turn"


#: Heads of attention by each kernel: queries by keys, weights by values.
HEADS = [
    ("fast", np.float32, "HK", (33, 34, 24)),
    ("double", np.float64, "HK", (33, 34, 24)),
    ("packed", np.float32, "HK", (12, 12, 8)),
    ("slim", np.float32, "HH", (9, 70, 9)),
    ("along", np.float32, "HK", (1, 1, 50)),
    ("across", np.float64, "HH", (1, 68, 50)),
    ("several", np.float32, "HK", (2, 1030, 256)),
    ("turn", np.float32, "HK", (33, 34, 24)),
]
HEAD_ORDERS = {"H": (0, 2, 1, 3), "K": (0, 3, 1, 2)}


@pytest.mark.parametrize(("name", "dtype", "layout", "shape"), HEADS)
def test_heads_that_lie_beside_each_other_are_one_batch(name, dtype, layout, shape, monkeypatch):
    monkeypatch.setattr(host, "choose_turns", lambda *_: (name == "turn",) * 2)
    monkeypatch.setattr(host, "_takes_packed", lambda *_: name == "packed")
    m, n, k = shape
    a, b = (x.astype(dtype) for x in operands((2, 3, m, k), (2, 3, k, n)))
    on_device = [laid_out(x, HEAD_ORDERS[letter]) for x, letter in zip((a, b), layout, strict=True)]
    result = cuda.to_device(poisoned(2, 3, m, n, dtype=dtype))
    steps = matmul.steps("auto", *on_device, result)
    names = [launch.dispatcher.py_func.__name__ for launch, _ in steps]
    assert names == (["turn", "turn", "fast"] if name == "turn" else [name])
    for launch, arguments in steps:
        launch(*arguments)
    check(result.copy_to_host(), a, b)


def test_what_is_many_small_products():
    """Neither large ones, nor a few, nor those that tensor cores multiply."""
    assert all(
        prefers_packed(*sizes, 132, False)
        for sizes in ((16, 16, 16, 10_000, 4), (10**6, 3, 3, 1, 4), (9, 9, 9, 999, 8))
    )
    assert not any(
        prefers_packed(*sizes, 132, False) for sizes in ((512, 512, 64, 8, 4), (40, 30, 50, 1, 4), (32, 32, 32, 999, 8))
    )


def test_the_same_input_gives_the_same_bits():
    a, b = operands((40, 3000), (3000, 24))
    first = matmul.matmul(a, b)
    for _ in range(3):
        np.testing.assert_array_equal(matmul.matmul(a, b), first)


def test_memory_that_begins_anywhere():
    a, b = operands((30, 24), (24, 40))
    for offset in range(4):
        flat = [cuda.device_array(x.size + offset, np.float32)[offset:] for x in (a, b, np.empty((30, 40)))]
        x, y, out = (f.reshape(s) for f, s in zip(flat, ((30, 24), (24, 40), (30, 40)), strict=True))
        for source, target in ((a, x), (b, y), (poisoned(30, 40), out)):
            target.copy_to_device(source)
        for variant in ("auto", "wide", "asynchronous"):
            assert matmul.matmul(x, y, variant, out=out) is out
            check(out.copy_to_host(), a, b)
            out.copy_to_device(poisoned(30, 40))


# -- alpha, beta, batches --------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["auto", "tiled", "wide"])
def test_alpha_and_beta(variant):
    a, b, c = operands((37, 70), (70, 33), (37, 33))
    for alpha, beta in ((2, 0), (-0.5, 3), (0, 2), (1, 0)):
        out = c.copy() if beta else poisoned(37, 33)
        check(matmul.matmul(a, b, variant, alpha=alpha, beta=beta, out=out), a, b, alpha, beta, c)
        on_device = cuda.to_device(c if beta else poisoned(37, 33))
        matmul.matmul(cuda.to_device(a), cuda.to_device(b), variant, alpha=alpha, beta=beta, out=on_device)
        check(on_device.copy_to_host(), a, b, alpha, beta, c)
    nothing = np.zeros((37, 0), np.float32), np.zeros((0, 33), np.float32)
    np.testing.assert_array_equal(matmul.matmul(*nothing, variant, beta=2, out=c.copy()), 2 * c)


LEADS = [((3,), (3,)), ((), (3,)), ((3,), ()), ((2, 3), (3,)), ((2, 1), (1, 3)), ((2, 3), (2, 1)), ((0,), ())]
LEADS += [((2, 1, 3), (2, 2, 3)), ((2, 3, 2), (1, 3, 1)), ((1,), (1, 1)), ((2, 1, 2), (1, 3, 1))]


@pytest.mark.parametrize(("lead_a", "lead_b"), LEADS)
@pytest.mark.parametrize("variant", ["auto", "tiled"])
def test_batches_broadcast_as_in_numpy(lead_a, lead_b, variant):
    for m, n, k in ((5, 8, 9), (33, 3, 40)):
        a, b = operands((*lead_a, m, k), (*lead_b, k, n))
        lead = np.broadcast_shapes(lead_a, lead_b)
        result = matmul.matmul(a, b, variant)
        check(result, a, b)
        c = operands((*lead, m, n), seed=1)[0]
        out = cuda.to_device(c)
        on_device = matmul.matmul(cuda.to_device(a), cuda.to_device(b), variant, alpha=2, beta=-1, out=out)
        assert on_device is out
        check(out.copy_to_host(), a, b, 2, -1, c)


def test_batches_deep_and_many(monkeypatch):
    a, b = operands((3, 20, 2000), (3, 2000, 12))
    assert choose(20, 12, 2000, 3, True, 132)[0][0].parts > 1
    check(matmul.matmul(a, b), a, b)
    monkeypatch.setattr(host, "MAX_BLOCKS", 4)
    a, b = operands((11, 3, 6), (11, 6, 5))
    check(matmul.matmul(a, b), a, b)


def test_calls_alike_are_repeated_with_their_own_arrays():
    out = cuda.to_device(poisoned(40, 36))
    for seed in range(3):
        a, b = operands((40, 600), (600, 36), seed=seed)
        check(matmul.matmul(cuda.to_device(a), cuda.to_device(b)).copy_to_host(), a, b)
        matmul.matmul(cuda.to_device(a), cuda.to_device(b), alpha=seed, out=out)
        check(out.copy_to_host(), a, b, seed)


def test_work_memory_is_used_again():
    forget()
    a, b = operands((20, 2000), (2000, 13))
    buffers = state_of(0).buffers
    check(matmul.matmul(a, b), a, b)
    kept = {key: id(array) for key, array in buffers.items()}
    assert kept
    check(matmul.matmul(-a, b), -a, b)
    assert {key: id(array) for key, array in buffers.items()} == kept
    forget()
    assert not buffers


@pytest.mark.gpu
@pytest.mark.skipif(not on_gpu(), reason="needs a GPU")
@pytest.mark.parametrize(
    "shape", [(512, 512, 512), (1000, 1001, 999), (4096, 16, 4096), (17, 4099, 1025), (64, 64, 32768)]
)
def test_large_shapes(shape):
    m, n, k = shape
    a, b = operands((m, k), (k, n))
    check(matmul.matmul(a, b, out=poisoned(m, n)), a, b)


# -- bad input -------------------------------------------------------------------------------------

A, B, C = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32), np.ones((4, 5), np.float32)
D = np.ones((4, 4))
WRONG = [
    (lambda: matmul.matmul(np.ones((2, 4, 3), "f"), np.ones((3, 3, 5), "f")), ValueError, "axes before the last two"),
    (lambda: matmul.matmul(A, np.ones((2, 4, 5), "f")), ValueError, "b must have as many rows as a has columns"),
    (lambda: matmul.matmul(A, B, out=np.ones((1, 4, 5), "f")), ValueError, r"out has shape \(1, 4, 5\)"),
    (lambda: matmul.matmul(A, B, beta=1), ValueError, "beta is 1; out must be given"),
    (lambda: matmul.matmul(A, B, alpha="1"), TypeError, "alpha is '1'; it must be a number"),
    (lambda: matmul.matmul(A, B, alpha=True), TypeError, "alpha is True; it must be a number"),
    (lambda: matmul.matmul(D, D, "fast"), TypeError, "a has dtype float64; variant 'fast' is for float32"),
    (lambda: matmul.matmul(A, B, "wide", tile=32), ValueError, "tile is 32; variant 'wide' has none"),
    (lambda: matmul.matmul(A, B, depth=32), ValueError, "depth is 32; variant 'auto' has none"),
    (lambda: matmul.configure("wide", (4, 5)), ValueError, "variant is 'wide'; it must be one of naive"),
    (lambda: matmul.steps("fast", A, B[:, :0], C[:, :0]), ValueError, "they must not be empty"),
    (lambda: matmul.steps("auto", A[:, ::2], B[::2], C), ValueError, r"a has strides \(12, 8\); elements of its rows"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_packed_rows_that_no_group_of_32_has(monkeypatch):
    """The last group of rows is smaller, and threads past it read what lies at multiples of 16 bytes."""
    monkeypatch.setattr(host, "prefers_packed", lambda *_: True)
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((8, 44), np.float32), rng.standard_normal((8, 5), np.float32)
    result = matmul.matmul(cuda.to_device(a).T, cuda.to_device(b))
    np.testing.assert_allclose(result.copy_to_host(), a.T @ b, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_columns_by_one_matrix_are_one_product(dtype):
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((40, 24), (7, 24, 1)))
    out = cuda.to_device(np.full((7, 40, 1), np.nan, dtype))
    arrays = cuda.to_device(a), cuda.to_device(b)
    assert len(matmul.steps("auto", *arrays, out)) == 1
    result = matmul.matmul(*arrays, out=out).copy_to_host()
    np.testing.assert_allclose(result, a.astype(float) @ b.astype(float), atol=0.02)
