"""What Python offers inside of kernels: each function gives on every thread what Python itself makes of it."""

import enum
import math
import operator
from collections import namedtuple
from fractions import Fraction

import numba
import numpy as np
import pytest
from numba.cuda import types
from numba.cuda.misc.special import literal_unroll
from releases import fails_before

from warpstep import UnsupportedError, cuda
from warpstep._numba import NUMBA_ERRORS

Point = namedtuple("Point", "x y")
Shape = namedtuple("Shape", "corner size")
ORIGIN = Point(3.0, 4)
LABELS = ("add", "multiply")


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Planet(enum.Enum):
    EARTH = (5.9, 6.4)
    MARS = (0.6, 3.4)


class Side(enum.IntEnum):
    LEFT = 3
    RIGHT = 5


class Turn(enum.IntEnum):
    LEFT = 3


@numba.njit
def add(a, b=2, *rest):
    return a + b + len(rest)


@numba.jit(nopython=True)
def escape(x, y, steps):
    c, z = complex(x, y), 0.0j
    for i in range(steps):
        z = z * z + c
        if z.real * z.real + z.imag * z.imag >= 4:
            return i
    return steps


@numba.njit
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


def total(first, *others):
    return first + others[0] * 2 + len(others)


def find(i):
    if i % 2:
        return i * 10.0
    return None


def scaled(x, kind="double", by=None):
    if by is not None:
        return x * by
    return x * 2 if kind == "double" else x * 3


def apply(function, x):
    return function(x)


device_total, device_find, device_scaled, device_apply = map(cuda.jit(device=True), (total, find, scaled, apply))
device_add = cuda.jit(device=True)(add)


# -- functions that other compilers or decorators made -----------------------------------------------------------------


def njit_function(i):
    return add(i) + add(i, 3) + add(i, 3, 1.0, 2.0)


def jit_of_an_njit_function(i):
    return device_add(i, 5)


def complex_numbers_in_an_njit_function(i):
    return escape(1.0 - i, 0.0, 10)


def njit_recursion_from_a_literal(i):
    return factorial(5) + factorial(i)


def star_arguments(i):
    return device_total(i, 1) + device_total(1, 2.5, i)


def star_call(i):
    numbers = (1, 2.5, i)
    return device_total(*numbers)


def keywords_and_defaults(i):
    return device_scaled(i) + device_scaled(kind="triple", x=i) + device_scaled(i, by=4)


def inner_function_as_argument(i):
    step = 2

    def inner(x):
        return x + step

    return device_apply(inner, i)


# -- values ------------------------------------------------------------------------------------------------------------


def named_tuple(i):
    p = Point(y=i, x=1.5) if i % 2 else Point(2.5, i)
    x, y = p
    return p.x * 10 + y + ORIGIN.x + Shape(p, 3).corner.y + x


def slices_of_tuples(i):
    t = (1, 2.0, i, 4)
    return t[::-1][1] + t[1:3][0] + t[-1] + (t + (5,))[4]


def comparisons_of_tuples(i):
    same = ((i, 1), 2) == ((2, 1), 2)
    return (i, 1) > (1, 5), (i, 1) <= (1, 1), same, i in (1, 3)


def sums_of_tuples(i):
    return sum((1, i, 2.5)) + max((i, 2)) - min(3, i, 2)


def unrolled_tuple(i):
    result = 0.0
    for value in literal_unroll((i, 2.5, 1)):
        result += value
    return result


def sometimes_none(i):
    best = None
    if i > 1:
        best = i * 1.5
    found = device_find(i)
    result = -1.0 if best is None else best
    if found is not None:
        result += found
    return result


def strings(i):
    word = "even" if i % 2 == 0 else "odd"
    return len(word), word == "odd", word < "f", "x" in ("x", "y"), LABELS[0] == "add", ord("a")


def enums(i):
    color = Color.RED if i < 2 else Color.BLUE
    return color == Color.RED, color is Color.BLUE, color.value, Side.LEFT + i, i == Side.LEFT, Side.LEFT in (3, 4)


def enums_of_two_kinds(i):
    return Side.LEFT == Turn.LEFT, Side.LEFT is Turn.LEFT, Planet.EARTH == Planet.EARTH, Planet.EARTH is Planet.MARS


def types_of_variables(i):
    x = float(i)
    return isinstance(x, float), isinstance(i, (int, np.int64)), hasattr(x, "real")


def loops_with_else(i):
    for j in range(3):
        if j == i and i > 0:
            break
    else:
        return -1
    return j


def operators_as_functions(i):
    return operator.add(i, 2) + operator.mul(i, 3) + math.fabs(-i)


OUTCOMES = {
    function.__name__: function
    for function in (
        njit_function,
        complex_numbers_in_an_njit_function,
        njit_recursion_from_a_literal,
        named_tuple,
        slices_of_tuples,
        comparisons_of_tuples,
        sums_of_tuples,
        unrolled_tuple,
        strings,
        enums,
        enums_of_two_kinds,
        types_of_variables,
        loops_with_else,
        operators_as_functions,
    )
}
#: Functions that call device functions, and what these are in Python.
CALLERS = (jit_of_an_njit_function, star_arguments, star_call, keywords_and_defaults, inner_function_as_argument)
PYTHON = {
    "device_total": total,
    "device_find": find,
    "device_scaled": scaled,
    "device_apply": apply,
    "device_add": add.py_func,
}


def _in_python(function):
    return type(function)(function.__code__, {**globals(), **PYTHON, "literal_unroll": iter}, function.__name__)


@pytest.mark.parametrize("function", [*OUTCOMES.values(), *CALLERS, sometimes_none], ids=lambda f: f.__name__)
def test_kernels_compute_what_python_computes(function):
    on_device = cuda.jit(device=True)(function)
    expected = np.array([_in_python(function)(i) for i in range(4)], np.float64)

    if expected.ndim == 1:

        @cuda.jit
        def kernel(out):
            i = cuda.grid(1)
            out[i] = on_device(i)

    else:

        @cuda.jit
        def kernel(out):
            i = cuda.grid(1)
            column = 0
            for value in literal_unroll(on_device(i)):
                out[i, column] = value
                column += 1

    out = np.full_like(expected, 77)
    kernel[1, 4](out)
    np.testing.assert_array_equal(out, expected)


# -- arrays ------------------------------------------------------------------------------------------------------------

MATRIX = np.array([[3.0, 1.5, 2.0], [-4.0, 5.25, 0.5]])
REDUCTIONS = {
    "methods": (
        lambda a: (a.sum(), a.mean(), a.prod(), a.var(), a.std(), a.argmax(), a.argmin()),
        lambda a: (a.sum(), a.mean(), a.prod(), a.var(), a.std(), a.argmax(), a.argmin()),
    ),
    "functions": (
        lambda a: (np.sum(a[0]), np.mean(a[:, 1]), np.nansum(a), np.all(a), np.any(a)),
        lambda a: (np.sum(a[0]), np.mean(a[:, 1]), np.nansum(a), np.all(a), np.any(a)),
    ),
    "count": (lambda a: (np.count_nonzero(a), np.count_nonzero(a[1])), lambda a: (6, 3)),
    "views": (
        lambda a: (a.flat[4], len(a.flat), a.T[2, 1], a.reshape(3, 2)[2, 1], a[:, None, 1][1, 0], 5.25 in a),
        lambda a: (a.flat[4], a.size, a.T[2, 1], a.reshape(3, 2)[2, 1], a[:, None, 1][1, 0], True),
    ),
}


@pytest.mark.parametrize(
    ("case", "order"),
    [
        ("methods", "F"),
        ("functions", "C"),
        pytest.param("count", "C", marks=fails_before((0, 30), NUMBA_ERRORS, "its np.count_nonzero makes an array")),
        ("views", "C"),
    ],
)
def test_arrays_are_reduced_and_viewed_as_in_numpy(case, order):
    function, python = REDUCTIONS[case]
    on_device = cuda.jit(device=True)(function)
    matrix = np.asarray(MATRIX, order=order)
    expected = np.array(python(matrix), np.float64)

    @cuda.jit
    def kernel(a, out):
        column = 0
        for value in literal_unroll(on_device(a)):
            out[column] = value
            column += 1

    out = np.zeros_like(expected)
    kernel[1, 1](matrix, out)
    np.testing.assert_allclose(out, expected, rtol=1e-14)


def test_iterators_of_arrays():
    @cuda.jit
    def kernel(a, b, out):
        for (row, col), value in np.ndenumerate(a):
            out[0] += row * 10 + col * value
        for row, col in np.ndindex(2, 3):
            out[1] += row * col
        for x, y in np.nditer((a, b)):
            out[2] += x.item() * y.item()
        values = iter(b)
        out[4] = next(values) - 1
        for value in values:
            out[4] += value
        for value in a.flat:
            out[3] += value
        if cuda.threadIdx.x == 0:
            a.flat[5] = 9

    a, b, out = MATRIX.copy(), np.arange(3.0), np.zeros(5)
    kernel[1, 1](a, b, out)
    rows, cols = np.indices(MATRIX.shape)
    expected = (rows * 10 + cols * MATRIX).sum(), (rows * cols).sum(), (MATRIX * b).sum(), MATRIX.sum(), 2
    np.testing.assert_allclose(out, expected)
    assert a[1, 2] == 9


def test_arrays_of_text_and_dates():
    @cuda.jit
    def kernel(words, dates, text, days, found):
        i = cuda.grid(1)
        text[i] = "hello"
        days[i] = dates[i] - dates[0]
        found[i] = (words[i] == "ab") * 10 + len(words[i]) + 100 * (dates[i] > dates[1])

    words, text = np.array(["ab", "cde", ""], "U3"), np.zeros(3, "U5")
    dates = np.array(["2020-01-01", "2020-02-01", "2021-01-01"], "M8[D]")
    days, found = np.zeros(3, "m8[D]"), np.zeros(3, np.int64)
    kernel[1, 3](words, dates, text, days, found)
    assert text.tolist() == ["hello"] * 3 and found.tolist() == [12, 3, 100]
    np.testing.assert_array_equal(days, dates - dates[0])


def test_arguments_of_every_kind():
    @cuda.jit
    def kernel(shape, planet, day, maybe, out):
        i = cuda.grid(1)
        out[i] = shape.corner.x + shape.corner.y[i] + shape.size
        if maybe is None and planet == Planet.MARS and day == day:
            out[i] += 100

    out = np.zeros(3)
    shape = Shape(Point(0.5, np.arange(3.0)), 2)
    kernel[1, 3](shape, Planet.MARS, np.datetime64("2020-01-01"), None, out)
    assert out.tolist() == [102.5, 103.5, 104.5]


# -- recursion, errors -------------------------------------------------------------------------------------------------


def test_recursion_whose_first_call_has_other_types():
    @cuda.jit
    def sum_of(values, first, last):
        if last - first == 1:
            return values[first]
        middle = (first + last) // 2
        return sum_of(values, first, middle) + sum_of(values, middle, last)

    @cuda.jit
    def power(x, n):
        if n == 0:
            return 1
        return x * power(x, n - 1)

    @cuda.jit
    def kernel(values, n, out):
        out[0] = sum_of(values, 0, 7)
        out[1] = power(3, n)

    values, out = np.arange(7.0), np.zeros(2)
    kernel[1, 1](values, np.int32(4), out)
    assert out.tolist() == [21, 81]


def test_declared_signatures_convert_arguments_and_refuse_others():
    half = cuda.jit(["float64(float64)", "int64(int64)"], device=True)(lambda x: x / 2 if x > 2 else x)

    @cuda.jit
    def kernel(x, out):
        out[0] = half(x)

    out = np.zeros(1)
    kernel[1, 1](np.float32(5), out)
    assert out[0] == 2.5
    with pytest.raises(Exception, match=r"(?s)Invalid use of type.*with parameters \(complex128\)"):
        kernel[1, 1](5j, out)


def test_code_in_another_language_is_refused_by_name_and_line():
    foreign = cuda.declare_device("foreign", "float64(float64)")

    @cuda.jit
    def kernel(out):
        out[0] = foreign(out[0])

    with pytest.raises(Exception, match=r"(?s)foreign is declared with cuda\.declare_device: the emulator.*line \d+"):
        kernel[1, 1](np.zeros(1))

    @cuda.jit
    def listed(out):
        out[0] = [1, 2][0]

    with pytest.raises(UnsupportedError, match=r"a list, .*line \d+, in listed"):
        listed[1, 1](np.zeros(1))

    @cuda.jit
    def allocating(out):
        out[0] = out.min()

    with pytest.raises(UnsupportedError, match=rf"allocates.*{__file__}.*line \d+, in allocating"):
        allocating[1, 1](np.zeros(1))

    @cuda.jit
    def trying(out):
        try:
            out[0] = 1
        except Exception:
            out[0] = 2

    with pytest.raises(UnsupportedError, match=r"a try statement.*line \d+, in trying"):
        trying[1, 1](np.zeros(1))


def test_none_where_a_number_is_needed():
    @cuda.jit(device=True)
    def first_above(limit, i):
        if i > limit:
            return i
        return None

    def body(out):
        i = cuda.grid(1)
        out[i] = first_above(1, i) + 5

    out = np.full(4, -1.0)
    cuda.jit(body)[1, 4](out)
    assert out.tolist() == [-1, -1, 7, 8]  # as on the device, such a thread ends
    with pytest.raises(TypeError, match=r"expected .*, got None"):
        cuda.jit(debug=True, opt=False)(body)[1, 4](out)


LIBDEVICE = {
    "sincos": (lambda x: (math.sin(x), math.cos(x)), (types.float64,)),
    "frexp": (math.frexp, (types.float64,)),
    "mulhi": (lambda a, b: (a * b) >> 32, (types.int32,) * 2),
    "umul64hi": (lambda a, b: (a * b) >> 64, (types.int64,) * 2),
    "mul64hi": (lambda a, b: (a * b) >> 64, (types.int64,) * 2),
    "rhadd": (lambda a, b: (a + b + 1) >> 1, (types.int32,) * 2),
    "hadd": (lambda a, b: (a + b) >> 1, (types.int32,) * 2),
    "double2int_ru": (math.ceil, (types.float64,)),
    "round": (lambda x: math.copysign(math.floor(abs(x) + 0.5), x), (types.float64,)),
    "hiloint2double": (None, (types.int32,) * 2),
    "mul24": (lambda a, b: _low_bits(_low_bits(a, 24) * _low_bits(b, 24), 32), (types.int32,) * 2),
    "remquo": (lambda a, b: (math.remainder(a, b), math.fmod(round(a / b), 8)), (types.float64,) * 2),
}


def _low_bits(number, bits):
    """The number with a sign in the lowest bits."""
    return ((number + (1 << bits - 1)) % (1 << bits)) - (1 << bits - 1)


@pytest.mark.parametrize("name", LIBDEVICE)
def test_libdevice(name):
    from numba.cuda import libdevice

    python, argument_types = LIBDEVICE[name]
    function = getattr(libdevice, name)
    rng = np.random.default_rng(0)
    columns = []
    for type_ in argument_types:
        dtype = np.dtype(str(type_))
        limits = np.iinfo(dtype) if dtype.kind == "i" else None
        low = 0 if name.startswith("u") else None if limits is None else limits.min
        columns.append(rng.normal(size=8) * 10 if limits is None else rng.integers(low, limits.max, 8, dtype))
    scope = {"function": function, "cuda": cuda}
    names = [f"a{i}" for i in range(len(columns))]
    call = f"function({', '.join(f'{n}[i]' for n in names)})"
    exec(f"def kernel(out, {', '.join(names)}):\n    i = cuda.grid(1)\n    out[i] = {call}", scope)
    if name == "hiloint2double":
        expected = ((columns[0].astype(np.int64) << 32) | columns[1].astype(np.int64) & 0xFFFFFFFF).view(np.float64)
    else:
        expected = np.array([python(*(x.item() for x in row)) for row in zip(*columns, strict=True)], np.float64)
    if expected.ndim == 2:
        exec(f"def kernel(out, {', '.join(names)}):\n    i = cuda.grid(1)\n    out[i, 0], out[i, 1] = {call}", scope)
    out = np.zeros_like(expected)
    cuda.jit(scope["kernel"])[1, 8](out, *columns)
    np.testing.assert_allclose(out, expected, rtol=1e-15)


ROUNDED = {
    "add": ("d{}_{}", "f{}_{}", lambda a, b, c: a + b),
    "sub": (None, "f{}_{}", lambda a, b, c: a - b),
    "mul": ("d{}_{}", "f{}_{}", lambda a, b, c: a * b),
    "div": ("d{}_{}", "f{}_{}", lambda a, b, c: a / b),
    "fma": ("{}_{}", "{}f_{}", lambda a, b, c: a * b + c),
    "rcp": ("d{}_{}", "f{}_{}", lambda a, b, c: 1 / a),
    "2float": ("double{}_{}", None, lambda a, b, c: a),
}


@pytest.mark.parametrize("operation", ROUNDED)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_libdevice_rounds_as_the_name_says(operation, dtype):
    wide, narrow, exact = ROUNDED[operation]
    name = wide if dtype == np.float64 else narrow
    if name is None:
        return
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 200)) * 10.0 ** rng.integers(-12, 12, (3, 200))
    values[:, 0], values[:, 1] = (1, 3, 1), (np.finfo(dtype).max, 0.75, 0.5)
    values = values.astype(dtype)
    count = {"fma": 3, "rcp": 1, "2float": 1}.get(operation, 2)
    function = {mode: f"cuda.libdevice.{name.format(operation, mode)}" for mode in ("rd", "ru", "rz")}
    lines = [
        f"out[{k}, i] = {f}({', '.join(f'v[{j}, i]' for j in range(count))})" for k, f in enumerate(function.values())
    ]
    scope = {"cuda": cuda}
    exec(
        "def kernel(v, out):\n    i = cuda.grid(1)\n    if i < v.shape[1]:\n        " + "\n        ".join(lines), scope
    )
    out = np.zeros((3, 200), np.float32 if operation == "2float" else dtype)
    cuda.jit(scope["kernel"])[7, 32](values, out)
    for column, (down, up, towards_zero) in zip(values.T.tolist(), out.T, strict=True):
        true = exact(*map(Fraction, column))
        assert (math.isinf(down) or down <= true) and (math.isinf(up) or true <= up)
        with np.errstate(over="ignore"):
            assert down == up or np.nextafter(down, up) == up
        assert towards_zero == (down if true > 0 else up)
    exec("def kernel(x, out):\n    out[0] = cuda.libdevice.dadd_rd(x, -x)", scope)
    zero = np.ones(1)
    cuda.jit(scope["kernel"])[1, 1](5.0, zero)
    assert zero[0] == 0 and np.signbit(zero[0])


def test_special_functions_of_libdevice():
    """Beside figures of Abramowitz and Stegun, and the functions they invert."""

    @cuda.jit
    def kernel(x, out):
        out[0] = cuda.libdevice.j0(1.0)
        out[1] = cuda.libdevice.j1(2.5)
        out[2] = cuda.libdevice.y0(1.0)
        out[3] = cuda.libdevice.jn(3, 2.0)
        out[4] = cuda.libdevice.normcdfinv(0.975)
        out[5] = cuda.libdevice.erfcx(30.0)
        out[6] = cuda.libdevice.sincospi(0.25)[0]
        out[-2] = cuda.libdevice.normcdfinv(5e-324)
        out[-1] = cuda.libdevice.erfcx(-math.inf)
        for k in range(x.size):
            out[7 + 2 * k] = math.erf(cuda.libdevice.erfinv(x[k])) - x[k]
            out[8 + 2 * k] = math.erfc(cuda.libdevice.erfcinv(1 - x[k])) - (1 - x[k])

    x = np.array([-0.999, -0.5, -1e-9, 0.0, 0.3, 0.7, 0.9999999])
    out = np.full(9 + 2 * x.size, np.nan)
    kernel[1, 1](x, out)
    known = [0.7651976865579666, 0.4970941024642741, 0.08825696421567698, 0.1289432494744021]
    known += [1.959963984540054, 0.018795888861416751, math.sqrt(0.5)]
    np.testing.assert_allclose(out[:7], known, rtol=1e-13)
    np.testing.assert_allclose(out[7:-2], 0, atol=3e-16)
    assert -38.5 < out[-2] < -38.4 and out[-1] == math.inf
