"""Problems that nobody chose: random arguments for the functions of gpukit, with references and the libraries' calls.

A problem is the name of a function and a dict of settings that JSON can hold, so a slow one can be kept and measured
again. `draw` makes such settings: sizes are spread evenly over their logarithms, and shapes, axes, dtypes, layouts,
strides, paddings and groups are drawn. `Problem.make` makes the arrays for them, `Problem.call` calls gpukit, and
`Problem.rivals` the libraries.

All arrays are PyTorch's on a GPU. Without one they are NumPy's, so that tests reach the same code with small sizes.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from bench.networks import NETWORKS
from gpukit import conv, matmul, reduce, resize, scan, transpose

__all__ = ["FUNCTIONS", "KEPT", "Problem", "draw"]

#: Elements of the largest array, and operations, of a problem on a GPU.
MAX_ELEMENTS, MAX_OPERATIONS = 1 << 27, 3e11
LAYOUTS = ("NN", "NT", "TN", "TT")
REDUCTIONS = ("sum", "max", "mean", "min")
FLOATS = ("float32", "float16", "float64")
#: K and N of projections in language models.
PROJECTIONS = ((768, 3072), (4096, 4096), (4096, 11008), (14336, 4096), (896, 4864), (2048, 8192), (4096, 32000))
#: Layouts that `_Source` makes for the operands of a product, by letter.
WAYS = {"N": "C", "T": "T", "H": "heads", "K": "keys"}
#: Layouts of other functions' arrays, and the share of each.
PLACES, PLACE_SHARES = ("C", "T", "apart", "offset", "step"), (0.65, 0.12, 0.1, 0.08, 0.05)
#: Problems that were slow once: measured in every run.
KEPT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("matmul", {"lead": [[], []], "mnk": [1500, 1500, 1500], "dtype": "float32", "layout": "NN"}),
    ("matmul", {"lead": [[], []], "mnk": [2560, 2560, 2560], "dtype": "float32", "layout": "NN"}),
    ("matmul", {"lead": [[], []], "mnk": [5824, 32, 320], "dtype": "float32", "layout": "TN"}),
    ("matmul", {"lead": [[], []], "mnk": [1, 4096, 4096], "dtype": "float32", "layout": "NN"}),
    ("matmul", {"lead": [[], []], "mnk": [4096, 1, 4096], "dtype": "float32", "layout": "NN"}),
    ("conv2d", {"x": [32, 256, 14, 14], "weight": [256, 3, 3], "stride": 1, "padding": 1}),
    ("conv2d", {"x": [32, 128, 28, 28], "weight": [128, 3, 3], "stride": 1, "padding": 1}),
    ("matmul", {"lead": [[], []], "mnk": [2555, 871, 12], "dtype": "float32", "layout": "TN"}),
    ("conv2d", {"x": [16, 16, 56, 56], "weight": [256, 3, 3], "stride": 1, "padding": 1}),
    ("conv2d", {"x": [16, 512, 14, 14], "weight": [16, 3, 3], "stride": 2, "padding": 1}),
    ("conv2d", {"x": [16, 64, 56, 56], "weight": [256, 1, 1], "dtype": "float16"}),
    ("conv2d", {"x": [32, 128, 28, 28], "weight": [128, 3, 3], "padding": 1, "dtype": "float16"}),
    ("conv2d", {"x": [32, 1024, 7, 7], "weight": [1024, 3, 3], "padding": 1, "groups": 1024}),
    ("conv2d", {"x": [16, 3, 224, 224], "weight": [768, 16, 16], "stride": 16, "dtype": "float16"}),
    ("conv2d", {"x": [16, 3, 224, 224], "weight": [768, 16, 16], "stride": 16, "dtype": "float16", "layout": "last"}),
    ("conv2d", {"x": [3, 85, 306, 421], "weight": [38, 1, 1], "stride": 4, "dtype": "float16"}),
    ("conv2d", {"x": [64, 48, 1, 1], "weight": [1152, 1, 1], "dtype": "float16"}),
    ("conv2d", {"x": [1, 92, 236, 236], "weight": [72, 5, 5], "padding": 2, "dtype": "float16"}),
    ("conv2d", {"x": [40, 56, 24, 24], "weight": [66, 9, 9], "padding": 4}),
    ("conv2d", {"x": [32, 16, 112, 112], "weight": [16, 3, 3], "padding": 1, "groups": 16, "layout": "last"}),
    ("conv2d", {"x": [8, 10, 155, 155], "weight": [10, 3, 3], "groups": 10, "layout": "last"}),
    ("conv2d", {"x": [12, 149, 68, 42], "weight": [27, 16, 16], "padding": 8, "bias": True}),
    ("conv2d", {"x": [6, 3, 52, 52], "weight": [192, 4, 4], "stride": 4, "dtype": "float16", "layout": "last"}),
    ("conv2d", {"x": [2, 2, 320, 320], "weight": [120, 2, 2]}),
    ("conv2d", {"x": [8, 48, 123, 110], "weight": [9, 1, 1], "stride": 3, "layout": "last"}),
    ("conv2d", {"x": [8, 7, 184, 262], "weight": [50, 3, 3], "stride": 3}),
    ("matmul", {"lead": [[103], []], "mnk": [1634, 54, 4], "dtype": "float32", "layout": "NT"}),
    ("matmul", {"lead": [[8000], [8000]], "mnk": [16, 12, 28], "dtype": "float16", "layout": "NN"}),
    ("matmul", {"lead": [[8, 13], [8, 13]], "mnk": [54, 54, 32], "dtype": "float32", "layout": "HK"}),
    ("matmul", {"lead": [[], []], "mnk": [4097, 2048, 512], "dtype": "float32", "layout": "NT"}),
    ("matmul", {"lead": [[], []], "mnk": [904, 1, 2179], "dtype": "float32", "layout": "NN"}),
    ("matmul", {"lead": [[], []], "mnk": [4, 4, 32_768], "dtype": "float16", "layout": "TN"}),
    ("matmul", {"lead": [[360], [360]], "mnk": [896, 1, 144], "dtype": "float16", "layout": "NN"}),
    ("matmul", {"lead": [[664], []], "mnk": [50, 911, 58], "dtype": "float16", "layout": "TN"}),
    ("matmul", {"lead": [[13, 4], [13, 4]], "mnk": [496, 56, 496], "dtype": "float16", "layout": "NH"}),
    ("matmul", {"lead": [[4000], [4000]], "mnk": [10, 20, 50], "dtype": "float16", "layout": "NN"}),
    ("matmul", {"lead": [[], []], "mnk": [200, 3000, 2000], "dtype": "float16", "layout": "NN"}),
    ("scan", {"shape": [394, 11, 10], "axis": 0, "op": "sum", "dtype": "int32"}),
    ("transpose", {"shape": [1, 38_606_049], "dtype": "float16"}),
    ("transpose", {"shape": [3, 10_000_000], "dtype": "float32"}),
    ("transpose", {"shape": [1_000_000, 9], "dtype": "uint8"}),
    ("transpose", {"shape": [8191, 8193], "dtype": "float32"}),
    ("transpose", {"shape": [100, 1_000_000], "dtype": "float32"}),
    ("reduce", {"shape": [4096, 4096], "axis": [1], "op": "sum", "dtype": "float32"}),
    ("reduce", {"shape": [64, 512, 7, 7], "axis": [0, 2, 3], "op": "sum", "dtype": "float32"}),
    ("reduce", {"shape": [2, 55, 164, 7], "axis": [1], "op": "max", "dtype": "float32"}),
    ("reduce", {"shape": [918_400, 7], "axis": [0], "op": "sum", "dtype": "int64"}),
    ("reduce", {"shape": [3_710_615, 14], "axis": [1], "op": "min", "dtype": "uint8"}),
    ("reduce", {"shape": [100_000, 207], "axis": [0], "op": "mean", "dtype": "float16"}),
    ("reduce", {"shape": [25_427, 3576], "axis": [1], "op": "mean", "dtype": "float32"}),
    ("reduce", {"shape": [2, 2_614_294, 1], "axis": [2], "op": "max", "dtype": "int64", "layout": "apart"}),
    ("reduce", {"shape": [52, 2_023_030], "axis": [0], "op": "mean", "dtype": "float16"}),
    ("reduce", {"shape": [631, 5], "axis": [0], "op": "min", "dtype": "float32"}),
    ("reduce", {"shape": [52_428, 100, 3], "axis": [1], "op": "sum", "dtype": "float32"}),
    ("reduce", {"shape": [39_321, 100, 8], "axis": [1], "op": "mean", "dtype": "float16"}),
    ("matmul", {"lead": [[104], []], "mnk": [9176, 16, 57], "dtype": "float32", "layout": "TT"}),
    ("matmul", {"lead": [[296], [296]], "mnk": [1037, 7, 206], "dtype": "float32", "layout": "TN"}),
    ("matmul", {"lead": [[], []], "mnk": [54, 54, 500_000], "dtype": "float32", "layout": "TN"}),
    ("matmul", {"lead": [[], []], "mnk": [54, 54, 500_000], "dtype": "float64", "layout": "TN"}),
    ("matmul", {"lead": [[], []], "mnk": [54, 54, 500_000], "dtype": "bfloat16", "layout": "TN"}),
    ("matmul", {"lead": [[], []], "mnk": [64, 64, 500_000], "dtype": "bfloat16", "layout": "TN"}),
    ("matmul", {"lead": [[], []], "mnk": [222_798, 2, 256], "dtype": "float32", "layout": "NN"}),
    ("matmul", {"lead": [[], []], "mnk": [311, 213, 46], "dtype": "float16", "layout": "NN"}),
    ("matmul", {"lead": [[], []], "mnk": [63, 393_044, 96], "dtype": "float16", "layout": "NN"}),
    ("matmul", {"lead": [[], []], "mnk": [8960, 136, 41], "dtype": "float32", "layout": "NT"}),
    ("matmul", {"lead": [[281], [281]], "mnk": [40, 8808, 8], "dtype": "bfloat16", "layout": "NN"}),
    ("matmul", {"lead": [[9], [9]], "mnk": [8136, 47, 8], "dtype": "bfloat16", "layout": "TN"}),
    ("matmul", {"lead": [[648], [648]], "mnk": [1, 1037, 86], "dtype": "float16", "layout": "NT"}),
    ("matmul", {"lead": [[], [793]], "mnk": [4, 36, 1722], "dtype": "float32", "layout": "NT"}),
    ("matmul", {"lead": [[8], []], "mnk": [1844, 187, 3928], "dtype": "float32", "layout": "NT"}),
    ("scan", {"shape": [100_000, 3], "axis": 0, "op": "sum", "dtype": "float32"}),
    ("scan", {"shape": [198_593, 33, 2], "axis": 1, "op": "sum", "dtype": "float32"}),
    ("topk", {"shape": [13, 365_341], "axis": 1, "k": 16, "largest": False, "dtype": "float16"}),
    (
        "conv2d",
        {"x": [1, 448, 231, 231], "weight": [448, 16, 5], "stride": 16, "padding": 8, "groups": 448, "bias": True},
    ),
    ("conv2d", {"x": [13, 192, 67, 101], "weight": [2, 1, 1], "stride": 3}),
    ("matmul", {"lead": [[], []], "mnk": [1, 3, 802], "dtype": "float64", "layout": "NT"}),
    ("matmul", {"lead": [[], []], "mnk": [1, 11280, 8], "dtype": "bfloat16", "layout": "TT"}),
    ("matmul", {"lead": [[64], []], "mnk": [238, 2374, 1], "dtype": "float64", "layout": "TT"}),
    ("matmul", {"lead": [[], []], "mnk": [6165, 16, 2274], "dtype": "float64", "layout": "TT"}),
    ("matmul", {"lead": [[], []], "mnk": [28, 4096, 4096], "dtype": "float64", "layout": "NN"}),
    ("matmul", {"lead": [[68], [68]], "mnk": [1364, 621, 13], "dtype": "float16", "layout": "NT"}),
    ("matmul", {"lead": [[4, 13], [4, 13]], "mnk": [1, 40, 1], "dtype": "bfloat16", "layout": "NH"}),
    ("matmul", {"lead": [[420], []], "mnk": [1, 3117, 62], "dtype": "bfloat16", "layout": "NN"}),
    ("matmul", {"lead": [[], []], "mnk": [72, 1016, 44], "dtype": "bfloat16", "layout": "NT"}),
    ("matmul", {"lead": [[], []], "mnk": [192, 8, 536], "dtype": "bfloat16", "layout": "TN"}),
    ("matmul", {"lead": [[8], []], "mnk": [8, 6536, 2216], "dtype": "bfloat16", "layout": "TN"}),
    ("matmul", {"lead": [[], []], "mnk": [1609, 968, 633], "dtype": "float32", "layout": "NT"}),
    ("matmul", {"lead": [[], []], "mnk": [22, 4096, 14336], "dtype": "float32", "layout": "NT"}),
    ("scan", {"shape": [271, 31], "axis": 0, "op": "sum", "dtype": "uint8"}),
    ("scan", {"shape": [1, 3, 369], "axis": 2, "op": "sum", "dtype": "int64"}),
    ("scan", {"shape": [1, 1, 8, 2], "axis": 0, "op": "sum", "dtype": "float32"}),
    ("reduce", {"shape": [2, 2, 341, 4], "axis": [0, 1, 2, 3], "op": "mean", "dtype": "float32", "layout": "step"}),
    ("transpose", {"shape": [74, 152_984], "dtype": "int64", "layout": "C"}),
)


@dataclass(frozen=True)
class Problem:
    """A function with settings.

    Attributes
    ----------
    function : str
        A key of `FUNCTIONS`.
    settings : dict
    """

    function: str
    settings: dict[str, Any]

    def __str__(self):
        return f"{self.function} " + ", ".join(f"{key} {_text(value)}" for key, value in self.settings.items())

    @property
    def shape(self) -> tuple[int, ...]:
        """tuple of int: sizes for a record."""
        return FUNCTIONS[self.function].shape(**self.settings)

    @property
    def dtype(self) -> str:
        """str: of the first input."""
        return self.settings.get("dtype", "float32")

    def make(self, rng: np.random.Generator, torch: Any = None) -> list:
        """Make the input arrays, of random numbers; with PyTorch on its device, and otherwise of NumPy."""
        source = _Source(rng, torch)
        return FUNCTIONS[self.function].make(source, **self.settings)

    def call(self, arrays: list) -> Any:
        """Call gpukit."""
        return self.bind(arrays)()

    def bind(self, arrays: list) -> Callable[[], Any]:
        """Bind gpukit's function to its arguments, to be called as directly as the libraries' functions."""
        return FUNCTIONS[self.function].bind(arrays, **self.settings)

    def rivals(self, arrays: list, torch: Any = None, cupy: Any = None) -> dict[str, Callable[[], Any]]:
        """Make {"torch (matmul)": function, ...} of the libraries that take this problem."""
        return FUNCTIONS[self.function].rivals(arrays, torch, cupy, **self.settings)

    def is_right(self, result: Any, arrays: list) -> bool:
        """Compare a result with a reference in float64, as closely as the dtype and the length of the sums allow."""
        return FUNCTIONS[self.function].is_right(result, arrays, **self.settings)


def _text(value):
    if isinstance(value, list):
        return (
            "x".join(map(_text, value)) if value and isinstance(value[0], int) else f"({', '.join(map(_text, value))})"
        )
    return str(value)


class _Source:
    """Random arrays, of NumPy or on PyTorch's device."""

    def __init__(self, rng, torch):
        self.rng, self.torch = rng, torch

    def __call__(self, shape, dtype, layout="C"):
        """An array; with the layout "T" its last two axes are swapped in memory, with "last" the second is the last;
        with "apart" there are gaps between its rows, with "step" between its elements; with "offset" it begins one
        element into an allocation. "heads" are those of attention, (N, heads, T, size), stored token by token;
        "keys" are heads with their last two axes swapped.
        """
        stored = list(shape)
        if layout == "keys":
            return self(shape[:-2] + shape[:-3:-1], dtype, "heads").swapaxes(-1, -2)
        if layout == "heads":
            return self([shape[0], shape[2], shape[1], shape[3]], dtype).swapaxes(1, 2)
        if layout == "apart":
            return self._numbers([*shape[:-1], shape[-1] + 3], dtype)[..., : shape[-1]]
        if layout == "step":
            return self._numbers([*shape[:-1], 2 * shape[-1]], dtype)[..., ::2]
        if layout == "offset":
            return self._numbers([math.prod(shape) + 1], dtype)[1:].reshape(shape)
        if layout == "T":
            stored[-2:] = stored[:-3:-1]
        elif layout == "last":
            stored = [shape[0], *shape[2:], shape[1]]
        array = self._numbers(stored, dtype)
        if layout == "T":
            return array.swapaxes(-1, -2)
        if layout == "last":
            return array.permute(0, 3, 1, 2) if self.torch else array.transpose(0, 3, 1, 2)
        return array

    def _numbers(self, shape, dtype):
        if not self.torch:
            dtype = "float16" if dtype == "bfloat16" else dtype  # NumPy has no bfloat16
            if np.dtype(dtype).kind == "f":
                return self.rng.standard_normal(shape, np.float32).astype(dtype)
            return self.rng.integers(0, 100, shape).astype(dtype)
        torch = self.torch
        torch.manual_seed(int(self.rng.integers(1 << 31)))
        if getattr(torch, dtype).is_floating_point:
            return torch.randn(shape, dtype=getattr(torch, dtype), device="cuda")
        return torch.randint(0, 100, shape, dtype=getattr(torch, dtype), device="cuda")


def _host(array) -> np.ndarray:
    """A NumPy array of an array of any kind."""
    return array.cpu().numpy() if hasattr(array, "cpu") else np.asarray(array)


def _equal(result, expected) -> bool:
    """Whether both have the same shape and values."""
    return result.shape == expected.shape and bool((result == expected).all())


def _double(array):
    """The same numbers in float64."""
    return array.double() if hasattr(array, "double") else array.astype(np.float64)


def _near(result, expected, bound) -> bool:
    """Whether all values differ by at most ``bound``, also where both are NaN or infinite."""
    result = _double(result)
    return bool((((result - expected).abs() if hasattr(result, "abs") else np.abs(result - expected)) <= bound).all())


def _epsilon(dtype):
    if dtype == "bfloat16":
        return 2.0**-7
    return float(np.finfo(dtype).eps) if np.dtype(dtype).kind == "f" else 0.0


def _rounding(dtype, expected):
    """Bound what rounding to a dtype changes, also below its smallest normal number."""
    subnormal = 0.0 if dtype == "bfloat16" else float(np.finfo(dtype).smallest_subnormal)
    return _epsilon(dtype) * abs(expected) + subnormal / 2


# -- matmul ------------------------------------------------------------------------------------------------------------


class _Matmul:
    DTYPES = "float32", "float64", "float16", "bfloat16", "int8"
    SHARES = 0.38, 0.15, 0.18, 0.23, 0.06

    @staticmethod
    def draw(rng, scale):
        m, n, k = (_size(rng, 1, 16384, scale) for _ in range(3))
        lead, layout, kind = [[], []], LAYOUTS[rng.integers(4)], rng.random()
        if kind < 0.3:
            batch = _size(rng, 1, 1000, scale)
            lead = [[[batch], [batch]], [[batch], []], [[], [batch]]][rng.integers(3)]
        elif kind < 0.45:  # a projection of a few tokens
            shape = 2 ** rng.uniform(0, 6), *PROJECTIONS[rng.integers(len(PROJECTIONS))]
            m, k, n = (min(int(size), scale or int(size)) for size in shape)
        elif kind < 0.55:  # attention: queries by keys, or weights by values
            lead, layout = [[_size(rng, 1, 16, scale and 3) for _ in range(2)]] * 2, ("HK", "NH")[rng.integers(2)]
            m, width = _size(rng, 1, 1024, scale), _size(rng, 32, 128, scale)
            n, k = (m, width) if layout == "HK" else (width, m)
        batch = math.prod(max(lead))
        while batch * max(m * k, k * n, m * n) > MAX_ELEMENTS or 2.0 * batch * m * n * k > MAX_OPERATIONS:
            m, n, k = (max(size // 2, 1) for size in (m, n, k))
        dtype = rng.choice(_Matmul.DTYPES, p=_Matmul.SHARES)
        return {"lead": lead, "mnk": [m, n, k], "dtype": str(dtype), "layout": layout}

    @staticmethod
    def shape(lead, mnk, dtype, layout):
        return (*max(lead), *mnk)

    @staticmethod
    def make(source, lead, mnk, dtype, layout):
        m, n, k = mnk
        shapes = (*lead[0], m, k), (*lead[1], k, n)
        return [source(shape, dtype, WAYS[letter]) for shape, letter in zip(shapes, layout, strict=True)]

    @staticmethod
    def bind(arrays, **_):
        return functools.partial(matmul.matmul, *arrays)

    @staticmethod
    def rivals(arrays, torch, cupy, dtype, **_):
        if dtype == "int8":  # CuPy's sums would be of int8
            is_matrix = torch and arrays[0].ndim == arrays[1].ndim == 2
            return {"cublas (torch)": functools.partial(torch._int_mm, *arrays)} if is_matrix else {}
        found = {"cublas (torch)": functools.partial(torch.matmul, *arrays)} if torch else {}
        if cupy and dtype != "bfloat16":
            found["cublas (cupy)"] = functools.partial(cupy.matmul, *map(cupy.asarray, arrays))
        return found

    @staticmethod
    def is_right(result, arrays, mnk, dtype, **_):
        a, b = map(_double, arrays)
        exact = a @ b
        if dtype == "int8":
            return _near(result, exact, 0)
        # Rounding errors of k steps grow as sqrt(k); the factor is for the largest of millions. Short floats are summed
        # in float32, and rounded once.
        step = min(_epsilon(dtype), _epsilon("float32"))
        return _near(result, exact, 4 * step * mnk[2] ** 0.5 * (abs(a) @ abs(b)) + _rounding(dtype, exact))


# -- conv2d ------------------------------------------------------------------------------------------------------------


class _Conv2d:
    @staticmethod
    def draw(rng, scale):
        dtype = str(rng.choice(["float32", "float16", "bfloat16"], p=[0.7, 0.15, 0.15]))
        if not scale and rng.random() < 0.3:
            layers = [layer for network in NETWORKS.values() for layer in network]
            samples = int(rng.choice([1, 1, 2, 8, 16, 32, 32]))
            return layers[rng.integers(len(layers))].problem(samples) | {"dtype": dtype}
        kernel = int(rng.choice([1, 1, 3, 3, 3, 5, 7, 2, 4, 9, 11, 16]))
        kernels = [kernel, kernel] if rng.random() < 0.85 else [kernel, int(rng.choice([1, 3, 5, 7]))]
        samples, size = _size(rng, 1, 64, scale), _size(rng, 1 if kernel == 1 else 7, 512, scale)
        channels, out_channels = _size(rng, 1, 512, scale), _size(rng, 1, 512, scale)
        groups = 1
        if rng.random() < 0.2:
            groups = int(rng.choice([2, 4, channels]))
            channels = max(channels // groups, 1) * groups
            out_channels = max(out_channels // groups, 1) * groups
        stride = int(rng.choice([1, 1, 1, 2, 3, kernel]))  # the kernel's: windows do not overlap
        dilation = 2 if rng.random() < 0.1 else 1
        padding = int(rng.choice([0, kernel // 2]))
        height, width = max(size, dilation * kernels[0]), max(_near_size(rng, size), dilation * kernels[1])
        while samples * height * width * max(channels, out_channels) > MAX_ELEMENTS // 4 or (
            2.0 * samples * height * width / stride**2 * channels * out_channels / groups * math.prod(kernels) > 1e11
        ):
            if samples > 1:
                samples //= 2
            else:
                height, width = (
                    max(n // 2, dilation * kernels[0] + 1, dilation * kernels[1] + 1) for n in (height, width)
                )
                channels, out_channels = (max(n // 2 // groups, 1) * groups for n in (channels, out_channels))
        settings = {"x": [samples, channels, height, width], "weight": [out_channels, *kernels]}
        settings |= {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        settings["bias"] = bool(rng.random() < 0.3)
        settings["dtype"] = dtype
        settings["layout"] = "last" if rng.random() < 0.1 else "C"
        return settings

    @staticmethod
    def shape(x, weight, **_):
        return (*x, *weight)

    @staticmethod
    def make(source, x, weight, dtype="float32", groups=1, bias=False, layout="C", **_):
        arrays = [source(x, dtype, layout), source((weight[0], x[1] // groups, *weight[1:]), dtype, "C")]
        return [*arrays, source(weight[:1], dtype) if bias else None]

    @staticmethod
    def bind(arrays, stride=1, padding=0, dilation=1, groups=1, **_):
        return functools.partial(conv.conv2d, *arrays, stride, padding, dilation, groups)

    @staticmethod
    def rivals(arrays, torch, cupy, stride=1, padding=0, dilation=1, groups=1, **_):
        if not torch:
            return {}
        return {
            "cudnn (torch)": functools.partial(torch.nn.functional.conv2d, *arrays, stride, padding, dilation, groups)
        }

    @staticmethod
    def is_right(result, arrays, x, weight, stride=1, padding=0, dilation=1, groups=1, dtype="float32", **_):
        doubles = [None if array is None else _double(array) for array in arrays]
        terms = x[1] // groups * weight[1] * weight[2]
        if hasattr(result, "cpu"):
            import torch

            with torch.backends.cudnn.flags(benchmark=False):  # no trials of all algorithms for the reference
                expected = torch.nn.functional.conv2d(*doubles, stride, padding, dilation, groups)
        else:
            expected = _convolve(*doubles, stride, padding, dilation, groups)
        rounding = 0 if dtype == "float32" else _epsilon(dtype) * abs(expected)
        return _near(result, expected, 1e-5 + 5e-7 * terms + rounding)


def _convolve(x, weight, bias, stride, padding, dilation, groups):
    """Convolve in float64, window by window."""
    x = np.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    spans = [dilation * (n - 1) + 1 for n in weight.shape[2:]]
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, (2, 3))[:, :, ::stride, ::stride]
    windows = windows[..., ::dilation, ::dilation]
    parts = zip(np.split(windows, groups, 1), np.split(weight, groups), strict=True)
    out = np.concatenate([np.einsum("nchwij,ocij->nohw", part, of, optimize=True) for part, of in parts], 1)
    return out if bias is None else out + bias[:, None, None]


# -- reduce ------------------------------------------------------------------------------------------------------------


class _Reduce:
    @staticmethod
    def draw(rng, scale):
        dimensions = int(rng.integers(1, 5))
        largest = min(MAX_ELEMENTS, scale) if scale else MAX_ELEMENTS
        shape, left = [], int(2 ** rng.uniform(0, math.log2(largest)))
        for i in range(dimensions):
            shape.append(max(left, 1) if i == dimensions - 1 else _size(rng, 1, max(left, 1), 0))
            left //= shape[-1]
        shape = [shape[i] for i in rng.permutation(dimensions)]
        axes = [int(i) for i in range(dimensions) if rng.random() < 0.5] or [int(rng.integers(dimensions))]
        dtype = str(rng.choice([*FLOATS, "bfloat16", "float32", "float32", "int8", "int16", "int32", "int64", "uint8"]))
        op = str(rng.choice(REDUCTIONS))
        layout = str(rng.choice(PLACES, p=PLACE_SHARES)) if dimensions > 1 else "C"
        return {"shape": shape, "axis": axes, "op": op, "dtype": dtype, "layout": layout}

    @staticmethod
    def shape(shape, **_):
        return tuple(shape)

    @staticmethod
    def make(source, shape, dtype="float32", layout="C", **_):
        return [source(shape, dtype, layout)]

    @staticmethod
    def bind(arrays, axis, op, **_):
        return functools.partial(reduce.reduce, arrays[0], tuple(axis), op)

    @staticmethod
    def rivals(arrays, torch, cupy, axis, op, dtype="float32", **_):
        (x,), found, axes = arrays, {}, tuple(axis)
        if torch and (op != "mean" or x.is_floating_point()):
            function = getattr(torch, {"max": "amax", "min": "amin"}.get(op, op))
            found["torch"] = functools.partial(function, x, axes)
        if cupy and dtype != "bfloat16":
            found["cupy"] = functools.partial(getattr(cupy, op), cupy.asarray(x), axes)
        return found

    @staticmethod
    def is_right(result, arrays, axis, op, dtype="float32", **_):
        (x,), axes = map(_double, arrays), tuple(axis)
        names = {"max": "amax", "min": "amin"} if hasattr(x, "cpu") else {}
        expected, count = _reduced(x, names.get(op, op), axes), math.prod(x.shape[i] for i in axes)
        epsilon = _epsilon(dtype) or _epsilon("float64")
        # Trees of about 20 levels of float32 or better, of terms of about 1; the result is rounded to its dtype.
        steps = 0 if op in ("max", "min") else 60 * _epsilon("float64" if epsilon < 1e-12 else "float32")
        steps *= count**0.5 if op == "sum" else 1
        return _near(result, expected, 1e-300 + steps + epsilon * abs(expected) * 2)


def _reduced(x, name, axes):
    return getattr(x, name)(axes)


# -- transpose ---------------------------------------------------------------------------------------------------------


class _Transpose:
    @staticmethod
    def draw(rng, scale):
        largest = min(MAX_ELEMENTS, scale) if scale else MAX_ELEMENTS
        size = 2 ** rng.uniform(0, math.log2(largest))
        rows = _size(rng, 1, max(int(size), 1), 0)
        dtype = str(rng.choice(["uint8", "float16", "float32", "float32", "float32", "float64", "int32", "int64"]))
        layout = str(rng.choice(PLACES, p=PLACE_SHARES))
        return {"shape": [rows, max(int(size / rows), 1)], "dtype": dtype, "layout": layout}

    @staticmethod
    def shape(shape, **_):
        return tuple(shape)

    @staticmethod
    def make(source, shape, dtype, layout="C"):
        return [source(shape, dtype, layout)]

    @staticmethod
    def bind(arrays, **_):
        return functools.partial(transpose.transpose, arrays[0])

    @staticmethod
    def rivals(arrays, torch, cupy, **_):
        (a,), found = arrays, {}
        if torch:
            found["torch"] = lambda: a.t().clone(memory_format=torch.contiguous_format)
        if cupy:
            view = cupy.asarray(a).T
            found["cupy"] = lambda: view.copy("C")
        return found

    @staticmethod
    def is_right(result, arrays, **_):
        return bool((result == arrays[0].swapaxes(0, 1)).all())


# -- scan, histogram, compress, sort, topk ----------------------------------------------------------------------------


class _Scan:
    @staticmethod
    def draw(rng, scale):
        settings = _Reduce.draw(rng, scale)
        axis = int(rng.choice(settings["axis"])) if rng.random() < 0.8 else None
        dtype = str(rng.choice(["float32", "float32", "float64", "int32", "int64", "uint8"]))
        op = str(rng.choice(["sum", "sum", "max"]))
        return {"shape": settings["shape"], "axis": axis, "op": op, "dtype": dtype}

    @staticmethod
    def shape(shape, **_):
        return tuple(shape)

    @staticmethod
    def make(source, shape, dtype="float32", **_):
        return [source(shape, dtype)]

    @staticmethod
    def bind(arrays, axis, op, **_):
        return functools.partial(scan.scan, arrays[0], axis, op)

    @staticmethod
    def rivals(arrays, torch, cupy, axis, op, **_):
        (x,), found = arrays, {}
        if torch:
            flat, along = (x.reshape(-1), 0) if axis is None else (x, axis)
            found["torch"] = functools.partial(torch.cumsum if op == "sum" else torch.cummax, flat, along)
        if cupy and op == "sum":
            found["cupy"] = functools.partial(cupy.cumsum, cupy.asarray(x), axis)
        return found

    @staticmethod
    def is_right(result, arrays, axis, op, dtype="float32", **_):
        (x,), is_float = arrays, np.dtype(dtype).kind == "f"
        flat, along = (x.reshape(-1), 0) if axis is None else (x, axis)
        wide, result = (_double(a) if is_float else _long(a) for a in (flat, result))
        magnitude = _accumulated(abs(wide), "sum", along) if op == "sum" else abs(wide)
        difference = abs(result - _accumulated(wide, op, along))
        return bool((difference <= 60 * _epsilon(dtype) * magnitude).all())


def _long(array):
    """The same numbers in int64."""
    return array.long() if hasattr(array, "long") else array.astype(np.int64)


def _accumulated(x, op, axis):
    """Running sums or maxima along an axis."""
    if hasattr(x, "cumsum") and hasattr(x, "cummax"):
        return x.cumsum(axis) if op == "sum" else x.cummax(axis).values
    return (np.add if op == "sum" else np.maximum).accumulate(x, axis)


class _Histogram:
    @staticmethod
    def draw(rng, scale):
        largest = min(MAX_ELEMENTS, scale) if scale else MAX_ELEMENTS
        dtype = str(rng.choice(["float32", "float32", "uint8", "int32"]))
        bins = int(rng.choice([10, 64, 256, 256, 1000, 4096]))
        size = int(2 ** rng.uniform(0, math.log2(largest)))
        return {"shape": [size], "dtype": dtype, "bins": bins, "constant": bool(rng.random() < 0.2)}

    @staticmethod
    def shape(shape, **_):
        return tuple(shape)

    @staticmethod
    def make(source, shape, dtype, constant, **_):
        x = source(shape, dtype)
        if constant:
            x[1:] = x[0]
        return [x]

    @staticmethod
    def bind(arrays, bins, dtype, **_):
        (x,), span = arrays, _span(dtype)
        return lambda: scan.histogram(x, bins, span)[0]

    @staticmethod
    def rivals(arrays, torch, cupy, bins, dtype, **_):
        (x,), (low, high), found = arrays, _span(dtype), {}
        if torch:
            values = x if x.is_floating_point() else x.float()
            found["torch (histc)"] = functools.partial(torch.histc, values, bins, low, high)
        if cupy:
            found["cupy"] = functools.partial(cupy.histogram, cupy.asarray(x), bins, (low, high))
        return found

    @staticmethod
    def is_right(result, arrays, bins, dtype, **_):
        (x,), span = arrays, _span(dtype)
        if not hasattr(x, "cpu"):
            return np.array_equal(result, np.histogram(x, bins, span)[0])
        import torch

        edges = torch.as_tensor(np.histogram_bin_edges(np.zeros(1, dtype), bins, span), device=x.device)
        x = x if x.is_floating_point() else x.to(edges.dtype)
        found = torch.bucketize(x[(x >= span[0]) & (x <= span[1])], edges, right=True) - 1
        counts = torch.bincount(found.clamp_(max=bins - 1), minlength=bins)
        return bool((counts == torch.as_tensor(result)).all())


def _span(dtype):
    return (-4, 4) if np.dtype(dtype).kind == "f" else (0, 256)


class _Compress:
    @staticmethod
    def draw(rng, scale):
        settings = _Histogram.draw(rng, scale)
        dtype = str(rng.choice(["float32", "float32", "float64", "uint8"]))
        return {"shape": settings["shape"], "dtype": dtype, "share": float(rng.choice([0.01, 0.5, 0.99]))}

    @staticmethod
    def shape(shape, **_):
        return tuple(shape)

    @staticmethod
    def make(source, shape, dtype, share, **_):
        chosen = source(shape, "float32")
        return [abs(chosen) < {0.01: 0.0125, 0.5: 0.6745, 0.99: 2.576}[share], source(shape, dtype)]

    @staticmethod
    def bind(arrays, **_):
        return functools.partial(scan.compress, *arrays)

    @staticmethod
    def rivals(arrays, torch, cupy, **_):
        (mask, x), found = arrays, {}
        if torch:
            found["torch"] = functools.partial(torch.masked_select, x, mask)
        if cupy:
            selected, wanted = cupy.asarray(x), cupy.asarray(mask)
            found["cupy"] = lambda: selected[wanted]
        return found

    @staticmethod
    def is_right(result, arrays, **_):
        mask, x = arrays
        return _equal(result, x[mask])


def _draw_rows(rng, scale):
    """Draw one row, or some of them, and the axis along which their elements lie."""
    (size,) = _Histogram.draw(rng, scale)["shape"]
    if rng.random() < 0.5:
        return [size], 0
    n = _size(rng, 1, max(size, 1), 0)
    shape = [max(size // n, 1), n]
    return (shape, 1) if rng.random() < 0.8 else (shape[::-1], 0)


class _Sort:
    @staticmethod
    def draw(rng, scale):
        shape, axis = _draw_rows(rng, scale)
        dtype = str(rng.choice(["float32", "int32", "int32", "int64", "uint8"]))
        return {"shape": shape, "axis": axis, "dtype": dtype, "indices": bool(rng.random() < 0.4)}

    @staticmethod
    def shape(shape, **_):
        return tuple(shape)

    @staticmethod
    def make(source, shape, dtype, **_):
        return [source(shape, dtype)]

    @staticmethod
    def bind(arrays, indices, axis, **_):
        return functools.partial(scan.argsort if indices else scan.sort, arrays[0], axis=axis)

    @staticmethod
    def rivals(arrays, torch, cupy, indices, axis, **_):
        (x,), found = arrays, {}
        if torch:
            found["torch"] = functools.partial(torch.sort, x, stable=True, dim=axis)
        if cupy:
            keys = cupy.asarray(x)
            found["cupy"] = functools.partial(cupy.argsort if indices else cupy.sort, keys, axis)
        return found

    @staticmethod
    def is_right(result, arrays, indices, axis, **_):
        (x,) = arrays
        if hasattr(x, "cpu"):
            found = x.sort(stable=True, dim=axis)
            return _equal(result, found.indices if indices else found.values)
        return _equal(result, (np.argsort if indices else np.sort)(x, axis, kind="stable"))


class _TopK:
    @staticmethod
    def draw(rng, scale):
        shape, axis = _draw_rows(rng, scale)
        k = _size(rng, 1, min(shape[axis], 4096), 0)
        dtype = str(rng.choice(["float32", "float32", "int32", "float16"]))
        return {"shape": shape, "axis": axis, "k": k, "largest": bool(rng.random() < 0.8), "dtype": dtype}

    @staticmethod
    def shape(shape, k, **_):
        return (*shape, k)

    @staticmethod
    def make(source, shape, dtype, **_):
        return [source(shape, dtype)]

    @staticmethod
    def bind(arrays, k, axis, largest, **_):
        return functools.partial(scan.topk, arrays[0], k, axis, largest)

    @staticmethod
    def rivals(arrays, torch, cupy, k, axis, largest, **_):
        return {"torch": functools.partial(torch.topk, arrays[0], k, axis, largest)} if torch else {}

    @staticmethod
    def is_right(result, arrays, k, axis, largest, **_):
        """The values are those of a sort; which of equal elements are taken is a library's choice."""
        (x,), (values, indices) = arrays, result
        if hasattr(x, "cpu"):
            return _equal(values, x.topk(k, axis, largest).values) and _equal(x.gather(axis, indices), values)
        ordered = np.sort(x, axis)
        want = (np.flip(ordered, axis) if largest else ordered).take(range(k), axis)
        return _equal(values, want) and _equal(np.take_along_axis(x, indices.astype(int), axis), want)


# -- resize, blob ------------------------------------------------------------------------------------------------------


def _draw_pictures(rng, scale):
    """Draw how many pictures there are, their size and another one."""
    samples = _size(rng, 1, 32, scale)
    source, target = ([_size(rng, 16, 2160, scale), _size(rng, 16, 3840, scale)] for _ in range(2))
    while samples * max(math.prod(source), math.prod(target)) * 3 > MAX_ELEMENTS // 2:
        samples = max(samples // 2, 1)
    return {"samples": samples, "source": source, "target": target}


class _Resize:
    @staticmethod
    def draw(rng, scale):
        dtype, method = str(rng.choice(["float32", "uint8"])), str(rng.choice(["bilinear", "bilinear", "nearest"]))
        return _draw_pictures(rng, scale) | {"dtype": dtype, "method": method}

    @staticmethod
    def shape(samples, source, target, **_):
        return (samples, *source, *target)

    @staticmethod
    def make(source_of, samples, source, dtype="float32", **_):
        return [source_of((samples, *source, 3), dtype)]

    @staticmethod
    def bind(arrays, target, method="bilinear", **_):
        return functools.partial(resize.resize, arrays[0], tuple(target), method, swap_rb=False)

    @staticmethod
    def rivals(arrays, torch, cupy, target, method="bilinear", **_):
        if not torch:
            return {}

        def run(pictures):
            if method == "nearest" or pictures.is_floating_point():
                return torch.nn.functional.interpolate(pictures, tuple(target), mode=method)
            found = torch.nn.functional.interpolate(pictures.float(), tuple(target), mode=method)
            return found.round_().to(pictures.dtype)

        last = arrays[0].permute(0, 3, 1, 2)
        return {
            "torch (interpolate)": functools.partial(run, last),
            "torch (interpolate, planes)": functools.partial(run, last.contiguous()),
        }

    @staticmethod
    def is_right(result, arrays, target, dtype="float32", method="bilinear", **_):
        how = cv2.INTER_LINEAR if method == "bilinear" else cv2.INTER_NEAREST
        allowed = 0 if method == "nearest" else 1 if dtype == "uint8" else 1e-3
        for picture, got in zip(_host(arrays[0])[:2], _host(result)[:2], strict=True):
            expected = cv2.resize(picture, target[::-1], interpolation=how).astype(float)
            if np.abs(expected - got).max() > allowed:
                return False
        return True


class _Blob:
    draw, shape = staticmethod(_draw_pictures), _Resize.shape
    mean, factor, fill = (103.0, 116.0, 123.0), (0.017, 0.0175, 0.0174), 114

    @staticmethod
    def make(source_of, samples, source, target):
        return [source_of((samples, *source, 3), "uint8")]

    @classmethod
    def bind(cls, arrays, target, **_):
        size = tuple(target)
        return lambda: resize.blob(arrays[0], size, cls.mean, cls.factor, cls.fill).image

    @classmethod
    def rivals(cls, arrays, torch, cupy, source, target, **_):
        if not torch:
            return {}
        place = resize.placement(tuple(source), tuple(target))
        mean, factor = (torch.tensor(v, device="cuda").view(1, 3, 1, 1) for v in (cls.mean, cls.factor))
        pad = place.left, target[1] - place.left - place.width, place.top, target[0] - place.top - place.height
        pictures = arrays[0].permute(0, 3, 1, 2)
        size = place.height, place.width

        def eager():
            inner = torch.nn.functional.interpolate(pictures.float(), size, mode="bilinear", align_corners=False)
            return (torch.nn.functional.pad(inner.flip(1), pad, value=float(cls.fill)) - mean) * factor

        return {"torch (interpolate)": eager}

    @classmethod
    def is_right(cls, result, arrays, source, target, **_):
        place = resize.placement(tuple(source), tuple(target))
        for picture, got in zip(_host(arrays[0])[:2], _host(result)[:2], strict=True):
            inner = cv2.resize(picture, (place.width, place.height), interpolation=cv2.INTER_LINEAR)[..., ::-1]
            boxed = np.full((*target, 3), cls.fill, np.float64)
            boxed[place.top : place.top + place.height, place.left : place.left + place.width] = inner
            expected = ((boxed - cls.mean) * cls.factor).transpose(2, 0, 1)
            if np.abs(expected - got).max() > max(cls.factor) + 1e-4:  # a level of the bytes
                return False
        return True


#: What problems are drawn for, by the name of the function.
FUNCTIONS: dict[str, Any] = {
    "matmul": _Matmul,
    "conv2d": _Conv2d,
    "reduce": _Reduce,
    "transpose": _Transpose,
    "scan": _Scan,
    "histogram": _Histogram,
    "compress": _Compress,
    "sort": _Sort,
    "topk": _TopK,
    "resize": _Resize,
    "blob": _Blob,
}


def draw(function: str, rng: np.random.Generator, scale: int = 0) -> Problem:
    """Draw a problem; with a ``scale`` sizes go up to that only, for machines without a GPU."""
    return Problem(function, FUNCTIONS[function].draw(rng, scale))


def _size(rng, low, high, scale):
    """Draw a size, evenly over the logarithms; every second one is a multiple of 8, as sizes in programs are."""
    high = min(high, scale) if scale else high
    low = min(low, high)
    size = int(round(math.exp(rng.uniform(math.log(low), math.log(high)))))
    if rng.random() < 0.5 and size > 8:
        size = size // 8 * 8
    return min(max(size, low), high)


def _near_size(rng, size):
    """Draw a size like another one: the same, or up to twice as large."""
    return size if rng.random() < 0.7 else max(int(size * 2 ** rng.uniform(-1, 1)), 1)
