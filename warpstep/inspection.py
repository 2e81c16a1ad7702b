"""What a kernel was compiled to, as ``numba.cuda`` shows it: types, LLVM IR, PTX, SASS, registers.

Code for a GPU is what numba-cuda makes for the emulated compute capability. It needs the compiler and no GPU.
Where the compiler is missing, asking for the code raises UnsupportedError.
"""

import struct
import sys
from functools import cached_property
from typing import Any

from warpstep import native
from warpstep._numba import signature, sigutils, types
from warpstep.api.context import get_current_device
from warpstep.compiler.blocks import Program
from warpstep.compiler.frontend import annotate
from warpstep.errors import UnsupportedError

_REGISTER_COUNT = 0x2F  # EIATTR_REGCOUNT, the attribute of a cubin that says how many registers a function has


class InspectedOverload:
    """The part of an Overload that shows it."""

    kernel: Any
    argument_types: tuple
    program: Program
    static_shared: int

    def __init__(self):
        self._for_gpu = {}

    @property
    def py_func(self):
        return self.kernel.py_func

    @property
    def signature(self):
        return signature(types.void, *self.argument_types)

    @property
    def cooperative(self) -> bool:
        """True if the kernel synchronises the grid."""
        return self.program.cooperative

    @cached_property
    def type_annotation(self):
        """The types of the kernel's variables, as Numba shows them."""
        return annotate(self.kernel, self.argument_types, types.void, **self.kernel.infer_options)

    # -- code --

    def _ask(self, question):
        """``question(code library of numba-cuda)``, of the kernel compiled for the emulated device."""
        device = get_current_device()
        with native.compiling_for(device):
            if device not in self._for_gpu:
                self._for_gpu[device] = native.compile_kernel(
                    self.py_func, self.argument_types, self.kernel.targetoptions
                )._codelibrary
            return question(self._for_gpu[device])

    def inspect_llvm(self) -> str:
        """The LLVM IR."""
        return self._ask(lambda library: library.get_llvm_str())

    def inspect_asm(self, cc: tuple | None = None) -> str:
        """The PTX, for the emulated compute capability unless another is given."""
        return self._ask(lambda library: library.get_asm_str(cc=cc or get_current_device().compute_capability))

    def inspect_lto_ptx(self, cc: tuple | None = None) -> str:
        """The PTX after link-time optimisation, with ``cuda.jit(lto=True)``; RuntimeError without."""
        return self._ask(lambda library: library.get_lto_ptx(cc=cc))

    def inspect_sass(self) -> str:
        """The SASS. RuntimeError where ``nvdisasm`` is missing."""
        return self._ask(lambda library: library.get_sass())

    def inspect_sass_cfg(self) -> str:
        """The control flow graph of the SASS. RuntimeError where ``nvdisasm`` is missing."""
        return self._ask(lambda library: library.get_sass_cfg())

    def inspect_types(self, file=None) -> None:
        """Print the source with Numba's IR and types, to ``file`` or standard output."""
        file = file or sys.stdout
        print(f"{self.kernel.py_func.__name__} {self.argument_types}", file=file)
        print("-" * 80, file=file)
        print(self.type_annotation, file=file)
        print("=" * 80, file=file)

    # -- resources --

    @cached_property
    def regs_per_thread(self) -> int:
        """Registers of a thread in the code for the emulated device."""
        return _registers(self._ask(lambda library: library.get_cubin().code))

    @property
    def shared_mem_per_block(self) -> int:
        """Bytes of static shared memory."""
        return self.static_shared

    @property
    def local_mem_per_thread(self) -> int:
        """Bytes of local arrays. A GPU's compiler may keep a small one in registers, and spill other variables."""
        return self.program.local_bytes

    @property
    def const_mem_size(self) -> int:
        """Bytes of global arrays, which are constants of the kernel."""
        return self.program.constant_bytes

    @property
    def max_threads_per_block(self) -> int:
        """Threads that a block may have on the emulated device; on a GPU the registers may allow fewer."""
        return self.kernel.max_threads_per_block


def _registers(cubin):
    """Read the registers of the kernel, the function of a cubin that has most."""
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    found = []
    for name, _, _, _, offset, length, *_ in sections:
        begin = sections[names][4] + name
        if cubin[begin : cubin.index(b"\0", begin)] != b".nv.info":
            continue
        end = offset + length
        while offset < end:
            form, attribute, value = struct.unpack_from("<BBH", cubin, offset)
            if attribute == _REGISTER_COUNT:
                found.append(struct.unpack_from("<II", cubin, offset + 4)[1])
            offset += 4 + (value if form == 4 else 0)
    if not found:
        raise UnsupportedError("the compiled kernel does not say how many registers it has")
    return max(found)


class InspectedKernel:
    """The part of a Kernel that shows its overloads.

    Each method gives {argument types: answer}, or one answer for a signature.
    """

    overloads: dict[Any, Any]
    specialized: bool
    targetoptions: dict[str, Any]
    for_gpu: Any
    _declared: dict[tuple, Any] | None

    def _each(self, ask, signature):
        if signature is not None:
            return ask(self.overloads[sigutils.normalize_signature(signature)[0]])
        return {key: ask(overload) for key, overload in self.overloads.items()}

    def _amount(self, name, signature):
        found = self._each(lambda overload: getattr(overload, name), signature)
        return next(iter(found.values())) if signature is None and self.specialized else found

    def inspect_numpy(self, signature=None) -> dict | str:
        """The NumPy programs that the emulator runs for the kernel."""
        return self._each(lambda overload: overload.program.source, signature)

    def inspect_types(self, file=None) -> None:
        """Print the source with Numba's IR and types, to ``file`` or standard output."""
        for overload in self.overloads.values():
            overload.inspect_types(file)

    def _code(self, name, signature):
        """``inspect_...`` of every overload; of a device function, numba-cuda's own answer."""
        if self.targetoptions["device"]:
            with native.compiling_for(get_current_device()):
                for argument_types, return_type in (self._declared or {}).items():
                    self.for_gpu.compile_device(argument_types, return_type)
                return getattr(self.for_gpu, name)(signature)
        return self._each(lambda overload: getattr(overload, name)(), signature)

    def inspect_llvm(self, signature=None) -> dict | str:
        """The LLVM IR that numba-cuda makes of the kernel. UnsupportedError where its compiler is not installed."""
        return self._code("inspect_llvm", signature)

    def inspect_asm(self, signature=None) -> dict | str:
        """The PTX; see `inspect_llvm`."""
        return self._code("inspect_asm", signature)

    def inspect_lto_ptx(self, signature=None) -> dict | str:
        """The PTX after link-time optimisation; see `inspect_llvm`."""
        return self._code("inspect_lto_ptx", signature)

    def inspect_sass(self, signature=None) -> dict | str:
        """The SASS, which needs ``nvdisasm`` besides; see `inspect_llvm`. RuntimeError for a device function."""
        return self._code("inspect_sass", signature)

    def inspect_sass_cfg(self, signature=None) -> dict | str:
        """The control flow graph of the SASS; see `inspect_sass`."""
        return self._code("inspect_sass_cfg", signature)

    def get_regs_per_thread(self, signature=None) -> dict | int:
        """Registers of a thread; see `inspect_llvm`. For a specialized kernel one number, as all that follow."""
        return self._amount("regs_per_thread", signature)

    def get_shared_mem_per_block(self, signature=None) -> dict | int:
        """Bytes of static shared memory of a block."""
        return self._amount("shared_mem_per_block", signature)

    def get_local_mem_per_thread(self, signature=None) -> dict | int:
        """Bytes of local arrays of a thread. A GPU's compiler may keep a small one in registers."""
        return self._amount("local_mem_per_thread", signature)

    def get_const_mem_size(self, signature=None) -> dict | int:
        """Bytes of global arrays, which are constants of the kernel."""
        return self._amount("const_mem_size", signature)

    def get_max_threads_per_block(self, signature=None) -> dict | int:
        """Threads that a block may have on the emulated device; on a GPU the registers may allow fewer."""
        return self._amount("max_threads_per_block", signature)
