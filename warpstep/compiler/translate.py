"""Typed Numba IR to lockstep statements.

`lower` takes a kernel's typed IR and returns a `program.Program`. Calls of device functions are inlined, so that a
barrier inside one is a barrier of the kernel; only recursive functions become functions of their own. What a call of a
known function becomes stands in `calls`.
"""

import functools
import inspect
import itertools
import linecache
import operator
import re
from collections import Counter
from typing import Any, NoReturn

import numpy as np

from warpstep._numba import (
    NOT_IMPLEMENTED,
    NUMBA_ERRORS,
    Dim3,
    NumbaRuntimeError,
    ir,
    struct_members,
    types,
    unliteral,
)
from warpstep.api.allocations import Allocation
from warpstep.api.arrays import as_device_array
from warpstep.compiler import calls, instructions, lowering, ops, vectors
from warpstep.compiler import successor as _adds_to_calls  # noqa: F401
from warpstep.compiler.blocks import (
    LIBRARIES,
    Barrier,
    Branch,
    Builder,
    FrameInfo,
    Jump,
    Leave,
    Pools,
    Program,
    Site,
    Stop,
)
from warpstep.compiler.expressions import ELLIPSIS, LITERAL, NONE, ZERO, Op, literal, scalar
from warpstep.compiler.frontend import infer
from warpstep.compiler.values import COMPILE_TIME, BoundMethod, Constant, TupleValue, constant_of, counted, dtype_of
from warpstep.errors import UnsupportedError
from warpstep.machine.memory import global_view

#: Real operations in one on complex numbers.
_COMPLEX_OPERATIONS = {operator.add: 2, operator.sub: 2, operator.mul: 6, operator.truediv: 11}
_DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)
_TYPED_ITEM = Op("typed_item")
_NUMBA_FILES = re.compile(r"[/\\](numba|numba_cuda|numba_cuda_mlir)[/\\]")
#: What Numba puts before the variables of a function that it has inlined.
_INLINED = re.compile(r"\w+_v\d+_(?=\w)")
#: The index of an element of ``array.flat``.
_FLAT_INDEX = Op("place({1}, {0}[1].shape)")
_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
_NEEDS_MEMORY = "which a kernel cannot allocate (a tuple or cuda.local.array can serve),"
#: Expressions of the IR that are refused, by their operation.
_REFUSED = {
    "build_list": f"a list, {_NEEDS_MEMORY}",
    "build_set": f"a set, {_NEEDS_MEMORY}",
    "build_map": f"a dict, {_NEEDS_MEMORY}",
}


def lower(typed, infer_options, debugging=False):
    """Lower a kernel.

    Parameters
    ----------
    typed : frontend.Typed
    infer_options : dict
        Keyword arguments of `frontend.infer` for the functions that it calls.
    debugging : bool
        Make a program that tells a debugger of every line and every variable.

    Returns
    -------
    blocks.Program
    """
    pools = Pools(debugging)
    lowered = _lower_function(typed, pools, infer_options)
    return Program(
        typed.function.__name__,
        lowered.run,
        lowered.traced,
        lowered.source,
        pools.sites,
        pools.operations,
        pools.lines,
        functools.cache(functools.partial(instructions.overhead, pools.functions)),
        lowered.written,
        pools.fences,
        pools.partial_warps,
        pools.static_shared,
        pools.shared_alignment,
        sum(pools.local_bytes.values()),
        sum(allocation.nbytes for allocation in pools.allocations),
        pools.cooperative,
        pools.breakpoints,
        pools.stops,
        pools.places,
        lowered.parameters,
        lowered.blocks,
    )


def _lower_function(typed, pools, infer_options, recursive=False):
    builder = Builder(typed.function.__name__, pools)
    translator = Translator(builder, typed, infer_options, recursive)
    return builder.finish(translator.function())


class Frame:
    """One function being translated: its types, and the variables of the generated program that stand for its own."""

    def __init__(self, typed, arguments, on_return, caller=None, line=0, folded=(), filename=""):
        self.typed = typed
        #: The file that has the line of the call: not the caller's own if Numba has inlined a function there.
        self.called_in = filename
        self.info = FrameInfo(typed.function, caller and caller.info, line)
        #: The block of the IR that is being translated, and the line of the last stop in it.
        self.block: Any = None
        self.stop_line: int | None = None
        #: `Constant` or None for each argument: what a compiler knows once the call is inlined, though no type says so.
        self.folded = dict(enumerate(folded))
        #: (expression, type) of each argument.
        self.arguments = arguments
        #: Translates ``return``: called with the expression that is returned.
        self.on_return = on_return
        self.caller = caller
        self.names = {}
        #: What the types of variables say of their values.
        self.constants = {}
        #: Values known while compiling, and how a tuple or bound method was made, by variable.
        self.known = {}
        self.labels = {}
        assignments = (s for block in typed.blocks.values() for s in block.find_insts(ir.Assign))
        self.definitions = Counter(statement.target.name for statement in assignments)

    def active(self, function, argument_types):
        """Return True if this function is being inlined already: a recursion."""
        frame = self
        while frame is not None:
            if frame.typed.function is function and frame.typed.argument_types == argument_types:
                return True
            frame = frame.caller
        return False


class Translator:
    """Fills a `Builder` from typed IR."""

    def __init__(self, builder, typed, infer_options, recursive):
        self.b = builder
        self.pools = builder.pools
        self.infer_options = infer_options
        self.recursive = recursive
        self.filename, self.line = typed.filename, 0
        self.array_name = None
        arguments = [(builder.variable(), type_) for type_ in typed.argument_types]
        returns_nothing = isinstance(typed.return_type, types.NoneType)
        self.frame = Frame(typed, arguments, lambda value: builder.end(Leave((), None if returns_nothing else value)))

    # -- functions -----------------------------------------------------------------------------------------------------

    def function(self):
        """Translate the function; return its parameters."""
        self.body(self.frame)
        return [parameter for parameter, _ in self.frame.arguments]

    def body(self, frame):
        outer, self.frame = self.frame, frame
        blocks = frame.typed.blocks
        first = min(blocks)
        for label in sorted(blocks):
            frame.labels[label] = self.b.current if label == first else self.b.new_block()
        for label in sorted(blocks):
            self.b.current = frame.labels[label]
            frame.block, frame.stop_line = blocks[label], None
            for statement in blocks[label].body:
                self.statement(statement)
        self.frame = outer

    def inline(self, dispatcher, argument_types, arguments, target, folded=()):
        """Splice a device function in at the current place; its result goes to ``target``."""
        typed = infer(dispatcher, argument_types, **self.infer_options)
        after, here = self.b.new_block(), self.site()
        place = self.filename, self.line

        def on_return(value):
            if target is not None and not isinstance(typed.return_type, types.NoneType):
                self.b.emit(value, target)
            self.b.end(Jump((after,), site=here))

        entry = self.b.new_block()
        self.b.end(Jump((entry,), site=here))
        self.b.current = entry
        self.filename = typed.filename
        self.body(Frame(typed, arguments, on_return, self.frame, place[1], folded, place[0]))
        self.b.current = after
        self.filename, self.line = place
        return typed.return_type

    def recursive_call(self, dispatcher, argument_types, arguments):
        """Call a function that is being inlined already.

        It becomes a separate function, run by the lanes that call it.
        """
        key = dispatcher, argument_types
        if key not in self.pools.recursive:
            function = self.pools.recursive[key] = calls.RecursiveFunction()
            typed = infer(dispatcher, argument_types, **self.infer_options)
            function.lowered = _lower_function(typed, self.pools, self.infer_options, recursive=True)
        return ops.RUN(self.pools.recursive[key], self.tuple_of(arguments))

    def tuple_of(self, arguments):
        """Return a tuple of arguments, each an expression or a `Constant`, with its type."""
        return ops.TUPLE(*(self.constant(v.value, t) if isinstance(v, Constant) else v for v, t in arguments))

    # -- places --------------------------------------------------------------------------------------------------------

    def site(self, array=None, op=None):
        frame, filename, line = self.frame, self.filename, self.line
        while filename in LIBRARIES and frame.caller is not None:
            frame, filename, line = frame.caller, frame.called_in, frame.info.line
        return self.pools.site(Site(line, filename, array and self.source_name(array), op))

    def source_name(self, name):
        """Return the name that a variable has in the source, where Numba may have inlined its function."""
        return name if name in self.frame.typed.function.__code__.co_varnames else _INLINED.sub("", name)

    def unsupported(self, what, cause=None) -> NoReturn:
        frame, filename, line = self.frame, self.filename, self.line
        while frame.caller is not None and _NUMBA_FILES.search(filename):
            frame, filename, line = frame.caller, frame.called_in, frame.info.line  # it says more than Numba's own
        raise UnsupportedError(
            f"{what} cannot be emulated ({filename}, line {line}, in {frame.typed.function.__name__})"
        ) from cause

    # -- values --------------------------------------------------------------------------------------------------------

    def name_of(self, variable):
        """Return the variable of the generated program for a variable of the IR."""
        if variable not in self.frame.names:
            self.frame.names[variable] = self.b.variable()
        return self.frame.names[variable]

    def type_of(self, variable):
        return self.frame.typed.typemap[variable.name if isinstance(variable, ir.Var) else variable]

    def known(self, variable):
        """Return the compile-time value of a variable as a `Constant`, or None."""
        if isinstance(variable, Constant):
            return variable
        name = variable.name
        if name not in self.frame.constants:
            self.frame.constants[name] = constant_of(self.type_of(variable))
        value = self.frame.constants[name] or self.frame.known.get(name)
        return value if isinstance(value, Constant) else None

    def folded(self, variable):
        """Return the value of a variable that is constant once calls are inlined as a `Constant`, or None."""
        return self.known(variable) or self.frame.folded.get(variable.name)

    def value(self, variable, as_type=None):
        """Return the expression for a variable, converted to ``as_type``."""
        if isinstance(variable, Constant):
            return self.constant(variable.value, as_type)
        type_ = self.type_of(variable)
        as_type = unliteral(type_) if as_type is None else unliteral(as_type)
        known = self.known(variable)
        if known is not None:
            return self.constant(known.value, as_type)
        if variable.name not in self.frame.names and isinstance(type_, COMPILE_TIME):
            return NONE
        return self.cast(self.name_of(variable.name), type_, as_type)

    def constant(self, value, type_):
        """Return the expression for a compile-time value as a Numba type."""
        type_ = unliteral(type_)
        if isinstance(type_, types.Optional):
            own = types.none if value is None else type_.type
            return self.cast(self.constant(value, own), own, type_)
        if value is None or isinstance(type_, types.NoneType):
            return NONE
        if isinstance(type_, types.EllipsisType):
            return ELLIPSIS
        if isinstance(type_, types.SliceType):
            return self.constant_slice(value)
        if isinstance(type_, types.BaseTuple):
            return ops.TUPLE(*(self.constant(v, t) for v, t in zip(value, type_.types, strict=True)))
        if isinstance(type_, types.Array):
            return self.constant_array(value)
        if isinstance(type_, types.Record):
            return self.constant_record(value)
        if isinstance(type_, types.EnumMember):
            return self.constant(getattr(value, "value", value), type_.dtype)
        if isinstance(type_, types.UnicodeType | types.StringLiteral | types.UnicodeCharSeq):
            return literal(np.str_(value))
        if isinstance(type_, types.Bytes | types.CharSeq):
            return literal(np.bytes_(value))
        if isinstance(type_, types.NPDatetime | types.NPTimedelta):
            return literal(value.astype(dtype_of(type_)))
        if isinstance(type_, types.Number | types.Boolean):
            value = value.item() if isinstance(value, np.generic) else value
            return scalar(value, dtype_of(type_))
        if isinstance(type_, COMPILE_TIME):
            return NONE
        return self.unsupported(f"a constant of type {type_}")

    def constant_slice(self, value):
        bounds = (value.start, value.stop, value.step)
        return ops.SLICE(*(NONE if v is None else scalar(v, np.int64) for v in bounds))

    def constant_array(self, array):
        """Return the expression for a global array.

        A NumPy array is copied to constant memory when the kernel is compiled.
        """
        _, view = self.pools.once(("array", id(array)), lambda: (array, self._constant_view(array)))
        return literal(view)

    def _constant_view(self, array):
        name = next((n for n, v in self.frame.typed.function.__globals__.items() if v is array), "constant array")
        on_device = as_device_array(array)
        if on_device is not None:
            on_device.allocation.known = None  # a kernel that is not traced may write to it at any time
            return global_view(on_device.allocation, on_device.host, name)
        allocation = Allocation(max(array.nbytes, 1), name)
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        host = np.ndarray(array.shape, array.dtype, allocation.bytes, order=order)
        host[...] = array
        self.pools.allocations.append(allocation)
        return global_view(allocation, host, name, "const")

    def constant_record(self, value):
        return ops.CONSTANT_RECORD(self.constant_array(np.array([value], value.dtype)), ops.INDEX(ZERO))

    def cast(self, expression, from_type, to_type):
        """Convert an expression from one Numba type to another, as the device does it."""
        from_type, to_type = unliteral(from_type), unliteral(to_type)
        if from_type == to_type or isinstance(to_type, types.NoneType):
            return expression
        if isinstance(from_type, types.BaseTuple) and isinstance(to_type, types.BaseTuple):
            return self._cast_tuple(expression, from_type, to_type)
        if isinstance(from_type, types.EnumMember):
            from_type = from_type.dtype
        if vectors.is_vector(from_type) and isinstance(to_type, types.Complex):
            return vectors.as_complex(self, expression, from_type, to_type)
        if isinstance(to_type, types.Number | types.Boolean) and isinstance(from_type, types.Number | types.Boolean):
            return self._cast_number(expression, from_type, to_type)
        if isinstance(to_type, types.Array) and isinstance(from_type, types.Array) and from_type.dtype == to_type.dtype:
            return expression
        if calls.is_string(from_type) and calls.is_string(to_type):
            return expression
        return self.lowered(
            lambda context, builder, values: context.cast(builder, *values, from_type, to_type),
            [(expression, from_type)],
            to_type,
            f"a conversion of {from_type} to {to_type}",
        )[0]

    def lowered(self, emit, arguments, return_type, what) -> Any:
        """Translate what a lowering function of numba-cuda emits: (expression, type), or None for no value."""
        try:
            expression = lowering.lower(self, emit, arguments, return_type)
        except UnsupportedError:
            raise
        except NumbaRuntimeError as error:
            self.unsupported(f"{what} ({error}: it allocates memory)", error)
        except NOT_IMPLEMENTED as error:
            self.unsupported(what, error)
        return None if expression is None else (expression, return_type)

    def _cast_tuple(self, expression, from_type, to_type):
        pairs = list(zip(from_type.types, to_type.types, strict=True))
        if all(unliteral(a) == unliteral(b) for a, b in pairs):
            return expression
        items = self.b.temporary(expression)
        return ops.TUPLE(*(self.cast(ops.ITEM(items, i), a, b) for i, (a, b) in enumerate(pairs)))

    def _cast_number(self, expression, from_type, to_type):
        old, new = dtype_of(from_type), dtype_of(to_type)
        if old == new:
            return expression
        if new.kind == "b":
            return ops.NE(expression, scalar(0, old))
        if old.kind == "f" and new.kind in "iu":
            return ops.FLOAT_TO_INT(expression, new)
        if old.kind == "c" and new.kind != "c":
            return self.unsupported("a conversion of a complex number to a real one")
        # The compiler converts constants.
        counts = (old == np.float64) != (new == np.float64) and expression.op is not LITERAL
        return ops.CAST(expression, new).counting(*["fp64_conversions"] * counts)

    # -- statements ----------------------------------------------------------------------------------------------------

    def statement(self, statement):
        if self.b.blocks[self.b.current].end is not None:
            return
        self.move(statement.loc)
        self.b.place = (self.filename, self.line)
        try:
            if self.pools.stops is not None:
                self.stop(statement)
            self.translate(statement)
            if self.pools.stops is not None:
                self.note(statement)
        except (UnsupportedError, *NUMBA_ERRORS):
            raise
        except Exception as error:
            # An unforeseen construct: say where in the kernel it is.
            self.unsupported(f"this statement ({type(error).__name__}: {error})", error)

    def move(self, place):
        """Go on at another line: of the function, or of one that Numba has inlined there, unless a library's."""
        own = self.frame.typed.filename
        if place.line and (place.filename == own or not _is_of_a_library(place.filename)):
            self.filename, self.line = place.filename, place.line

    def stop(self, statement):
        """Let the debugger stop before this statement if a line of the source begins with it."""
        frame = self.frame
        if self.line == frame.stop_line or _is_hidden(statement):
            return
        if self._is_implicit_return(statement):
            return
        frame.stop_line = self.line
        self.pools.stops.append(Stop(self.line, self.filename, frame.info))
        self.b.emit(ops.STOP(len(self.pools.stops) - 1))

    def _is_implicit_return(self, statement):
        """True at the end of a function without a ``return``, which Numba places at some line before."""
        rest = itertools.dropwhile(lambda s: s is not statement, self.frame.block.body)
        trivial = all(isinstance(s, ir.Del | ir.Return) or _is_none_or_cast(s) for s in rest)
        return trivial and "return" not in linecache.getline(self.filename, self.line)

    def note(self, statement):
        """Tell the debugger the value of the variable that this statement has assigned."""
        if not isinstance(statement, ir.Assign) or self.b.blocks[self.b.current].end is not None:
            return
        name = statement.target.unversioned_name
        if not name.isidentifier() or isinstance(self.type_of(statement.target), COMPILE_TIME):
            return
        variables = self.frame.info.variables
        if name not in variables:
            variables[name] = self.pools.variables
            self.pools.variables += 1
        self.b.emit(ops.NOTE(variables[name], self.value(statement.target)))

    def translate(self, statement):
        """Translate a statement of the IR."""
        if isinstance(statement, ir.Assign):
            self.assign(statement)
        elif isinstance(statement, ir.SetItem | ir.StaticSetItem):
            self.set_item(statement)
        elif isinstance(statement, ir.SetAttr):
            self.set_attribute(statement)
        elif isinstance(statement, ir.Jump):
            self.b.end(Jump((self.frame.labels[statement.target],), site=self.site()))
        elif isinstance(statement, ir.Branch):
            self.branch(statement)
        elif isinstance(statement, ir.Return):
            self.frame.on_return(self.value(statement.value, self.frame.typed.return_type))
        elif isinstance(statement, ir.StaticRaise | ir.DynamicRaise | ir.Raise):
            self.raise_(statement)
        elif isinstance(statement, ir.Print):
            self.print(statement)
        elif not isinstance(statement, ir.Del | ir.PopBlock):
            self.unsupported(f"the statement `{statement}`")

    def branch(self, statement):
        known = self.known(statement.cond)
        if known is not None:
            taken = statement.truebr if known.value else statement.falsebr
            self.b.end(Jump((self.frame.labels[taken],), site=self.site()))
            return
        targets = self.frame.labels[statement.truebr], self.frame.labels[statement.falsebr]
        self.b.end(Branch(targets, self.value(statement.cond, types.boolean), self.site()))

    def raise_(self, statement):
        """End the thread. As on the device, only ``debug=True`` reports the exception to the host."""
        exception = getattr(statement, "exc_class", None) or RuntimeError
        arguments = tuple(a for a in (getattr(statement, "exc_args", None) or ()) if not isinstance(a, ir.Var))
        self.raise_exception(exception(*arguments))
        self.b.end(Leave(()))

    def raise_unless(self, condition, exception):
        """End the threads where a condition is false."""
        fails, after = self.b.new_block(), self.b.new_block()
        self.b.end(Branch((after, fails), condition, self.site()))
        self.b.current = fails
        self.raise_exception(exception)
        self.b.end(Leave(()))
        self.b.current = after

    def raise_exception(self, exception):
        if self.recursive:
            self.unsupported("raise in a recursive function")
        if self.infer_options.get("debug"):
            self.b.emit(ops.RAISED(self.site(), exception))

    def print(self, statement):
        parts = []
        for variable in self.positional_arguments(statement):
            type_ = self.type_of(variable)
            if isinstance(type_, types.StringLiteral):
                parts.append(literal(type_.literal_value))
            elif isinstance(type_, Dim3):
                parts.append(ops.TUPLE(*(self.dim3(variable, axis) for axis in "xyz")))
            elif isinstance(type_, types.Integer | types.Float | types.Boolean | types.BaseTuple):
                parts.append(self.value(variable))
            else:
                self.unsupported(f"printing a value of type {type_}")
        self.b.emit(ops.PRINT(ops.TUPLE(*parts)))

    def assign(self, statement):
        target, value = statement.target.name, statement.value
        type_ = self.type_of(target)
        if isinstance(value, ir.Var):
            self.copy(target, value, type_)
        elif isinstance(value, ir.Arg):
            self.argument(target, value, type_)
        elif isinstance(value, ir.Const | ir.Global | ir.FreeVar):
            self.literal(target, value.value, type_)
        elif isinstance(value, ir.Expr):
            self.expression(target, value, type_)
        else:
            self.unsupported("a generator (yield)" if isinstance(value, ir.Yield) else f"`{statement}`")

    def copy(self, target, value, type_):
        source = self.frame.known.get(value.name)
        if self.frame.definitions[target] == 1 and value.name in self.frame.folded:
            self.frame.folded[target] = self.frame.folded[value.name]
        if source is not None and self.frame.definitions[target] == 1:
            self.frame.known[target] = source
            if isinstance(source, Constant):
                return
        if not isinstance(type_, COMPILE_TIME) and not isinstance(type_, types.Literal):
            self.b.emit(self.value(value, type_), self.name_of(target))

    def argument(self, target, value, type_):
        expression, argument_type = self.frame.arguments[value.index]
        if isinstance(expression, Constant | BoundMethod):
            self.frame.known[target] = expression
        if self.frame.definitions[target] == 1:
            self.frame.folded[target] = self.frame.folded.get(value.index)
        if isinstance(type_, COMPILE_TIME) or isinstance(type_, types.Literal):
            return
        if isinstance(expression, Constant):
            expression = self.constant(expression.value, type_)
        else:
            expression = self.cast(expression, argument_type, type_)
        self.b.emit(expression, self.name_of(target))

    def literal(self, target, value, type_):
        if self.frame.definitions[target] == 1:
            self.frame.known[target] = Constant(value)
        elif not isinstance(type_, COMPILE_TIME):
            self.b.emit(self.constant(value, type_), self.name_of(target))

    # -- expressions ---------------------------------------------------------------------------------------------------

    def expression(self, target, expr, type_):
        self.array_name = None if target.startswith("$") else self.source_name(target.split(".")[0])
        handler = getattr(self, f"expr_{expr.op}", None)
        if handler is None:
            self.unsupported(_REFUSED.get(expr.op, f"`{expr}`"))
        result = handler(target, expr, type_)
        if result is None or isinstance(type_, COMPILE_TIME):
            return
        expression, result_type = result
        if not isinstance(type_, types.Literal):
            expression = self.cast(expression, result_type, type_)
        self.b.emit(expression, self.name_of(target))

    def expr_null(self, target, expr, type_):
        """Return poison for a variable that the thread never assigned, as in memory that was never written."""
        if isinstance(type_, types.Number | types.Boolean):
            dtype = dtype_of(type_)
            return scalar(np.full(dtype.itemsize, 0xFF, np.uint8).view(dtype)[0], dtype), type_
        return NONE, type_

    def expr_cast(self, target, expr, type_):
        return self.value(expr.value, type_), type_

    def expr_binop(self, target, expr, type_):
        return self.binary(expr.fn, expr)

    def expr_inplace_binop(self, target, expr, type_):
        if expr.immutable_fn is operator.truediv and isinstance(type_, types.Integer):
            self.unsupported("/= on an integer, which numba-cuda cannot compile (write //=, or begin with a float),")
        return self.binary(expr.immutable_fn, expr)

    def binary(self, function, expr):
        signature = self.frame.typed.calltypes[expr]
        return None if signature is None else self.operation(function, signature, (expr.lhs, expr.rhs))

    def operation(self, function, signature, operands):
        """Apply an operator to typed operands; shared with calls of functions of the operator module."""
        result = signature.return_type
        if function in (operator.is_, operator.is_not) and _of_two_enums(signature.args):
            return scalar(function is operator.is_not, np.bool_), result
        if not all(map(calls.is_number, signature.args)):
            return calls.structured_operator(self, function, signature, operands)
        if function is operator.pow:
            return self.power(signature, operands), result
        if function not in ops.OPERATORS:
            self.unsupported(f"the operator {function.__name__}")
        if function in _COMPARISONS or function in (operator.is_, operator.is_not):
            operand_types = signature.args
        else:
            # Numba converts both operands to the result's type for every integer operator, and the signature has done
            # it for floats.
            operand_types = (result, result) if dtype_of(result).kind in "iufc" else signature.args
        a, b = (self.value(v, t) for v, t in zip(operands, operand_types, strict=True))
        if function in _DIVISIONS and self.infer_options.get("debug"):
            self.b.emit(ops.CHECK_DIVISOR(self.site(), b))
        if function in (operator.floordiv, operator.mod):
            expression = self.floor_division(function, operands, a, b, result)
        else:
            expression = ops.OPERATORS[function](a, b)
        computed = signature.args[0] if function in _COMPARISONS else result
        times = _COMPLEX_OPERATIONS.get(function, 2) if isinstance(computed, types.Complex) else 1
        return counted(expression, computed, times), result

    def floor_division(self, function, operands, a, b, result):
        """Apply ``//`` or ``%``. What differs from NumPy's operators is in `arithmetic`."""
        floor = function is operator.floordiv
        if isinstance(unliteral(result), types.Float):
            return (ops.FLOOR_DIVIDE_FLOAT if floor else ops.MODULO_FLOAT)(a, b)
        known = self.known(operands[1])
        op = ops.FLOOR_DIVIDE if floor and (known is None or known.value == -1) else ops.OPERATORS[function]
        # A compiler turns a constant into multiplications, and sees that narrow numbers without a sign stay narrow.
        slow = known is None and dtype_of(result).itemsize == 8 and not all(map(self._is_narrow_unsigned, operands))
        return op(a, b).counting(*["int64_divisions"] * slow)

    def _is_narrow_unsigned(self, operand):
        if not isinstance(operand, ir.Var):
            return False
        type_ = unliteral(self.type_of(operand))
        return isinstance(type_, types.Integer) and not type_.signed and type_.bitwidth <= 32

    def power(self, signature, operands):
        base_type, exponent_type = signature.args
        result = signature.return_type
        base = self.value(operands[0], result)
        known = self.known(operands[1])
        if known is not None and isinstance(unliteral(exponent_type), types.Integer) and abs(known.value) <= 0x10000:
            if types.IntegerLiteral in (type(exponent_type), type(self.type_of(operands[1]))):
                exponent = int(known.value)
                return counted(ops.POWER_CONSTANT(base, exponent), result, max(1, _multiplications(abs(exponent))))
        if dtype_of(exponent_type).kind not in "iu":
            return counted(ops.POWER_FLOAT(base, self.value(operands[1], result)), result)
        exponent = self.value(operands[1], exponent_type)
        if dtype_of(result).kind in "iu":
            return counted(ops.POWER_INT(base, self.cast(exponent, exponent_type, result)), result)
        return counted(ops.POWER_FLOAT_INT(base, exponent), result)

    def expr_unary(self, target, expr, type_):
        signature = self.frame.typed.calltypes[expr]
        return self.unary(expr.fn, signature, expr.value)

    def unary(self, function, signature, operand):
        (argument,) = signature.args
        result = signature.return_type
        if function is operator.not_:
            return ops.NOT(self.value(operand, argument)), types.boolean
        if not isinstance(argument, types.Number | types.Boolean):
            return calls.operator_of_other_types(self, function, signature, [operand])
        value, computed = self.value(operand, argument), argument
        boolean = isinstance(argument, types.Boolean) and function is not operator.invert
        if boolean or (function is operator.neg and argument == types.int16):  # the device uses a 32-bit register
            value, argument = self.cast(value, argument, result), result
        return counted(ops.OPERATORS[function](value), computed), argument

    def expr_build_tuple(self, target, expr, type_):
        items = TupleValue((self.value(v, t), unliteral(t)) for v, t in zip(expr.items, type_.types, strict=True))
        if self.frame.definitions[target] == 1:
            known = [self.known(v) for v in expr.items]
            values = [k.value for k in known if k is not None]
            unknown = (v.name for v, k in zip(expr.items, known, strict=True) if k is None)
            if len(values) == len(known):
                self.frame.known[target] = Constant(tuple(values))
            elif all(self.frame.definitions[name] == 1 for name in unknown):
                # A variable with several definitions may change before the tuple is read: then the tuple itself is
                # kept.
                self.frame.known[target] = items
        return ops.TUPLE(*(e for e, _ in items)), types.BaseTuple.from_types([t for _, t in items])

    def expr_exhaust_iter(self, target, expr, type_):
        source = self.frame.known.get(expr.value.name)
        if source is not None and self.frame.definitions[target] == 1:
            self.frame.known[target] = source
        value_type = self.type_of(expr.value)
        if isinstance(value_type, types.Array):
            return self._unpack_array(expr.value, value_type, unliteral(type_))
        if not isinstance(value_type, types.BaseTuple):
            self.unsupported(f"unpacking a {value_type}")
        return self.value(expr.value), unliteral(value_type)

    def _unpack_array(self, variable, owner, type_):
        site = self.site(variable.unversioned_name, "load")
        self.b.emit(ops.CHECK_LENGTH(site, self.value(variable), type_.count))
        indices = (ops.INDEX(scalar(i, np.int64)) for i in range(type_.count))
        items = (self.load(variable, owner, index, owner.ndim == 1, type_.dtype)[0] for index in indices)
        return ops.TUPLE(*(self.b.temporary(item) for item in items)), type_

    def expr_getiter(self, target, expr, type_):
        return calls.get_iterator(self, expr.value), type_

    def expr_iternext(self, target, expr, type_):
        iterator = self.name_of(expr.value.name)
        step = self.b.temporary(calls.iterator_step(self, self.type_of(expr.value), iterator))
        self.b.emit(ops.AFTER(step), iterator)
        return ops.PAIR(step), type_

    def expr_pair_first(self, target, expr, type_):
        return ops.ITEM(self.name_of(expr.value.name), 0), type_

    def expr_pair_second(self, target, expr, type_):
        return ops.ITEM(self.name_of(expr.value.name), 1), type_

    def expr_getattr(self, target, expr, type_):
        owner_type = self.type_of(expr.value)
        if isinstance(type_, types.BoundFunction):
            self.frame.known[target] = BoundMethod(expr.value)
            return None
        if isinstance(type_, Dim3):
            self.frame.known[target] = Constant(expr.attr)
            return None
        if isinstance(owner_type, Dim3):
            return self.dim3(expr.value, expr.attr), types.int32
        if isinstance(type_, COMPILE_TIME):
            return None
        return calls.attribute(self, target, expr, owner_type, type_)

    def dim3(self, variable, axis):
        """Read ``threadIdx.x``, ``gridDim.y`` and so on."""
        name = self.known(variable)
        if name is None:
            self.unsupported("threadIdx, blockIdx, blockDim or gridDim chosen by a condition")
        return ops.DIM3[getattr(name.value, "__name__", name.value)]("xyz".index(axis))

    # -- subscripts ----------------------------------------------------------------------------------------------------

    def expr_getitem(self, target, expr, type_):
        owner = self.type_of(expr.value)
        if isinstance(owner, types.BaseTuple):
            index = self.known(expr.index)
            if index is not None:
                return self.tuple_item(expr.value, index.value, type_)
            site = self.site(expr.value.unversioned_name, "load")
            return ops.TUPLE_ITEM(self.value(expr.value), self.value(expr.index), site), type_
        if not isinstance(owner, types.Array):
            return self.item(expr, expr.index, owner, type_)
        index, scalar = self.index(expr.index, owner)
        return self.load(expr.value, owner, index, scalar, type_)

    def expr_typed_getitem(self, target, expr, type_):
        """Pick an item of a tuple of several types, of which the loop of ``literal_unroll`` knows the type."""
        item_types = self.type_of(expr.value).types
        places = tuple(i for i, t in enumerate(item_types) if _is_same_item(unliteral(t), unliteral(expr.dtype)))
        return _TYPED_ITEM(self.value(expr.value), ops.TUPLE(*places), self.value(expr.index)), type_

    def expr_static_getitem(self, target, expr, type_):
        owner = self.type_of(expr.value)
        if isinstance(owner, types.BaseTuple):
            if not isinstance(expr.index, int | slice):  # Numba takes threadIdx.x for a constant
                return self.expr_getitem(target, ir.Expr.getitem(expr.value, expr.index_var, expr.loc), type_)
            return self.tuple_item(expr.value, expr.index, type_)
        if isinstance(owner, types.Record):
            name = expr.index if isinstance(expr.index, str) else list(owner.fields)[expr.index]
            return self.load_field(expr.value, name), type_
        if isinstance(owner, types.NumberClass):
            return None
        if isinstance(owner, types.EnumClass):
            self.frame.known[target] = Constant(owner.instance_class[expr.index])
            return None
        if not isinstance(owner, types.Array):
            return self.item(expr, expr.index_var, owner, type_)
        if isinstance(expr.index, str):
            return calls.field_array(self, expr.value, expr.index, type_)
        index, scalar = self.index(expr.index_var, owner, expr.index)
        return self.load(expr.value, owner, index, scalar, type_)

    def item(self, expr, index, owner, type_):
        """Translate a subscript of ``array.flat``, or of a type that a program defines."""
        signature = self.frame.typed.calltypes[expr]
        if index is None or signature is None:
            self.unsupported(f"a subscript of {owner}")
        if isinstance(owner, types.NumpyFlatType):
            flat, index = self.b.temporary(self.value(expr.value)), self.value(index, types.int64)
            return ops.LOAD(ops.ITEM(flat, 1), _FLAT_INDEX(flat, index), self.site(op="load")), type_
        return calls.operator_of_other_types(self, operator.getitem, signature, (expr.value, index))

    def tuple_item(self, variable, index, type_):
        source = self.frame.known.get(variable.name)
        if isinstance(index, slice):
            items = self.b.temporary(self.value(variable))
            places = range(len(self.type_of(variable)))[index]
            return ops.TUPLE(*(ops.ITEM(items, i) for i in places)), type_
        if isinstance(source, TupleValue):
            return source[index]
        item_type = self.type_of(variable).types[index]
        if isinstance(item_type, types.Literal):
            return self.constant(item_type.literal_value, item_type), unliteral(item_type)
        return ops.ITEM(self.value(variable), int(index)), unliteral(item_type)

    def load(self, variable, owner, index, scalar, type_, op="load"):
        array = self.value(variable)
        site = self.site(variable.unversioned_name, op)
        if not scalar:
            return ops.WINDOW(array, index, site), type_
        if isinstance(owner.dtype, types.Record):
            return ops.RECORD(array, index, site), type_
        if _is_struct(owner.dtype):
            record = self.b.temporary(ops.RECORD(array, index, site))
            return self.load_struct(record, owner.dtype, site), owner.dtype
        return ops.LOAD(array, index, site), owner.dtype

    def load_struct(self, record, type_, site):
        """Load the members of a value of a type that a program defines."""
        fields = ((ops.LOAD_FIELD(record, name, site), member) for name, member in struct_members(type_))
        return ops.TUPLE(*(self.load_struct(e, t, site) if _is_struct(t) else e for e, t in fields))

    def store_struct(self, record, value, type_, site):
        for i, (name, member) in enumerate(struct_members(type_)):
            item = ops.ITEM(value, i)
            if _is_struct(member):
                self.store_struct(ops.LOAD_FIELD(record, name, site), item, member, site)
            else:
                self.b.emit(ops.STORE_FIELD(record, name, item, site))

    def index(self, variable, owner, constant=None):
        """Return (index expression, whether it selects one element). Without a variable the index is ``constant``."""
        if variable is None:
            return self.static_index(constant, owner)
        type_ = self.type_of(variable)
        known = self.known(variable)
        if known is not None and not isinstance(type_, types.Array):
            return self.static_index(known.value, owner)
        if isinstance(type_, types.BaseTuple):
            source = self.frame.known.get(variable.name)
            if not isinstance(source, TupleValue):
                source = [(ops.ITEM(self.value(variable), i), t) for i, t in enumerate(type_.types)]
        else:
            source = [(self.value(variable), type_)]
        parts = [self.index_part(e, t) for e, t in source]
        scalar = len(parts) == owner.ndim and all(
            isinstance(unliteral(t), types.Integer | types.Boolean) for _, t in source
        )
        return ops.INDEX(*self._expand_ellipsis(parts, owner)), scalar

    def static_index(self, index, owner):
        index = index if isinstance(index, tuple) else (index,)
        parts = []
        for part in index:
            if part is Ellipsis:
                parts.append(ELLIPSIS)
            elif part is None:
                parts.append(NONE)
            elif isinstance(part, slice):
                parts.append(self.constant_slice(part))
            elif isinstance(part, int | np.integer):
                parts.append(scalar(int(part), np.int64))
            else:
                self.unsupported(f"the index {part!r}")
        single = len(parts) == owner.ndim and all(isinstance(p, int | np.integer) for p in index)
        return ops.INDEX(*self._expand_ellipsis(parts, owner)), single

    def _expand_ellipsis(self, parts, owner):
        if ELLIPSIS not in parts:
            return parts
        at = parts.index(ELLIPSIS)
        there = sum(part is not NONE for part in parts) - 1
        return [*parts[:at], *[ops.SLICE(NONE)] * (owner.ndim - there), *parts[at + 1 :]]

    def index_part(self, expression, type_):
        """Return one item of an index as int64, marked as unsigned if its type is."""
        type_ = unliteral(type_)
        if isinstance(type_, types.EllipsisType):
            return ELLIPSIS
        if isinstance(type_, types.NoneType):  # a new axis
            return NONE
        if type_ == types.uint64:
            return ops.UNSIGNED(ops.TO_INDEX(expression))
        if isinstance(type_, types.SliceType):
            return ops.UNSIGNED(expression)
        # Floats in atomics only: Numba unifies an int32 and a uint64 index to float64.
        if isinstance(type_, types.Integer | types.Boolean | types.Float):
            part = self.cast(expression, type_, types.int64)
            return part if getattr(type_, "signed", False) else ops.UNSIGNED(part)
        return self.unsupported(f"an index of type {type_}")

    def set_item(self, statement):
        owner = self.type_of(statement.target)
        static = isinstance(statement, ir.StaticSetItem)
        if isinstance(owner, types.Record) and static:
            name = statement.index if isinstance(statement.index, str) else list(owner.fields)[statement.index]
            self.store_field(statement.target, name, statement.value, owner)
            return
        index_variable = statement.index_var if static else statement.index
        if isinstance(owner, types.NumpyFlatType):
            flat, index = self.b.temporary(self.value(statement.target)), self.value(index_variable, types.int64)
            value = self.value(statement.value, owner.dtype)
            self.b.emit(ops.STORE(ops.ITEM(flat, 1), _FLAT_INDEX(flat, index), value, self.site(op="store")))
            return
        if not isinstance(owner, types.Array):
            signature = self.frame.typed.calltypes[statement]
            operands = statement.target, index_variable, statement.value
            calls.operator_of_other_types(self, operator.setitem, signature, operands)
            return
        index, scalar = self.index(index_variable, owner, statement.index)
        array = self.value(statement.target)
        site = self.site(statement.target.unversioned_name, "store")
        value_type = self.type_of(statement.value)
        if isinstance(owner.dtype, types.Record) and scalar:
            self.b.emit(ops.COPY_RECORD(ops.RECORD(array, index, site), self.value(statement.value), site))
        elif scalar and _is_struct(owner.dtype):
            record = self.b.temporary(ops.RECORD(array, index, site))
            value = self.b.temporary(self.value(statement.value, owner.dtype))
            self.store_struct(record, value, owner.dtype, site)
        elif scalar:
            self.b.emit(ops.STORE(array, index, self.value(statement.value, owner.dtype), site))
        else:
            if isinstance(value_type, types.Array):
                self.unsupported(
                    "an array assigned to a slice, which allocates and which Numba cannot compile for a GPU,"
                )
            tuple_ = isinstance(value_type, types.BaseTuple)
            as_type = types.UniTuple(owner.dtype, len(value_type)) if tuple_ else owner.dtype
            self.b.emit(ops.ASSIGN_SLICE(array, index, self.value(statement.value, as_type), site))

    def set_attribute(self, statement):
        owner = self.type_of(statement.target)
        if not isinstance(owner, types.Record):
            self.unsupported(f"an assignment to an attribute of {owner}")
        self.store_field(statement.target, statement.attr, statement.value, owner)

    def store_field(self, target, name, value, owner):
        field_type = owner.typeof(name)
        as_type = None if isinstance(field_type, types.NestedArray | types.Record) else field_type
        site = self.site(target.unversioned_name, "store")
        self.b.emit(ops.STORE_FIELD(self.value(target), name, self.value(value, as_type), site))

    def load_field(self, record, name):
        """Load ``record.name``."""
        site = self.site(record.unversioned_name, "load")
        return ops.LOAD_FIELD(self.value(record), name, site)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def expr_call(self, target, expr, type_):
        function_type = self.type_of(expr.func)
        signature = self.frame.typed.calltypes[expr]
        if isinstance(function_type, types.RecursiveCall):
            function_type = function_type.dispatcher_type
        if isinstance(function_type, types.Dispatcher):
            return self.call_device_function(function_type.dispatcher, expr, signature, type_)
        if isinstance(function_type, types.ExceptionClass):
            return None
        arguments = self.call_arguments(expr, signature, getattr(function_type, "typing_key", None))
        if isinstance(function_type, types.NamedTupleClass):
            return ops.TUPLE(*(self.value(v, at) for v, at in zip(arguments, type_.types, strict=True))), type_
        if isinstance(function_type, types.BoundFunction):
            owner = self.frame.known[expr.func.name].owner
            return calls.method(self, owner, function_type, arguments, signature)
        if isinstance(function_type, types.Callable | types.NumberClass):
            return calls.function(self, function_type, arguments, signature, expr)
        return self.unsupported(f"a call of {function_type}")

    def call_arguments(self, expr, signature, function):
        """Return the arguments of a call of a function that Numba knows."""
        if not expr.kws:
            return self.positional_arguments(expr)
        if signature.pysig is not None:
            return self.bind_arguments(expr, signature.pysig)
        if inspect.isfunction(function):
            return self.bind_arguments(expr, inspect.signature(function))
        return self.unsupported("keyword arguments of this function")

    def bind_arguments(self, expr, pysig):
        return self.bind(pysig, self.positional_arguments(expr), dict(expr.kws))

    def bind(self, pysig, positional, keywords):
        """Return variables, `Constant` defaults, and a tuple for ``*args``, in the order of the parameters."""
        bound = pysig.bind(*positional, **keywords)
        defaults = {name: Constant(p.default) for name, p in pysig.parameters.items() if p.default is not p.empty}
        bound.arguments = {name: defaults.get(name, ()) for name in pysig.parameters} | bound.arguments
        return list(bound.arguments.values())

    def positional_arguments(self, expr):
        """Return the variables of a call's positional arguments; those of ``*tuple`` are new variables."""
        if expr.vararg is None:
            return list(expr.args)
        items = []
        for i, type_ in enumerate(self.type_of(expr.vararg).types):
            name = f"{expr.vararg.name}.{i}"
            if name not in self.frame.typed.typemap:  # the function may have been inlined before
                self.frame.typed.typemap[name] = unliteral(type_)
            self.frame.definitions[name] = 1
            self.b.emit(self.tuple_item(expr.vararg, i, type_)[0], self.name_of(name))
            items.append(ir.Var(expr.vararg.scope, name, expr.vararg.loc))
        return [*expr.args, *items]

    def call_device_function(self, dispatcher, expr, signature, type_):
        bound = self.bind_arguments(expr, inspect.signature(dispatcher.py_func))
        arguments = self.argument_values(bound, signature.args)
        folded = [None if isinstance(item, tuple) else self.folded(item) for item in bound]
        return self.call_function(dispatcher, arguments, signature.return_type, type_, folded)

    def argument_values(self, bound, argument_types):
        return [(self.argument_value(item, at), at) for item, at in zip(bound, argument_types, strict=True)]

    def argument_value(self, item, type_):
        """Return the value of an argument: an expression, or what is known of it while compiling."""
        if isinstance(item, tuple):  # of a parameter *args
            values = self.argument_values(item, type_.types)
            known = [v.value for v, _ in values if isinstance(v, Constant)]
            return Constant(tuple(known)) if len(known) == len(values) else self.tuple_of(values)
        if isinstance(item, Constant):
            return item
        source = self.known(item) or self.frame.known.get(item.name)
        compile_time = isinstance(self.type_of(item), COMPILE_TIME) and isinstance(source, Constant | BoundMethod)
        return source if compile_time else self.value(item, type_)

    def call_function(self, dispatcher, arguments, return_type, type_, folded=()):
        """Call a Python function with (value, type) for each argument; return (expression, type), or None."""
        argument_types = tuple(t for _, t in arguments)
        if self.frame.active(getattr(dispatcher, "py_func", dispatcher), argument_types):
            return self.recursive_call(dispatcher, argument_types, arguments), return_type
        result = None if isinstance(type_, COMPILE_TIME) else self.b.variable()
        return_type = self.inline(dispatcher, argument_types, arguments, result, folded)
        return None if result is None else (result, return_type)

    def barrier(self, kind, members=None, op=None):
        """End the block in a barrier and continue in a new one. ``op``: the operation that the site shows."""
        if self.recursive:
            # The scheduler of the recursive call knows the lanes that made it only.
            self.unsupported("a barrier or warp operation in a recursive function")
        after = self.b.new_block()
        self.b.end(Barrier((after,), members, self.site(op=op or kind), kind))
        self.b.current = after


def _is_hidden(statement):
    """True for a statement that stands for nothing in the source: a parameter, or another version of a variable."""
    if isinstance(statement, ir.Del | ir.PopBlock | ir.Jump):
        return True
    if not isinstance(statement, ir.Assign):
        return False
    value = statement.value
    same = isinstance(value, ir.Var) and value.unversioned_name == statement.target.unversioned_name
    return same or isinstance(value, ir.Arg)


def _is_of_a_library(filename):
    return filename in LIBRARIES or _NUMBA_FILES.search(filename) is not None


def _is_none_or_cast(statement):
    if not isinstance(statement, ir.Assign):
        return False
    value = statement.value
    return isinstance(value, ir.Const) and value.value is None or isinstance(value, ir.Expr) and value.op == "cast"


def _of_two_enums(types_):
    classes = {type_.instance_class for type_ in types_ if isinstance(type_, types.EnumMember)}
    return len(classes) == 2


def _is_same_item(type_, wanted):
    if isinstance(type_, types.Array) and isinstance(wanted, types.Array):
        return (type_.dtype, type_.ndim, type_.layout) == (wanted.dtype, wanted.ndim, wanted.layout)
    return type_ == wanted


def _is_struct(type_):
    """True for elements of an array that a program defines by a data model."""
    return dtype_of(type_).names is not None and not isinstance(type_, types.Record)


def _multiplications(exponent):
    """Return the number of multiplications of a constant power by squaring."""
    return exponent.bit_length() + exponent.bit_count() - 2
