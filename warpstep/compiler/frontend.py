"""From a Python function to typed Numba IR, with numba-cuda's own front end.

The emulator does not guess types. It runs the passes that numba-cuda runs before it generates code for a GPU (bytecode
to IR, closure inlining, dead-branch pruning, SSA, type inference) and stops there. None of them needs a driver or a
CUDA toolkit. Every variable therefore has the type that it has on the device, and a kernel that Numba refuses to
compile is refused here with the same message.
"""

import collections
import contextlib
import dis
import functools
import types as python_types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from warpstep._compilers import paused_collector
from warpstep._numba import (
    BACK_END,
    AnnotateTypes,
    ConfigStack,
    CUDACompiler,
    CUDADispatcher,
    CUDAFlags,
    CUDATargetContext,
    CUDATypingContext,
    ExternFunction,
    FunctionPass,
    PassManager,
    TypingError,
    compile_extra,
    cudadecl,
    fold_arguments,
    global_compiler_lock,
    gpu_target,
    make_concrete_template,
    own_ir,
    quick_passes,
    register_pass,
    signature,
    types,
    utils,
)


@dataclass(frozen=True, eq=False)
class Typed:
    """One function with its types: what the lowering starts from."""

    function: python_types.FunctionType
    argument_types: tuple
    blocks: dict
    typemap: dict
    calltypes: dict
    return_type: object
    filename: str


@register_pass(mutates_CFG=False, analysis_only=True)
class _KeepTypedIR(FunctionPass):
    _name = "warpstep_keep_typed_ir"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        state.cr = state.func_ir, state.typemap, state.calltypes, state.return_type
        return True


class _FrontEnd(CUDACompiler):
    """numba-cuda's pipeline without its back end."""

    def define_pipelines(self):
        passes = PassManager("cuda")
        for implementation, description in super().define_pipelines()[0].passes:
            if implementation not in BACK_END:
                passes.add_pass(implementation, description)
        passes.add_pass(_KeepTypedIR, "keep the typed IR")
        passes.finalize()
        return [passes]


@register_pass(mutates_CFG=False, analysis_only=True)
class _KeepAnnotation(FunctionPass):
    _name = "warpstep_keep_annotation"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        AnnotateTypes().run_pass(state)
        state.cr = state.type_annotation
        return True


class _Annotation(_FrontEnd):
    """The same, to show the types."""

    def define_pipelines(self):
        (passes,) = super().define_pipelines()
        shown = PassManager("cuda annotated")
        for implementation, description in passes.passes[:-1]:
            shown.add_pass(implementation, description)
        shown.add_pass(_KeepAnnotation, "show the types")
        shown.finalize()
        return [shown]


#: Types of functions that return the same type for the same types of plain arguments, and of plain arguments.
_BUILT_IN = types.Function, types.NumberClass
_PLAIN = types.Number, types.Boolean, types.Literal, types.Array, types.RangeType, types.RangeIteratorType


def _is_plain(type_):
    """True for an argument through which nothing can be called."""
    return isinstance(type_, _PLAIN) or (isinstance(type_, types.BaseTuple) and all(map(_is_plain, type_.types)))


class _TypingContext(CUDATypingContext):
    """numba-cuda's typing context, where functions that a kernel calls are typed and not compiled (no GPU is needed).

    It is the emulator's own, so numba-cuda never takes a function that was only typed here for a compiled one.
    """

    def __init__(self):
        #: Signatures of calls of Numba's own functions. It tries dozens of templates for each ``+``.
        self._resolved = {}
        super().__init__()

    def resolve_function_type(self, func, args, kws):
        flags = ConfigStack.top_or_none()
        known = not isinstance(func, types.Type) or type(func) in _BUILT_IN
        if flags is None or kws or not known or not all(map(_is_plain, args)):
            return super().resolve_function_type(func, args, kws)
        key = func, tuple(args), flags.error_model, flags.compute_capability
        if key not in self._resolved:
            self._resolved[key] = super().resolve_function_type(func, args, kws)
        return self._resolved[key]

    def resolve_value_type(self, val):
        if isinstance(val, ExternFunction):
            raise ValueError(f"{val.name} is declared with cuda.declare_device: the emulator has no code for it")
        type_ = super().resolve_value_type(val)
        return callee_type(type_.dispatcher) if isinstance(type_, types.Dispatcher) else type_

    def resolve_getattr(self, typ, attr):
        try:
            return super().resolve_getattr(typ, attr)
        except AttributeError as error:  # from a module that lacks it
            raise TypingError(str(error)) from error

    def _resolve_user_function_type(self, func, args, kws, literals=None):
        if isinstance(func, types.Dispatcher):
            func = callee_type(func.dispatcher)
        return super()._resolve_user_function_type(func, args, kws, literals)

    def insert_function(self, ft):
        self._resolved.clear()
        super().insert_function(_typed_only(type(ft))(self))

    def _insert_global(self, gv, gty):
        self._resolved.clear()
        if isinstance(gty, types.Function):
            gty = types.Function([_typed_only(template) for template in gty.templates])
        super()._insert_global(gv, gty)


class Implementation(NamedTuple):
    """What a call of an ``@overload`` runs: a dispatcher and the types of its arguments."""

    dispatcher: object
    argument_types: tuple


class _TypedDispatcher(CUDADispatcher):
    """The implementation of an ``@overload`` in the emulator's typing context."""

    def get_call_template(self, args, kws):
        return call_template(self, args, kws)

    def get_overload(self, sig):
        return Implementation(self, sig)


@functools.cache
def _typed_only(template):
    """For the template of an ``@overload``, one that types the implementation without compiling it; others as is."""
    if not hasattr(template, "_get_jit_decorator") or "_typed_only" in template.__dict__:
        return template

    def jit(**options):
        return lambda function: _TypedDispatcher(function, options)

    caches = {name: {} for name in ("_impl_cache", "_compiled_overloads", "_inline_overloads")}
    replaced = {"_typed_only": True, "_get_jit_decorator": lambda self: jit, **caches}
    return type(template)(template.__name__, (template,), replaced)


class Callee:
    """A dispatcher as inference sees it when a kernel calls it: its types are inferred, and no code is made."""

    def __init__(self, dispatcher):
        self.dispatcher = dispatcher
        self.py_func = dispatcher.py_func
        self.targetoptions = dispatcher.targetoptions

    @property
    def is_compiling(self) -> bool:
        """Inference asks this to find a recursion."""
        return _contexts()[0].callstack.findfirst(self.py_func) is not None

    @property
    def overloads(self):
        """Of a recursion with other types, inference names the code that it would call."""
        code = self.py_func.__code__
        named = python_types.SimpleNamespace(modname=self.py_func.__module__, qualname=code.co_qualname, uid=id(code))
        return collections.defaultdict(lambda: python_types.SimpleNamespace(fndesc=named))

    def fold_argument_types(self, args, kws):
        return fold_argument_types(self.py_func, args, kws)

    @property
    def nopython_signatures(self) -> list:
        """Where no declared signature fits, Numba's message looks at them."""
        return getattr(self.dispatcher, "declared_signatures", list)() or []

    def get_call_template(self, args, kws):
        declared = getattr(self.dispatcher, "declared_signatures", lambda: None)()
        return call_template(self.dispatcher, args, kws, declared)

    def get_overload(self, sig):
        return Implementation(self, sig)

    def get_function_type(self):
        return None  # numba-cuda has no pointers to functions

    def __repr__(self):
        return repr(self.dispatcher)


def callee_type(dispatcher):
    """Return the Numba type of a function that a kernel calls."""
    if isinstance(dispatcher, Callee | _TypedDispatcher):
        return types.Dispatcher(dispatcher)
    if "_warpstep_callee" not in dispatcher.__dict__:
        dispatcher._warpstep_callee = Callee(dispatcher)  # the type itself holds a weak reference only
    return types.Dispatcher(dispatcher._warpstep_callee)


@functools.cache
def _contexts():
    """Typing and target context of the emulator."""
    typing_context = _TypingContext()
    return typing_context, CUDATargetContext(typing_context)


@global_compiler_lock
def typing_context() -> CUDATypingContext:
    """Return the emulator's typing context with every registry loaded, those registered since the last call too."""
    context = _contexts()[0]
    context.refresh()
    return context


#: Typed IR by dispatcher, types and options. As in Numba, a dispatcher keeps the values of globals and closures that it
#: found when it was first compiled; another dispatcher of the same Python function looks anew.
_inferred = weakref.WeakKeyDictionary()


@global_compiler_lock
def infer(
    dispatcher, argument_types, return_type=None, debug: bool = False, compute_capability: tuple = (9, 0)
) -> Typed:
    """Infer the types of a kernel or device function.

    Parameters
    ----------
    dispatcher : Kernel, one of Numba's dispatchers, or a plain function
    argument_types : tuple of Numba types
    return_type : Numba type, optional
        ``types.void`` for a kernel; None lets inference find it.
    debug : bool
        As in ``cuda.jit(debug=True)``: a division by zero then raises instead of giving inf or 0.

    Returns
    -------
    Typed

    Raises
    ------
    numba.cuda.core.errors.TypingError and its relatives
        Whatever numba-cuda raises for this function on a GPU machine.
    """
    argument_types = tuple(argument_types)
    if isinstance(dispatcher, Callee):
        dispatcher = dispatcher.dispatcher
    memory = _inferred.setdefault(dispatcher, {})
    key = (argument_types, return_type, debug, compute_capability)
    if key not in memory:
        function = getattr(dispatcher, "py_func", dispatcher)
        memory[key] = _run_front_end(function, argument_types, return_type, debug, compute_capability)
    return memory[key]


def annotate(dispatcher, argument_types, return_type, debug: bool, compute_capability: tuple):
    """Return Numba's TypeAnnotation of a function: its ``str`` is the source with IR and types."""
    function = getattr(dispatcher, "py_func", dispatcher)
    return _compile(function, argument_types, return_type, debug, compute_capability, _Annotation)


def _run_front_end(function, argument_types, return_type, debug, compute_capability):
    found = _compile(function, argument_types, return_type, debug, compute_capability, _FrontEnd)
    func_ir, typemap, calltypes, inferred = found
    blocks = own_ir(func_ir.blocks)
    return Typed(function, argument_types, blocks, typemap, calltypes, inferred, function.__code__.co_filename)


def _compile(function, argument_types, return_type, debug, compute_capability, pipeline):
    with compiling(debug, compute_capability) as flags:
        return compile_extra(
            func=_with_set_trace(function),  # before the context is loaded, for which it may register a type
            typingctx=typing_context(),
            targetctx=_contexts()[1],
            args=argument_types,
            return_type=return_type,
            flags=flags,
            locals={},
            pipeline_class=pipeline,
        )


@functools.cache
def _declare_set_trace():
    """Type ``pdb.set_trace`` in kernels as ``breakpoint``, which Numba knows; return it."""
    import pdb  # it takes its time to load

    template = make_concrete_template("set_trace", key=breakpoint, signatures=[signature(types.none)])
    cudadecl.register_global(pdb.set_trace, types.Function(template))
    typing_context().refresh()
    return pdb


def _with_set_trace(function):
    """Return a function in which ``from pdb import set_trace; set_trace()`` can be typed, or ``import pdb``.

    Numba's simulator runs that, and its documentation recommends it; Numba knows no import inside of a kernel. Each
    import of pdb becomes a constant in the bytecode.
    """
    code = getattr(function, "__code__", None)
    if code is None or "set_trace" not in code.co_names:
        return function
    pdb = _declare_set_trace()
    binary, constants = bytearray(code.co_code), [*code.co_consts, pdb, pdb.set_trace]
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
    for at, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME" and instruction.argval == "pdb" and len(constants) < 256:
            following = instructions[at + 1]
            whole = following.opname != "IMPORT_FROM"
            made = instruction if whole else following
            dropped = instructions[at - 2 : at + 1]
            if not whole:  # the module is taken off the stack after the name has been stored
                dropped.append(instructions[at + 3])
            for each in dropped:
                binary[each.offset : each.offset + 2] = dis.opmap["NOP"], 0
            constant = len(constants) - (2 if whole else 1)
            binary[made.offset : made.offset + 2] = dis.opmap["LOAD_CONST"], constant
    code = code.replace(co_code=bytes(binary), co_consts=tuple(constants))
    made = python_types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__, made.__module__, made.__qualname__ = (
        function.__kwdefaults__,
        function.__module__,
        function.__qualname__,
    )
    return made


@contextlib.contextmanager
def compiling(debug: bool, compute_capability: tuple) -> Iterator[CUDAFlags]:
    """Hold Numba's compiler lock with the flags of these options on its stack, where callees find them."""
    flags = CUDAFlags()
    flags.no_compile = True
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "python" if debug else "numpy"
    flags.compute_capability = compute_capability
    with (
        global_compiler_lock,
        gpu_target(),
        quick_passes(types_only=True),
        paused_collector(),
        ConfigStack().enter(flags),
    ):
        yield flags


def call_template(dispatcher, args, kws, declared=None) -> tuple:
    """Answer Numba's inference about a call of a device function: (template, pysig, args, kws).

    ``declared`` are the signatures that the device function declares, if it does. Otherwise its types are inferred with
    the options of the caller.
    """
    pysig, args = fold_argument_types(dispatcher.py_func, args, kws)
    if declared is None:
        flags = ConfigStack().top()
        options = {"debug": flags.error_model == "python", "compute_capability": flags.compute_capability}
        typed = infer(dispatcher, args, **options)
        declared = [signature(typed.return_type, *args)]
    name = dispatcher.py_func.__name__
    template = make_concrete_template(f"CallTemplate({name})", key=name, signatures=declared)
    return template, pysig, args, {}


def fold_argument_types(function, args, kws) -> tuple:
    """Put positional and keyword argument types in the order of the parameters, defaults as ``Omitted``.

    Returns (pysig, argument types).
    """
    pysig = utils.pysignature(function)
    folded = fold_arguments(
        pysig,
        args,
        kws,
        lambda index, parameter, value: value,
        lambda index, parameter, default: types.Omitted(default),
        lambda index, parameter, values: types.StarArgTuple(values),
    )
    return pysig, tuple(folded)
