"""Written kernels for everything a device does that random ones do not reach.

Every device function of numba.cuda that the emulator has, and the edges of arithmetic. ``CASES`` maps names to objects
with ``run(module)`` and ``differences(found, expected)``.

The table answers questions as well as it tests: what a device does where no document says it, the emulator follows.
"""

import inspect
import linecache
import math

import numpy as np
from numba import cuda, float32, int32, int64, uint32

CASES = {}

INTEGER_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOAT_TYPES = ("float32", "float64")
NAN, INF = math.nan, math.inf


def differing(name, found, expected, ulps):
    """Elements further apart than ``ulps`` last places.

    With 0 the sign of zero counts too. Any NaN equals any other.
    """
    with np.errstate(all="ignore"):
        if found.dtype.kind in "fc" and ulps:
            parts = found.dtype.type(0).real.dtype
            size = np.maximum(np.abs(expected), np.finfo(parts).tiny).astype(parts)
            same = (found == expected) | (np.abs(found - expected) <= ulps * np.spacing(size))
        elif found.dtype.kind == "f":
            same = (found == expected) & (np.signbit(found) == np.signbit(expected))
        else:
            same = found == expected
        if found.dtype.kind in "fc":
            same |= np.isnan(found) & np.isnan(expected)
    return [(name, tuple(int(i) for i in at), found[tuple(at)], expected[tuple(at)]) for at in np.argwhere(~same)]


class Elementwise:
    """``out[i] = expression`` over inputs of equal length, one kernel with one output for each expression."""

    def __init__(self, name, inputs, outputs, functions=""):
        #: {input name: array}, {output name: (expression of input names, dtype, last places)}, device functions
        self.functions = functions
        self.name, self.inputs, self.outputs = name, inputs, outputs
        self.size = len(next(iter(inputs.values())))

    @property
    def source(self):
        lines = [f"def kernel({', '.join(f'{n}_' for n in (*self.inputs, *self.outputs))}):", "    i = cuda.grid(1)"]
        lines.append(f"    if i < {self.size}:")
        lines += [f"        {n} = {n}_[i]" for n in self.inputs]
        lines += [f"        {n}_[i] = {expression}" for n, (expression, *_) in self.outputs.items()]
        return self.functions + "\n".join(lines) + "\n"

    def run(self, module):
        file = f"<{self.name}>"
        linecache.cache[file] = len(self.source), None, self.source.splitlines(keepends=True), file
        from numba.cuda import fp16

        namespace = {"cuda": module, "np": np, "math": math, "fp16": fp16}
        exec(compile(self.source, file, "exec"), namespace)
        arrays = {n: np.zeros(self.size, dtype) for n, (_, dtype, *_) in self.outputs.items()}
        threads = 64
        module.jit(namespace["kernel"])[-(-self.size // threads), threads](*self.inputs.values(), *arrays.values())
        return arrays

    def differences(self, found, expected):
        result = []
        for name, (_, _, ulps) in self.outputs.items():
            result += differing(name, found[name], expected[name], ulps)
        return result

    def describe(self, name, at):
        values = ", ".join(f"{n}={a[at[0]]!r}" for n, a in self.inputs.items())
        return f"{self.outputs[name][0]} with {values}"


class Written:
    """A kernel function with a launch and arguments."""

    def __init__(self, function, launch, arguments, ulps):
        self.function, self.launch, self.arguments, self.ulps = function, launch, arguments, ulps
        self.name = function.__name__

    @property
    def source(self):
        return inspect.getsource(self.function)

    def run(self, module):
        values = [v.copy() if isinstance(v, np.ndarray) else v for v in self.arguments()]
        module.jit(self.function)[self.launch](*values)
        names = inspect.signature(self.function).parameters
        return {n: v for n, v in zip(names, values, strict=True) if isinstance(v, np.ndarray)}

    def differences(self, found, expected):
        result = []
        for name, array in found.items():
            if array.dtype.names:
                for part in array.dtype.names:
                    result += differing(f"{name}.{part}", array[part], expected[name][part], self.ulps)
            else:
                result += differing(name, array, expected[name], self.ulps)
        return result

    def describe(self, name, at):
        return ""


class Refused:
    """Launches that must raise on both sides."""

    source = ""

    def __init__(self, launches):
        self.launches = launches

    def run(self, module):
        @module.jit
        def kernel(out):
            out[0] = 1

        refused = []
        for launch in self.launches:
            try:
                kernel[launch](np.zeros(1))
                refused.append(False)
            except Exception:
                refused.append(True)
        return {"refused": np.array(refused)}

    def differences(self, found, expected):
        return differing("refused", found["refused"], expected["refused"], 0)

    def describe(self, name, at):
        return f"launch {self.launches[at[0]]}"


def elementwise(name, inputs, outputs):
    CASES[name] = Elementwise(name, inputs, outputs)


def pairs(first, second):
    """Every combination of two lists of values, as arrays."""
    a, b = np.meshgrid(first, second, indexing="ij")
    return np.ascontiguousarray(a.ravel()), np.ascontiguousarray(b.ravel())


def edges(dtype):
    """Values of a type where something happens."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind == "f":
        values = [0, -0.0, 1, -1, 0.5, -0.5, 1.5, -2.5, 3, -7.25, 100.75, 1e-3, -1e5, 1e10, NAN, INF, -INF]
        return np.array(values, dtype)
    info = np.iinfo(dtype)
    values = {
        0,
        1,
        2,
        3,
        7,
        10,
        100,
        info.max,
        info.max - 1,
        info.max // 2,
        info.min,
        info.min + 1,
        -1,
        -2,
        -3,
        -7,
        -100,
    }
    return np.array(sorted(v for v in values if info.min <= v <= info.max), dtype)


# conversions


def conversions():
    borders = [
        0,
        0.4,
        0.5,
        0.9,
        1.5,
        127,
        127.5,
        128,
        129,
        200,
        255,
        255.9,
        256,
        300,
        32767,
        32768,
        40000,
        65535,
        65536,
        70000,
    ]
    borders += [
        2.0**31 - 1,
        2.0**31,
        2.0**31 + 1024,
        2.0**32 - 1,
        2.0**32,
        2.0**32 + 4096,
        5e9,
        2.0**53,
        2.0**63 - 1024,
        2.0**63,
        2.0**64,
    ]
    borders += [2.0**65, 1e20, 1e38, INF, NAN]
    for dtype in FLOAT_TYPES:
        x = np.array(borders + [-b for b in borders], dtype)
        targets = {f"to_{t}": (f"np.{t}(x)", t, 0) for t in INTEGER_TYPES}
        targets |= {"to_int": ("int(x)", "int64", 0), "to_bool": ("bool(x)", "bool", 0)}
        elementwise(f"{dtype}_called_to_integers", {"x": x}, targets)
        elementwise(f"{dtype}_stored_to_integers", {"x": x}, {f"to_{t}": ("x", t, 0) for t in (*INTEGER_TYPES, "bool")})
    wide = np.array(borders + [-b for b in borders] + [1e300, -1e300, 1e-300, 1e-40, 0.1, 1 / 3], "float64")
    elementwise(
        "float64_to_float32", {"x": wide}, {"called": ("np.float32(x)", "float32", 0), "stored": ("x", "float32", 0)}
    )
    for dtype in (*INTEGER_TYPES, "bool"):
        x = edges(dtype)
        targets = (*INTEGER_TYPES, *FLOAT_TYPES)
        outputs = {f"to_{t}": (f"np.{t}(x)", t, 0) for t in targets} | {
            f"in_{t}": ("x", t, 0) for t in (*targets, "bool")
        }
        outputs |= {"int": ("int(x)", "int64", 0), "bool": ("bool(x)", "bool", 0)}
        elementwise(f"{dtype}_converted", {"x": x}, outputs)


# integer arithmetic


def integer_arithmetic():
    mixed = (
        ("int32", "uint32"),
        ("int64", "uint64"),
        ("uint64", "int64"),
        ("int8", "int64"),
        ("uint8", "int16"),
        ("bool", "int32"),
        ("bool", "bool"),
    )
    for first, second in [(t, t) for t in INTEGER_TYPES] + list(mixed):
        a, b = pairs(edges(first), edges(second))
        inputs = {"a": a, "b": b}
        name = first if first == second else f"{first}_{second}"
        outputs = {
            f"{word}{size}": (f"a {sign} b", size, 0)
            for word, sign in _ARITHMETIC.items()
            for size in ("int64", "uint64")
        }
        outputs["ratio"] = "a / b", "float64", 0
        elementwise(f"{name}_arithmetic", inputs, outputs)
        smallest = np.iinfo(first).min if first.startswith("int") else None
        overflow = (
            (a == smallest) & (b == np.array(-1).astype(second))
            if smallest is not None and second.startswith("int")
            else np.zeros(a.shape, bool)
        )
        for part, where in (("", ~overflow), ("_overflowing", overflow)):
            if where.any():
                chosen = {"a": a[where], "b": b[where]}
                divisions = {"quotient": ("a // b", "int64", 0), "rest": ("a % b", "int64", 0)}
                divisions |= {"divmod0": ("divmod(a, b)[0]", "int64", 0), "divmod1": ("divmod(a, b)[1]", "int64", 0)}
                elementwise(f"{name}_division{part}", chosen, {k: divisions[k] for k in ("quotient", "rest")})
                elementwise(f"{name}_divmod{part}", chosen, {k: divisions[k] for k in ("divmod0", "divmod1")})
        comparisons = {
            w: (f"a {s} b", "bool", 0)
            for w, s in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items()
        }
        elementwise(f"{name}_comparison", inputs, comparisons)
        functions = ("np.minimum", "np.maximum") if "bool" in name else ("min", "max", "np.minimum", "np.maximum")
        extremes = {f"{f}_{t}".replace(".", "_"): (f"{f}(a, b)", t, 0) for f in functions for t in ("int64", "float64")}
        elementwise(f"{name}_extremes", inputs, extremes)
    for type_ in (*INTEGER_TYPES, "bool"):
        unary = {
            "minus": "-a",
            "plus": "+a",
            "absolute": "abs(a)",
            "inverse": "~a",
            "negation": "not a",
            "square": "a ** 2",
            "cube": "a ** 3",
            "zeroth": "a ** 0",
        }
        values = edges(type_)
        if type_ == "int16":  # ptxas negates -32768 in 32 bits, or in 16, as it likes
            values = values[values != -32768]
        elementwise(f"{type_}_unary", {"a": values}, {w: (e, "int64", 0) for w, e in unary.items()})
    for type_ in INTEGER_TYPES:
        bits = np.dtype(type_).itemsize * 8
        inside, outside = [0, 1, 3, 7, bits - 1], [64, 65, 100, 127, 128, 200, 255]
        for name, amounts in (
            ("shifts", inside),
            ("shifts_of_64_and_more", outside),
            ("shifts_by_less_than_0", [-1, -2, -31, -64]),
        ):
            for amount_type in ("int64", "uint8") if name != "shifts_by_less_than_0" else ("int64", "int8"):
                a, b = pairs(edges(type_), np.array(amounts).astype(amount_type))
                outputs = {
                    f"{w}_{t}": (f"a {s} b", t, 0)
                    for w, s in (("left", "<<"), ("right", ">>"))
                    for t in ("int64", "uint64")
                }
                elementwise(f"{type_}_{name}_by_{amount_type}", {"a": a, "b": b}, outputs)
    for type_ in INTEGER_TYPES:
        functions = {f: (f"cuda.{f}(a)", "int64", 0) for f in ("popc", "clz", "ffs")}
        for function, output in functions.items():
            elementwise(f"{type_}_{function}", {"a": edges(type_)}, {function: output})
        elementwise(f"{type_}_brev", {"a": edges(type_)}, {"brev": ("cuda.brev(a)", "uint64", 0)})
        a, b = pairs(edges(type_), edges(type_))
        if np.dtype(type_).itemsize > 1:
            elementwise(f"{type_}_selp", {"a": a, "b": b}, {"selp": ("cuda.selp(a > b, a, b)", "int64", 0)})


_ARITHMETIC = {"sum": "+", "difference": "-", "product": "*", "both": "&", "either": "|", "one": "^"}


def powers():
    bases, exponents = [0, 1, -1, 2, -2, 3, 7, -7, 10], [0, 1, 2, 3, 5, 10, 31, 63, 64]
    for first, second in (
        ("int64", "int64"),
        ("int32", "int32"),
        ("int32", "int8"),
        ("uint64", "uint64"),
        ("int64", "uint8"),
        ("uint8", "int64"),
    ):
        a = np.array([b for b in bases if b >= 0 or first.startswith("int")])
        for name, chosen in (("", exponents), ("_negative", [-1, -2, -3])):
            if name and not second.startswith("int"):
                continue
            x, y = pairs(a.astype(first), np.array(chosen).astype(second))
            elementwise(
                f"{first}_{second}_power{name}",
                {"x": x, "y": y},
                {"power": ("x ** y", "int64", 0), "pow": ("pow(x, y)", "int64", 0)},
            )
    special = np.array([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3.7, -3.7, 1e10, NAN, INF, -INF])
    for type_ in FLOAT_TYPES:
        x, y = pairs(special.astype(type_), special.astype(type_))
        inputs = {"x": x, "y": y}
        elementwise(
            f"{type_}_power", inputs, {"power": ("x ** y", type_, 10), "math_pow": ("math.pow(x, y)", type_, 10)}
        )
        x, n = pairs(special.astype(type_), np.array([0, 1, 2, 3, 7, 20, -1, -2, -3], np.int64))
        elementwise(
            f"{type_}_int_power",
            {"x": x, "n": n},
            {"power": ("x ** n", type_, 10), "math_pow": ("math.pow(x, n)", type_, 10)},
        )
        elementwise(
            f"{type_}_int32_power",
            {"x": x, "n": n.astype(np.int32)},
            {"power": ("x ** n", type_, 10), "math_pow": ("math.pow(x, n)", type_, 10)},
        )
        literal = {f"p{i}": (f"x ** {e}", type_, 4) for i, e in enumerate((0, 1, 2, 3, 4, 5, 7, -1, -2, -3))}
        literal |= {"half": ("x ** 0.5", type_, 4), "third": ("x ** 3.0", type_, 4)}
        elementwise(f"{type_}_literal_power", {"x": special.astype(type_)}, literal)


# float arithmetic


def float_arithmetic():
    special = [0, -0.0, 1, -1, 0.1, 1 / 3, -2.5, 7.25, 1e-30, -1e30, 3e38, 1e-45, 6e-39, NAN, INF, -INF]
    for first, second in (
        ("float32", "float32"),
        ("float64", "float64"),
        ("float32", "float64"),
        ("int32", "float32"),
        ("int8", "float32"),
    ):
        a = edges(first) if first.startswith("int") else np.array(special).astype(first)
        a, b = pairs(a, np.array(special).astype(second))
        name = first if first == second else f"{first}_{second}"
        inputs = {"a": a, "b": b}
        signs = {"sum": "+", "difference": "-", "product": "*", "ratio": "/", "floor": "//", "rest": "%"}
        elementwise(f"{name}_float_arithmetic", inputs, {w: (f"a {s} b", "float64", 0) for w, s in signs.items()})
        elementwise(
            f"{name}_float_comparison",
            inputs,
            {f"c{i}": (f"a {s} b", "bool", 0) for i, s in enumerate(("<", "<=", ">", ">=", "==", "!="))},
        )
        for function in ("min", "max", "np.minimum", "np.maximum", "np.fmin", "np.fmax"):
            elementwise(f"{name}_{function.replace('.', '_')}", inputs, {"f": (f"{function}(a, b)", "float64", 0)})
        elementwise(
            f"{name}_divmod", inputs, {"q": ("divmod(a, b)[0]", "float64", 0), "r": ("divmod(a, b)[1]", "float64", 0)}
        )
    for type_ in FLOAT_TYPES:
        a = np.array(special).astype(type_)
        unary = {"minus": "-a", "plus": "+a", "absolute": "abs(a)", "negation": "not a", "fabs": "math.fabs(a)"}
        elementwise(f"{type_}_unary", {"a": a}, {w: (e, type_, 0) for w, e in unary.items()})
        halves = np.array(
            [0, 0.5, 1.5, 2.5, -0.5, -1.5, 2.4999, 2.675, -2.675, 1234.5678, 1e10, 15, 25, 0.05, 99.95]
        ).astype(type_)
        elementwise(f"{type_}_round", {"a": halves}, {"r": ("round(a)", "int64", 0)})
        digits = {f"d{i}": (f"round(a, {n})", type_, 0) for i, n in enumerate((0, 1, 2, 3, -1, -2))}
        elementwise(f"{type_}_round_digits", {"a": np.append(halves, np.array([NAN, INF], type_))}, digits)
        a, b = pairs(np.array([0.1, -1.5, 3e3, 1e10], type_), np.array([0.7, 1 + 1e-7, -2e4], type_))
        elementwise(
            f"{type_}_fma",
            {"a": a, "b": b},
            {"f": ("cuda.fma(a, b, b)", type_, 0), "g": ("cuda.fma(a, b, -a)", type_, 0)},
        )
        elementwise(f"{type_}_selp", {"a": a, "b": b}, {"f": ("cuda.selp(a > b, a, b)", type_, 0)})


# functions

#: Last places that device and emulator may differ by: what the CUDA guide states for each function in float32 and
#: float64, and two for NumPy's own error (which reaches four in float32).
_UNARY = {
    "sin": (6, 4), "cos": (6, 4), "tan": (8, 4), "asin": (8, 4), "acos": (8, 4), "atan": (6, 4), "sinh": (7, 4),
    "cosh": (6, 3),
    "tanh": (6, 3), "asinh": (8, 5), "acosh": (8, 5), "atanh": (7, 4), "exp": (6, 3), "exp2": (6, 3), "expm1": (5,
    3), "log": (5, 3),
    "log2": (5, 3), "log10": (6, 3), "log1p": (5, 3), "sqrt": (0, 0), "erf": (4, 4), "erfc": (8, 7), "gamma": (13, 12),
    "lgamma": (16, 16), "floor": (0, 0), "ceil": (0, 0), "trunc": (0, 0), "degrees": (2, 2), "radians": (2, 2),
    "fabs": (0, 0),
}  # fmt: skip
_BINARY = {
    "atan2": (7, 4), "hypot": (7, 4), "fmod": (0, 0), "copysign": (0, 0), "nextafter": (0, 0), "remainder": (0, 0),
    "pow": (10, 4),
}  # fmt: skip
_UFUNCS = (
    "absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh cbrt ceil copysign cos cosh deg2rad degrees "
    "divide exp exp2 expm1 fabs floor floor_divide fmax fmin fmod hypot isfinite isinf isnan log log10 log1p log2 "
    "logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum minimum mod multiply negative "
    "nextafter not_equal positive power rad2deg radians reciprocal remainder rint sign signbit sin sinh spacing "
    "sqrt square subtract tan tanh true_divide trunc add equal greater less conjugate float_power"
).split()
_INTEGER_UFUNCS = "bitwise_and bitwise_or bitwise_xor gcd invert lcm left_shift right_shift".split()


def functions():
    plain = np.concatenate(
        [
            np.linspace(-6, 6, 61),
            [0.001, -0.001, 20, -20, 80, 100, 1e-8, 0.9999, -0.9999, 0.0, -0.0, NAN, INF, -INF, 1e4, -1e4],
        ]
    )
    random = np.random.default_rng(5)
    for name, ulps in _UNARY.items():
        for type_, ulp in zip(FLOAT_TYPES, ulps, strict=True):
            x = plain.astype(type_)
            if name == "lgamma":  # its error is absolute near the zeros, 1 and 2 and between the negative integers
                x = x[~((x < 0) | (np.abs(x - 1.5) < 0.75))]
            elementwise(f"{type_}_math_{name}", {"x": x}, {"f": (f"math.{name}(x)", type_, ulp)})
        whole = np.array([0, 1, 2, 3, 5, -1, -3], np.int32)
        outputs = {"from_int": (f"math.{name}(x)", "float64", ulps[1])}
        elementwise(f"int32_math_{name}", {"x": whole}, outputs)
    for name, ulps in _BINARY.items():
        for type_, ulp in zip(FLOAT_TYPES, ulps, strict=True):
            x = np.concatenate([random.uniform(-9, 9, 60), [0, -0.0, 1, NAN, INF, -INF, 5, -5, 5.5, -5.5]])
            y = np.concatenate([random.uniform(-9, 9, 60), [2, 3, 0, 1, 2, 0.5, -3, 3, 2, -2]])
            elementwise(
                f"{type_}_math_{name}",
                {"x": x.astype(type_), "y": y.astype(type_)},
                {"f": (f"math.{name}(x, y)", type_, ulp)},
            )
        mixed = {"x": np.array([1, 2, -3, 7], np.int32), "y": np.array([1.5, -2, 0.25, 2], np.float32)}
        elementwise(f"int32_float32_math_{name}", mixed, {"f": (f"math.{name}(x, y)", "float64", ulps[0])})
    for type_ in FLOAT_TYPES:
        x = plain.astype(type_)
        elementwise(
            f"{type_}_classes", {"x": x}, {f: (f"math.{f}(x)", "bool", 0) for f in ("isnan", "isinf", "isfinite")}
        )
        elementwise(
            f"{type_}_frexp",
            {"x": x[np.isfinite(x)]},
            {"m": ("math.frexp(x)[0]", type_, 0), "e": ("math.frexp(x)[1]", "int32", 0)},
        )
        elementwise(f"{type_}_modf", {"x": x}, {"f": ("math.modf(x)[0]", type_, 0), "w": ("math.modf(x)[1]", type_, 0)})
        n = (np.arange(x.size) % 13 - 6).astype(np.int32)
        elementwise(f"{type_}_ldexp", {"x": x, "n": n}, {"f": ("math.ldexp(x, n)", type_, 0)})
        elementwise(f"{type_}_cbrt", {"x": x}, {"f": ("cuda.cbrt(x)", type_, 4)})
    for name in (*_UFUNCS, *_INTEGER_UFUNCS):
        function = getattr(np, name)
        for type_ in (*(FLOAT_TYPES if name in _UFUNCS else ()), "int32", "int64", "uint8"):
            _ufunc(name, function, type_, plain, random)


def _ufunc(name, function, type_, plain, random):
    if type_ in FLOAT_TYPES:
        x = plain.astype(type_)
        y = random.permutation(plain).astype(type_)
        out, ulps = type_, 8 if type_ == "float32" else 4
    else:
        x, y = pairs(np.arange(0 if type_.startswith("u") else -4, 9).astype(type_), np.arange(0, 7).astype(type_))
        out, ulps = "float32" if type_ == "uint8" else "float64", 4  # Numba computes with float32 for small integers
    inputs = {"x": x, "y": y} if function.nin == 2 else {"x": x}
    elementwise(f"{type_}_np_{name}", inputs, {"f": (f"np.{name}({', '.join(inputs)})", out, ulps)})


LIBDEVICE = {
    "fast_sinf": 1, "fast_cosf": 1, "fast_expf": 1, "fast_logf": 1, "fast_powf": 2, "fast_fdividef": 2, "rsqrtf": 1,
    "rsqrt": 1,
    "exp10f": 1, "saturatef": 1, "fdiv_rn": 2, "fadd_rn": 2, "fmul_rn": 2, "fsqrt_rn": 1, "fmaf": 3, "fminf": 2,
    "fmaxf": 2, "rintf": 1,
    "fabsf": 1, "floorf": 1, "powf": 2, "tgammaf": 1, "erfcf": 1,
}  # fmt: skip


def library():
    """cuda.libdevice; its fast functions trade exactness for speed: 2**-15."""
    x = np.concatenate([np.linspace(0.1, 3, 40), [0.5, 1.0, 2.5, 1.5, 0.75]])
    for name, count in LIBDEVICE.items():
        type_ = "float64" if name == "rsqrt" else "float32"
        inputs = {n: np.roll(x, k).astype(type_) for k, n in enumerate("xyz"[:count])}
        ulps = 512 if name.startswith("fast_") else 10
        elementwise(f"libdevice_{name}", inputs, {"f": (f"cuda.libdevice.{name}({', '.join(inputs)})", type_, ulps)})
    bits = np.array([0, 1, -1.5, INF, 3e-39, -0.0], np.float32)
    elementwise("libdevice_float_as_int", {"x": bits}, {"f": ("cuda.libdevice.float_as_int(x)", "int32", 0)})


# half precision, complex

_HALF = (
    "hsin hcos hlog hlog2 hlog10 hexp hexp2 hexp10 hsqrt hrsqrt hrcp hfloor hceil htrunc hrint habs hneg".split(),
    "hadd hsub hmul hdiv hmax hmin heq hne hge hgt hle hlt".split(),
)


def half_precision():
    values = np.array([0, -0.0, 1, -1, 0.5, 2.5, -3.75, 0.1, 100, 6e4, 1e-3, 6e-8, NAN, INF, -INF], np.float16)
    a, b = pairs(values, values)
    for sign, word in {"+": "sum", "-": "difference", "*": "product", "/": "ratio"}.items():
        elementwise(f"float16_{word}", {"a": a, "b": b}, {"f": (f"a {sign} b", "float16", 0 if sign != "/" else 1)})
    elementwise(
        "float16_comparison",
        {"a": a, "b": b},
        {f"c{i}": (f"a {s} b", "bool", 0) for i, s in enumerate(("<", "<=", ">", ">=", "==", "!="))},
    )
    elementwise(
        "float16_extremes", {"a": a, "b": b}, {"low": ("min(a, b)", "float16", 0), "high": ("max(a, b)", "float16", 0)}
    )
    elementwise("float16_unary", {"a": values}, {"minus": ("-a", "float16", 0), "absolute": ("abs(a)", "float16", 0)})
    elementwise("float16_widened", {"a": values}, {t: (f"np.{t}(a)", t, 0) for t in FLOAT_TYPES})
    for type_ in INTEGER_TYPES:
        elementwise(
            f"float16_to_{type_}",
            {"a": values[:9] if type_.startswith("i") else abs(values[:9])},
            {"f": (f"np.{type_}(a)", type_, 0)},
        )
        elementwise(f"{type_}_to_float16", {"a": edges(type_)}, {"f": ("np.float16(a)", "float16", 0)})
    wide = np.array([0, 1, 0.1, 1 / 3, 65504, 65519, 65520, 1e5, 6e-8, 2e-8, NAN, INF])
    for type_ in FLOAT_TYPES:
        elementwise(
            f"{type_}_to_float16",
            {"a": wide.astype(type_)},
            {"called": ("np.float16(a)", "float16", 0), "stored": ("a", "float16", 0)},
        )
    for name in _HALF[0]:
        x = np.array([0.25, 0.5, 1, 1.5, 2.5, 3.75, 10, 0.1], np.float16)
        elementwise(f"fp16_{name}", {"a": x}, {"f": (f"fp16.{name}(a)", "float16", 1)})
    for name in _HALF[1]:
        out = "bool" if name in ("heq", "hne", "hge", "hgt", "hle", "hlt") else "float16"
        elementwise(f"fp16_{name}", {"a": a, "b": b}, {"f": (f"fp16.{name}(a, b)", out, 1 if name == "hdiv" else 0)})
    elementwise("fp16_hfma", {"a": a, "b": b}, {"f": ("fp16.hfma(a, b, a)", "float16", 0)})
    elementwise(
        "float16_mixed",
        {"a": a, "n": np.arange(a.size)},
        {"f": ("a + n", "float64", 0), "g": ("a * 2.5", "float64", 0)},
    )


def complex_numbers():
    z = np.array([1 + 2j, -0.5 + 0.25j, 3, -4j, 0.1 - 0.7j])
    for type_, part in (("complex64", "float32"), ("complex128", "float64")):
        a, b = pairs(z, z)
        inputs = {"a": a.astype(type_), "b": b.astype(type_)}
        signs = {"sum": "+", "difference": "-", "product": "*", "ratio": "/"}
        elementwise(f"{type_}_arithmetic", inputs, {w: (f"a {s} b", type_, 16) for w, s in signs.items()})
        elementwise(f"{type_}_equality", inputs, {"eq": ("a == b", "bool", 0), "ne": ("a != b", "bool", 0)})
        elementwise(
            f"{type_}_parts",
            inputs,
            {
                "re": ("a.real", part, 0),
                "im": ("a.imag", part, 0),
                "size": ("abs(a)", part, 4),
                "conj": ("a.conjugate()", type_, 0),
            },
        )
        elementwise(
            f"{type_}_made",
            inputs,
            {"f": ("complex(a.imag, b.real)", type_, 0), "minus": ("-a", type_, 0), "g": ("a * 2", type_, 0)},
        )


for _group in (
    conversions,
    integer_arithmetic,
    powers,
    float_arithmetic,
    functions,
    library,
    half_precision,
    complex_numbers,
):
    _group()

CASES["refused_launches"] = Refused(
    [
        (1, 1025),
        (1, (32, 33)),
        (1, (1, 1, 65)),
        (0, 32),
        (1, 0),
        ((1, 65536), 1),
        ((1, 1, 65536), 1),
        (1, 32, 0, 300_000),
        (1, 1024),
        ((1, 2, 2), (2, 2, 2)),
    ]
)


# kernels


def written(grid, block, *shapes, shared_bytes=0, ulps=0, **arrays):
    """Register a kernel.

    Its arguments are int64 arrays of zeros of ``shapes``, or those given by name in ``arrays``.
    """

    def register(function):
        def arguments():
            return [np.zeros(s, np.int64) for s in shapes] + [v() if callable(v) else v for v in arrays.values()]

        CASES[function.__name__] = Written(function, (grid, block, 0, shared_bytes), arguments, ulps)
        return function

    return register


# Warps


@written(1, 96, (14, 96))
def shuffles(out):
    t = cuda.threadIdx.x
    v = int32(1000 + t)
    out[0, t] = cuda.shfl_sync(0xFFFFFFFF, v, 5)
    out[1, t] = cuda.shfl_sync(0xFFFFFFFF, v, t + 3)
    out[2, t] = cuda.shfl_sync(0xFFFFFFFF, v, 40)
    out[3, t] = cuda.shfl_sync(0xFFFFFFFF, v, -1)
    out[4, t] = cuda.shfl_up_sync(0xFFFFFFFF, v, 3)
    out[5, t] = cuda.shfl_down_sync(0xFFFFFFFF, v, 3)
    out[6, t] = cuda.shfl_xor_sync(0xFFFFFFFF, v, 21)
    out[7, t] = cuda.shfl_up_sync(0xFFFFFFFF, v, t % 4)
    out[8, t] = cuda.shfl_down_sync(0xFFFFFFFF, v, t % 5)
    out[9, t] = cuda.shfl_xor_sync(0xFFFFFFFF, v, t % 3)
    out[10, t] = cuda.shfl_up_sync(0xFFFFFFFF, v, 0)
    out[11, t] = cuda.shfl_down_sync(0xFFFFFFFF, v, 31)
    out[12, t] = cuda.shfl_up_sync(0xFFFFFFFF, int64(v) << 33, 31)
    out[13, t] = cuda.shfl_xor_sync(0xFFFFFFFF, int64(-v), 1)


@written(1, 64, (8, 64))
def shuffles_far_out_of_range(out):
    t = cuda.threadIdx.x
    v = int32(1000 + t)
    out[0, t] = cuda.shfl_up_sync(0xFFFFFFFF, v, 32)
    out[1, t] = cuda.shfl_up_sync(0xFFFFFFFF, v, 33)
    out[2, t] = cuda.shfl_down_sync(0xFFFFFFFF, v, 32)
    out[3, t] = cuda.shfl_down_sync(0xFFFFFFFF, v, 40)
    out[4, t] = cuda.shfl_xor_sync(0xFFFFFFFF, v, 32)
    out[5, t] = cuda.shfl_xor_sync(0xFFFFFFFF, v, 63)
    out[6, t] = cuda.shfl_up_sync(0xFFFFFFFF, v, -1)
    out[7, t] = cuda.shfl_down_sync(0xFFFFFFFF, v, -1)


@written(1, 40, o32=lambda: np.zeros((3, 40), np.float32), o64=lambda: np.zeros((3, 40)))
def float_shuffles_in_a_partial_warp(o32, o64):
    t = cuda.threadIdx.x
    mask = 0xFFFFFFFF if t < 32 else 0xFF
    o32[0, t] = cuda.shfl_sync(mask, float32(t) / float32(3), 2)
    o64[0, t] = cuda.shfl_sync(mask, t / 3.0, 7)
    o32[1, t] = cuda.shfl_xor_sync(mask, float32(-t), 4)
    o64[1, t] = cuda.shfl_xor_sync(mask, -0.1 * t, 7)
    o32[2, t] = cuda.shfl_up_sync(mask, float32(t), 2)
    o64[2, t] = cuda.shfl_up_sync(mask, 1.0 * t, 5)


@written(1, 64, (6, 64))
def shuffles_in_groups(out):
    t = cuda.threadIdx.x
    lane = cuda.laneid
    group = uint32(0xFF) << uint32(lane // 8 * 8)
    out[0, t] = cuda.shfl_xor_sync(group, int32(t), 3)
    out[1, t] = cuda.any_sync(group, t == 13)
    out[2, t] = cuda.ballot_sync(group, t % 3 == 0)
    out[3, t] = cuda.match_any_sync(group, int32(t % 2))
    if lane // 8 % 2 == 0:
        out[4, t] = cuda.shfl_sync(group, int32(t), lane // 8 * 8 + 2)
        out[5, t] = cuda.all_sync(group, t < 20)
    else:
        out[4, t] = cuda.shfl_xor_sync(group, int32(-t), 1)
        out[5, t] = cuda.ballot_sync(group, t % 5 == 0)


@written(1, 96, (12, 96))
def votes_and_matches(out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.ballot_sync(0xFFFFFFFF, t % 3 == 0)
    out[1, t] = cuda.ballot_sync(0xFFFFFFFF, t)
    out[2, t] = cuda.all_sync(0xFFFFFFFF, t < 70)
    out[3, t] = cuda.any_sync(0xFFFFFFFF, t == 70)
    out[4, t] = cuda.eq_sync(0xFFFFFFFF, t < 64)
    out[5, t] = cuda.match_any_sync(0xFFFFFFFF, int32(t % 5))
    out[6, t] = cuda.match_any_sync(0xFFFFFFFF, int64(t // 7) << 40)
    out[7, t] = cuda.match_any_sync(0xFFFFFFFF, float32(t % 3) - float32(1))
    out[8, t] = cuda.match_any_sync(0xFFFFFFFF, 0.5 * (t % 4))
    mask, same = cuda.match_all_sync(0xFFFFFFFF, int32(t // 32))
    out[9, t] = mask * 2 + same
    mask, same = cuda.match_all_sync(0xFFFFFFFF, int32(t // 40))
    out[10, t] = mask * 2 + same
    out[11, t] = cuda.any_sync(0xFFFFFFFF, int32(t - 40))


@written(1, 80, (6, 80))
def lanes_and_masks(out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.laneid
    out[1, t] = cuda.lanemask_lt()
    out[2, t] = cuda.activemask()
    out[3, t] = cuda.warpsize
    if t < 40:
        out[4, t] = cuda.activemask()
    cuda.syncwarp()
    if t >= 64:
        cuda.syncwarp(0xFFFF)
    out[5, t] = (
        cuda.syncthreads_count(int32(t % 3 == 0))
        + 100 * cuda.syncthreads_and(int32(t < 80))
        + 1000 * cuda.syncthreads_or(int32(t == 3))
    )


@written(2, 50, (3, 100))
def barrier_votes_with_other_values(out):
    i = cuda.grid(1)
    out[0, i] = cuda.syncthreads_count(i - 7)
    out[1, i] = cuda.syncthreads_and(i)
    out[2, i] = cuda.syncthreads_or(int32(i == 200))


# Atomics


def _atomic_cases():
    """Old and new values of every atomic operation: each thread has an element of its own, so they are certain."""
    operations = "add sub max min nanmax nanmin and_ or_ xor exch cas compare_and_swap inc dec".split()
    for type_ in ("int32", "int64", "uint32", "uint64", "float32", "float64"):
        a, b = pairs(edges(type_), edges(type_))
        for name in operations[: 14 if type_.startswith("u") else 12 if type_.startswith("i") else 6]:
            CASES[f"{type_}_atomic_{name}"] = Atomic(name, type_, a, b)


class Atomic(Elementwise):
    """``old[i] = cuda.atomic.op(a, i, b[i])``, in global and in shared memory."""

    def __init__(self, operation, type_, a, b):
        super().__init__(
            f"{type_}_atomic_{operation}",
            {"a": a, "b": b},
            dict.fromkeys(("old", "new", "old_shared", "new_shared"), (operation, type_, 0)),
        )
        self.operation = operation

    @property
    def source(self):
        if self.operation == "compare_and_swap":
            call = "cuda.atomic.compare_and_swap({0}[{1}:], b_[i], b_[i])"
        elif self.operation == "cas":
            call = "cuda.atomic.cas({0}, {1}, b_[i], b_[(i + 1) % b_.size])"
        else:
            call = f"cuda.atomic.{self.operation}({{0}}, {{1}}, b_[i])"
        kind = next(iter(self.outputs.values()))[1]
        return (
            "def kernel(a_, b_, old_, new_, old_shared_, new_shared_):\n"
            "    i = cuda.grid(1)\n"
            f"    s = cuda.shared.array(64, np.{kind})\n"
            "    t = cuda.threadIdx.x\n"
            f"    if i < {self.size}:\n"
            "        new_[i] = a_[i]\n"
            "        s[t] = a_[i]\n"
            f"        old_[i] = {call.format('new_', 'i')}\n"
            f"        old_shared_[i] = {call.format('s', 't')}\n"
            "        new_shared_[i] = s[t]\n"
        )


_atomic_cases()


@written(
    4,
    64,
    (2, 7),
    (3, 2),
    h=lambda: np.zeros(5, np.uint32),
    f=lambda: np.zeros(3, np.float32),
    d=lambda: np.zeros((2, 2)),
)
def atomics_that_collide(bins, extremes, h, f, d):
    i = cuda.grid(1)
    cuda.atomic.add(bins, (i % 2, i % 7), i)
    cuda.atomic.max(extremes, (0, i % 2), i * 37 % 101)
    cuda.atomic.min(extremes, (1, i % 2), -(i * 37 % 101))
    cuda.atomic.xor(extremes, (2, 0), i)
    cuda.atomic.sub(extremes, (2, 1), 3)
    cuda.atomic.inc(h, 0, uint32(9))
    cuda.atomic.dec(h, 1, uint32(6))
    cuda.atomic.or_(h, 2, uint32(1) << uint32(i % 32))
    cuda.atomic.add(h, 3, uint32(0xFFFFFFF0))
    cuda.atomic.add(f, i % 3, float32(0.25) * float32(i % 9))
    cuda.atomic.add(d, (i % 2, 1), 0.5)
    cuda.atomic.max(d, (i % 2, 0), 0.25 * i)


@written(3, 64, (192,), (3,))
def tickets(drawn, counter):
    ticket = cuda.atomic.add(counter, 0, 1)
    cuda.atomic.add(drawn, ticket, 1)
    cuda.atomic.add(counter, 1 + cuda.threadIdx.x % 2, 5)


# Memory


@written(2, 32, (8, 64), a=np.arange(64) * 3)
def negative_indices(out, a):
    i = cuda.grid(1)
    out[0, i] = a[-1 - i]
    out[1, -i - 1] = a[-64 + i]
    out[2, i] = a[::-1][i] - a[5:][-1 - i % 59]
    out[-1, i] = a[-i - 1 :].size
    out[4, i] = a[:-3].size * 1000 + a[-7:-2:2].size
    k = int32(-1)
    out[5, i] = a[k - i % 3]


@written(2, 32, (64, 6))
def local_arrays_with_dynamic_indices(out):
    i = cuda.grid(1)
    values = cuda.local.array((4, 3), int64)
    flags = cuda.local.array(5, np.bool_)
    small = cuda.local.array(7, np.int8)
    for k in range(12):
        values[k // 3, k % 3] = k * i
    for k in range(5):
        flags[k] = k > i % 6
    for k in range(7):
        small[k] = k * 40
    out[i, 0] = values[i % 4, -(i % 3) - 1]
    row = values[i % 4]
    row[1] = -5
    values[2, :] = 7
    out[i, 1] = values[i % 4, 1] + values[2, 0]
    out[i, 2] = flags[i % 5] + 10 * flags[-1]
    out[i, 3] = small[i % 7]
    out[i, 4] = small[3:][i % 4] + row.size + values.shape[0]


TABLE = np.arange(20, dtype=np.float32).reshape(4, 5) / 4
WEIGHTS = np.array([3, 1, 4, 1, 5], np.int16)


@written(1, 32, out=lambda: np.zeros(32), n=lambda: np.zeros(32, np.int64))
def constant_arrays(out, n):
    i = cuda.threadIdx.x
    table = cuda.const.array_like(TABLE)
    out[i] = table[i % 4, i % 5] + TABLE[3, 2]
    n[i] = WEIGHTS[i % 5] + cuda.const.array_like(WEIGHTS)[4] + WEIGHTS.size


@written(2, 32, (12, 64), a=np.arange(64) * 5)
def cache_hints(out, a):
    i = cuda.grid(1)
    out[0, i] = cuda.ldca(a, i)
    out[1, i] = cuda.ldcg(a, i)
    out[2, i] = cuda.ldcs(a, i)
    out[3, i] = cuda.ldlu(a, i)
    out[4, i] = cuda.ldcv(a, i)
    cuda.stcg(out, (5, i), a[i])
    cuda.stcs(out, (6, i), a[i] + 1)
    cuda.stwb(out, (7, i), a[i] + 2)
    cuda.stwt(out, (8, i), a[i] + 3)


RECORD = np.dtype([("n", "i4"), ("x", "f8"), ("v", "f4", (3,)), ("flag", "?"), ("small", "i1")], align=True)
PACKED = np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2")])


@written(
    2, 20, records=lambda: np.zeros(40, RECORD), others=lambda: np.zeros(40, RECORD), out=lambda: np.zeros((40, 4))
)
def records_and_their_arrays(records, others, out):
    i = cuda.grid(1)
    records[i].n = i
    records[i]["x"] = i * 0.5
    records[i].v[1] = i
    records[i].flag = i % 3 == 0
    records[i].small = i * 9
    others[i] = records[i]
    out[i, 0] = others[i].n + others[i].x
    out[i, 1] = records.x[i] + records["n"][i]
    out[i, 2] = records[i].v[1] + records[i].v[2] + records[i].small
    r = others[i]
    r.x = -r.x
    out[i, 3] = others[i].x


@written(1, 32, (6, 32), f=lambda: np.zeros((4, 32), np.float32))
def vector_types(out, f):
    i = cuda.threadIdx.x
    v = cuda.float32x4(i, 2, 3.5, 4)
    w = cuda.float32x2(v.x, v.w)
    u = cuda.float32x4(w, 5, 6)
    f[0, i] = v.x + u.z
    f[1, i] = u.y * v.z
    n = cuda.int32x3(i, -2, 7)
    out[0, i] = n.x + n.y * n.z
    d = cuda.float64x2(0.5, i)
    f[2, i] = d.x + d.y
    b = cuda.uint8x4(i, 255, 256 + i, 3)
    out[1, i] = b.x + b.y + b.z
    q = cuda.int64x2(i, 1 << 40)
    out[2, i] = q.x + q.y


@written(
    (3, 2),
    (5, 4),
    a=lambda: np.arange(240.0).reshape(12, 20),
    c=lambda: np.asfortranarray(np.arange(240).reshape(12, 20)),
    o=lambda: np.zeros((12, 8, 15)),
)
def array_views(a, c, o):
    x, y = cuda.grid(2)
    row = a[y]
    o[0, y, x] = row[x] + a[:, x][y]
    o[1, y, x] = a.T[x, y] + c.T[x, -1 - y]
    o[2, y, x] = a[y:, ::2][0, x // 2]
    o[3, y, x] = c[::-1, x][y] + c[3:9, 2:][y % 6, x % 18]
    o[4, y, x] = a.shape[0] * 100 + a.shape[1] + a.ndim + len(c) + c.size
    o[5, y, x] = a.strides[0] + c.strides[0] * 1000 + a.itemsize + a.nbytes
    o[6, y, x] = a.reshape(240)[x + y] + a.reshape(20, 12)[x, y]
    o[7, y, x] = a[1:][y][2:][x % 3]
    o[8, y, x] = a[y, ::-1][x] + a[..., 3][y]
    total = 0.0
    for value in a[y, 2:6]:
        total += value
    for k, value in enumerate(c[y % 3, :4]):
        total += k * value
    for p, q in zip(a[y], c[y]):  # noqa: B905 (Numba's zip takes no strict)
        total += p - q
    o[9, y, x] = total
    o[10, y, x] = a.view(np.int64)[y, x] >> 40
    o[11, y, x] = a[min(y, 3), max(x, 2)]


@written(3, 40, (3, 40), shared_bytes=40 * 8 + 40 * 4)
def dynamic_shared_memory(out):
    t = cuda.threadIdx.x
    wide = cuda.shared.array(0, int64)
    narrow = cuda.shared.array(0, int32)[80:]
    wide[t] = t * 7
    narrow[t] = -t
    cuda.syncthreads()
    out[cuda.blockIdx.x, t] = wide[39 - t] + narrow[(t + 1) % 40] + wide.size + 1000 * narrow.size


@written(4, 64, (256,), (8, 3))
def cooperative_grid(a, out):
    i = cuda.grid(1)
    grid = cuda.cg.this_grid()
    a[i] = i
    grid.sync()
    for _ in range(5):
        value = a[(i + 77) % a.size]
        grid.sync()
        a[i] = value + 1
        grid.sync()


# Functions


CASES["recursion"] = Elementwise(
    "recursion",
    {"n": np.arange(8), "k": np.arange(8) * 12},  # not deep: a GPU gives a thread a stack of 1 KB
    {"fibonacci": ("fibonacci(n)", "int64", 0), "divisor": ("greatest_common_divisor(k, 30)", "int64", 0)},
    """
@cuda.jit("int64(int64)", device=True)
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


@cuda.jit("int64(int64, int64)", device=True)
def greatest_common_divisor(a, b):
    if b == 0:
        return a
    return greatest_common_divisor(b, a % b)


""",
)


@cuda.jit(device=True)
def several(a, b=2, c=0.5):
    if a > 5:
        return a * b, c
    if a > 3:
        return a + b, c * 2
    return a, c + 1


@cuda.jit(device=True)
def through_array(values, k):
    values[k] += 1
    if k > 10:
        return
    values[k + 1] += 2


@written(1, 16, (16, 3), f=lambda: np.zeros((16, 3)))
def device_functions(out, f):
    i = cuda.threadIdx.x
    values = cuda.local.array(13, int64)
    for k in range(13):
        values[k] = 0
    out[i, 0], f[i, 0] = several(i)
    out[i, 1], f[i, 1] = several(i, 7)
    out[i, 2], f[i, 2] = several(c=0.25, a=i)
    through_array(values, i % 12)
    out[i, 0] += values[i % 12 + 1] * 100


@written(2, 32, (64, 4))
def tuples(out):
    i = cuda.grid(1)
    items = (i, i * 2, 5, -i)
    out[i, 0] = items[i % 4] + items[-1] + len(items)
    out[i, 1] = (i in (3, 5, 40)) + 10 * ((1, 2) == (1, 2)) + 100 * ((i, 1) != (2, 1))
    nested = ((i, 2.5), (3, i))
    out[i, 2] = nested[0][0] + nested[1][1] * nested[0][1]
    a, (b, c) = i, (i + 1, i + 2)
    both = items + (a, b, c)
    out[i, 3] = both[5] * 1000 + both[1:3][1]


@written(2, 40, (80, 5))
def none_and_optional_branches(out):
    i = cuda.grid(1)
    x = 1
    if i > 30:
        x = 2.5
    out[i, 0] = x * 4
    y = np.int8(100)
    y += 100
    out[i, 1] = y
    z = np.uint8(200)
    z = np.uint8(z + 100)
    out[i, 2] = z
    b = i > 3
    b += i
    out[i, 3] = b
    u = np.uint64(5)
    v = u - 10
    out[i, 4] = v


@written(1, 32, f=lambda: np.zeros((32, 5), np.float32), d=lambda: np.zeros((32, 5)))
def float_literals_widen(f, d):
    i = cuda.threadIdx.x
    x = float32(i) / float32(7)
    d[i, 0] = x * 0.1
    d[i, 1] = x * float32(0.1)
    acc = float32(0)
    for _k in range(i):
        acc += x
    d[i, 2] = acc
    wide = 0.0
    for _k in range(i):
        wide += x
    d[i, 3] = wide
    f[i, 0] = x + i
    f[i, 1] = x / 3
    d[i, 4] = x + np.int8(3)


@written(1, 64, out=lambda: np.zeros((4, 64), np.float32), states=lambda: _states(), ulps=4)
def random_numbers(out, states):
    i = cuda.grid(1)
    for _ in range(3):
        out[0, i] = _uniform32(states, i)
        out[1, i] = _uniform64(states, i)
    # Both normals take the logarithm of a float32; 10 keeps the error of a value near 0 in proportion.
    out[2, i] = 10 + _normal32(states, i)
    out[3, i] = 10 + _normal64(states, i)


def _states():
    from numba.cuda.random import init_xoroshiro128p_states_cpu, xoroshiro128p_dtype

    states = np.zeros(64, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, 3, 0)
    return states


from numba.cuda.random import xoroshiro128p_normal_float32 as _normal32  # noqa: E402
from numba.cuda.random import xoroshiro128p_normal_float64 as _normal64  # noqa: E402
from numba.cuda.random import xoroshiro128p_uniform_float32 as _uniform32  # noqa: E402
from numba.cuda.random import xoroshiro128p_uniform_float64 as _uniform64  # noqa: E402


@written((2, 3, 2), (4, 3, 2), (8, 9, 4, 4))
def indices_in_three_dimensions(out):
    x, y, z = cuda.grid(3)
    wide, high, deep = cuda.gridsize(3)
    out[x, y, z, 0] = x + wide * (y + high * z) + deep * 1000
    out[x, y, z, 1] = cuda.threadIdx.x + 10 * cuda.threadIdx.y + 100 * cuda.threadIdx.z
    out[x, y, z, 2] = cuda.blockIdx.x + 10 * cuda.blockIdx.y + 100 * cuda.blockIdx.z
    out[x, y, z, 3] = cuda.blockDim.x * 7 + cuda.gridDim.y * 100 + cuda.gridDim.z * cuda.laneid


@written(3, 40, (120, 4))
def ranges(out):
    i = cuda.grid(1)
    total = 0
    for k in range(i % 7, -i % 5, -2):
        total += k
    for k in range(np.int8(i % 9)):
        total = total * 3 + k
    for k in range(np.uint64(i % 4), np.uint64(9), np.uint64(3)):
        total += int64(k)
    out[i, 0] = total
    steps = 0
    for k in range(10, 0, -(i % 3) - 1):
        steps += 1
        if k == i % 11:
            break
    else:
        steps += 100
    out[i, 1] = steps
    out[i, 2] = len(range(3, i, 4))
    for k in range(0, 10, i % 2 + 1):
        total += k
        if k > 20:
            break
    out[i, 3] = k


@written(5, 64, (320,), (5,), (2,))
def last_block(partial, sums, counter):
    """Each block leaves a value; the one that comes last adds them up."""
    last = cuda.shared.array(1, np.bool_)
    i = cuda.grid(1)
    partial[i] = i * i
    sums[cuda.blockIdx.x] = 0
    cuda.syncthreads()
    cuda.atomic.add(sums, cuda.blockIdx.x, i % 7)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        last[0] = cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0] and cuda.threadIdx.x == 0:
        for k in range(cuda.gridDim.x):
            counter[1] += sums[k]
    cuda.threadfence_block()
    cuda.threadfence_system()
    cuda.nanosleep(uint32(32))
