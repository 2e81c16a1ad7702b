"""The parts of Numba that warpstep uses beyond its public interface: no other file of warpstep names them.

Public are ``numba.cuda``, its attributes that are no modules, and its modules ``types``, ``libdevice`` and ``fp16``;
other files import those directly. Everything else changes from release to release and is gathered here: with a new
numba-cuda, or another implementation of ``numba.cuda``, this is the file to adapt.

Import it before ``numba.cuda``, as every module of warpstep does that needs Numba: it makes up for what numba-cuda
misses in the installed NumPy.
"""

# ruff: noqa: E402, F401
import numpy as np

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # gone since NumPy 2.5, but numba-cuda up to 0.30 looks it up at import

# Errors: numba-cuda has its own copy of Numba's hierarchy, and raises from both.
from numba.core.errors import NumbaError as _CoreNumbaError
from numba.cuda import api as host_api
from numba.cuda import compiler, cudadecl, utils, vectorizers
from numba.cuda.api import _contiguous_strides_like_array as contiguous_strides_like
from numba.cuda.api import _order_like_array as order_like
from numba.cuda.api_util import prepare_shape_strides_dtype

# Arguments of a launch
from numba.cuda.args import ArgHint, In, Out

# The front end: from bytecode to typed IR
from numba.cuda.compiler import CreateLibrary, CUDABackend, CUDACompiler, CUDANativeLowering, compile_extra
from numba.cuda.core import config, ir, sigutils
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.cuda.core.errors import NumbaError as _CudaNumbaError
from numba.cuda.core.errors import NumbaPerformanceWarning, NumbaValueError, TypingError
from numba.cuda.core.targetconfig import ConfigStack
from numba.cuda.core.typed_passes import AnnotateTypes, IRLegalization

# The host side
from numba.cuda.cudadrv import devicearray, devices, driver, dummyarray
from numba.cuda.cudadrv import error as driver_errors
from numba.cuda.cudadrv.driver import CudaAPIError, MemoryInfo
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.flags import CUDAFlags
from numba.cuda.kernels import reduction
from numba.cuda.np import numpy_support, ufunc
from numba.cuda.np.numpy_support import ufunc_find_matching_loop
from numba.cuda.target import CUDATargetContext, CUDATypingContext
from numba.cuda.types.ext_types import Dim3, GridGroup
from numba.cuda.typing import make_concrete_template, signature
from numba.cuda.typing.templates import AttributeTemplate, fold_arguments
from numba.cuda.typing.typeof import Purpose, typeof, typeof_impl
from numba.cuda.ufuncs import ufunc_db
from numba.cuda.utils import order_by_target_specificity
from numba.cuda.vector_types import VectorType

NUMBA_ERRORS = (_CudaNumbaError, _CoreNumbaError)
#: Result codes of the driver, such as ``CUDA_ERROR_OUT_OF_MEMORY``.
CUresult = driver.binding.CUresult
