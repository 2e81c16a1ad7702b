"""From the blocks of a lowered kernel to one LLVM function that runs threads one after another.

``run(words, first, last, control)`` runs the threads ``first`` to ``last`` of the grid, in the order of their blocks.
``words`` holds the launch and its arguments. The result says how it ended: see `values.Status`. ``control`` is

0     set by the host to stop early
1     turns that the loops of a thread may take
2-4   address of the log of what stores have overwritten, its capacity and length, in entries of two words
"""

import ctypes
from typing import Any

import numpy as np

from warpstep.compiler.blocks import Branch, Jump, Leave
from warpstep.compiler.expressions import LITERAL, VARIABLE
from warpstep.limits import POISON
from warpstep.machine.memory import View
from warpstep.threadwise.engine import Engine, ir
from warpstep.threadwise.table import HANDLERS
from warpstep.threadwise.ufuncs import ufunc_handler
from warpstep.threadwise.values import (
    BOOL,
    FLOATS,
    I1,
    I32,
    I64,
    INT64,
    NOTHING,
    POINTER,
    Array,
    Buffer,
    Complex,
    NotNative,
    Number,
    Record,
    Static,
    Status,
    Tuple,
    llvm_type,
    memory_type,
)

#: Words of a launch before those of its arguments: extents of a block, of the grid, tag of the shadows.
HEADER = 7
#: Back edges of a thread between two looks at the host's wish to stop.
POLL = 1 << 16
#: Bytes of local arrays that a thread may have on the stack.
MAX_LOCAL_BYTES = 1 << 17

#: Where an entry of the log has the size of its store, above the bits of an address.
LOG_SIZE_SHIFT = 60

#: What a shadow notes in place of one thread: an atomic operation, or several threads.
ATOMIC, MANY = 0xFFFFFFFE, 0xFFFFFFFF


def compile_kernel(program, forms, shadowed, logged):
    """Compile a kernel for arguments of these forms; returns a `Compiled`.

    ``shadowed``: the arguments whose accesses are watched for conflicts between threads.
    ``logged``: True to log what stores overwrite.
    """
    try:
        function = Function(program, forms, shadowed, logged)
        return Compiled(function, Engine(function.module))
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise NotNative(f"a value of another kind than its operation takes: {error}") from error


class Compiled:
    """Machine code of one kernel for one form of its arguments."""

    def __init__(self, function, engine):
        self.engine = engine
        self.keep = function.keep
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self.run = kind(engine.address("run"))


class Function:
    """One function under construction."""

    def __init__(self, program, forms, shadowed, logged):
        self.blocks = program.blocks
        self.shadowed = shadowed
        self.logged = logged
        self.keep = []
        self.variables = {}
        self.locals = {}
        self.local_bytes = 0
        self.module = ir.Module("kernel")
        type_ = ir.FunctionType(I32, [POINTER, I64, I64, POINTER])
        self.function = ir.Function(self.module, type_, "run")
        self.entry = self.function.append_basic_block("entry")
        self.slots = ir.IRBuilder(self.entry)  # allocas and what is read once
        self._words = self.slots.bitcast(self.function.args[0], I64.as_pointer())
        self._next_word = HEADER
        self.b = self.slots
        self.exits = {}
        self._header()
        for parameter, form in zip(program.parameters, forms, strict=True):
            self.write(parameter, self._argument(form))
        self._lanes()

    # -- arguments -----------------------------------------------------------------------------------------------------

    def _word(self, place=None):
        if place is None:
            place, self._next_word = self._next_word, self._next_word + 1
        return self.slots.load(self.slots.gep(self._words, [ir.Constant(I64, place)]))

    def _header(self):
        self.block_extents = [self.slots.trunc(self._word(i), I32) for i in range(3)]
        self.grid_extents = [self.slots.trunc(self._word(i), I32) for i in range(3, 6)]
        self.tag = self._word(6)

    def _argument(self, form) -> Any:
        kind = form[0]
        if kind == "none":
            return NOTHING
        if kind == "tuple":
            return Tuple(self._argument(item) for item in form[1])
        if kind == "number":
            return self._number(form[1])
        if kind == "complex":
            part = np.dtype(f"f{form[1].itemsize // 2}")
            return Complex(self._number(part).value, self._number(part).value, form[1])
        if kind == "record":
            _, key, dtype = form
            return Record(self._buffer(key, "global", False, dtype.itemsize), dtype, self._pointer())
        _, key, dtype, ndim, space, dense, tracked, itemsize = form
        buffer = self._buffer(key, space, tracked, itemsize)
        pointer = self._pointer()
        shape = tuple(self._word() for _ in range(ndim))
        strides = [self._word() for _ in range(ndim)]
        if dense:
            strides[-1] = ir.Constant(I64, dtype.itemsize)
        return Array(buffer, dtype, pointer, shape, tuple(strides))

    def _number(self, dtype):
        word = self._word()
        if dtype.kind == "f" and dtype.itemsize in FLOATS:
            bits = self.slots.trunc(word, I32) if dtype.itemsize == 4 else word
            return Number(self.slots.bitcast(bits, llvm_type(dtype)), dtype)
        type_ = llvm_type(dtype)
        return Number(word if type_ == I64 else self.slots.trunc(word, type_), dtype)

    def _pointer(self):
        return self.slots.inttoptr(self._word(), POINTER)

    def _buffer(self, key, space, tracked, itemsize):
        start, known = self._pointer(), self._pointer()
        shadow = self._pointer()
        return Buffer(
            key, space, start, shadow if key[0] in self.shadowed else None, known if tracked else None, itemsize
        )

    # -- threads -------------------------------------------------------------------------------------------------------

    def _lanes(self):
        """Write the loop over the threads around the body."""
        s = self.slots
        self.lane = s.alloca(I64)
        self.turns = s.alloca(I64)
        self.thread = [s.alloca(I32) for _ in range(3)]
        self.block = [s.alloca(I32) for _ in range(3)]
        control = s.bitcast(self.function.args[3], I64.as_pointer())
        self.control = [s.gep(control, [ir.Constant(I64, i)]) for i in range(5)]
        self.limit = s.load(self.control[1])
        self.log = s.inttoptr(s.load(self.control[2]), I64.as_pointer())
        self.capacity = s.load(self.control[3])
        self.log_length = s.alloca(I64)
        s.store(s.load(self.control[4]), self.log_length)
        first, self.last = self.function.args[1:3]
        s.store(first, self.lane)
        rest = first
        for slot, extent in zip((*self.thread, *self.block), (*self.block_extents, *self.grid_extents), strict=True):
            wide = s.zext(extent, I64)
            s.store(s.trunc(s.urem(rest, wide), I32), slot)
            rest = s.udiv(rest, wide)
        head, self.after = (self.function.append_basic_block(name) for name in ("lane", "after"))
        done = self.function.append_basic_block("done")
        body = self._body()
        s.branch(head)
        h = ir.IRBuilder(head)
        h.store(ir.Constant(I64, 0), self.turns)
        for array, nbytes in self.locals.values():
            poison(h, array, nbytes)
        h.cbranch(h.icmp_signed("<", h.load(self.lane), self.last), body, done)
        self._next_lane(head)
        self._return(done, Status.DONE)

    def _next_lane(self, head):
        """Move on to the next thread: x of the thread fastest, z of the block slowest."""
        b = ir.IRBuilder(self.after)
        b.store(b.add(b.load(self.lane), ir.Constant(I64, 1)), self.lane)
        zero, one = ir.Constant(I32, 0), ir.Constant(I32, 1)
        for slot, extent in zip((*self.thread, *self.block), (*self.block_extents, *self.grid_extents), strict=True):
            value = b.add(b.load(slot), one)
            b.store(value, slot)
            carry = self.function.append_basic_block("carry")
            b.cbranch(b.icmp_unsigned("<", value, extent), head, carry)
            b = ir.IRBuilder(carry)
            b.store(zero, slot)
        b.branch(head)

    def exit(self, status):
        """Return the block that ends the function with a status."""
        if status not in self.exits:
            self.exits[status] = self.function.append_basic_block(status.name.lower())
            self._return(self.exits[status], status)
        return self.exits[status]

    def _return(self, block, status):
        b = ir.IRBuilder(block)
        if self.logged:
            b.store(b.load(self.log_length), self.control[4])
        b.ret(ir.Constant(I32, int(status)))

    def leave_if(self, condition, status):
        """End with a status where the condition is true."""
        go_on = self.function.append_basic_block()
        self.b.cbranch(
            condition,
            self.exit(status),
            go_on,
        ).set_weights([1, 1 << 20])
        self.b.position_at_end(go_on)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _body(self):
        order = reverse_postorder(self.blocks)
        rank = {label: i for i, label in enumerate(order)}
        entries = {label: self.function.append_basic_block(f"block{label}") for label in order}
        self.b = ir.IRBuilder(self.entry)
        for label in order:
            self.b.position_at_end(entries[label])
            block = self.blocks[label]
            for statement in block.statements:
                value = self.evaluate(statement.expression)
                if statement.target is not None:
                    self.write(statement.target, value)
            end = block.end
            if any(rank[target] <= rank[label] for target in end.targets):
                self._turn()
            if isinstance(end, Leave):
                if end.operand is not None:
                    raise NotNative("a recursive function")
                self.b.branch(self.after)
            elif isinstance(end, Branch):
                condition = self.evaluate(end.operand)
                self.b.cbranch(condition.value, *(entries[target] for target in end.targets))
            elif isinstance(end, Jump):
                self.b.branch(entries[end.targets[0]])
            else:
                raise NotNative("a barrier")
        return entries[order[0]]

    def _turn(self):
        """Count a back edge; now and then see if the host wants to stop, or if the thread has had all its turns."""
        b = self.b
        count = b.add(b.load(self.turns), ir.Constant(I64, 1))
        b.store(count, self.turns)
        poll, go_on = (self.function.append_basic_block(name) for name in ("poll", "go_on"))
        often = b.icmp_signed("==", b.and_(count, ir.Constant(I64, POLL - 1)), ir.Constant(I64, 0))
        b.cbranch(often, poll, go_on).set_weights([1, 1 << 20])
        b.position_at_end(poll)
        wish = b.load(self.control[0])
        wish.volatile = True
        self.leave_if(b.icmp_signed("!=", wish, ir.Constant(I64, 0)), Status.STOPPED)
        self.leave_if(b.icmp_signed(">", count, self.limit), Status.TURNS)
        b.branch(go_on)
        b.position_at_end(go_on)

    # -- variables -----------------------------------------------------------------------------------------------------

    def write(self, variable, value):
        known = self.variables.get(variable)
        if known is None:
            slots = [self.slots.alloca(part.type) for part in value.parts]
            known = self.variables[variable] = value, slots
        elif known[0].form != value.form:
            raise NotNative(f"a variable of two forms: {known[0].form} and {value.form}")
        for part, slot in zip(value.parts, known[1], strict=True):
            self.b.store(part, slot)

    def read(self, variable):
        if variable not in self.variables:
            raise NotNative("a variable that is read before it is written")
        value, slots = self.variables[variable]
        return value.like([self.b.load(slot) for slot in slots])

    # -- expressions ---------------------------------------------------------------------------------------------------

    def evaluate(self, expression) -> Any:
        """Generate code for an expression; returns its value."""
        op = expression.op
        if op is VARIABLE:
            return self.read(expression)
        if op is LITERAL:
            return self.literal(expression.value)
        handler = HANDLERS.get(op.template) or ufunc_handler(op.template)
        if handler is None:
            raise NotNative(op.template)
        return handler(self, *(self.evaluate(operand) for operand in expression.operands))

    def literal(self, value):
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return self.number(value, value.dtype)
        if isinstance(value, np.complexfloating):
            part = np.dtype(f"f{value.dtype.itemsize // 2}")
            return Complex(self.number(value.real, part).value, self.number(value.imag, part).value, value.dtype)
        return self._captured(value) if isinstance(value, View) else Static(value)

    def number(self, value, dtype):
        """Return a constant."""
        dtype, type_ = np.dtype(dtype), llvm_type(np.dtype(dtype))
        if dtype.kind != "f":
            return Number(ir.Constant(type_, int(value)), dtype)
        bits = np.array(value, dtype).view(f"u{dtype.itemsize}")
        return Number(ir.Constant(ir.IntType(8 * dtype.itemsize), int(bits)).bitcast(type_), dtype)

    def _captured(self, view):
        """Return an array that the kernel found as a global."""
        if view.items.dtype != view.dtype or not isinstance(view.base, int):
            raise NotNative("a captured array of unaligned elements")
        self.keep.append(view)
        size = view.dtype.itemsize
        start = view.items.ctypes.data

        def word(value):
            return ir.Constant(I64, int(value))

        pointer = word(start + view.base * size).inttoptr(POINTER)
        buffer = Buffer(("captured", id(view.items)), "const", word(start).inttoptr(POINTER), itemsize=size)
        return Array(
            buffer, view.dtype, pointer, tuple(map(word, view.shape)), tuple(word(s * size) for s in view.strides)
        )

    def local_array(self, key, shape, dtype):
        """Return a thread's own array, filled with poison when the thread starts."""
        if key not in self.locals:
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            self.local_bytes += nbytes
            if self.local_bytes > MAX_LOCAL_BYTES or dtype.names:
                raise NotNative("local arrays of this size or type")
            array = self.slots.alloca(ir.ArrayType(ir.IntType(8), max(nbytes, 1)))
            array.align = 16
            self.locals[key] = self.slots.bitcast(array, POINTER), nbytes
        pointer = self.locals[key][0]
        extents, strides, step = [], [], dtype.itemsize
        for extent in reversed(shape):
            extents.insert(0, ir.Constant(I64, extent))
            strides.insert(0, ir.Constant(I64, step))
            step *= extent
        buffer = Buffer(("local", key), "local", pointer, itemsize=dtype.itemsize)
        return Array(buffer, dtype, pointer, tuple(extents), tuple(strides))

    # -- memory --------------------------------------------------------------------------------------------------------

    def element(self, array, index):
        """Return the address of an element, its index checked; negative ones count from the end."""
        if len(index) != len(array.shape):
            raise NotNative("an index of another number of dimensions")
        pointer = array.pointer
        for i, extent, stride in zip(index, array.shape, array.strides, strict=True):
            pointer = self.b.gep(pointer, [self.b.mul(self.inside(i, extent), stride)])
        return pointer

    def inside(self, index, extent):
        b = self.b
        index = self.cast(index, INT64).value
        negative = b.icmp_signed("<", index, ir.Constant(I64, 0))
        index = b.select(negative, b.add(index, extent), index)
        self.leave_if(b.icmp_unsigned(">=", index, extent), Status.ERROR)
        return index

    def load(self, buffer, pointer, dtype, note=True) -> Any:
        """Load a number from a checked address."""
        if note and buffer.shadow is not None:
            self._note_read(buffer, pointer)
        if dtype.kind == "c":
            part = np.dtype(f"f{dtype.itemsize // 2}")
            second = self.b.gep(pointer, [ir.Constant(I64, part.itemsize)])
            return Complex(self._load(pointer, part), self._load(second, part), dtype)
        return Number(self._load(pointer, dtype), dtype)

    def _load(self, pointer, dtype):
        value = self.b.load(self.b.bitcast(pointer, memory_type(dtype).as_pointer()), align=1)
        return self.b.icmp_unsigned("!=", value, ir.Constant(value.type, 0)) if dtype.kind == "b" else value

    def store(self, buffer, pointer, value: Any, atomic=False):
        """Store a number at a checked address."""
        if buffer.space == "const":
            raise NotNative("a store to constant memory")
        if buffer.shadow is not None:
            self._note_write(buffer, pointer, value, atomic)
        if buffer.known is not None:
            place = self.b.gep(buffer.known, [self._number_of(buffer, pointer)])
            self._store(buffer, place, ir.Constant(I1, 1), BOOL)
        if isinstance(value, Complex):
            second = self.b.gep(pointer, [ir.Constant(I64, value.part_dtype.itemsize)])
            self._store(buffer, pointer, value.real, value.part_dtype)
            self._store(buffer, second, value.imag, value.part_dtype)
        else:
            self._store(buffer, pointer, value.value, value.dtype)

    def _store(self, buffer, pointer, value, dtype):
        type_ = memory_type(dtype)
        if self.logged and buffer.space != "local":
            self._note_old(pointer, dtype)
        value = self.b.zext(value, type_) if dtype.kind == "b" else value
        self.b.store(value, self.b.bitcast(pointer, type_.as_pointer()), align=1)

    def _note_old(self, pointer, dtype):
        """Log what a store overwrites: its address, with the binary logarithm of its size on top, and the old bits."""
        b = self.b
        length = b.load(self.log_length)
        self.leave_if(b.icmp_signed(">=", length, self.capacity), Status.FULL)
        entry = b.gep(self.log, [b.shl(length, ir.Constant(I64, 1))])
        old = b.load(b.bitcast(pointer, ir.IntType(8 * dtype.itemsize).as_pointer()), align=1)
        size = ir.Constant(I64, (dtype.itemsize.bit_length() - 1) << LOG_SIZE_SHIFT)
        b.store(b.or_(b.ptrtoint(pointer, I64), size), entry)
        b.store(old if dtype.itemsize == 8 else b.zext(old, I64), b.gep(entry, [ir.Constant(I64, 1)]))
        b.store(b.add(length, ir.Constant(I64, 1)), self.log_length)

    # -- conflicts between threads -------------------------------------------------------------------------------------

    def _number_of(self, buffer, pointer):
        distance = self.b.sub(self.b.ptrtoint(pointer, I64), self.b.ptrtoint(buffer.start, I64))
        return self.b.udiv(distance, ir.Constant(I64, buffer.itemsize))

    def _shadow(self, buffer, pointer):
        """Return this thread's mark, and where the last writer and the readers of an element are noted."""
        b = self.b
        place = b.shl(self._number_of(buffer, pointer), ir.Constant(I64, 4))
        writer = b.bitcast(b.gep(buffer.shadow, [place]), I64.as_pointer())
        reader = b.gep(writer, [ir.Constant(I64, 1)])
        return b.or_(self.tag, b.load(self.lane)), writer, reader

    def _mark(self, mark):
        return self.b.or_(self.tag, ir.Constant(I64, mark))

    def _is_other(self, noted, me):
        """True if another thread is noted in this launch: marks of earlier ones are less than the tag."""
        b = self.b
        return b.and_(b.icmp_unsigned(">=", noted, self.tag), b.icmp_unsigned("!=", noted, me))

    def _note_reader(self, me, reader):
        b = self.b
        noted = b.load(reader)
        b.store(b.select(self._is_other(noted, me), self._mark(MANY), me), reader)

    def _note_read(self, buffer, pointer):
        me, writer, reader = self._shadow(buffer, pointer)
        self.leave_if(self._is_other(self.b.load(writer), me), Status.CONFLICT)
        self._note_reader(me, reader)

    def _note_write(self, buffer, pointer, value, atomic):
        """Note a write. One that changes nothing is no conflict with other such writes."""
        b = self.b
        me, writer, reader = self._shadow(buffer, pointer)
        changed = self._differs(pointer, value)
        noted = b.load(writer)
        other = self._is_other(noted, me)
        if atomic:
            other = b.and_(other, b.icmp_unsigned("!=", noted, self._mark(ATOMIC)))
        other = b.or_(other, self._is_other(b.load(reader), me))
        self.leave_if(b.and_(changed, other), Status.CONFLICT)
        b.store(b.select(changed, self._mark(ATOMIC) if atomic else me, noted), writer)
        if not atomic:
            with b.if_then(b.not_(changed)):
                self._note_reader(me, reader)

    def _differs(self, pointer, value: Any):
        if isinstance(value, Complex):
            second = self.b.gep(pointer, [ir.Constant(I64, value.part_dtype.itemsize)])
            halves = (pointer, value.real), (second, value.imag)
            return self.b.or_(*(self._differs(p, Number(v, value.part_dtype)) for p, v in halves))
        if value.dtype.kind == "f":
            bits = ir.IntType(8 * value.dtype.itemsize)
            now = self.b.load(self.b.bitcast(pointer, bits.as_pointer()), align=1)
            return self.b.icmp_unsigned("!=", now, self.b.bitcast(value.value, bits))
        return self.b.icmp_unsigned("!=", self._load(pointer, value.dtype), value.value)

    # -- numbers -------------------------------------------------------------------------------------------------------

    def cast(self, number, dtype) -> Any:
        """Convert as NumPy's astype: integers wrap."""
        dtype = np.dtype(dtype)
        if isinstance(number, Complex) or dtype.kind == "c":
            return self._cast_complex(number, dtype)
        old, b, value = number.dtype, self.b, number.value
        if old == dtype:
            return number
        type_ = llvm_type(dtype)
        if dtype.kind == "b":
            zero = ir.Constant(value.type, 0)
            result = b.fcmp_unordered("!=", value, zero) if old.kind == "f" else b.icmp_unsigned("!=", value, zero)
        elif dtype.kind == "f":
            if old.kind == "f":
                result = b.fpext(value, type_) if dtype.itemsize > old.itemsize else b.fptrunc(value, type_)
            else:
                result = b.sitofp(value, type_) if old.kind == "i" else b.uitofp(value, type_)
        elif old.kind == "f":
            raise NotNative("a conversion that may overflow")
        elif value.type.width >= type_.width:
            result = value if value.type == type_ else b.trunc(value, type_)
        else:
            result = b.sext(value, type_) if old.kind == "i" else b.zext(value, type_)
        return Number(result, dtype)

    def _cast_complex(self, number, dtype):
        if dtype.kind != "c":
            raise NotNative("a conversion of a complex number to a real one")
        part = np.dtype(f"f{dtype.itemsize // 2}")
        if isinstance(number, Complex):
            real, imag = (self.cast(Number(v, number.part_dtype), part) for v in (number.real, number.imag))
        else:
            real, imag = self.cast(number, part), self.number(0, part)
        return Complex(real.value, imag.value, dtype)

    def call(self, name, result, arguments):
        """Call an LLVM intrinsic or a function of the C library."""
        type_ = ir.FunctionType(result, [a.type for a in arguments])
        function = self.module.globals.get(name) or ir.Function(self.module, type_, name)
        return self.b.call(function, arguments)


def poison(builder, pointer, nbytes):
    module = builder.function.module
    type_ = ir.FunctionType(ir.VoidType(), [POINTER, ir.IntType(8), I64, I1])
    name = "llvm.memset.p0i8.i64"
    function = module.globals.get(name) or ir.Function(module, type_, name)
    builder.call(function, [pointer, ir.Constant(ir.IntType(8), POISON), ir.Constant(I64, nbytes), ir.Constant(I1, 0)])


def reverse_postorder(blocks):
    """Return the labels of blocks in an order in which only the back edges of loops go backwards."""
    done, order = {0}, []
    stack = [(0, iter(blocks[0].end.targets))]
    while stack:
        label, targets = stack[-1]
        target = next((t for t in targets if t not in done), None)
        if target is None:
            order.append(label)
            stack.pop()
        else:
            done.add(target)
            stack.append((target, iter(blocks[target].end.targets)))
    return order[::-1]
