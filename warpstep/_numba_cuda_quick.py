"""numba-cuda's compiler with less work for the same code: `quick_passes`.

It is internal to numba-cuda, as what `_numba_cuda` has. With a new numba-cuda this is the second file to adapt.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import collections
import contextlib
import functools
import inspect
import weakref
from typing import Any

from llvmlite import ir as llvm
from numba.core import ir as core_ir
from numba.core.types.functions import BaseFunction
from numba.cuda import compiler, lowering, types, typing, utils
from numba.cuda.core import analysis, base, config, event, inline_closurecall, ir, postproc, transforms
from numba.cuda.core.compiler_machinery import PassManager, _pass_registry
from numba.cuda.core.errors import NumbaError
from numba.cuda.core.rewrites import rewrite_registry
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.core.typed_passes import NopythonRewrites
from numba.cuda.typing.builtins import NumberClassAttribute

#: Passes after which nobody reads the IR.
LAST_PASSES = compiler.CreateLibrary, compiler.CUDANativeLowering, compiler.CUDABackend
#: What is rewritten once types are known, as numba-cuda has it: lists of constants, and what strings index.
REWRITES = {"RewriteStringLiteralGetitems", "RewriteStringLiteralSetitems", "RewriteArrayOfConsts"}


@contextlib.contextmanager
def quick_passes(types_only: bool = False):
    """Let the compiler leave out what only generators need, as in numba-cuda-mlir, and what it has done already.

    After each pass it looks for the variables that live at the start of each block, and for loops with several ways
    back. For each operation it asks about 20 functions in turn whether they take its operands. For each index that is
    no constant it finds the path of the source, for an error that is caught. For each function that a kernel calls it
    reads its settings, and asks 40 lists for what they have got since. It has LLVM parse a module for the size of each
    variable, for debuggers. Twice it writes down where variables are used last, for rewrites of what kernels rarely
    have: functions in functions, and lists.

    ``types_only``: no code is generated, so it does not matter where a variable is last used.
    """
    if postproc.PostProcessor.run is not _run:  # by the compilation of a caller
        yield
        return
    config.reload_config()
    _paths.clear()
    for (owner, name), (_, quick) in _QUICK.items():
        setattr(owner, name, quick)
    if types_only:
        postproc.PostProcessor.run = _run_without_lifetimes
    try:
        yield
    finally:
        for (owner, name), (whole, _) in _QUICK.items():
            setattr(owner, name, whole)


_run, _type_call, _find_path = postproc.PostProcessor.run, BaseFunction.get_call_type, ir.Loc._get_path
_run_pass, _rewrite, _size_of = PassManager._runPass, NopythonRewrites.run_pass, base.BaseContext.get_abi_sizeof
_inline, _convert = inline_closurecall.InlineClosureCallPass.run, NumberClassAttribute.resolve___call__
_find_single = lowering.Lower._find_singly_assigned_variable
#: Signatures of operators and other functions that are no overloads: those are compiled, which depends on more. What a
#: function takes may depend on the compute capability.
_signatures: dict = {}
#: {name of a file of source: its path from here}
_paths: dict = {}
#: Parameters of Python's functions.
_parameters: Any = weakref.WeakKeyDictionary()
#: {LLVM type: bytes}
_sizes: dict = {}
#: Types of the classes of numbers as functions. Numba makes another one for each ``float32(x)``, and types that anew.
_conversions: dict = {}


# -- passes ----------------------------------------------------------------------------------------


def _run_pass_only(self, index, pass_, state):
    """Run a pass, without what reports on it if nobody listens."""
    if self._print_before or self._print_after or self._print_wrap or event._registered["numba-cuda:run_pass"]:
        _run_pass(self, index, pass_, state)
        return
    pass_.analysis = self._analysis
    try:
        changed = pass_.run_initialization(state)
        changed |= pass_.run_pass(state)
        changed |= pass_.run_finalizer(state)
    except NumbaError as error:
        error.add_context(f"Pass {pass_.name()}")
        raise
    if not isinstance(pass_, LAST_PASSES) and _pass_registry.get(type(pass_)).mutates_CFG:
        if changed:
            postproc.PostProcessor(state.func_ir).run()
        else:
            _canonicalize(state.func_ir)


def _canonicalize(function):
    """Let each loop have one way back, unless it is so: the blocks end as at the last call."""
    ends = [(label, *block.terminator.get_targets()) for label, block in function.blocks.items()]
    if function.__dict__.get("canonical_ends") != ends:
        function.blocks = transforms.canonicalize_cfg(function.blocks)
        if len(function.blocks) == len(ends):
            function.canonical_ends = ends
    else:
        function.blocks = function.blocks.copy()


def _run_without_generators(self, emit_dels=False, extend_lifetimes=False):
    function = self.func_ir
    if function.is_generator:
        _run(self, emit_dels, extend_lifetimes)
        return
    _canonicalize(function)
    function.variable_lifetime = postproc.VariableLifetime(function.blocks)
    function.generator_info = None
    if emit_dels:
        self._insert_var_dels(extend_lifetimes=extend_lifetimes)


def _run_without_lifetimes(self, emit_dels=False, extend_lifetimes=False):
    _run_without_generators(self, self.func_ir.is_generator and emit_dels, extend_lifetimes)


def _values(function):
    return (node.value for block in function.blocks.values() for node in block.find_insts(ir.assign_types))


def _inline_if_any(self):
    """Inline closures, reductions, and loops that make lists, if there are any."""
    for value in _values(self.func_ir):
        if isinstance(value, ir.expr_types):
            found = value.op in ("make_function", "build_list") or value.op == "getattr" and value.attr == "reduce"
        else:
            found = getattr(value, "value", None) is functools.reduce
        if found:
            _inline(self)
            return


def _rewrite_if_any(self, state):
    """Rewrite what is indexed by strings, and arrays made of lists, if there are any."""
    known = {rewrite.__name__ for rewrite in rewrite_registry.rewrites["after-inference"]} == REWRITES
    strings = any(isinstance(type_, types.StringLiteral) for type_ in state.typemap.values())
    lists = any(isinstance(value, ir.expr_types) and value.op == "build_list" for value in _values(state.func_ir))
    return True if known and not strings and not lists else _rewrite(self, state)


def _find_single_at_once(self):
    """Find the variables that are assigned once, and used in that block only, in one walk over all blocks."""
    function = self.func_ir
    if function.func_id.is_generator:
        _find_single(self)
        return
    found, allocated = analysis.compute_use_defs(function.blocks), analysis.must_use_alloca(function.blocks)
    defined = collections.Counter(name for names in found.defmap.values() for name in names)
    used = allocated.union(*found.usemap.values())
    self._singly_assigned_vars, self._blk_local_varmap = set(), {}
    for label, names in found.defmap.items():
        times = collections.Counter(one.target.name for one in self.blocks[label].find_insts(ir.assign_types))
        self._singly_assigned_vars |= {
            name for name in names if times[name] == 1 and defined[name] == 1 and name not in used
        }


# -- answers that are kept -------------------------------------------------------------------------


def _type_call_once(self, context, args, kws):
    flags = ConfigStack.top_or_none()
    options = None if flags is None else (flags.error_model, flags.compute_capability)
    key = self, context, tuple(args), tuple(kws.items()), options
    found = _signatures.get(key)
    if found is None:
        found = _type_call(self, context, args, kws)
        if self.get_impl_key(found) is self.typing_key:
            _signatures[key] = found
    return found


def _find_path_once(self):
    if self.filename not in _paths:
        _paths[self.filename] = _find_path(self)
    return _paths[self.filename]


def _find_parameters_once(function):
    try:
        found = _parameters.get(function)
    except TypeError:  # it cannot be referred to weakly
        return inspect.signature(function)
    if found is None:
        found = _parameters[function] = inspect.signature(function)
    return found


def _size_once(self, type_):
    if isinstance(type_, llvm.IdentifiedStructType):  # equal if the names are
        return _size_of(self, type_)
    if type_ not in _sizes:
        _sizes[type_] = _size_of(self, type_)
    return _sizes[type_]


def _convert_once(self, class_):
    key = self, class_
    if key not in _conversions:
        _conversions[key] = _convert(self, class_)
    return _conversions[key]


def _refresher(refresh):
    """Read the lists of functions, attributes and more only where one has become longer.

    Modules that are imported on the way make a list longer that has been read, so what was there before is compared.
    """

    def refresh_if_longer(self):
        while self.__dict__.get("length_read") != (length := _length_of(self)):
            self.length_read = length
            refresh(self)

    return refresh_if_longer


def _length_of(context):
    loaders = context._registries.items()
    return sum(len(getattr(registry, name)) for registry, loader in loaders for name in loader.registry_items)


#: How the variables of a part of an instruction are found, by the part's type.
VARIABLE, INSTRUCTION, SEQUENCE, MAPPING, NOTHING = range(5)


@functools.cache
def _kind_of(type_):
    kinds = (ir.Var, core_ir.Var), (ir.Inst, core_ir.Inst), (list, tuple), dict, object
    return next(kind for kind, classes in enumerate(kinds) if issubclass(type_, classes))


def _list_vars_quickly(self, value):
    kind = _kind_of(type(value))
    if kind == VARIABLE:
        return [value]
    if kind == INSTRUCTION:
        return value.list_vars()
    found = []
    if kind != NOTHING:
        for part in value if kind == SEQUENCE else value.values():
            kind = _kind_of(type(part))
            if kind == VARIABLE:
                found.append(part)
            elif kind != NOTHING:
                found += _list_vars_quickly(self, part)
    return found


#: {(owner, attribute): (what Numba has there, what is quick)}
_QUICK = {
    (PassManager, "_runPass"): (_run_pass, _run_pass_only),
    (postproc.PostProcessor, "run"): (_run, _run_without_generators),
    (inline_closurecall.InlineClosureCallPass, "run"): (_inline, _inline_if_any),
    (NopythonRewrites, "run_pass"): (_rewrite, _rewrite_if_any),
    (lowering.Lower, "_find_singly_assigned_variable"): (_find_single, _find_single_at_once),
    (NumberClassAttribute, "resolve___call__"): (_convert, _convert_once),
    (BaseFunction, "get_call_type"): (_type_call, _type_call_once),
    (ir.Loc, "_get_path"): (_find_path, _find_path_once),
    (ir.Inst, "_rec_list_vars"): (ir.Inst._rec_list_vars, _list_vars_quickly),
    (utils, "pysignature"): (utils.pysignature, _find_parameters_once),
    (base.BaseContext, "get_abi_sizeof"): (_size_of, _size_once),
    (base.BaseContext, "refresh"): (base.BaseContext.refresh, _refresher(base.BaseContext.refresh)),
    (typing.BaseContext, "refresh"): (typing.BaseContext.refresh, _refresher(typing.BaseContext.refresh)),
    (config, "reload_config"): (config.reload_config, lambda: None),
}
