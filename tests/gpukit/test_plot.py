"""The figures: what they show is what kernels record, numbers can be read, and the device stands on every one."""

import inspect
import re
import time
from itertools import product

import numpy as np
import pytest

import gpukit  # gpukit.plot, and matplotlib with it, is imported by the first test that draws
from gpukit import indexing, show
from gpukit.timing import Timing


@pytest.fixture(autouse=True)
def close_figures():
    yield
    gpukit.plot.style.plt.close("all")


def numbers(ax):
    return [text.get_text() for text in ax.texts if text.get_gid() == "number"]


def cells(ax):
    return next(collection for collection in ax.collections if collection.get_gid() == "cells")


def count(ax):
    return len(cells(ax).get_paths())


DRAWINGS = {
    "launch": lambda ax=None: gpukit.plot.launch((3, 2), (4, 2), ax=ax),
    "launch, coloured by an amount": lambda ax=None: gpukit.plot.launch(3, 8, "index", "index", ax=ax),
    "launch, large": lambda ax=None: gpukit.plot.launch((4000, 40), (16, 16), "x", "x", ax=ax),
    "warps": lambda ax=None: gpukit.plot.warps((10, 5), ax=ax),
    "mapping": lambda ax=None: gpukit.plot.mapping(np.arange(12), 10, 4, ax=ax),
    "mapping, large": lambda ax=None: gpukit.plot.mapping(np.arange(10**6), 999_900, 1000, ax=ax),
    "grid_stride": lambda ax=None: gpukit.plot.grid_stride(29, 4, 2, ax=ax),
    "grid_stride, large": lambda ax=None: gpukit.plot.grid_stride(10**7, 256, 132, ax=ax),
    "lines": lambda ax=None: gpukit.plot.lines([1, 2], [Timing((1.0, 2.0))] * 2, float, "s", ax=ax),
    "image": lambda ax=None: gpukit.plot.image(np.zeros((4, 5, 3), np.uint8), ax=ax),
}


MEASURED = {
    "lines": DRAWINGS["lines"],
    "launch, coloured by a run": lambda ax=None: gpukit.plot.launch(2, 4, np.arange(8), ax=ax),
}


@pytest.mark.parametrize("draw", MEASURED.values(), ids=MEASURED)
def test_a_figure_of_a_run_carries_the_device_once(draw, monkeypatch):
    monkeypatch.setattr(gpukit.plot.style, "on_gpu", lambda: False)
    with gpukit.plot.figure("both", columns=2, size=(8, 3)) as (left, right):
        assert draw(left) is left
        draw(right)
    assert left.get_figure().get_suptitle() == "both"
    assert left.get_figure().get_supxlabel() == gpukit.plot.EMULATED
    monkeypatch.setattr(gpukit.plot.style, "on_gpu", lambda: True)
    monkeypatch.setattr(gpukit.plot.style.device, "info", lambda: type("Info", (), {"name": "NVIDIA H200"}))
    assert draw().get_figure().get_supxlabel() == "NVIDIA H200"


@pytest.mark.parametrize("draw", [draw for name, draw in DRAWINGS.items() if name != "lines"])
def test_what_no_device_computed_names_none(draw):
    assert draw().get_figure().get_supxlabel() == ""


@pytest.mark.parametrize("name", [name for name in DRAWINGS if name not in ("image", "lines")])
def test_numbers_are_inside_of_their_cells_and_stand_out(name):
    ax = DRAWINGS[name]()
    ax.get_figure().canvas.draw()
    texts = [text for text in ax.texts if text.get_gid() == "number"]
    assert texts
    faces = {centre(path): face for path, face in zip(cells(ax).get_paths(), cells(ax).get_facecolors(), strict=True)}
    for text in texts:
        box = text.get_window_extent().transformed(ax.transData.inverted())
        assert box.width < 0.95 and abs(box.height) < 0.95
        assert text.get_fontsize() >= gpukit.plot.threads.MIN_FONT_SIZE
        x, y = text.get_position()
        assert contrast(text.get_color(), faces[round(x, 3), round(y - 0.03, 3)]) > 3.9


def centre(path):
    return tuple(np.round(path.get_extents().get_points().mean(axis=0), 3).tolist())


def test_numbers_that_would_be_too_small_to_read_give_way_to_a_colour_bar():
    ax = gpukit.plot.launch(4, 8, "index", label=np.arange(32) + 10.0**15 / 7)
    assert numbers(ax) == [] and [child.get_ylabel() for child in ax.child_axes] == ["index in the grid"]


def contrast(one, other):
    """As the Web Content Accessibility Guidelines define it, 1 to 21."""

    def luminance(color):
        rgb = gpukit.plot.style.to_rgb(color)
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        return np.dot(linear, (0.2126, 0.7152, 0.0722))

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("grid", "block"), [(3, 5), ((2, 3), (3, 2)), ((2, 2, 2), (3, 4, 2)), (1, (8, 8))])
def test_launch_shows_what_the_threads_record(grid, block):
    table = indexing.thread_table(grid, block)
    block_x, block_y, _ = table["blockIdx"].T
    thread_x, thread_y, _ = table["threadIdx"].T
    drawn = np.lexsort([thread_x, thread_y, block_x, block_y, table["z"]])  # by slice, then by block, then by row
    for field in gpukit.plot.FIELDS:
        ax = gpukit.plot.launch(grid, block, color_by=field, label=field)
        assert numbers(ax) == [str(value) for value in table[field][drawn]]
        colors = [tuple(face) for face in cells(ax).get_facecolors()]
        pairs = set(zip(numbers(ax), colors, strict=True))
        assert len(pairs) == len(set(numbers(ax))), "a value has one colour"
        assert len({color for _, color in pairs}) == min(
            len(pairs), 8 if field in gpukit.plot.threads.CATEGORIES else 256
        )
        gpukit.plot.style.plt.close("all")
    ax = gpukit.plot.launch(grid, block, color_by=table["x"] ** 2, label=table["index"] / 2)
    assert numbers(ax) == [f"{value:g}" for value in table["index"][drawn] / 2]


def test_a_large_launch_is_abbreviated_and_says_how_large_it_is():
    ax = gpukit.plot.launch((100_000, 60_000), (32, 32))
    assert count(ax) < 800
    assert "6,144,000,000,000 threads" in ax.get_title(loc="left")
    words = [text.get_text() for text in ax.texts]
    assert "block (99999, 59999)" in words and "⋯" in words and "⋮" in words
    ax = gpukit.plot.launch(1, 1, label=None)
    assert count(ax) == 1 and numbers(ax) == []


def test_warps_says_which_lanes_have_no_thread():
    ax = gpukit.plot.warps((10, 5))
    assert numbers(ax) == [str(i % 32) for i in range(50)]
    assert "2 warps" in ax.get_title(loc="left") and "14 lanes without a thread" in ax.get_title(loc="left")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["warp 0", "warp 1"]
    assert "without" not in gpukit.plot.warps((16, 16)).get_title(loc="left")


def test_mapping_draws_one_arrow_for_each_thread_that_has_an_element():
    table = indexing.thread_table(3, 4)
    ax = gpukit.plot.mapping(table["x"], 10, 4)
    assert arrows(ax) == list(zip(range(12), range(10), strict=False))
    assert "2 threads without an element" in ax.get_title(loc="left")
    assert gray(ax) == 2
    ax = gpukit.plot.mapping(table["threadIdx"][:, 0], 10, 4)
    assert [element for _, element in arrows(ax)] == [0, 1, 2, 3] * 3
    assert "6 elements without a thread" in ax.get_title(loc="left") and "several" in ax.get_title(loc="left")
    assert gray(ax) == 6


def arrows(ax):
    """(thread, element) of each arrow of a small mapping, from where it starts and ends."""
    heads = [text for text in ax.texts if getattr(text, "arrow_patch", None)]
    starts = sorted({head.get_position()[0] for head in heads})
    return [(starts.index(head.get_position()[0]), int(head.xy[0])) for head in heads]


def gray(ax):
    return sum(
        gpukit.plot.style.to_rgb(face) == gpukit.plot.style.to_rgb(gpukit.plot.threads.UNUSED)
        for face in cells(ax).get_facecolors()
    )


@pytest.mark.parametrize(("n", "threads", "blocks"), [(29, 4, 2), (0, 4, 2), (3, 4, 2), (16, 4, 1), (64, 8, 4)])
def test_grid_stride_puts_every_element_under_its_thread(n, threads, blocks):
    ax = gpukit.plot.grid_stride(n, threads, blocks)
    assert numbers(ax) == [str(i) for i in range(n)]
    table = indexing.grid_stride_table(n, threads, blocks)
    written = [text.get_position() for text in ax.texts if text.get_gid() == "number"]
    assert [int(y) for _, y in written] == table["step"].tolist()
    columns = [int(x - gpukit.plot.threads.GAP * block) for (x, _), block in zip(written, table["block"], strict=True)]
    assert columns == table["thread"].tolist()
    assert gray(ax) == -n % (threads * blocks) + (threads * blocks if n == 0 else 0)


def test_image_takes_gray_and_colour():
    for pixels, top in ((np.full((3, 4), 9, np.uint8), 255), (np.full((3, 4, 3), 0.5, np.float32), 1)):
        shown = gpukit.plot.image(pixels, "t").get_images()[0]
        assert shown.get_array().shape == pixels.shape and shown.get_clim() == (0, top)


def test_lines_goes_through_the_medians_with_a_band_between_the_quartiles():
    timings = [Timing(samples) for samples in ((1.0, 2.0, 3.0, 4.0, 5.0), (10.0, 20.0, 30.0, 40.0, 50.0))]
    ax = gpukit.plot.lines([1, 2], timings, lambda seconds: 60 / seconds, "GB/s", label="axpy")
    line, band = ax.lines[0], ax.collections[0]
    assert line.get_xydata().tolist() == [[1, 20], [2, 2]]
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1, 30), (1, 15), (2, 3), (2, 1.5)}
    assert ax.get_ylabel() == "GB/s" and ax.get_legend_handles_labels()[1] == ["axpy"]


X = np.arange(4)
WRONG = [
    (lambda: gpukit.plot.launch(0, 4), ValueError, "grid is 0"),
    (lambda: gpukit.plot.launch(1, "4"), TypeError, "block is '4'"),
    (lambda: gpukit.plot.launch(1, 4, "thread"), ValueError, "color_by is 'thread'; it must be one of block_index"),
    (lambda: gpukit.plot.launch(1, 4, label=np.arange(5)), ValueError, r"label has shape \(5,\); it must be \(4,\)"),
    (lambda: gpukit.plot.launch(1, 1, np.array(["a"])), TypeError, "color_by has dtype <U1"),
    (lambda: gpukit.plot.warps((4, 4, 4, 4)), ValueError, "1 to 3 dimensions"),
    (lambda: gpukit.plot.mapping(X, 0, 4), ValueError, "size is 0"),
    (lambda: gpukit.plot.mapping(X, 4, 3), ValueError, "whole blocks"),
    (lambda: gpukit.plot.mapping(X / 2, 4, 4), TypeError, "elements has dtype float64"),
    (lambda: gpukit.plot.grid_stride(-1, 4, 1), ValueError, "n is -1"),
    (lambda: gpukit.plot.grid_stride(1, 4, 0), ValueError, "blocks is 0"),
    (lambda: gpukit.plot.image([[1]]), TypeError, r"pixels is \[\[1\]\]; it must be a NumPy array"),
    (lambda: gpukit.plot.image(np.zeros((2, 2), int)), TypeError, "dtype int64"),
    (lambda: gpukit.plot.image(np.zeros((2, 2, 4), np.uint8)), ValueError, r"shape \(2, 2, 4\)"),
    (lambda: gpukit.plot.figure(rows=0).__enter__(), ValueError, "rows is 0"),
    (lambda: gpukit.plot.lines([1], [], float, "s"), ValueError, "timings has 0 items for 1 of x"),
    (lambda: gpukit.plot.lines([1], [Timing((1.0,))], "s", "s"), TypeError, "value is 's'; it must be a function"),
    (lambda: gpukit.plot.lines([1], [Timing((1.0,))], float, ""), ValueError, "unit is ''"),
    (lambda: gpukit.plot.rungs(["a"], {"a": [1]}, "s", ["a"]), TypeError, "x has dtype <U1"),
    (
        lambda: gpukit.plot.shaded("x", ["a"], ["b"]),
        TypeError,
        "values has dtype <U1; it must be a type of real numbers",
    ),
    (lambda: gpukit.plot.waves(40, 0), ValueError, "multiprocessors is 0; it must be from 1"),
    (lambda: gpukit.plot.reduce_axes(()), ValueError, "shape is empty"),
    (lambda: gpukit.plot.fragment(np.eye(2)), TypeError, "held is an ndarray .*; it must be a FragmentMap"),
    (lambda: show.source(), TypeError, "at least one function"),
    (lambda: show.source(3), TypeError, "3 has no Python source"),
    (lambda: show.table(X), TypeError, "structured"),
    (lambda: show.table(indexing.thread_table(1, 1), ["who"]), ValueError, "columns has 'who'"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_bad_arguments_are_named_and_leave_no_figure(call, error, message):
    opened = gpukit.plot.style.plt.get_fignums()
    with pytest.raises(error, match=message):
        call()
    assert gpukit.plot.style.plt.get_fignums() == opened


@pytest.mark.parametrize(
    "draw",
    [
        lambda: gpukit.plot.launch(2**31, 2**31),
        lambda: gpukit.plot.launch(2**62, 4),
        lambda: gpukit.plot.warps(2**31),
        lambda: gpukit.plot.grid_stride(2**31, 256, 2**31 - 1),
        lambda: gpukit.plot.grid_stride(2**64, 256, 2),
        lambda: gpukit.plot.product_tiles(8, 8, 2**31, 1),
        lambda: gpukit.plot.product_tiles(8, 8, 2**31 - 1, 4),
    ],
)
def test_absurd_sizes_are_abridged_or_refused_at_once(draw):
    began = time.perf_counter()
    try:
        draw()
    except ValueError as error:
        assert re.search("must (be|have)|at most", str(error))
    assert time.perf_counter() - began < 5


def test_source_is_shown_as_it_stands_in_the_file():
    shown = show.source(indexing.index_in_block, indexing.print_indices)
    assert str(shown).startswith("# gpukit/indexing.py, line ")
    assert "def index_in_block():" in str(shown) and str(shown).count("@cuda.jit") == 2
    assert '<pre style="white-space: pre; overflow-x: auto;' in shown._repr_html_()
    assert '<span style="color: #9965d8">def</span> index_in_block():' in shown._repr_html_()


def test_table_keeps_the_order_of_columns_and_the_ends_of_long_ones():
    table = indexing.thread_table(10, 4)
    text = str(show.table(table, ["index", "blockIdx"], rows=5))
    assert [line.split(maxsplit=1) for line in text.splitlines()] == [
        ["index", "blockIdx"],
        ["0", "(0, 0, 0)"],
        ["1", "(0, 0, 0)"],
        ["2", "(0, 0, 0)"],
        ["…", "…"],
        ["39", "(9, 0, 0)"],
    ]
    cell_count = show.table(table[:3], ["x", "y"])._repr_html_().count("<td ")
    assert cell_count == len(list(product(range(3), range(2))))


def test_a_table_has_words_at_the_left_and_numbers_at_the_right():
    page = show.Table(
        ["kernel", "us", "of a copy", "tile"], [["copy", "1.5", "", "16 x 16"], ["a < b", "-2", "98%", ""]]
    )
    cells = re.findall(
        r'<t[hd]><div align="(left)">([^<]*)<|<t[hd] style="text-align: (right)">([^<]*)<', page._repr_html_()
    )
    cells = [(left or right, one or other) for left, one, right, other in cells]
    assert [text for _, text in cells] == "kernel,us,of a copy,tile,copy,1.5,,16 x 16,a &lt; b,-2,98%,".split(",")
    assert [side for side, _ in cells] == ["left", "right", "right", "right"] * 3


def test_a_notebook_stores_a_figure_with_its_titles_and_labels_as_alternative_text():
    formatter = pytest.importorskip("IPython.core.formatters").DisplayFormatter()
    with gpukit.plot.figure("Copies", columns=2) as (left, right):
        left.set(title="of  $10^6$ values\ntimed", xlabel="size", ylabel="GB/s")
        right.set_title("of $10^6$ values", loc="left")
    data, about = formatter.format(left.figure)
    assert about == {"image/png": {"alt": "Copies; of 10^6 values; timed; GB/s against size"}}
    assert "text/plain" in data


# -- tiles of a matrix product ---------------------------------------------------------------------


def test_product_tiles_are_those_of_one_block():
    ax = gpukit.plot.product_tiles(40, 56, 37, 16, block=(3, 2), step=2)
    boxes = {}
    for patch in ax.patches:
        name = dict(zip(gpukit.plot.PALETTE, ("a", "b", "out"), strict=False)).get(
            gpukit.plot.style.to_hex(patch.get_facecolor()).upper()
        )
        boxes.setdefault(name, []).append((round(patch.get_width(), 6), round(patch.get_height(), 6)))
    assert boxes["a"] == [(16, 8), (16, 8), (5, 8)], "the last block of rows has 8, the last step 5 columns"
    assert boxes["b"] == [(8, 16), (8, 16), (8, 5)]
    assert boxes["out"] == [(8, 8)]
    assert [p.get_alpha() for p in ax.patches if p.get_alpha()] == [0.3, 0.3, 0.3, 0.3, 1, 1]
    assert "step 3 of 3" in ax.get_title(loc="left")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((4, 4, 0, 2), "k is 0"),
        ((4, 4, 4, 2, (2, 0)), r"block\[0\] is 2; it must be from 0 to 1"),
        ((4, 4, 4, 2, (0, 0), 2), "step is 2"),
    ],
)
def test_product_tiles_refuse_what_is_not_there(arguments, message):
    with pytest.raises(ValueError, match=message):
        gpukit.plot.product_tiles(*arguments)


def test_source_leaves_all_but_the_first_paragraph_of_a_docstring_to_help():
    def make_kernel(dtype):
        """Make a kernel.

        dtype : of its values
        """

        def kernel(x):  # a helper of one line
            r"""Add \\1
            to each value.

            x : values
            """
            return x + dtype(1)

        return kernel

    text = str(show.source(make_kernel))
    kept = (
        'def make_kernel(dtype):\n    """Make a kernel."""\n\n    def kernel(x):  # a helper of one line\n'
        '        r"""Add \\\\1\n        to each value."""\n        return x + dtype(1)\n\n    return kernel'
    )
    assert text.partition("\n")[2] == kept
    kernel = indexing.axpy_grid_stride.py_func
    assert str(show.source(kernel)).partition("\n")[2] == inspect.getsource(kernel).rstrip()


# -- drawings that explain -------------------------------------------------------------------------


def boxes(ax, gid):
    return [patch for patch in ax.patches if patch.get_gid() == gid]


def words(ax):
    return " | ".join(text.get_text() for text in ax.texts)


EXPLAINING = {
    "memory_hierarchy": lambda: gpukit.plot.memory_hierarchy(),
    "multiprocessor": lambda: gpukit.plot.multiprocessor(),
    "waves": lambda: gpukit.plot.waves(300, 132, 2),
    "barrier_in_time": lambda: gpukit.plot.barrier_in_time(),
    "double_buffering": lambda: gpukit.plot.double_buffering(),
    "halo_tile": lambda: gpukit.plot.halo_tile(),
    "edge_blocks": lambda: gpukit.plot.edge_blocks(),
    "nested_tiles": lambda: gpukit.plot.nested_tiles(),
    "split_k": lambda: gpukit.plot.split_k(64, 128, 4096),
    "layouts": lambda: gpukit.plot.layouts(),
    "padded_window": lambda: gpukit.plot.padded_window(),
    "im2col_product": lambda: gpukit.plot.im2col_product(2, 64, 288, 3136),
    "reduce_axes": lambda: gpukit.plot.reduce_axes((5, 7, 200), 1),
    "swizzle": lambda: gpukit.plot.swizzle(),
    "fragment": lambda: gpukit.plot.fragment(gpukit.tensor.fragment_map((16, 8, 32), "int8", "a"), 5),
    "butterfly": lambda: gpukit.plot.butterfly(),
    "errors_in_time": lambda: gpukit.plot.errors_in_time(),
}


@pytest.mark.parametrize("draw", EXPLAINING.values(), ids=EXPLAINING)
def test_a_drawing_has_a_title_and_its_text_is_legible_and_inside(draw):
    ax = draw()
    figure = ax.get_figure(root=True)
    figure.canvas.draw()
    assert figure.get_figwidth() <= 6.5 and ax.get_title(loc="left")
    whole = figure.bbox
    for text in (*ax.texts, *(t for t in (ax.title, ax._left_title) if t.get_text())):
        box = text.get_window_extent()
        assert text.get_fontsize() >= 8 and box.x0 >= -1 and box.x1 <= whole.x1 + 1, text.get_text()


def test_a_device_without_recorded_rates_is_drawn_with_its_sizes_alone():
    known = words(gpukit.plot.memory_hierarchy())
    assert "bandwidth" in known and "4.27 TB/s" in known and "60 MB" in known
    other = gpukit.plot.memory_hierarchy(gpukit.device.RTX_3090)
    assert "/s" not in words(other) and "latency" not in words(other)
    assert "6 MB" in words(other) and other.get_figure().get_supxlabel() == "NVIDIA GeForce RTX 3090"


def test_the_blocks_on_a_multiprocessor_are_those_that_a_trace_counts():
    title = gpukit.plot.multiprocessor(128, 64, 40000).get_title(loc="left")
    assert "5 on an SM, 20 of 64 warps, 31%" in title and "limit: shared memory" in title
    with pytest.raises(ValueError, match="does not fit on an SM"):
        gpukit.plot.multiprocessor(1024, 255)


def test_a_halo_is_copied_by_edges_in_9_steps_and_evenly_in_2():
    text = words(gpukit.plot.halo_tile((4, 8), (3, 3)))
    assert "up to 9 copies, 1.875" in text and "up to 2 copies, 1.875" in text
    assert "1: 21 | 3: 10 | 9: 1" in text and "1: 4 | 2: 28" in text
    assert "up to 36 copies" in words(gpukit.plot.halo_tile((4, 8), (6, 6)))


def test_warps_that_load_before_the_last_store_are_marked_and_wait_with_a_barrier():
    ax = gpukit.plot.barrier_in_time((2, 5, 3), (3, 3, 3))
    unit = boxes(ax, "early")[0].get_width() / 3
    assert [round(box.get_width() / unit, 3) for box in boxes(ax, "early")] == [3, 2]
    assert [round(box.get_width() / unit, 3) for box in boxes(ax, "waits")] == [3, 2]
    assert "25 units of time become 17" in gpukit.plot.double_buffering(3, 2, 5).get_title(loc="left")


def test_after_a_kernel_that_fails_every_call_of_the_host_raises():
    ax = gpukit.plot.errors_in_time()
    hosts = [box for box in ax.patches if round(box.get_y() % 1.12, 2) == 0.3 and box.get_width() > 0.3]
    assert [box.get_gid() or "" for box in hosts] == ["wrong", "", "", "", "wrong", "wrong", "wrong"]


def test_a_value_has_the_same_number_and_channel_in_all_layouts():
    ax = gpukit.plot.layouts(2, 3, 2, 2)
    values = np.arange(24).reshape(2, 3, 2, 2)
    texts = [text.get_text() for text in ax.texts if text.get_text().isdigit()]
    orders = {"NCHW": values, "NHWC": values.transpose(0, 2, 3, 1), "CHWN": values.transpose(1, 2, 3, 0)}
    assert texts == [str(value % 4) for order in orders.values() for value in order.ravel()]


def test_the_column_of_a_window_is_that_of_im2col():
    image = np.arange(1, 21, dtype=np.float32).reshape(1, 1, 4, 5)
    columns = gpukit.conv.im2col(image, 3, stride=2, padding=2, dilation=2)[0]
    ax = gpukit.plot.padded_window((4, 5), (3, 3), 2, 2, 2, at=(1, 1))
    places = {(round(t.get_position()[0], 4), round(t.get_position()[1], 4)): t.get_text() for t in ax.texts}
    centres = [(b.get_x() + b.get_width() / 2, b.get_y() + b.get_height() / 2) for b in boxes(ax, "tap")]
    drawn = [int(places[round(x, 4), round(y, 4)]) for x, y in centres]
    assert drawn == columns.reshape(9, 2, 3)[:, 1, 1].tolist()


def test_the_blocks_of_a_reduction_cover_the_array_once():
    gids = [p.get_gid() for p in gpukit.plot.reduce_axes((2, 7, 70), 1).patches if p.get_gid()]
    assert sum(int(a) * int(b) for a, b in (gid.split(" x ") for gid in gids)) == 2 * 7 * 70


def test_the_steps_of_a_warp_end_in_the_sum_and_the_scan():
    values = [3, 1, 4, 1, 5]
    last = [text.get_text() for text in gpukit.plot.scan_steps(values).texts if text.get_text().isdigit()][-5:]
    assert last == [str(n) for n in np.cumsum(values)]
    assert words(gpukit.plot.butterfly([1, 2, 3, 4])).endswith("10 | 10 | 10 | 10")


def test_blocks_at_the_edge_cover_the_image_once_in_both_plans():
    ax = gpukit.plot.edge_blocks((14, 27), (4, 8))
    assert "16 blocks; 134 threads have no result" in words(ax)
    assert "9 blocks; up to 66 results for 32 threads" in words(ax)
    plans = (boxes(ax, name) for name in ("threads beyond the image", "last blocks grow"))
    more, grown = (sum(b.get_width() * b.get_height() for b in plan) for plan in plans)
    assert more == pytest.approx(grown)


# -- measurements side by side ---------------------------------------------------------------------


def test_dots_stand_at_their_values_with_their_notes():
    values = {"tiled": {"16": 17.5, "32": 17.7}, "dynamic": {"32": 47.0}}
    ax = gpukit.plot.dots(values, "ms", notes={"tiled": "4.3"}, hollow=["32"], limit=("copy", 10.0))
    places = [tuple(map(float, place)) for points in ax.collections[:2] for place in points.get_offsets()]
    assert places == [(17.5, 0), (17.7, 0), (47.0, 1)]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["tiled", "dynamic"]
    assert ax.get_xlim()[0] == 0 and "4.3" in words(ax) and "copy" in words(ax)
    logarithmic = gpukit.plot.dots({"first": 7658.0, "second": 1.8}, "ms", log=True)
    assert words(logarithmic) == "7,658 | 1.80" and "logarithmic" in logarithmic.get_xlabel()


def test_rungs_are_compared_with_the_best_of_the_others_and_their_names_do_not_overlap():
    series = {"a": [1, 2], "b": [2, 4.0], "cupy": [1, 4.1], "torch": [2, 2], "rest": [1, 1]}
    rates, ratios = gpukit.plot.rungs([10, 100], series, "GB/s", ["a", "b", "cupy"], against=["cupy", "torch"])
    assert [line.get_ydata().tolist() for line in ratios.lines[:3]] == [[0.5, 2 / 4.1], [1, 4 / 4.1], [0.5, 1]]
    assert "rest" in rates.get_title(loc="left") + rates.get_title()
    for ax in (rates, ratios):
        ends = sorted(text.xy[1] for text in ax.texts)
        assert min(np.diff(ends)) > 0.06 * ax.get_ylim()[1]


def test_a_shaded_table_leaves_cells_without_a_value_empty():
    ax = gpukit.plot.shaded([[1, np.nan], [0.5, 2]], ["x", "y"], ["p", "q"], "GB/s")
    assert words(ax) == "1.00 | – | 0.50 | 2.00"
    assert [gpukit.plot.style.to_hex(p.get_facecolor()) for p in ax.patches][1] == "#ffffff"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpukit.plot.dots({}, "ms"), "values is empty"),
        (lambda: gpukit.plot.dots({"a": 0}, "ms", log=True), r"values\['a'\] is 0; on a logarithmic axis"),
        (lambda: gpukit.plot.rungs([1], {"a": [1, 2]}, "s", ["a"]), r"series\['a'\] has 2 items for 1 of x"),
        (lambda: gpukit.plot.rungs([1], {"a": [1]}, "s", ["b"]), "must be 1 to 6 names of series"),
        (lambda: gpukit.plot.shaded([[1]], ["a"], ["b", "c"]), r"values has shape \(1, 1\); it must be \(1, 2\)"),
        (lambda: gpukit.plot.barrier_in_time((1, 2), (1,)), "load has 1 items"),
        (lambda: gpukit.plot.padded_window((2, 2), (3, 3), padding=0), "it must fit the padded image"),
        (lambda: gpukit.plot.nested_tiles(warp=(32, 60)), "it must divide block"),
        (lambda: gpukit.plot.layouts(8, 8, 8, 8), "at most 48"),
        (lambda: gpukit.plot.swizzle(6), "power of two"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
    assert gpukit.plot.style.plt.get_fignums() == []
