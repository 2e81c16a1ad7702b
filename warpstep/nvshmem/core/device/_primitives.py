"""What the functions for kernels are made of: their types, and what the emulator does for each."""

from collections.abc import Callable
from typing import Any

from warpstep._numba import AbstractTemplate, TypingError, cudadecl, signature, types
from warpstep.compiler import calls, ops
from warpstep.compiler.expressions import Op, Trait


def _register(function: Callable, types_of: Callable, expression: Callable) -> None:
    """Make a function for kernels of a stub: ``types_of(*argument types)`` gives its result and arguments."""

    @cudadecl.registry.register_global(function)
    class Template(AbstractTemplate):
        key = function

        def generic(self, args, kws):
            found = types_of(*args)
            return None if found is None else signature(*found)

    calls.entry(function)(expression)


def _is_array(type_):
    return isinstance(type_, types.Array)


def _no_arguments(result):
    return lambda *args: None if args else (result,)


def _flat_types(array):
    return (types.Array(array.dtype, 1, "C"), array) if _is_array(array) else None


def _peer_types(array, pe):
    if not _is_array(array) or not isinstance(pe, types.Integer):
        return None
    return array, array, types.int32


def _order_types(array):
    return (types.void, array) if _is_array(array) else None


def _wait_types(array, comparison, wanted):
    return (types.void, array, types.int64, types.int64) if _is_array(array) else None


def _signal_types(function, takes, result):
    """Type a signal's word by the arguments of a function of the package's bindings, which has this one case."""
    case = f"({', '.join(takes)}) -> {result}"

    def types_of(signal_var, *numbers):
        if not _is_array(signal_var) or signal_var.layout != "C":
            raise TypingError(f"from_buffer() unsupported on non-contiguous buffers (got {signal_var})")
        convertible = types.Integer, types.Float, types.Boolean, types.IntEnumMember
        if signal_var.dtype != types.uint64 or not all(isinstance(number, convertible) for number in numbers):
            given = ", ".join(map(str, (f"{signal_var.dtype}*", *map(types.unliteral, numbers))))
            raise TypingError(f"No match for {function}({given}). Registered cases:\n * {case}")
        return types.Array(types.uint64, 1, "C"), signal_var, *numbers

    return types_of


_FLAT, _PEER = Op("flat_elements(K, {}, {})", ops.STATE), Op("peer_array(K, {}, {}, m, {})", ops.ACTION)


def my_pe() -> Any:
    """The number of this processing element."""


def n_pes() -> Any:
    """How many processing elements there are."""


def flat(array) -> Any:
    """The elements of a contiguous array, as one dimension."""


def signal_to_wait_for(signal_var, signal_op, signal_val) -> Any:
    """The word of a signal that `signal_wait` waits for."""


def signal_to_change(signal_var, signal_val, signal_op, pe) -> Any:
    """The word of a signal that `signal_op` changes on another element, the own one."""


def as_word(value) -> Any:
    """A number as a signal has it."""


def _emulate_flat(t, call):
    return _FLAT(t.value(call.arguments[0]), t.site()), call.result


def _emulate_peer(t, call):
    pe = t.value(call.arguments[1], types.int32)
    return _PEER(t.value(call.arguments[0]), pe, t.site(call.arguments[0].unversioned_name)), call.result


def get_peer_array(arr, pe) -> Any:
    """The counterpart of a symmetric array on another element, for loads, stores and atomic operations.

    ``arr`` is an array of `nvshmem.core.array`, or a part of one; ``pe`` the number of the element.
    """


_WORDS = Op("sync_words(K, {})", ops.STATE)


def sync_words() -> Any:
    """The words in which barriers of all elements count."""


def _ordering(what):
    """A primitive that notes ``what`` for a trace; it takes nothing, or the word of a signal and what it waits for."""

    def expression(t, call):
        word = t.value(call.arguments[0]) if call.arguments else None
        wanted = [t.value(argument, types.int64) for argument in call.arguments[1:]] or [None, None]
        t.b.emit(Op("K.between_elements({}, m, {}, {}, {})", ops.ACTION | Trait.WRITES_ANY)(what, word, *wanted))

    return expression


def complete_puts():
    """Note that all puts so far are complete."""


def begin_data():
    """Note that what is put from here to the signal goes before the signal."""


def released_by_set(word):
    """Note that a signal has been set."""


def released_by_add(word):
    """Note that a signal has been increased."""


def acquired(word, comparison, wanted):
    """Note that a wait for a signal is over."""


_register(my_pe, _no_arguments(types.int32), lambda t, call: (Op("my_pe(K, {})", ops.STATE)(t.site()), call.result))
_register(n_pes, _no_arguments(types.int32), lambda t, call: (Op("n_pes(K, {})", ops.STATE)(t.site()), call.result))
_register(flat, _flat_types, _emulate_flat)
_register(
    signal_to_wait_for, _signal_types("signal_wait_until", ("uint64*", "int32", "uint64"), "uint64"), _emulate_flat
)
_register(signal_to_change, _signal_types("signal_op", ("uint64*", "uint64", "int32", "int32"), "void"), _emulate_flat)
_register(
    as_word,
    lambda value: (types.uint64, value),
    lambda t, call: (t.value(call.arguments[0], types.uint64), call.result),
)
_register(get_peer_array, _peer_types, _emulate_peer)
_register(sync_words, _no_arguments(types.Array(types.int64, 1, "C")), lambda t, call: (_WORDS(t.site()), call.result))
_register(complete_puts, _no_arguments(types.void), _ordering("fence"))
_register(begin_data, _no_arguments(types.void), _ordering("begin"))
_register(released_by_set, _order_types, _ordering("set"))
_register(released_by_add, _order_types, _ordering("add"))
_register(acquired, _wait_types, _ordering("acquire"))
