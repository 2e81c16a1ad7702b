"""What an expression stands for while native code is generated: numbers, tuples, arrays and records.

Each value lists the LLVM values that it consists of (`parts`) and can be made anew from others (`like`), so that
any variable can be kept in stack slots.
"""

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpstep.threadwise.engine import ir


class NotNative(Exception):
    """Raised for what has no native form: the kernel stays in lockstep."""


class Status(enum.IntEnum):
    """How native code ended."""

    DONE = 0
    #: An index out of bounds, a write to constant memory, a range with step 0.
    ERROR = 1
    #: A thread met what another one wrote.
    CONFLICT = 2
    #: The loops of a thread took too many turns.
    TURNS = 3
    STOPPED = 4
    #: The log of overwritten values is full.
    FULL = 5


I1, I8, I32, I64 = (ir.IntType(n) for n in (1, 8, 32, 64))
POINTER = I8.as_pointer()
INT32, INT64, BOOL = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.bool_)
FLOATS = {4: ir.FloatType(), 8: ir.DoubleType()}


def llvm_type(dtype):
    """Return the LLVM type of a number in a register."""
    if dtype.kind == "b":
        return I1
    if dtype.kind in "iu":
        return ir.IntType(8 * dtype.itemsize)
    if dtype.kind == "f" and dtype.itemsize in FLOATS:
        return FLOATS[dtype.itemsize]
    raise NotNative(f"values of type {dtype}")


def memory_type(dtype):
    """Return the LLVM type of a number in memory."""
    return I8 if dtype.kind == "b" else llvm_type(dtype)


@dataclass(frozen=True)
class Number:
    """One integer, float or bool."""

    value: Any
    dtype: np.dtype

    @property
    def parts(self):
        return (self.value,)

    @property
    def form(self):
        return "number", self.dtype

    def like(self, parts):
        return Number(parts.pop(0), self.dtype)


@dataclass(frozen=True)
class Complex:
    real: Any
    imag: Any
    dtype: np.dtype  # of the complex number

    @property
    def part_dtype(self):
        return np.dtype(f"f{self.dtype.itemsize // 2}")

    @property
    def parts(self):
        return self.real, self.imag

    @property
    def form(self):
        return "complex", self.dtype

    def like(self, parts):
        return Complex(parts.pop(0), parts.pop(0), self.dtype)


@dataclass(frozen=True)
class Static:
    """A value that is known while compiling: None, a string, a dtype, an int of the template."""

    value: Any

    parts = ()

    @property
    def form(self):
        return "static", self.value

    def like(self, parts):
        return self


class Tuple(tuple):
    """A tuple of values."""

    @property
    def parts(self):
        return tuple(part for item in self for part in item.parts)

    @property
    def form(self):
        return "tuple", tuple(item.form for item in self)

    def like(self, parts):
        return Tuple(item.like(parts) for item in self)


@dataclass(frozen=True)
class Slice:
    start: Any
    stop: Any
    step: Any

    @property
    def parts(self):
        return tuple(part for item in (self.start, self.stop, self.step) for part in item.parts)

    @property
    def form(self):
        return "slice", self.start.form, self.stop.form, self.step.form

    def like(self, parts):
        return Slice(*(item.like(parts) for item in (self.start, self.stop, self.step)))


@dataclass(frozen=True)
class Buffer:
    """The memory of an array: one argument, captured array or local array.

    Attributes
    ----------
    key : object
        What tells it from others.
    space : "global" | "const" | "local"
    start : LLVM pointer
        Its first byte.
    shadow, known : LLVM pointer or None
        Two 64-bit words for each element, where the threads that wrote and read it are noted; one byte for each
        element, set where it is written.
    itemsize : int
        Bytes of the elements that these count.
    """

    key: Any
    space: str
    start: Any
    shadow: Any = None
    known: Any = None
    itemsize: int = 1


@dataclass(frozen=True)
class Array:
    """A window on a buffer: address of the first element, extents and byte strides (int64)."""

    buffer: Buffer
    dtype: np.dtype
    pointer: Any
    shape: tuple
    strides: tuple

    @property
    def parts(self):
        return self.pointer, *self.shape, *self.strides

    @property
    def form(self):
        return "array", self.buffer.key, self.dtype, len(self.shape)

    def like(self, parts):
        pointer = parts.pop(0)
        shape = tuple(parts.pop(0) for _ in self.shape)
        return Array(self.buffer, self.dtype, pointer, shape, tuple(parts.pop(0) for _ in self.strides))


@dataclass(frozen=True)
class Record:
    """One record of a structured array."""

    buffer: Buffer
    dtype: np.dtype
    pointer: Any

    @property
    def parts(self):
        return (self.pointer,)

    @property
    def form(self):
        return "record", self.buffer.key, self.dtype

    def like(self, parts):
        return Record(self.buffer, self.dtype, parts.pop(0))


NOTHING = Static(None)
