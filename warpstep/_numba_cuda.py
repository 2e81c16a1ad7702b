"""What `_numba` has where numba-cuda types the kernels; `_numba_cuda_mlir` defines the same names.

The first group is public: documented, and kept from release to release. Everything after it is internal to numba-cuda
and moves between releases. With a new numba-cuda this is the file to adapt. It works with numba-cuda 0.24 to 0.30.
"""

# ruff: noqa: E402, F401
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPrivateImportUsage=false
import contextlib

import warpstep._compilers
from warpstep._without_cuda import bindings_version

# isort: split
from numba.cuda.core import config

if config.ENABLE_CUDASIM:
    raise ImportError("NUMBA_ENABLE_CUDASIM puts Numba's simulator in place of numba.cuda: unset it to use gpukit")

from warpstep._numba_cuda_quick import quick_passes

# isort: split
# Public
import llvmlite.binding as llvm_binding
import numba
from cuda.pathfinder import DynamicLibNotFoundError
from llvmlite import ir as llvm
from numba import cuda
from numba.cuda import fp16, libdevice, types

# isort: split
# Errors: numba-cuda has its own copy of Numba's hierarchy, and raises from both.
from numba.core import ir as _core_ir
from numba.core.errors import NumbaError as _CoreNumbaError
from numba.core.types.functions import BaseFunction
from numba.cuda import api as host_api

# The host side
from numba.cuda import compiler, cudadecl, cudadrv, utils
from numba.cuda import dispatcher as _dispatcher
from numba.cuda.api import _contiguous_strides_like_array as contiguous_strides_like
from numba.cuda.api import _order_like_array as order_like
from numba.cuda.api_util import prepare_shape_strides_dtype

# Arguments of a launch
from numba.cuda.args import ArgHint, In, Out

# The front end: from bytecode to typed IR
from numba.cuda.compiler import (
    CreateLibrary,
    CUDABackend,
    CUDACompiler,
    CUDANativeLowering,
    ExternFunction,
    compile_extra,
)
from numba.cuda.core import ir, postproc, sigutils, transforms
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.cuda.core.controlflow import CFGraph
from numba.cuda.core.errors import (
    LoweringError,
    NumbaNotImplementedError,
    NumbaPerformanceWarning,
    NumbaRuntimeError,
    NumbaValueError,
    TypingError,
)
from numba.cuda.core.errors import NumbaError as _CudaNumbaError
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.core.typed_passes import AnnotateTypes, IRLegalization
from numba.cuda.cudadrv import devicearray, devices, driver, dummyarray, runtime
from numba.cuda.cudadrv import error as driver_errors
from numba.cuda.cudadrv.devicearray import check_array_compatibility, sentry_contiguous
from numba.cuda.cudadrv.driver import CudaAPIError, MemoryInfo
from numba.cuda.datamodel import default_manager as _default_data_models
from numba.cuda.datamodel.models import StructModel
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.dispatcher import _Kernel as GPUKernel
from numba.cuda.flags import CUDAFlags
from numba.cuda.kernels import reduction
from numba.cuda.memory_management import rtsys as memory_runtime
from numba.cuda.memory_management.nrt import _nrt_mstats as AllocationCounts
from numba.cuda.models import cuda_data_manager as _cuda_data_models
from numba.cuda.np import numpy_support
from numba.cuda.np import ufunc as ufunc_package
from numba.cuda.np.numpy_support import ufunc_find_matching_loop
from numba.cuda.target import CUDATargetContext, CUDATypingContext
from numba.cuda.types import unliteral
from numba.cuda.types.ext_types import Dim3, GridGroup
from numba.cuda.typing import make_concrete_template, signature
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, fold_arguments
from numba.cuda.typing.typeof import Purpose, typeof, typeof_impl
from numba.cuda.ufuncs import ufunc_db as _ufunc_db
from numba.cuda.vector_types import VectorType
from numba.np.ufunc import decorators as core_ufunc_decorators

#: Modules that are written in terms of ``numba.cuda`` itself, of which the emulator loads copies; how they import it.
RANDOM = "numba.cuda.random"
REDUCTION = "numba.cuda.kernels.reduction"
UFUNC_DECORATORS = "numba.cuda.np.ufunc.decorators"
VECTORIZERS = "numba.cuda.vectorizers"
IMPORT_OF_CUDA = "numba", "cuda"

NUMBA_ERRORS = (_CudaNumbaError, _CoreNumbaError)
#: Raised where something is typed, but there is no code for it.
NOT_IMPLEMENTED = (NotImplementedError, NumbaNotImplementedError)
_data_models = _cuda_data_models.chain(_default_data_models)
#: Options of ``cuda.jit``. Those that steer the GPU's compiler change nothing in the emulator.
JIT_OPTIONS = frozenset(
    "device inline forceinline link debug opt lineinfo cache launch_bounds lto shared_memory_carveout fastmath "
    "max_registers extensions boundscheck nvvm_options nopython forceobj argtypes restype bind".split()
)
#: How many items ``kernel[...]`` takes.
MAX_CONFIGURATION = 4
#: Passes that make code for a GPU.
BACK_END = (IRLegalization, AnnotateTypes, CreateLibrary, CUDANativeLowering, CUDABackend)
#: Context in which functions are typed as those of a GPU.
gpu_target = utils.numba_target_override
#: Modules that hold the host functions.
HOST_MODULES = (cuda, host_api)
#: What only numba-cuda-mlir has: ``cuda.vector``, and the class of libraries of functions that are written in MLIR.
vector = extern_functions = None
#: Functions that are typed as another: none.
SAME_FUNCTIONS = {}
#: Result codes of the driver, such as ``CUDA_ERROR_OUT_OF_MEMORY``.
CUresult = driver.binding.CUresult
#: (major, minor) of the CUDA that the installed bindings are for.
CUDA_VERSION = bindings_version()
#: Names of a device's attributes, as the driver has them.
DEVICE_ATTRIBUTES = tuple(
    name.removeprefix("CU_DEVICE_ATTRIBUTE_")
    for name in driver.binding.CUdevice_attribute.__members__
    if name != "CU_DEVICE_ATTRIBUTE_MAX"
)
#: True if nvJitLink is there, which links code for a GPU.
have_linker = driver._have_nvjitlink
#: What numba-cuda raises where a library that it compiles with is missing.
COMPILER_MISSING = (DynamicLibNotFoundError, driver_errors.CudaSupportError, driver_errors.NvvmSupportError)


def earlier_launch(launch) -> tuple:
    """(class, name of its method, method) of launches whose configuration was made before the emulator was installed.

    The method calls ``launch(dispatcher, grid, block, bytes of shared memory, args)``.
    """

    def call(self, args, configuration):
        return launch(self, configuration.griddim, configuration.blockdim, configuration.sharedmem, args)

    return CUDADispatcher, "call", call


def annotated_signature(function):
    """Return the signature that a function's annotations declare: numba-cuda does not read them."""


def struct_members(type_) -> list | None:
    """[(name, type)] of the members of a type with a ``StructModel``; None for any other type."""
    try:
        model = _data_models[type_]
    except (KeyError, *NOT_IMPLEMENTED):
        return None
    return list(zip(model._fields, model._members, strict=True)) if isinstance(model, StructModel) else None


def own_ir(blocks: dict) -> dict:
    """Return typed IR in numba-cuda's classes: what an ``@overload`` of Numba inlines has Numba's own."""
    for block in blocks.values():
        for statement in block.body:
            _make_own(statement)
    return blocks


def _make_own(node):
    if isinstance(node, list | tuple):
        for item in node:
            _make_own(item)
    elif type(node).__module__ == _core_ir.__name__:
        object.__setattr__(node, "__class__", getattr(ir, type(node).__name__))
        if isinstance(node, ir.Inst):
            _make_own([*vars(node).values(), *vars(node).get("_kws", {}).values()])
    elif isinstance(node, ir.Assign):
        _make_own(node.value)


def can_allocate() -> bool:
    """True if kernels may allocate memory, which Numba's settings must allow."""
    return bool(getattr(config, "CUDA_ENABLE_NRT", False))


def has_ufunc(ufunc) -> bool:
    """True if a kernel can call this ufunc of NumPy with numbers."""
    return ufunc in _ufunc_db()


def vector_parts(type_) -> tuple:
    """(type of an element, number of elements) of a vector type."""
    return type_.base_type, type_.num_elements


@contextlib.contextmanager
def device_queries(device):
    """Let numba-cuda's compiler find ``device`` where it asks the driver for the current one."""
    context = device.get_primary_context()
    asked = {
        (_dispatcher, "get_current_device"): lambda: device,
        (compiler, "get_current_device"): lambda: device,
        (devices, "get_context"): lambda devnum=None: context,
    }
    before = {place: getattr(*place) for place in asked}
    try:
        for place, answer in asked.items():
            setattr(*place, answer)
        yield
    finally:
        for place, answer in before.items():
            setattr(*place, answer)
