"""LLVM IR that numba-cuda's lowering functions emit, translated to lockstep statements.

A value of LLVM is one of

Expression   a number: signed integers of NumPy, bool for i1. Or a tuple, of an aggregate. Or a `RecordRef` of memory.
list         the values of an aggregate's elements
Native       a value as the emulator has it, by its Numba type; it is taken apart when an instruction looks into it
Pointer      an address inside a local variable
"""

import operator
from typing import Any, NamedTuple

import numpy as np

from warpstep._numba import llvm, types, unliteral
from warpstep.compiler import calls, ops
from warpstep.compiler.blocks import Branch, Jump, Leave
from warpstep.compiler.expressions import NONE, Expression, Op, Trait, scalar
from warpstep.compiler.values import COMPILE_TIME, constant_of, dtype_of


class Native(NamedTuple):
    expression: Expression
    type: object


class Slot:
    """A local variable. ``current`` is its value within one block, once that is known; ``changed`` if it was stored."""

    def __init__(self, variable, type_, current):
        self.variable, self.type, self.current, self.changed = variable, type_, current, True

    def store(self, value):
        self.current, self.changed = value, True


class Pointer(NamedTuple):
    slot: Slot
    path: tuple


class Translation:
    """One function of LLVM, spliced into the program at the current place."""

    def __init__(self, t, context):
        self.t, self.b, self.context = t, t.b, context
        self.values: dict[int, Any] = {}
        self.slots: list[Slot] = []
        #: Integers that are addresses in memory: their values are pointers.
        self.addresses: set[int] = set()

    def run(self, function, arguments, return_type) -> Any:
        self.return_type = return_type
        self.values = {id(v): Native(*a) for v, a in zip(function.args, arguments, strict=True)}
        self.straight = len(function.blocks) == 1
        nothing = isinstance(return_type, COMPILE_TIME)
        self.result = None if nothing or self.straight else self.b.variable()
        if self.straight:
            self.block(function.entry_basic_block)
            return None if nothing else self.returned
        self.after = self.b.new_block()
        order = _reverse_postorder(function)
        self.labels = {id(block): self.b.new_block() for block in order}
        self.jump(self.labels[id(order[0])])
        for block in order:
            for phi in _phis(block):
                self.values[id(phi)] = self.b.variable()
        for block in order:
            self.b.current = self.labels[id(block)]
            self.block(block)
        self.b.current = self.after
        return self.result

    def block(self, block):
        for slot in self.slots:
            slot.current, slot.changed = None, False
        for instruction in block.instructions:
            name = instruction.opname.split()[-1]  # "tail call"
            if handler := getattr(self, f"op_{name}", None):
                value = handler(instruction)
            elif name in _BINARY:
                value = _BINARY[name](self, instruction)
            else:
                self.unknown(f"the LLVM instruction {name!r}")
            computed = isinstance(value, Expression) and value.operands
            self.values[id(instruction)] = self.b.temporary(value) if computed else value

    def unknown(self, what) -> Any:
        self.t.unsupported(f"{what} of a lowering function")

    # -- values --------------------------------------------------------------------------------------------------------

    def value(self, value) -> Any:
        """Return the value of an operand."""
        if isinstance(value, llvm.Constant):
            return self.constant(value.type, value.constant)
        if id(value) not in self.values:
            self.unknown(f"{value.__class__.__name__} {getattr(value, 'name', '')!r}")
        return self.values[id(value)]

    def constant(self, type_, value) -> Any:
        if isinstance(type_, llvm.Aggregate):
            if value is None or value is llvm.Undefined:
                return [self.constant(item, value) for item in type_.elements]
            return [self.value(item) for item in value]
        if isinstance(type_, llvm.PointerType) or value is llvm.Undefined:
            return NONE
        return scalar(value or 0, _dtype(self, type_))

    def number(self, value) -> Any:
        """Return the expression of an operand that is a number."""
        return self.materialize(self.value(value), value.type)

    def materialize(self, value, type_) -> Any:
        """Return the expression of a value of an LLVM type."""
        if isinstance(value, Native):
            value = self.take_apart(value, type_)
        if isinstance(value, list):
            return ops.TUPLE(*(self.materialize(v, item) for v, item in zip(value, type_.elements, strict=True)))
        if isinstance(value, Pointer):
            self.unknown("a pointer to a local variable, kept or chosen at run time,")
        return value

    def take_apart(self, native, type_) -> Any:
        """Return the LLVM value of a native one, one level of an aggregate."""
        expression, numba_type = native.expression, unliteral(native.type)
        if isinstance(numba_type, COMPILE_TIME):
            return NONE
        if isinstance(type_, llvm.Aggregate):
            return [Native(e, t) if t is not None else e for e, t in self.members(expression, numba_type)]
        if isinstance(type_, llvm.PointerType):
            return expression if isinstance(numba_type, types.Record) else self.unknown(f"a pointer to {numba_type}")
        return _bits(expression, dtype_of(numba_type), _dtype(self, type_))

    def members(self, expression, type_):
        """Return [(expression, Numba type)] of the members of a type's data model; type None marks LLVM values."""
        if isinstance(type_, types.Complex):
            part = type_.underlying_float
            return [(Op("{}.real")(expression), part), (Op("{}.imag")(expression), part)]
        if isinstance(type_, types.Array):
            return self.array_members(expression, type_)
        if isinstance(type_, types.RangeType | types.IteratorType):
            self.unknown(f"a value of type {type_}")
        item = self.b.temporary(expression) if len(expression.operands) else expression
        return [(ops.ITEM(item, i), member) for i, member in enumerate(self.member_types(type_))]

    def member_types(self, type_):
        if isinstance(type_, types.UniTuple | types.NamedUniTuple):
            return [type_.dtype] * type_.count
        model = self.context.data_model_manager[type_]
        if not hasattr(model, "_members"):
            self.unknown(f"a value of type {type_}")
        return list(model._members)

    def array_members(self, view, type_):
        lengths = types.UniTuple(types.intp, type_.ndim)
        member = {
            "nitems": (Op("{}.size")(view), types.intp),
            "itemsize": (scalar(dtype_of(type_.dtype).itemsize, np.int64), types.intp),
            "data": (Op("M.pointer", ops.STATE)(view), None),
            "shape": (calls.array_attribute(view, "shape"), lengths),
            "strides": (calls.array_attribute(view, "strides"), lengths),
        }
        return [member.get(name, (NONE, None)) for name in self.context.data_model_manager[type_]._fields]

    def native(self, value, type_, llvm_type):
        """Return the emulator's expression for an LLVM value of a Numba type."""
        type_ = unliteral(type_)
        if isinstance(value, Native) and unliteral(value.type) == type_:
            return value.expression
        if isinstance(type_, COMPILE_TIME):
            return NONE
        if not isinstance(llvm_type, llvm.Aggregate):
            if isinstance(llvm_type, llvm.PointerType):
                if isinstance(type_, types.Record):
                    return Op("M.record_at", ops.STATE)(self.materialize(value, llvm_type), dtype_of(type_))
                self.unknown(f"a value of type {type_}")
            return _bits(self.materialize(value, llvm_type), _dtype(self, llvm_type), dtype_of(type_))
        items = [self.extract(value, llvm_type, i) for i in range(len(llvm_type.elements))]
        if isinstance(type_, types.Array):
            return self.native_array(items, type_, llvm_type)
        if isinstance(type_, types.Complex):
            members = [type_.underlying_float] * 2
        else:
            members = self.member_types(type_)
        parts = [self.native(v, m, e) for v, m, e in zip(items, members, llvm_type.elements, strict=True)]
        return Op("make_complex")(*parts) if isinstance(type_, types.Complex) else ops.TUPLE(*parts)

    def native_array(self, items, type_, llvm_type):
        fields = self.context.data_model_manager[type_]._fields
        data, shape, strides = (
            self.materialize(items[fields.index(name)], llvm_type.elements[fields.index(name)])
            for name in ("data", "shape", "strides")
        )
        return Op("M.array_at", ops.STATE)(data, dtype_of(type_.dtype), shape, strides)

    # -- aggregates ----------------------------------------------------------------------------------------------------

    def extract(self, value, type_, index) -> Any:
        if isinstance(value, Native):
            value = self.take_apart(value, type_)
        return value[index] if isinstance(value, list) else ops.ITEM(value, index)

    def insert(self, value, type_, path, new):
        """Return an aggregate with one element replaced."""
        if not path:
            return new
        items = [self.extract(value, type_, i) for i in range(len(type_.elements))]
        items[path[0]] = self.insert(items[path[0]], type_.elements[path[0]], path[1:], new)
        return items

    def op_extractvalue(self, instruction):
        value, type_ = self.value(instruction.aggregate), instruction.aggregate.type
        for index in instruction.indices:
            value, type_ = self.extract(value, type_, index), type_.elements[index]
        return value

    def op_insertvalue(self, instruction):
        aggregate = self.value(instruction.aggregate)
        return self.insert(aggregate, instruction.type, tuple(instruction.indices), self.value(instruction.value))

    # -- memory --------------------------------------------------------------------------------------------------------

    def op_alloca(self, instruction):
        if instruction.operands and not _is_one(instruction.operands[0]):
            self.unknown("an array on the stack")
        type_ = instruction.type.pointee
        self.slots.append(Slot(self.b.variable(), type_, self.constant(type_, llvm.Undefined)))
        return Pointer(self.slots[-1], ())

    def contents(self, slot) -> Any:
        if slot.current is None:
            slot.current = self.b.temporary(slot.variable)  # its value now: it may be assigned before that is used
        return slot.current

    def flush(self):
        """Give local variables their values, at the end of a block."""
        for slot in self.slots:
            if slot.changed:
                self.b.emit(self.materialize(slot.current, slot.type), slot.variable)
            slot.current, slot.changed = None, False

    def op_load(self, instruction):
        pointer = self.value(instruction.operands[0])
        if not isinstance(pointer, Pointer):
            return Op("M.load_at({}, {}, m, {})", ops.ACTION)(
                pointer, self.memory_dtype(instruction.type), self.t.site()
            )
        value, type_ = self.contents(pointer.slot), pointer.slot.type
        for index in pointer.path:
            value, type_ = self.extract(value, type_, index), type_.elements[index]
        return value

    def op_store(self, instruction):
        new, target = instruction.operands
        pointer = self.value(target)
        if isinstance(pointer, Pointer):
            slot = pointer.slot
            slot.store(self.insert(self.contents(slot), slot.type, pointer.path, self.value(new)))
            return
        operation = Op("M.store_at({}, {}, {}, m, {})", ops.ACTION | Trait.WRITES)
        self.b.emit(operation(pointer, self.number(new), self.memory_dtype(new.type), self.t.site()))

    def memory_dtype(self, type_):
        if isinstance(type_, llvm.Aggregate | llvm.PointerType):
            self.unknown(f"an access to {type_} in memory")
        return _dtype(self, type_)

    def op_getelementptr(self, instruction):
        pointer, type_ = self.value(instruction.pointer), instruction.pointer.type.pointee
        first, *rest = instruction.indices
        if isinstance(pointer, Pointer):
            if not _is_zero(first) or not all(isinstance(i, llvm.Constant) for i in rest):
                self.unknown("a variable index into a local variable")
            return Pointer(pointer.slot, (*pointer.path, *(i.constant for i in rest)))
        offset = self.bytes_of(first, type_)
        for index in rest:
            if isinstance(type_, llvm.ArrayType):
                type_ = type_.element
                offset = ops.ADD(offset, self.bytes_of(index, type_))
            else:
                before = type_.get_element_offset(self.context.target_data, index.constant)
                offset, type_ = ops.ADD(offset, scalar(before, np.int64)), type_.elements[index.constant]
        return Op("M.moved", ops.STATE)(pointer, offset)

    def op_ptrtoint(self, instruction):
        self.addresses.add(id(instruction))
        return self.value(instruction.operands[0])

    def op_inttoptr(self, instruction):
        (operand,) = instruction.operands
        return self.value(operand) if id(operand) in self.addresses else self.unknown("an address made from a number")

    def op_add(self, instruction):
        a, b = instruction.operands
        for address, offset in ((a, b), (b, a)):
            if id(address) in self.addresses:
                self.addresses.add(id(instruction))
                return Op("M.moved", ops.STATE)(self.value(address), self.number(offset))
        return _BINARY["add"](self, instruction)

    def bytes_of(self, index, type_):
        count = ops.CAST(self.number(index), np.dtype(np.int64))
        return ops.MUL(count, scalar(type_.get_abi_size(self.context.target_data), np.int64))

    # -- numbers -------------------------------------------------------------------------------------------------------

    def op_icmp(self, instruction):
        a, b = (self.number(v) for v in instruction.operands)
        if isinstance(instruction.operands[0].type, llvm.PointerType):
            self.unknown("a comparison of pointers")
        condition = instruction.op
        if condition[0] == "u":
            a, b = (_unsigned(self, v, instruction.operands[0].type) for v in (a, b))
        return _COMPARE[condition.lstrip("su")](a, b)

    def op_fcmp(self, instruction):
        a, b = (self.number(v) for v in instruction.operands)
        condition = instruction.op
        ordered = Op("(({0} == {0}) & ({1} == {1}))")(a, b)
        if condition == "ord":
            return ordered
        if condition == "uno":
            return ops.NOT(ordered)
        compared = _COMPARE[condition[1:]](a, b)
        return ops.AND(compared, ordered) if condition[0] == "o" else ops.OR(compared, ops.NOT(ordered))

    def op_fneg(self, instruction):
        return ops.NEG(self.number(instruction.operands[0]))

    def op_select(self, instruction):
        condition, a, b = instruction.operands
        if isinstance(condition.type, llvm.PointerType) or isinstance(instruction.type, llvm.PointerType):
            self.unknown("a pointer chosen by a condition")
        if isinstance(instruction.type, llvm.Aggregate):
            return Op("merge", Trait.NONE)(self.number(condition), self.number(a), self.number(b))
        return Op("select")(self.number(condition), self.number(a), self.number(b))

    def cast(self, instruction):
        (operand,) = instruction.operands
        name, target = instruction.opname, instruction.type
        if isinstance(target, llvm.PointerType) and isinstance(operand.type, llvm.PointerType):
            return self.value(operand)
        if isinstance(target, llvm.PointerType) or isinstance(operand.type, llvm.PointerType):
            self.unknown(f"{name} of a pointer")
        value, old, new = self.number(operand), _dtype(self, operand.type), _dtype(self, target)
        if name in ("zext", "uitofp"):
            value = _unsigned(self, value, operand.type)
        if name == "sext" and old.kind == "b":
            return ops.NEG(ops.CAST(value, new))
        if name == "trunc" and new.kind == "b":
            return ops.NE(ops.AND(value, scalar(1, old)), scalar(0, old))
        if name == "fptosi":
            return ops.FLOAT_TO_INT(value, new)
        if name == "fptoui":
            unsigned = np.dtype(f"u{new.itemsize}")
            return _bits(ops.FLOAT_TO_INT(value, unsigned), unsigned, new)
        return _bits(value, old, new) if name == "bitcast" else ops.CAST(value, new)

    op_trunc = op_zext = op_sext = op_fptrunc = op_fpext = op_uitofp = op_sitofp = op_fptoui = op_fptosi = cast
    op_bitcast = op_addrspacecast = cast

    # -- control flow --------------------------------------------------------------------------------------------------

    def jump(self, label):
        self.b.end(Jump((label,), site=self.t.site()))

    def edge(self, source, target):
        """Return the label at which lanes go from one block to another: where phi nodes get their values."""
        phis = _phis(target)
        if not phis:
            return self.labels[id(target)]
        here, self.b.current = self.b.current, self.b.new_block()
        label = self.b.current
        incoming = [next(v for v, block in phi.incomings if block is source) for phi in phis]
        values = [self.b.temporary(self.materialize(self.value(v), v.type)) for v in incoming]
        for phi, value in zip(phis, values, strict=True):
            self.b.emit(value, self.values[id(phi)])
        self.jump(self.labels[id(target)])
        self.b.current = here
        return label

    def op_phi(self, instruction):
        return self.values[id(instruction)]

    def op_br(self, instruction):
        self.flush()
        source = instruction.parent
        if len(instruction.operands) == 1:
            self.jump(self.edge(source, instruction.operands[0]))
            return
        condition, *targets = instruction.operands
        condition = self.number(condition)
        labels = tuple(self.edge(source, target) for target in targets)
        self.b.end(Branch(labels, condition, self.t.site()))

    def op_switch(self, instruction):
        self.flush()
        source, value = instruction.parent, self.number(instruction.value)
        for case, target in instruction.cases:
            label, after = self.edge(source, target), self.b.new_block()
            self.b.end(Branch((label, after), ops.EQ(value, self.value(case)), self.t.site()))
            self.b.current = after
        self.jump(self.edge(source, instruction.default))

    def op_ret(self, instruction):
        value = instruction.return_value
        nothing = isinstance(self.return_type, COMPILE_TIME)
        result = None if nothing else self.native(self.value(value), self.return_type, value.type)
        if self.straight:
            self.returned = result
            return
        if self.result is not None:
            self.b.emit(result, self.result)
        self.jump(self.after)

    def op_unreachable(self, instruction):
        self.b.end(Leave(()))
        if self.straight:
            self.returned = NONE

    # -- calls ---------------------------------------------------------------------------------------------------------

    def op_call(self, instruction):
        callee = instruction.callee
        marked = getattr(callee, "marked", None)
        if isinstance(marked, Exception):
            return self.t.raise_exception(marked)
        if marked is not None:
            return self.call_python(instruction, *marked)
        name = getattr(callee, "name", "")
        if not name:
            self.unknown(f"inline assembler ({str(callee)[:60]!r})")
        base = name.split(".")[1] if name.startswith("llvm.") else name.removeprefix("__nv_")
        if base in _IGNORED:
            return NONE
        if name.startswith("llvm.") and base in _INTRINSICS:
            count = len(instruction.args) - (base in ("ctlz", "cttz"))
            return _INTRINSICS[base](*(self.number(a) for a in instruction.args[:count]))
        operation = calls.libdevice_operation(base) if name.startswith("__nv_") else None
        if operation is None:
            self.unknown(f"a call of {name}")
        return self.call_libdevice(instruction, operation)

    def call_libdevice(self, instruction, operation):
        """Call a function of libdevice; what it returns through pointers are the last items of a tuple."""
        pointers = [a for a in instruction.args if isinstance(a.type, llvm.PointerType)]
        result = operation(*(self.number(a) for a in instruction.args if a not in pointers))
        if not pointers:
            return ops.CAST(result, _dtype(self, instruction.type))
        result = self.b.temporary(result)
        returns = not isinstance(instruction.type, llvm.VoidType)
        for i, argument in enumerate(pointers, start=returns):
            pointer = self.value(argument)
            new = ops.CAST(ops.ITEM(result, i), _dtype(self, argument.type.pointee))
            slot = pointer.slot
            slot.store(self.insert(self.contents(slot), slot.type, pointer.path, self.b.temporary(new)))
        return ops.ITEM(result, 0) if returns else NONE

    def call_python(self, instruction, implementation, return_type):
        arguments = []
        for value, type_ in zip(instruction.args, implementation.argument_types, strict=True):
            known = constant_of(type_)
            arguments.append((known or self.native(self.value(value), type_, value.type), type_))
        result = self.t.call_function(implementation.dispatcher, arguments, return_type, return_type)
        return NONE if result is None else Native(self.t.cast(*result, return_type), return_type)


_COMPARE = {
    "eq": ops.EQ,
    "ne": ops.NE,
    **{f"{n}{e}": ops.OPERATORS[getattr(operator, f"{n}{e}")] for n in "lg" for e in "te"},
}
_IGNORED = {"lifetime", "dbg", "assume", "donothing"}
_INTRINSICS = {
    **{n: Op(f"np.{n}") for n in "sqrt floor ceil trunc rint exp exp2 log log2 log10 sin cos copysign".split()},
    **{n: Op(n) for n in ("fma", "gamma")},
    "fmuladd": Op("fma"),
    "nearbyint": Op("np.rint"),
    "fabs": Op("np.abs"),
    "pow": ops.POWER_FLOAT,
    "powi": ops.POWER_FLOAT_INT,
    "minnum": Op("fmin"),
    "maxnum": Op("fmax"),
    "smin": Op("np.minimum"),
    "smax": Op("np.maximum"),
    "ctpop": Op("popc"),
    "ctlz": Op("clz"),
    "cttz": Op("trailing_zeros"),
    "bitreverse": Op("brev"),
}


def _binary(op, unsigned=False, boolean=None):
    def translate(self, instruction):
        a, b = (self.number(v) for v in instruction.operands)
        if boolean and _dtype(self, instruction.type).kind == "b":
            return boolean(a, b)
        if not unsigned:
            return op(a, b)
        dtype = _dtype(self, instruction.type)
        a, b = (_unsigned(self, v, instruction.type) for v in (a, b))
        return _bits(op(a, b), np.dtype(f"u{dtype.itemsize}"), dtype)

    return translate


_XOR = ops.OPERATORS[operator.xor]
_FLOOR, _REST = ops.OPERATORS[operator.floordiv], ops.OPERATORS[operator.mod]
_BINARY = {
    "add": _binary(ops.ADD, boolean=_XOR),
    "sub": _binary(ops.SUB, boolean=_XOR),
    "mul": _binary(ops.MUL, boolean=ops.AND),
    "sdiv": _binary(Op("divide_towards_zero", Trait.QUOTIENT)),
    "srem": _binary(Op("np.fmod", Trait.QUOTIENT)),
    "udiv": _binary(_FLOOR, unsigned=True),
    "urem": _binary(_REST, unsigned=True),
    "fadd": _binary(ops.ADD),
    "fsub": _binary(ops.SUB),
    "fmul": _binary(ops.MUL),
    "fdiv": _binary(ops.DIV),
    "frem": _binary(Op("np.fmod", Trait.QUOTIENT)),
    "and": _binary(ops.AND),
    "or": _binary(ops.OR),
    "xor": _binary(_XOR),
    "shl": _binary(ops.OPERATORS[operator.lshift]),
    "ashr": _binary(ops.OPERATORS[operator.rshift]),
    "lshr": _binary(ops.OPERATORS[operator.rshift], unsigned=True),
}


def _dtype(self, type_):
    """Return the dtype of numbers of an LLVM type."""
    if isinstance(type_, llvm.IntType):
        if type_.width == 1:
            return np.dtype(np.bool_)
        if type_.width in (8, 16, 32, 64):
            return np.dtype(f"i{type_.width // 8}")
    for number, name in ((llvm.HalfType, "f2"), (llvm.FloatType, "f4"), (llvm.DoubleType, "f8")):
        if isinstance(type_, number):
            return np.dtype(name)
    return self.unknown(f"a value of type {type_}")


def _bits(expression, old, new):
    """Read the bits of a number as another type of the same size."""
    if old == new:
        return expression
    if "b" in (old.kind, new.kind):
        return ops.NE(expression, scalar(0, old)) if new.kind == "b" else ops.CAST(expression, new)
    return Op("bitcast")(expression, new)


def _unsigned(self, expression, type_):
    dtype = _dtype(self, type_)
    return expression if dtype.kind == "b" else _bits(expression, dtype, np.dtype(f"u{dtype.itemsize}"))


def _phis(block):
    return [i for i in block.instructions if i.opname == "phi"]


def _is_zero(value):
    return isinstance(value, llvm.Constant) and value.constant == 0


def _is_one(value):
    return isinstance(value, llvm.Constant) and value.constant == 1


def _reverse_postorder(function):
    """Return the reachable blocks so that each comes after those that dominate it."""
    done, order = set(), []

    def visit(block):
        done.add(id(block))
        for target in _targets(block.terminator):
            if id(target) not in done:
                visit(target)
        order.append(block)

    visit(function.entry_basic_block)
    return order[::-1]


def _targets(terminator):
    if terminator.opname == "switch":
        return [terminator.default, *(target for _, target in terminator.cases)]
    return [v for v in terminator.operands if isinstance(v, llvm.Block)]
