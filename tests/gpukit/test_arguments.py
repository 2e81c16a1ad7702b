"""Bad arguments of the host functions: each is refused by name, before anything was launched or changed."""

import decimal
import fractions
import functools
import itertools
import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import view_on_device

from gpukit import (
    conv,
    errors,
    indexing,
    launching,
    matmul,
    multi,
    prediction,
    reduce,
    resize,
    results,
    scan,
    show,
    streams,
    tensor,
    timing,
    transpose,
)
from gpukit._host.transfers import to_device
from gpukit.backend import cuda, on_gpu
from warpstep.values import describe


class Interface:
    """A device array of another library, whose description can be spoilt."""

    def __init__(self, array, read_only=False, **changes):
        self.array = cuda.to_device(array)
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        address = self.array.device_ctypes_pointer.value or 0
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": (address, read_only), "version": 3
        }  # fmt: skip
        for key, value in changes.items():
            if value is KeyError:
                del self.__cuda_array_interface__[key]
            else:
                self.__cuda_array_interface__[key] = value


class Raises:
    """An array whose description cannot be read, as that of a PyTorch tensor that requires a gradient."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("no such thing")


class Raising:
    """An object whose every use raises."""

    def _raise(self, *args, **options):
        raise RuntimeError("broken")

    __repr__ = __str__ = __len__ = __iter__ = __index__ = __int__ = __float__ = __bool__ = __hash__ = __array__ = _raise
    __eq__ = __call__ = __getattr__ = _raise


class Endless:
    def __iter__(self):
        return iter(int, 1)


class Claims(np.ndarray):
    """Says that it is an array of numba.cuda, and is none."""

    __cuda_ndarray__ = True


def described(value):
    """An object with this description, and nothing else."""
    return type("Described", (), {"__cuda_array_interface__": value})()


def read_only(array):
    array.flags.writeable = False
    return array


A, B, SQUARE = (np.arange(n, dtype=np.float32).reshape(shape) for n, shape in ((6, (2, 3)), (12, (3, 4)), (16, (4, 4))))
X, HALF = np.arange(8, dtype=np.float32), np.eye(4, dtype=np.float16)
IMAGE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
PIXELS = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
WEIGHT = np.ones((3, 2, 2, 2), np.float32)
OFFSETS = np.array([0, 3, 3, 8])


def empty(*shape, dtype=np.float32):
    return np.full(shape, 7, dtype)


@cuda.jit
def copy(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]


def make_schedule():
    schedule = streams.Schedule()
    schedule.add("kernel", lambda stream: None)
    return schedule


def bench(**options):
    return timing.bench(dict, **options)


RECORDS = [{"variant": "v", "value": 1.0, "gpu": "G", "date": "D"}]
TIMING = timing.Timing((1e-3, 2e-3))

#: Each public host function with arguments that are right.
CALLS = {
    indexing.num_blocks: {"n": 1000, "threads": 256, "limit": 10},
    indexing.thread_table: {"grid": 2, "block": (4, 2), "stream": None},
    indexing.block_order: {"blocks": 3, "threads": 32, "stream": None},
    indexing.grid_stride_table: {"n": 10, "threads": 4, "blocks": 2, "stream": None},
    indexing.axpy: {"a": 2.0, "x": X, "y": X, "out": empty(8), "threads": 4, "blocks": 1, "stream": None},
    transpose.transpose: {"a": A, "variant": "tiled", "out": empty(3, 2), "stream": None},
    transpose.configure: {"variant": "tiled", "shape": (4, 8), "dtype": np.float32, "stream": None},
    matmul.matmul: {
        "a": A,
        "b": B,
        "variant": "dynamic",
        "alpha": 2.0,
        "beta": 0.5,
        "out": empty(2, 4),
        "tile": 8,
        "depth": 8,
        "stream": None,
    },
    matmul.configure: {"variant": "tiled_padded", "shape": (4, 4), "dtype": np.float32, "tile": 8, "pad": 1},
    matmul.steps: {"variant": "registers_1d", "a": SQUARE, "b": SQUARE, "out": empty(4, 4), "alpha": 1, "stream": None},
    reduce.reduce: {"x": A, "axis": 0, "op": "sum", "keepdims": False, "out": empty(3), "stream": None},
    reduce.reduce_higher_dim: {"x": A, "op": "max", "out": empty(1, 3), "stream": None},
    reduce.sum_by: {"x": X, "variant": "one_launch", "out": empty(1), "stream": None},
    resize.resize: {
        "image": IMAGE,
        "size": (2, 2),
        "method": "nearest",
        "swap_rb": True,
        "out": empty(2, 2, 3, dtype=np.uint8),
        "stream": None,
    },
    resize.letterbox: {"image": IMAGE, "size": (4, 8), "fill": 3, "center": True, "swap_rb": False, "stream": None},
    resize.blob: {
        "image": IMAGE,
        "size": (2, 2),
        "mean": 1.0,
        "factor": (1, 2, 3),
        "fill": 3,
        "center": True,
        "dtype": np.float32,
        "out": empty(3, 2, 2),
        "stream": None,
    },
    resize.placement: {"source": (4, 6), "target": (8, 8), "center": True},
    resize.video: {
        "frames": [IMAGE],
        "size": (2, 2),
        "mean": 0,
        "factor": 1,
        "fill": 0,
        "dtype": np.float32,
        "depth": 1,
    },
    conv.im2col: {
        "x": PIXELS,
        "kernel_size": 2,
        "stride": (1, 1),
        "padding": 0,
        "dilation": 1,
        "variant": "element",
        "out": empty(1, 8, 9),
        "stream": None,
    },
    conv.col2im: {
        "columns": empty(1, 8, 9),
        "output_size": (4, 4),
        "kernel_size": 2,
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "out": empty(1, 2, 4, 4),
        "request": "add",
        "stream": None,
    },
    conv.conv2d: {
        "x": PIXELS,
        "weight": WEIGHT,
        "bias": empty(3),
        "stride": 1,
        "padding": 0,
        "dilation": 1,
        "groups": 1,
        "algorithm": "im2col",
        "out": empty(1, 3, 3, 3),
        "workspace": None,
        "stream": None,
    },
    conv.steps: {
        "algorithm": "direct",
        "x": PIXELS,
        "weight": WEIGHT,
        "out": empty(1, 3, 3, 3),
        "groups": 1,
        "stream": None,
    },
    conv.configure_im2col: {
        "variant": "element",
        "shape": (1, 2, 4, 4),
        "kernel_size": 2,
        "padding": 0,
        "stream": None,
    },
    conv.configure_col2im: {"shape": (1, 2, 4, 4), "kernel_size": 2, "stride": 1, "request": "add", "stream": None},
    conv.workspace_size: {"x_shape": (1, 2, 4, 4), "kernel_size": 2, "stride": 1, "padding": 0, "dilation": 1},
    conv.extra_memory: {"x_shape": (1, 2, 4, 4), "weight_shape": (3, 2, 2, 2), "groups": 1, "itemsize": 4},
    matmul.predicted_time: {"m": 4, "n": 4, "k": 4, "batch": 1, "dtype": np.float16},
    matmul.right_pad: {"dtype": np.float32, "tile": 16},
    reduce.steps: {"variant": "wide", "x": X, "out": empty(1), "stream": None},
    resize.least_bytes: {"frames": 3, "source": (4, 6), "target": (8, 8), "place": None, "items": (1, 4)},
    resize.placement((4, 6), (8, 8)).to_source: {"points": [[1, 2]]},
    streams.Pipeline: {
        "kernel": copy,
        "x": X,
        "chunks": [3, 5],
        "streams": 2,
        "order": "breadth",
        "pinned": True,
        "buffers": "task",
        "out": empty(8),
    },
    streams.pipelined: {"kernel": copy, "x": X, "out": empty(8), "chunk": 3, "streams": 2},
    streams.SleepKernel: {"cycles": 10, "grid": 1, "block": 32},
    streams.WorkKernel.lasting: {"seconds": 1e-6, "elements": 10},
    streams.scrambled: {"words": np.arange(4, dtype=np.uint32), "rounds": 3},
    streams.best_chunks: {"copy_in": 1.0, "kernel": 2.0, "copy_out": 1.0, "launch": 1e-3, "most": 64},
    streams.best_speedup: {"copy_in": 1.0, "kernel": 2.0, "copy_out": 1.0, "both": 2.0},
    streams.predicted: {"copy_in": 1.0, "kernel": 2.0, "copy_out": 1.0, "chunks": 4, "launch": 1e-3},
    streams.modelled: {"schedule": make_schedule(), "model": None},
    streams.Model: {"copy_in": 1e9, "issue": 1e-6, "copy_engines": 1, "concurrent_kernels": True},
    make_schedule().add: {
        "engine": "kernel",
        "action": len,
        "stream": 0,
        "task": 1,
        "after": [0],
        "reads": ["a"],
        "nbytes": 5,
        "seconds": 1.0,
        "pageable": False,
    },
    streams.modelled(make_schedule()).busy: {"engine": "kernel"},
    timing.Timer: {"message": "m", "unit": "ms", "device": "cpu", "show": True},
    bench: {"name": "n", "device": "cpu", "warmup": 0, "repeat": 3},
    TIMING.gbps: {"nbytes": 5.0},
    timing.format_seconds: {"seconds": 1e-3},
    results.by_variant: {"records": RECORDS},
    results.documents: {"row": "A12"},
    results.of_timing: {"chapter": "c", "case": "a", "variant": "v", "shape": (2,), "dtype": "f4", "timing": TIMING},
    results.profile: {"name": "no such"},
    results.read: {"source": "no such"},
    results.table: {"records": RECORDS, "columns": {"a": "variant"}},
    results.taken_on: {"records": RECORDS},
    show.Table: {"header": ["a"], "rows": [["1"]], "title": "t", "words": None, "code": ()},
    show.table: {"records": np.zeros(4, indexing.THREAD), "columns": ("x", "y"), "rows": 16},
    prediction.recorded: {"source": "no such"},
    prediction.from_records: {"records": RECORDS},
    tensor.fragment_map: {"shape": (16, 8, 16), "dtype": "float16", "operand": "a"},
    tensor.multiply_by: {"a": HALF, "b": HALF, "variant": "one_warp"},
    multi.choose_devices: {"devices": 1},
    multi.rows_of: {"rows": 7, "count": 3},
    multi.bus_bandwidth: {"nbytes": 8, "seconds": 2.0, "count": 2},
    multi.heat: {"u": SQUARE, "steps": 1, "devices": 1, "variant": "host", "rate": 0.2},
    multi.product: {"a": A, "b": B, "devices": 1, "variant": "host"},
    scan.scan: {"x": X, "axis": 0, "op": "sum", "exclusive": True, "out": empty(8), "stream": None},
    scan.histogram: {"x": X, "bins": 3, "range": (0, 8), "stream": None},
    scan.sort: {"x": X, "values": X, "axis": 0, "out": empty(8), "stream": None},
    scan.segmented_reduce: {"x": X, "offsets": np.array([0, 3, 8]), "op": "max", "out": empty(2), "stream": None},
    launching.upload: {"array": Raises(), "values": X, "stream": 0},
    errors.check_launch: {"kernel": copy, "grid": 2, "block": 32, "shared_bytes": 0},
}

NUMBERS = [np.dtype(c).type for c in np.typecodes["AllInteger"] + np.typecodes["AllFloat"]]
SHAPES = ((), (0,), (3,), (8,), (2, 3), (3, 4), (4, 4), (4, 4, 3), (1, 2, 4, 4))
#: How a value is made, by what it is: each call gets its own.
VALUES: dict[str, Any] = {
    **{describe(value)[:40]: lambda value=value: value for value in (
        None, "s", "", "auto", b"s", float("nan"), float("inf"), -float("inf"), 1.5, 1j, 0, -1, True, False, 2**31,
        2**63, 2**64, -(2**63) - 1, 10**400, (), (1,), (2, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5), (1.5, 2), (None, None),
        ("a", "b"), (10**400, 1), {1, 2}, range(2), slice(2), Ellipsis, int, len, fractions.Fraction(1, 3),
        decimal.Decimal(1), 10**5000, (10**5000, 2), -0.0, 1e308, np.timedelta64(1, "s"), np.longdouble("1e400"), "\0",
        np, ValueError, Raising,
    )},  # fmt: skip
    **{f"np.{kind.__name__}": lambda kind=kind: kind(1) for kind in NUMBERS},
    "np.bool_": lambda: np.True_,
    "np.str_": lambda: np.str_("s"),
    "datetime64": lambda: np.datetime64("2026-01-01"),
    "object": object,
    "list": lambda: [1, 2],
    "empty list": list,
    "nested list": lambda: [[1, 2], [3, 4]],
    "dict": dict,
    "lambda": lambda: lambda a, b: a,
    "raises": Raises,
    "raising": Raising,
    "pair of raising": lambda: (Raising(), Raising()),
    "list of raising": lambda: [Raising()],
    "endless": Endless,
    "deep list": lambda: functools.reduce(lambda inner, _: [inner], range(5000), 1),
    "ragged": lambda: [[1], [2, 3]],
    "generator": lambda: (i for i in range(3)),
    **{f"claims {shape}": lambda shape=shape: np.ones(shape, np.float32).view(Claims) for shape in SHAPES},
    **{f"huge {shape}": lambda shape=shape: huge(*shape) for shape in ((2**40,), (2**20, 2**20), (0, 2**60))},
    **{f"mapped {shape}": lambda shape=shape: cuda.mapped_array(shape, np.float32)
       for shape in SHAPES if shape != (0,) or not on_gpu()},  # fmt: skip
    **{f"array {shape}": lambda shape=shape: np.ones(shape, np.float32) for shape in SHAPES},
    **{f"ints {shape}": lambda shape=shape: np.ones(shape, np.int64) for shape in SHAPES},
    **{f"device {shape}": lambda shape=shape: cuda.to_device(np.ones(shape, np.float32)) for shape in SHAPES},
    **{f"masked {shape}": lambda shape=shape: np.ma.masked_equal(np.ones(shape, np.float32), 1) for shape in SHAPES},
    **{f"big-endian {shape}": lambda shape=shape: np.ones(shape, ">f4") for shape in SHAPES},
    **{f"read-only {shape}": lambda shape=shape: read_only(np.ones(shape, np.float32)) for shape in SHAPES},
    **{f"read-only device {shape}": lambda shape=shape: Interface(np.ones(shape, "f4"), read_only=True)
       for shape in SHAPES if shape != (0,)},  # fmt: skip
    "matrix": lambda: np.matrix(np.ones((2, 3), np.float32)),
    "recarray": lambda: np.ones((2, 3), np.float32).view(np.recarray),
    "structured": lambda: np.zeros((2, 3), [("f", "f4"), ("g", "f4")]),
    "objects": lambda: np.full((2, 3), None),
    "strings": lambda: np.full((2, 3), "s"),
    "dates": lambda: np.zeros((2, 3), "M8[s]"),
    "complex": lambda: np.ones((2, 3), np.complex64),
    "halves": lambda: np.ones((2, 3), np.float16),
    "reversed": lambda: np.ones((2, 3), np.float32)[::-1, ::-1],
    "no description": lambda: described(None),
    "description is a list": lambda: described([1]),
    "empty description": lambda: described({}),
    "description without a shape": lambda: described(Interface(A).__cuda_array_interface__),
    **{f"{key} = {value!r}": lambda key=key, value=value: Interface(A, **{key: value})
       for key, value in (
        ("shape", KeyError), ("shape", [2, 3]), ("shape", (2, "3")), ("shape", (2, -3)), ("shape", (3, 2)),
        ("shape", 6), ("typestr", KeyError), ("typestr", 4), ("typestr", "what"), ("typestr", "<f9"),
        ("typestr", ">f4"),
        ("data", KeyError), ("data", None), ("data", (1,)), ("data", ("a", False)), ("data", 5),
        ("version", KeyError), ("version", 0), ("version", "3"), ("version", None),
        ("mask", A), ("strides", 5), ("strides", (4,)), ("strides", (4, "4")),
    )},  # fmt: skip
}  # fmt: skip


#: What else some of them raise, as their documentation says.
ALSO = {
    timing.Timer: (timing.EmulatedTimeError,),
    bench: (timing.EmulatedTimeError,),
    results.documents: (KeyError,),
    results.profile: (OSError,),
    results.read: (OSError,),
    prediction.recorded: (OSError,),
    prediction.from_records: (LookupError,),
    errors.check_launch: (errors.LaunchError,),
}


def arrays_of(arguments):
    """The NumPy arrays, those apart that only seem to be large."""
    return {
        name: value
        for name, value in arguments.items()
        if type(value) is np.ndarray and value.dtype != object and value.nbytes < 2**20
    }


def refused_by_name(function, name, value):
    """Call with one argument exchanged; returns whether it was refused."""
    arguments = {key: v.copy() if isinstance(v, np.ndarray) else v for key, v in CALLS[function].items()}
    arguments[name] = value
    before = {key: array.copy() for key, array in arrays_of(arguments).items()}
    start, refused = time.process_time(), False
    try:
        result = function(**arguments)
        if function is resize.video:
            list(result)
    except (TypeError, ValueError, MemoryError, *ALSO.get(function, ())) as error:
        refused = True
        # An array that is right in itself may not fit another one.
        others = [other for other in arguments if len(other) > 2]
        named = re.search(rf"\b({'|'.join([name, *others])})\b", str(error))
        assert named or isinstance(error, (timing.EmulatedTimeError, OSError, LookupError)), (
            f"the message does not name {name}: {error!r}"
        )
        assert len(str(error)) < 1000
    assert time.process_time() - start < 5 or on_gpu()  # where compilers take as long
    for key, array in before.items():
        if refused or key != "out":
            np.testing.assert_array_equal(arguments[key], array)
    return refused


PLACES = [(function, name) for function, arguments in CALLS.items() for name in arguments]


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(PLACES), st.sampled_from(list(VALUES)))
@pytest.mark.filterwarnings("ignore")
def test_a_bad_argument_is_refused_by_its_name_and_nothing_is_changed(place, value):
    refused_by_name(*place, VALUES[value]())


# -- what each of these was found to do, before it was refused ------------------------------------


@pytest.mark.parametrize("kind", sorted({np.dtype(c).type for c in np.typecodes["AllInteger"]}, key=str))
def test_numbers_of_every_integer_type_are_numbers(kind):
    assert indexing.num_blocks(kind(100), kind(32), kind(10)) == 4
    assert indexing.grid_stride_table(kind(10), kind(4), kind(2)).size == 10
    np.testing.assert_array_equal(indexing.axpy(2, X, X, threads=kind(32)), 3 * X)
    np.testing.assert_array_equal(matmul.matmul(A, B, "tiled", tile=kind(8)), A @ B)


def test_counts_beyond_32_bits_of_an_unsigned_type():
    assert indexing.num_blocks(np.uint64(1000)) == indexing.num_blocks(np.uint32(1000)) == 4


@pytest.mark.parametrize(
    ("function", "name"), [p for p in PLACES if p[1] in ("a", "b", "x", "y", "image", "weight", "out")]
)
def test_masks_are_not_dropped(function, name):
    value = CALLS[function].get(name)
    if isinstance(value, np.ndarray):
        with pytest.raises(TypeError, match=f"{name} is a masked array"):
            function(**CALLS[function] | {name: np.ma.masked_equal(value, 1)})


@pytest.mark.parametrize(
    "function", [f for f, arguments in CALLS.items() if "out" in arguments and f.__name__ != "steps"]
)
def test_read_only_outputs_are_refused_before_any_work(function, monkeypatch):
    monkeypatch.setattr(cuda, "to_device", None)
    monkeypatch.setattr(cuda, "device_array", None)
    with pytest.raises(ValueError, match="out is read-only"):
        function(**CALLS[function] | {"out": read_only(CALLS[function]["out"].copy())})


def test_products_of_batches_without_terms():
    for variant in ("auto", *matmul.VARIANTS):
        for left, right in (((3,), (3,)), ((2, 1), (3,)), ((2, 1, 2), (1, 3, 1)), ((), (2,))):
            a, b = np.zeros((*left, 5, 0), np.float32), np.zeros((*right, 0, 4), np.float32)
            found = matmul.matmul(cuda.to_device(a), cuda.to_device(b), variant)
            np.testing.assert_array_equal(found.copy_to_host(), a @ b)


def huge(*shape, dtype=np.float32):
    """Terabytes in a single element."""
    return np.broadcast_to(dtype(1), shape)


@pytest.mark.parametrize(
    "call",
    [
        lambda: matmul.matmul(huge(2**22, 2**22), np.ones((2**22, 1), np.float32)),
        lambda: reduce.reduce(huge(2**7, 2**20, 2**20)),
        lambda: resize.resize(huge(2**12, 2**14, 2**14, 3, dtype=np.uint8), (1, 1)),
        lambda: resize.resize([huge(2**14, 2**14, 3, dtype=np.uint8)] * 2**10, (1, 1)),
        lambda: conv.conv2d(huge(2**12, 2, 2**14, 2**14), WEIGHT, stride=2**14),
    ],
)
def test_a_broadcast_array_that_fits_into_no_device_is_not_copied_first(call, monkeypatch):
    monkeypatch.setattr(np, "ascontiguousarray", None)
    with pytest.raises(MemoryError, match=r"^(a|x|image|image\[0\]) has shape|^image of shape"):
        call()


def larger(a, b):
    return max(a, b)


class Tensor:
    """What looks like one of PyTorch."""

    __module__, requires_grad, is_cuda, device = "torch", False, True, "cuda:0"

    def __init__(self, **attributes):
        vars(self).update(attributes)

    is_neg = is_conj = lambda self: True


class Image(Tensor):
    """A subclass, of another package."""


REFUSED = [
    (
        lambda: reduce.reduce(Tensor(requires_grad=True, is_cuda=False)),
        TypeError,
        r"x requires grad, .* must not: x.detach\(\)$",
    ),
    (
        lambda: scan.sort(X, out=Tensor()),
        TypeError,
        "out is a view that conjugates or negates; it must",
    ),
    (lambda: matmul.matmul(A, Image(is_cuda=False, device="cpu")), TypeError, r"b is on cpu; .*: b.cuda\(\)$"),
    (lambda: matmul.matmul(A, B, alpha=10**400), ValueError, "alpha is beyond the range of float64"),
    (lambda: resize.blob(IMAGE, (2, 2), mean=10**400), ValueError, "mean is beyond the range of float64"),
    (lambda: resize.blob(IMAGE, (2, 2), dtype=None), TypeError, "dtype is None; it must be float32 or float16"),
    (lambda: matmul.configure("tiled", 5), TypeError, "shape is 5; it must be a tuple of 2 ints, M and N"),
    (lambda: transpose.configure("tiled", 5), TypeError, "shape is 5; it must be a tuple of 2 ints, M and N"),
    (lambda: conv.workspace_size(5, 1), TypeError, "x_shape is 5; it must be N, C, H, W"),
    (
        lambda: conv.conv2d(PIXELS, WEIGHT, padding="full"),
        ValueError,
        "padding is 'full'; it must be 'valid', 'same', an",
    ),
    (
        lambda: conv.im2col(PIXELS, 2, (2, 1), "same"),
        ValueError,
        r"padding is 'same' and stride \(2, 1\); .* must be 1",
    ),
    (
        lambda: conv.im2col(PIXELS, 2, stride=1.5),
        TypeError,
        "stride is 1.5; it must be an int or two of them, 1 or more",
    ),
    (lambda: conv.extra_memory((1,) * 4, (1,) * 4, itemsize=float("nan")), TypeError, "itemsize is nan"),
    (lambda: resize.blob(IMAGE, (2, 2), factor=(1, 1e39, 1)), ValueError, "factor is .* within the range of float32"),
    (lambda: reduce.reduce([1.0]), TypeError, r"x is a list; it must be .* device array: np.asarray\(x\)$"),
    (
        lambda: scan.sort(type("Picture", (), {"__array_interface__": {}})()),
        TypeError,
        r"a Picture; .*np.asarray\(x\)$",
    ),
    (lambda: reduce.reduce(A, out=[1.0]), TypeError, "out is a list; it must be .* device array$"),
    (lambda: streams.is_pinned([1.0]), TypeError, r"array is \[1.0\]; it must be a NumPy array"),
    (lambda: timing.Timing(()), ValueError, r"samples is \(\); it must hold the seconds of one repetition"),
    (
        lambda: conv.conv2d(PIXELS.astype(int), WEIGHT),
        TypeError,
        "x has dtype int64; it must be float16 or .* or bfloat16",
    ),
    (lambda: reduce.reduce(np.arange(3), op=(larger, float("nan"))), ValueError, r"op\[1\] is nan; .* whole number"),
    (lambda: scan.scan(np.arange(3), op=(larger, 0.5)), ValueError, r"op\[1\] is 0.5; it must be a whole number"),
    (lambda: reduce.reduce(A, stream="s"), TypeError, "stream is 's'; it must be None or a CUDA stream"),
    (lambda: reduce.reduce(A.astype(">f4")), TypeError, "x has dtype >f4; .* in native order"),
    (
        lambda: reduce.reduce(Interface(A, typestr=KeyError)),
        TypeError,
        r"x.__cuda_array_interface__\['typestr'\] is None",
    ),
    (lambda: timing.bench(len, device="cpu", warmup="1"), TypeError, "warmup is '1'; it must be a number"),
    (lambda: timing.bench(len, device="cpu", min_time=None), TypeError, "min_time is None; it must be a number"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED)
def test_the_message_says_what_is_allowed(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


# -- what is accepted gives NumPy's result ---------------------------------------------------------


class Subclass(np.ndarray):
    pass


def spread(array):
    """The same elements, each followed by another."""
    return np.repeat(array, 2, axis=-1)


def every_second(array):
    return array[(*(slice(None),) * (array.ndim - 1), slice(None, None, 2))]


def unaligned(array):
    return np.frombuffer(bytearray(b"x" + array.tobytes()), np.uint8)[1:].view(array.dtype).reshape(array.shape)


def mapped(array):
    made = cuda.mapped_array(array.shape, array.dtype)
    made[...] = array
    return made


def reversed_on_device(array):
    backwards = np.flip(array).copy()
    return view_on_device(np.flip(backwards), backwards, cuda.to_device(backwards))


#: The same elements in another form: layout, kind of array, or dtype.
FORMS = {
    "plain": np.copy,
    "Fortran": np.asfortranarray,
    "reversed": lambda array: np.flip(np.flip(array).copy()),
    "spread": lambda array: every_second(spread(array)),
    "read-only": lambda array: read_only(array.copy()),
    "broadcast": lambda array: np.broadcast_to(array[..., :1], array.shape),
    "unaligned": unaligned,
    "subclass": lambda array: array.view(Subclass),
    "recarray": lambda array: array.view(np.recarray),
    "masked": lambda array: np.ma.masked_equal(array, 3),
    "matrix": lambda array: np.matrix(array) if array.ndim == 2 else np.ma.array(array),
    "list": lambda array: array.tolist(),
    "mapped": mapped,
    "mapped copy": lambda array: mapped(array).copy(),
    "device": lambda array: cuda.to_device(np.ascontiguousarray(array)),
    "device, Fortran": lambda array: cuda.to_device(np.asfortranarray(array)),
    "device, spread": lambda array: every_second(cuda.to_device(spread(array))),
    "device, reversed": reversed_on_device,
    "interface": lambda array: Interface(np.ascontiguousarray(array)),
    **{dtype: lambda array, dtype=dtype: array.astype(dtype) for dtype in (">f4", ">i8", "f8", "?", "g", "c8", "O")},
}


def windows(x):
    return np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))


def correlated(x, weight):
    return np.einsum("nchwij,ocij->nohw", windows(x), weight)


def joined(columns):
    return columns.reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 4, 4)


#: Functions of arrays, arrays for them, and what NumPy makes of these.
REFERENCES = {
    "axpy": (lambda x, y: indexing.axpy(2, x, y), (X, X[::-1].copy()), lambda x, y: 2 * x + y),
    "transpose": (transpose.transpose, (A,), np.transpose),
    "matmul": (matmul.matmul, (A, B), np.matmul),
    "matmul, dynamic": (lambda a, b: matmul.matmul(a, b, "dynamic_padded"), (A, B), np.matmul),
    "sum": (reduce.reduce, (A,), np.sum),
    "max": (lambda x: reduce.reduce(x, 1, "max"), (A,), lambda x: x.max(1)),
    "sum_by": (reduce.sum_by, (X,), lambda x: x.sum(keepdims=True)),
    "resize": (lambda i: resize.resize(i, (2, 2), "nearest", swap_rb=True), (IMAGE,), lambda i: i[::2, ::2, ::-1]),
    "letterbox": (lambda i: resize.letterbox(i, (4, 4), swap_rb=False).image, (IMAGE,), lambda i: i),
    "im2col": (
        lambda x: conv.im2col(x, 2),
        (PIXELS,),
        lambda x: windows(x).transpose(0, 1, 4, 5, 2, 3).reshape(1, 8, 9),
    ),
    "conv2d": (conv.conv2d, (PIXELS, WEIGHT), correlated),
    "conv2d, direct": (lambda x, w: conv.conv2d(x, w, algorithm="direct"), (PIXELS, WEIGHT), correlated),
    "col2im": (lambda c: conv.col2im(c, (4, 4), 2, stride=2), (PIXELS.reshape(1, 8, 4),), joined),
    "mean": (lambda x: reduce.reduce(x, (0, 1), "mean"), (A,), np.mean),
    "scan": (lambda x: scan.scan(x, 0), (A,), lambda x: np.cumsum(x, 0)),
    "scan_by": (lambda x: scan.scan_by(x, "look_back"), (X,), np.cumsum),
    "sort": (lambda x: scan.sort(x, axis=0), (A[::-1],), lambda x: np.sort(x, 0)),
    "argsort": (lambda x: scan.argsort(x), (B,), lambda x: np.argsort(x, 1, stable=True)),
    "topk": (lambda x: scan.topk(x, 2).values, (B,), lambda x: np.sort(x, 1)[:, :-3:-1]),
    "histogram": (lambda x: scan.histogram(x, 5)[0], (X,), lambda x: np.histogram(x, 5)[0]),
    "compress": (lambda m, x: scan.compress(m, x), (X % 2, X), lambda m, x: x[m != 0]),
    "nonzero": (lambda x: scan.nonzero(x), (X % 3,), lambda x: np.nonzero(x)[0]),
    "segmented_reduce": (
        lambda x: scan.segmented_reduce(x, cuda.to_device(OFFSETS) if cuda.is_cuda_array(x) else OFFSETS),
        (X,),
        lambda x: np.array([x[i:j].sum() for i, j in itertools.pairwise(OFFSETS)]),
    ),
}


def on_host(array):
    array = getattr(array, "array", array)  # of an Interface
    if isinstance(array, np.ndarray | np.generic):
        return np.asarray(array)
    return to_device(array, 0).copy_to_host()  # Numba copies no negative strides


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFERENCES)
def test_an_array_of_any_form_gives_what_numpy_gives_or_is_refused(name):
    function, arrays, reference = REFERENCES[name]
    refused = set()
    for form, make in FORMS.items():
        made = [make(array) for array in arrays]
        try:
            found = on_host(function(*made))
        except (TypeError, ValueError):
            refused.add(form)
            continue
        expected = np.asarray(reference(*map(on_host, made)))
        assert found.dtype == expected.dtype, form
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=form)
    assert {"masked", "matrix", "O"} <= refused
    assert not refused & {"plain", "Fortran", "reversed", "spread", "read-only", "broadcast", "unaligned", "subclass"}
    assert not refused & {"recarray", "mapped", "interface", "device", "device, Fortran"}
    assert not refused & {"device, spread", "device, reversed"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind in NUMBERS if not issubclass(kind, np.complexfloating)])
def test_a_number_of_any_type_gives_what_numpy_gives(kind):
    np.testing.assert_array_equal(indexing.axpy(kind(2), X, X), 3 * X)
    np.testing.assert_array_equal(matmul.matmul(A, B, "tiled", alpha=kind(2), beta=kind(0)), 2 * (A @ B))
    planes = resize.blob(IMAGE, (4, 4), kind(1), kind(2), swap_rb=False).image
    np.testing.assert_array_equal(planes, 2 * (IMAGE.astype(np.float32).transpose(2, 0, 1) - 1))
    assert streams.predicted(kind(1), kind(2), kind(1), 4, kind(0)) == streams.predicted(1, 2, 1, 4)


@pytest.mark.skipif(on_gpu(), reason="numba.cuda's own functions")
def test_arrays_in_pinned_memory_hold_no_python_objects():
    for make in (cuda.pinned_array, cuda.mapped_array, cuda.device_array):
        with pytest.raises(TypeError, match="dtype is .*object.*; it must be a NumPy dtype without Python objects"):
            make(3, object)
