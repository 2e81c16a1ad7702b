"""The operations of lowered kernels that the translation shares with the analyses.

In a template K is the batch, M its memory and m the mask of the running lanes.
"""

import operator

from warpstep.compiler.expressions import Op, Trait

#: Reads the state of the machine, which may differ by lane; changes it, or may fail.
STATE = Trait.IMPURE | Trait.LANES
ACTION = STATE | Trait.EFFECT

# -- values ------------------------------------------------------------------------------------------------------------

#: A tuple; a tuple that indexes an array; an index of a type without a sign.
TUPLE, INDEX, UNSIGNED = Op("()"), Op("()"), Op("{}")
ITEM, TUPLE_ITEM = Op("{}[{}]"), Op("K.tuple_item({}, {}, m, {})", ACTION)
SLICE, TO_INDEX = Op("slice"), Op("to_index")
CAST, FLOAT_TO_INT = Op("({}).astype({})"), Op("float_to_int")
ADD, SUB, MUL, DIV = Op("({} + {})"), Op("({} - {})", Trait.NEGATIVE), Op("({} * {})"), Op("({} / {})", Trait.QUOTIENT)
NEG, POS, NOT = Op("(-{})", Trait.NEGATIVE), Op("(+{})"), Op("np.logical_not")
AND, OR, EQ, NE = Op("({} & {})"), Op("({} | {})"), Op("({} == {})"), Op("({} != {})")
FLOOR_DIVIDE = Op("floor_divide", Trait.QUOTIENT)
FLOOR_DIVIDE_FLOAT = Op("floor_divide_float", Trait.QUOTIENT)
MODULO_FLOAT = Op("modulo_float", Trait.QUOTIENT)
POWER_CONSTANT, POWER_INT = Op("power_constant"), Op("power_int")
POWER_FLOAT, POWER_FLOAT_INT = Op("power_float"), Op("power_float_int")
OPERATORS = {
    operator.add: ADD,
    operator.sub: SUB,
    operator.mul: MUL,
    operator.truediv: DIV,
    operator.floordiv: Op("({} // {})", Trait.QUOTIENT),
    operator.mod: Op("({} % {})", Trait.QUOTIENT),
    operator.and_: AND,
    operator.or_: OR,
    operator.xor: Op("({} ^ {})"),
    operator.lshift: Op("({} << {})"),
    operator.rshift: Op("({} >> {})"),
    operator.lt: Op("({} < {})"),
    operator.le: Op("({} <= {})"),
    operator.gt: Op("({} > {})"),
    operator.ge: Op("({} >= {})"),
    operator.eq: EQ,
    operator.ne: NE,
    operator.is_: EQ,
    operator.is_not: NE,
    operator.neg: NEG,
    operator.pos: POS,
    operator.invert: Op("(~{})"),
}

# -- the machine -------------------------------------------------------------------------------------------------------

#: Indices and dimensions along an axis, by their names in ``numba.cuda``.
DIM3 = {
    "threadIdx": Op("K.thread[{}]", Trait.LAUNCH | Trait.LANES),
    "blockIdx": Op("K.block[{}]", Trait.LAUNCH),
    "blockDim": Op("K.thread_count[{}]", Trait.LAUNCH),
    "gridDim": Op("K.block_count[{}]", Trait.LAUNCH),
}
GRID = Op("K.grid({})", Trait.LAUNCH | Trait.LANES | Trait.NEGATIVE)
GRIDSIZE = Op("K.gridsize({})", Trait.LAUNCH | Trait.NEGATIVE)
#: A range; one step of it: (value, whether there is one, range after it); the first two of a step; its last.
RANGE = Op("K.range({}, {}, {}, m, {})", Trait.IMPURE)
RANGE_NEXT, PAIR, AFTER = Op("range_next", Trait.EFFECT), Op("({0}[0], {0}[1])"), Op("{}[2]")
SHARED_ARRAY = Op("K.shared_array", STATE)
LOCAL_ARRAY = Op("K.local_array", STATE)
#: Accesses. Operands: array, index, value to store or number of elements, site.
LOAD = Op("load({}, {}, m, {})", ACTION)
STORE = Op("store({}, {}, {}, m, {})", ACTION | Trait.WRITES)
LOAD_WIDE = Op("M.load_wide({}, {}, {}, m, {})", ACTION)
STORE_WIDE = Op("M.store_wide({}, {}, {}, m, {})", ACTION | Trait.WRITES)
ATOMIC = Op("atomic(M, {1}, {0}, {2}, {3}, {4}, m, {5}, wants_old=True)", ACTION | Trait.WRITES)
ATOMIC_UNUSED = Op(ATOMIC.template.replace("True", "False"), ATOMIC.traits)
#: Parts of arrays, and records.
WINDOW = Op("M.window({}, {}, m, {})", ACTION)
ASSIGN_SLICE = Op("M.assign_slice({}, {}, {}, m, {})", ACTION | Trait.WRITES)
RECORD = Op("M.record({}, {}, m, {})", ACTION)
CONSTANT_RECORD = Op("M.record({}, {}, None, None)", STATE)
COPY_RECORD = Op("M.copy_record({}, {}, m, {})", ACTION | Trait.WRITES_ANY)
LOAD_FIELD = Op("M.load_field({}, {}, m, {})", ACTION)
STORE_FIELD = Op("M.store_field({}, {}, {}, m, {})", ACTION | Trait.WRITES_ANY)
#: A call of a function that calls itself.
RUN = Op("{}.run(K, m, *{})", ACTION | Trait.WRITES_ANY)
PRINT = Op("K.print(m, {})", ACTION)
RAISED = Op("K.raised({}, m, {})", ACTION)
CHECK_LENGTH = Op("K.check_length({}, m, {}, {})", ACTION)
CHECK_DIVISOR = Op("K.check_divisor({}, m, {})", ACTION)
#: For the debugger: the start of a line, a breakpoint, the value of a variable of the source.
STOP, BREAKPOINT = Op("K.stop({}, m)", ACTION), Op("K.breakpoint({}, m)", ACTION)
NOTE = Op("K.note({}, {}, m)", ACTION)
