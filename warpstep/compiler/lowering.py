"""Lowering functions of numba-cuda, run for what the emulator knows no operation for.

A program may teach Numba new types and functions (``lower_builtin``, ``intrinsic``, data models ...). Their lowering
functions emit LLVM IR, here into a function of its own, which `llvm` translates. What Numba implements in Python is
left to the translation of Python.
"""

import functools
from types import SimpleNamespace

from warpstep._numba import CUDATargetContext, LoweringError, llvm, llvm_binding, types
from warpstep.compiler.frontend import Implementation, typing_context
from warpstep.compiler.llvm import Translation

#: NVIDIA's layout of data: sizes and alignments of 64-bit machines.
_LAYOUT = "e-p:64:64:64-i1:8:8-i8:8:8-i16:16:16-i32:32:32-i64:64:64-f32:32:32-f64:64:64-v16:16:16-n16:32:64"


class TargetContext(CUDATargetContext):
    """numba-cuda's target context, where calls of Python functions and exceptions are marked for the translation."""

    @property
    def call_conv(self):
        return _CallConvention(self)

    @property
    def fndesc(self):
        return SimpleNamespace(call_conv=self.call_conv)

    @property
    def active_code_library(self):
        return SimpleNamespace(add_linking_library=lambda library: None, add_linking_file=self._no_linking)

    def _no_linking(self, file):
        raise NotImplementedError("code in another language")

    @property
    def target_data(self):
        return llvm_binding.create_target_data(_LAYOUT)

    def add_linking_libs(self, libs):
        pass

    def compile_subroutine(self, builder, impl, sig, locals=None, flags=None, caching=True):
        return SimpleNamespace(fndesc=Implementation(impl, sig.args), library=None)

    def call_internal(self, builder, fndesc, sig, args):
        return self._call_python(builder, fndesc, sig, args)

    def get_function(self, fn, sig, _firstcall=True):
        try:
            key = fn.get_impl_key(sig) if isinstance(fn, types.Callable) else None
        except KeyError:  # typed for another caller
            fn.get_call_type(self.typing_context, sig.args, {})
            key = fn.get_impl_key(sig)
        if isinstance(key, Implementation):
            return lambda builder, args: self._call_python(builder, key, sig, args)
        return super().get_function(fn, sig, _firstcall)

    def _call_python(self, builder, implementation, sig, args):
        if len(args) < len(implementation.argument_types):
            args = [*args, *(self.get_dummy_value() for _ in implementation.argument_types[len(args) :])]
        result = self.get_value_type(sig.return_type)
        return mark(builder, result, args, (implementation, sig.return_type))


class _CallConvention:
    """Marks the exceptions that a lowering function raises in the kernel."""

    def __init__(self, context):
        self.context = context

    def return_user_exc(self, builder, exc, exc_args=None, loc=None, func_name=None):
        mark(builder, llvm.VoidType(), (), exc(*(exc_args or ())))
        builder.unreachable()

    def call_internal(self, builder, fndesc, sig, args):
        return self.context.call_internal(builder, fndesc, sig, args)


def mark(builder, result, args, marked):
    """Emit a call that `Translation` recognises: of a Python function, or that raises an exception."""
    type_ = llvm.FunctionType(result, [a.type for a in args])
    function = llvm.Function(builder.module, type_, builder.module.get_unique_name("warpstep"))
    function.marked = marked
    return builder.call(function, args)


@functools.cache
def _target_context():
    return TargetContext(typing_context())


def target_context() -> TargetContext:
    """Return the emulator's target context, with the lowering functions that were registered since the last call."""
    context = _target_context()
    context.refresh()
    return context


def lower(t, emit, arguments, return_type):
    """Run a lowering function and translate what it emits.

    Parameters
    ----------
    t : translate.Translator
    emit : function
        ``emit(context, builder, values)`` returns the LLVM value of the result.
    arguments : list of (Expression, Numba type)
    return_type : Numba type

    Returns
    -------
    Expression, or None for a type without values

    Raises
    ------
    UnsupportedError
        For instructions that are not known here.
    NotImplementedError
        If numba-cuda has no lowering function.
    """
    if llvm is None:
        raise NotImplementedError("lowering functions of numba-cuda-mlir")
    context = target_context()
    module = llvm.Module()
    module.triple = "nvptx64-nvidia-cuda"
    type_ = llvm.FunctionType(context.get_value_type(return_type), [context.get_value_type(at) for _, at in arguments])
    function = llvm.Function(module, type_, "lowered")
    builder = llvm.IRBuilder(function.append_basic_block())
    result = emit(context, builder, function.args)
    if result is None:
        if not isinstance(return_type, types.NoneType):
            raise LoweringError("non-void function returns None")
        result = context.get_dummy_value()
    if not builder.block.is_terminated:
        builder.ret(result)
    return Translation(t, context).run(function, arguments, return_type)
