"""What `_numba` has where numba-cuda-mlir, the successor of numba-cuda, types the kernels.

It carries a copy of numba-cuda's modules, ``numba_cuda_mlir.numba_cuda``, and puts its own beside and in front of them.
Neither Numba nor llvmlite is needed. With a new release this is the file to adapt. It works with numba-cuda-mlir 0.6.
"""

# ruff: noqa: E402, F401
# pyright: reportMissingImports=false
import contextlib

import warpstep._compilers
from warpstep._without_cuda import bindings_version

# isort: split
import numba_cuda_mlir as numba
from numba_cuda_mlir import cuda, decorators
from numba_cuda_mlir import numba_cuda as _copy
from numba_cuda_mlir.compiler import ExternFunction
from numba_cuda_mlir.cuda import fp16, libdevice, vector
from numba_cuda_mlir.descriptor import MLIRDispatcher as CUDADispatcher
from numba_cuda_mlir.descriptor import MLIRTargetContext as CUDATargetContext
from numba_cuda_mlir.descriptor import MLIRTypingContext as CUDATypingContext
from numba_cuda_mlir.descriptor import _ArgMarshaller, mlir_target
from numba_cuda_mlir.memory_management import _nrt_mstats as AllocationCounts
from numba_cuda_mlir.mlir_compiler import MLIRBackend, get_compiler_class
from numba_cuda_mlir.numba_cuda import api as host_api
from numba_cuda_mlir.numba_cuda import compiler, cudadecl, cudadrv, types, utils
from numba_cuda_mlir.numba_cuda.api import _contiguous_strides_like_array as contiguous_strides_like
from numba_cuda_mlir.numba_cuda.api import _order_like_array as order_like
from numba_cuda_mlir.numba_cuda.api_util import prepare_shape_strides_dtype
from numba_cuda_mlir.numba_cuda.args import ArgHint, In, Out
from numba_cuda_mlir.numba_cuda.compiler import compile_extra
from numba_cuda_mlir.numba_cuda.core import config, ir, sigutils
from numba_cuda_mlir.numba_cuda.core.compiler_lock import global_compiler_lock
from numba_cuda_mlir.numba_cuda.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba_cuda_mlir.numba_cuda.core.controlflow import CFGraph
from numba_cuda_mlir.numba_cuda.core.errors import (
    LoweringError,
    NumbaError,
    NumbaNotImplementedError,
    NumbaPerformanceWarning,
    NumbaRuntimeError,
    NumbaValueError,
    TypingError,
)
from numba_cuda_mlir.numba_cuda.core.target_extension import target_override
from numba_cuda_mlir.numba_cuda.core.targetconfig import ConfigStack
from numba_cuda_mlir.numba_cuda.core.typed_passes import AnnotateTypes, IRLegalization
from numba_cuda_mlir.numba_cuda.cudadrv import devicearray, devices, driver, dummyarray, runtime
from numba_cuda_mlir.numba_cuda.cudadrv import error as driver_errors
from numba_cuda_mlir.numba_cuda.cudadrv.devicearray import check_array_compatibility, sentry_contiguous
from numba_cuda_mlir.numba_cuda.cudadrv.driver import CudaAPIError, MemoryInfo
from numba_cuda_mlir.numba_cuda.flags import CUDAFlags
from numba_cuda_mlir.numba_cuda.kernels import reduction
from numba_cuda_mlir.numba_cuda.memory_management import rtsys as memory_runtime
from numba_cuda_mlir.numba_cuda.np import numpy_support
from numba_cuda_mlir.numba_cuda.np import ufunc as ufunc_package
from numba_cuda_mlir.numba_cuda.np.numpy_support import ufunc_find_matching_loop
from numba_cuda_mlir.numba_cuda.types import unliteral
from numba_cuda_mlir.numba_cuda.types.ext_types import Dim3, GridGroup
from numba_cuda_mlir.numba_cuda.typing import make_concrete_template, signature
from numba_cuda_mlir.numba_cuda.typing.templates import AbstractTemplate, AttributeTemplate, fold_arguments
from numba_cuda_mlir.numba_cuda.typing.typeof import Purpose, typeof, typeof_impl
from numba_cuda_mlir.type_defs.vector_types import VectorType
from numba_cuda_mlir.typing.externals import ExternMLIRLibrary as extern_functions

#: Modules that are written in terms of ``numba_cuda_mlir.numba_cuda``, of which the emulator loads copies; how they
#: import it.
RANDOM = "numba_cuda_mlir.numba_cuda.random"
REDUCTION = "numba_cuda_mlir.numba_cuda.kernels.reduction"
UFUNC_DECORATORS = "numba_cuda_mlir.numba_cuda.np.ufunc.decorators"
VECTORIZERS = "numba_cuda_mlir.numba_cuda.vectorizers"
IMPORT_OF_CUDA = "numba_cuda_mlir", "numba_cuda"

NUMBA_ERRORS = (NumbaError,)
#: Raised where something is typed, but there is no code for it.
NOT_IMPLEMENTED = (NotImplementedError, NumbaNotImplementedError)
#: Numba's own registry of ``vectorize``: Numba is not used.
core_ufunc_decorators = None
#: Its lowering functions emit MLIR.
llvm = llvm_binding = None
CUDACompiler = get_compiler_class({})
#: Options of ``cuda.jit``. Those that steer the GPU's compiler change nothing in the emulator.
JIT_OPTIONS = frozenset(option.name for option in decorators._get_schema())
#: How many items ``kernel[...]`` takes: a cluster is the last.
MAX_CONFIGURATION = 5
#: Signature that a function's annotations declare, or None.
annotated_signature = decorators._extract_signature_from_annotations
#: Passes that make code for a GPU.
BACK_END = (IRLegalization, AnnotateTypes, MLIRBackend)
#: Modules that hold the host functions.
HOST_MODULES = (cuda, _copy, host_api)
#: Functions of the copy in whose place numba-cuda-mlir has its own: {function of the copy: its own}.
SAME_FUNCTIONS = {
    old: new
    for name, new in vars(cuda).items()
    if callable(new) and (old := vars(_copy).get(name)) is not None and old is not new and callable(old)
}
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
#: Code for a GPU is shown with numba-cuda only.
GPUKernel, COMPILER_MISSING, have_linker = None, (), None


def quick_passes(types_only: bool = False):
    """Nothing: its passes compute nothing that is not needed."""
    return contextlib.nullcontext()


def gpu_target():
    """Context in which functions are typed as those of a GPU."""
    mlir_target.ensure_initialized()  # typing asks whether an intrinsic of the copy can be lowered
    return target_override("numba_cuda_mlir")


def earlier_launch(launch) -> tuple:
    """As in `_numba_cuda`."""

    def call(self, *args):
        configuration = self._available_launch_config
        return launch(self._dispatcher, *(configuration[key] for key in ("grid", "block", "sharedmem")), args)

    return _ArgMarshaller, "__call__", call


def struct_members(type_) -> None:
    """Members of a type that a program defines: numba-cuda-mlir has other data models."""


def own_ir(blocks: dict) -> dict:
    """Return typed IR in the classes of this compiler: there are no others."""
    return blocks


def can_allocate() -> bool:
    """True if kernels may allocate memory, which Numba's settings must allow."""
    return bool(getattr(config, "CUDA_ENABLE_NRT", False))


def has_ufunc(ufunc) -> bool:
    """True if a kernel can call this ufunc of NumPy with numbers: all that are typed."""
    return True


def vector_parts(type_) -> tuple:
    """(type of an element, number of elements) of a vector type."""
    return type_.dtype, type_.length


def device_queries(device):
    """Context in which the compiler finds ``device``: it asks for none."""
    return contextlib.nullcontext()
