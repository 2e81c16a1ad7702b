"""Vector types such as ``float32x4``: a vector, of any shape, is a tuple of its elements."""

import operator

from warpstep._numba import VectorType, types, unliteral, vector_parts
from warpstep.compiler import ops
from warpstep.compiler.expressions import Op
from warpstep.compiler.values import counted

_COMPLEX = Op("make_complex")
_ABS, _REAL, _IMAG = Op("np.abs"), Op("{}.real"), Op("{}.imag")


def is_vector(type_) -> bool:
    return isinstance(unliteral(type_), VectorType)


def elements(t, operand, type_, as_type, length):
    """Return the elements of a vector as another type; a number stands for as many."""
    if not is_vector(type_):
        return [t.b.temporary(t.value(operand, as_type))] * length
    items = t.b.temporary(t.value(operand))
    return [t.cast(ops.ITEM(items, i), vector_parts(type_)[0], as_type) for i in range(length)]


def construct(t, call):
    """Translate ``float32x4(a, b, c, d)``: arguments may be vectors too, and one number fills all."""
    element, length = vector_parts(call.result)
    parts = []
    for argument, type_ in zip(call.arguments, call.types, strict=True):
        if isinstance(type_, types.Complex):
            value = t.b.temporary(t.value(argument))
            parts += [t.cast(part(value), type_.underlying_float, element) for part in (_REAL, _IMAG)]
        else:
            parts += elements(t, argument, type_, element, vector_parts(type_)[1] if is_vector(type_) else 1)
    return ops.TUPLE(*(parts * length if len(parts) == 1 else parts)), call.result


def as_complex(t, expression, type_, to_type):
    """Convert a vector of two elements to a complex number."""
    items = t.b.temporary(expression)
    element, part = vector_parts(type_)[0], to_type.underlying_float
    return _COMPLEX(*(t.cast(ops.ITEM(items, i), element, part) for i in range(2)))


def operation(t, function, signature, operands):
    """Apply an operator element by element."""
    element, length = vector_parts(signature.return_type)
    columns = [elements(t, v, at, element, length) for v, at in zip(operands, signature.args, strict=True)]
    op = _operator(function, isinstance(element, types.Float))
    if op is None:
        return t.unsupported(f"the operator {function.__name__} on {signature.args[0]}")
    return ops.TUPLE(*(counted(op(*row), element) for row in zip(*columns, strict=True))), signature.return_type


def _operator(function, is_float):
    if function is operator.floordiv:
        return ops.FLOOR_DIVIDE_FLOAT if is_float else ops.FLOOR_DIVIDE
    if function is operator.mod and is_float:
        return ops.MODULO_FLOAT
    return _ABS if function is abs else ops.OPERATORS.get(function)
