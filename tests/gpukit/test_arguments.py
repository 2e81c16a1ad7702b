"""Bad arguments of the host functions: each is refused by name, before anything was launched or changed."""

import decimal
import fractions
import re
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpukit import conv, indexing, matmul, reduce, resize, timing, transpose
from gpukit.backend import cuda, on_gpu


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


def described(value):
    """An object with this description, and nothing else."""
    return type("Described", (), {"__cuda_array_interface__": value})()


def read_only(array):
    array.flags.writeable = False
    return array


A, B, SQUARE = (np.arange(n, dtype=np.float32).reshape(shape) for n, shape in ((6, (2, 3)), (12, (3, 4)), (16, (4, 4))))
X = np.arange(8, dtype=np.float32)
IMAGE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
PIXELS = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
WEIGHT = np.ones((3, 2, 2, 2), np.float32)


def empty(*shape, dtype=np.float32):
    return np.full(shape, 7, dtype)


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
}

NUMBERS = [np.dtype(c).type for c in np.typecodes["AllInteger"] + np.typecodes["AllFloat"]]
SHAPES = ((), (0,), (3,), (8,), (2, 3), (3, 4), (4, 4), (4, 4, 3), (1, 2, 4, 4))
#: How a value is made, by what it is: each call gets its own.
VALUES: dict[str, Any] = {
    **{repr(value)[:40]: lambda value=value: value for value in (
        None, "s", "", "auto", b"s", float("nan"), float("inf"), -float("inf"), 1.5, 1j, 0, -1, True, False, 2**31,
        2**63, 2**64, -(2**63) - 1, 10**400, (), (1,), (2, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5), (1.5, 2), (None, None),
        ("a", "b"), (10**400, 1), {1, 2}, range(2), slice(2), Ellipsis, int, len, fractions.Fraction(1, 3),
        decimal.Decimal(1),
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


def arrays_of(arguments):
    return {name: value for name, value in arguments.items() if type(value) is np.ndarray and value.dtype != object}


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
    except (TypeError, ValueError, MemoryError) as error:
        refused = True
        # An array that is right in itself may not fit another one.
        assert re.search(rf"\b({name}|out|bias)\b", str(error)), f"the message does not name {name}: {error!r}"
    assert time.process_time() - start < 5 or on_gpu()  # where compilers take as long
    for key, array in before.items():
        if refused or key != "out":
            np.testing.assert_array_equal(arguments[key], array)
    return refused


PLACES = [(function, name) for function, arguments in CALLS.items() for name in arguments]


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
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


REFUSED = [
    (lambda: matmul.matmul(A, B, alpha=10**400), ValueError, "alpha is beyond the range of float64"),
    (lambda: resize.blob(IMAGE, (2, 2), mean=10**400), ValueError, "mean is beyond the range of float64"),
    (lambda: resize.blob(IMAGE, (2, 2), dtype=None), TypeError, "dtype is None; it must be float32 or float16"),
    (lambda: matmul.configure("tiled", 5), TypeError, "shape is 5; it must be a tuple of 2 ints, M and N"),
    (lambda: transpose.configure("tiled", 5), TypeError, "shape is 5; it must be a tuple of 2 ints, M and N"),
    (lambda: conv.workspace_size(5, 1), TypeError, "x_shape is 5; it must be N, C, H, W"),
    (lambda: conv.extra_memory((1,) * 4, (1,) * 4, itemsize=float("nan")), TypeError, "itemsize is nan"),
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
