"""What a walk through a kernel knows of a value: its type, the threads it depends on, whether a test bounds it."""

import math
import struct
from dataclasses import dataclass, replace
from typing import Any

NONE = frozenset()


@dataclass(frozen=True)
class Value:
    """One value, as far as the source shows it.

    Attributes
    ----------
    kind : str
        "int", "float", "bool", "array", "tuple", "name" (a module, function or type), or "" if unknown.
    bits : int
        Of a number, or of the elements of an array.
    const : int or float, optional
        Its value, where the source states it.
    literal : bool
        True if Numba takes it for a constant of the program: a literal, a global, a variable of a factory.
    tags : frozenset of str
        The indices that it depends on: "t0" is threadIdx.x, "b1" blockIdx.y.
    raw : frozenset of str
        The tags that nothing bounds yet.
    tests : frozenset of str
        Of a condition: the raw tags of what it compares.
    linear : tuple
        (constant, frozenset of (atom, factor)): their sum is this integer.
    causes : tuple of (code, node, text)
        Of a float64: what in the source made it one. Empty if the program asked for it.
    narrow : bool
        Of a float64: True if a compiler computes it in float32 where only a float32 is kept.
    sure : bool
        True if the source states the type, False if it is assumed.
    """

    kind: str = ""
    bits: int = 0
    signed: bool = True
    const: Any = None
    literal: bool = False
    tags: frozenset = NONE
    raw: frozenset = NONE
    tests: frozenset = NONE
    linear: tuple | None = None
    causes: tuple = ()
    narrow: bool = False
    sure: bool = True
    name: str = ""
    element: str = ""
    space: str = ""
    items: tuple = ()

    @property
    def is_float32(self):
        return self.kind == "float" and self.bits == 32

    @property
    def is_float64(self):
        return self.kind == "float" and self.bits == 64

    @property
    def is_wide_int(self):
        return self.kind == "int" and self.bits >= 32

    @property
    def varies(self):
        """True if threads of a block may have different values."""
        return any(tag[0] == "t" for tag in self.tags)

    @property
    def unbounded(self):
        """True if it counts the threads of the whole grid and no test bounds it."""
        return {"t", "b"} <= {tag[0] for tag in self.raw}


UNKNOWN = Value()


def number(type_: str, /, sure=True, **more) -> Value:
    """Return a value of a NumPy type, such as "float32"; unknown for other types."""
    if type_ in ("bool", "bool_", "boolean"):
        return Value("bool", 8, sure=sure, **more)
    for kind, start in (("float", "float"), ("int", "uint"), ("int", "int")):
        if type_.startswith(start) and type_[len(start) :].isdigit():
            return Value(kind, int(type_[len(start) :]), start != "uint", sure=sure, **more)
    return Value(**more)


def constant(value, node=None) -> Value:
    """Return the value of a literal."""
    if isinstance(value, bool):
        return Value("bool", 8, const=value, literal=True)
    if isinstance(value, int):
        causes = (("GK101", node, "an integer"),) if node is not None else ()
        return Value("int", 64, const=value, literal=True, linear=(value, NONE), causes=causes)
    if isinstance(value, float):
        causes = (("GK101", node, "float64"),) if node is not None else ()
        return Value("float", 64, const=value, literal=True, causes=causes, narrow=is_exact(value))
    return Value(literal=True)


def is_exact(value) -> bool:
    """Return True if float32 holds this number exactly."""
    if math.isinf(value) or math.isnan(value):
        return True
    try:
        return struct.unpack("f", struct.pack("f", value))[0] == value
    except OverflowError:
        return False


def atom(name: str) -> tuple:
    return 0, frozenset({(name, 1)})


def combine(a: tuple | None, b: tuple | None, sign: int) -> tuple | None:
    """Add or subtract two linear forms."""
    if a is None or b is None:
        return None
    factors = dict(a[1])
    for name, factor in b[1]:
        factors[name] = factors.get(name, 0) + sign * factor
    return a[0] + sign * b[0], frozenset((n, f) for n, f in factors.items() if f)


def multiply(a: tuple | None, b: tuple | None) -> tuple | None:
    if a is None or b is None:
        return None
    if a[1] and b[1]:
        return atom(f"({show(a)})*({show(b)})" if show(a) < show(b) else f"({show(b)})*({show(a)})")
    scale, form = (a[0], b) if not a[1] else (b[0], a)
    return form[0] * scale, frozenset((n, f * scale) for n, f in form[1] if scale)


def show(form: tuple) -> str:
    return "+".join([str(form[0]), *(f"{factor}*{name}" for name, factor in sorted(form[1]))])


def join(a: Value, b: Value, place: str) -> Value:
    """Return what holds of a variable that is ``a`` on one path and ``b`` on another."""
    if a == b:
        return a
    both: dict[str, Any] = {"tags": a.tags | b.tags, "raw": a.raw | b.raw, "tests": a.tests | b.tests}
    causes = tuple(dict.fromkeys(a.causes + b.causes))
    if a.kind == b.kind and a.kind in ("int", "bool"):
        signed, sure = a.signed or b.signed, a.sure and b.sure
        return Value(a.kind, max(a.bits, b.bits), signed, linear=atom(place), causes=(), sure=sure, **both)
    if {a.kind, b.kind} <= {"int", "float"}:
        declared = any(v.is_float64 and not v.causes for v in (a, b))
        single = a.is_float32 and b.is_float32
        # One float32 and one constant are selected as float32; a sum that starts with a constant is not.
        narrow = (a.is_float32 or b.is_float32) and all(v.is_float32 or v.narrow or v.const is not None for v in (a, b))
        causes = () if declared or single else causes
        return Value("float", 32 if single else 64, causes=causes, narrow=narrow, sure=a.sure and b.sure, **both)
    if a.kind == b.kind and replace(a, **both) == replace(b, **both):
        return replace(a, **both)
    return Value(**both)
