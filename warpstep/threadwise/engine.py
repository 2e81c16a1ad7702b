"""LLVM: optimise a module for this machine's processor and load it."""

# pyright: reportMissingImports=false

import functools
import threading
from typing import Any

from llvmlite import binding
from llvmlite import ir as llvm_ir

ir: Any = llvm_ir

__all__ = ["Engine", "ir"]

_lock = threading.Lock()


@functools.cache
def _target():
    """Return the target of this machine, and the name and features of its processor."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    return binding.Target.from_default_triple(), binding.get_host_cpu_name(), features


class Engine:
    """Machine code of one module, kept for as long as this object."""

    def __init__(self, module):
        with _lock:
            target, cpu, features = _target()
            machine = target.create_target_machine(cpu=cpu, features=features, opt=2)
            module.triple, module.data_layout = machine.triple, str(machine.target_data)
            parsed = binding.parse_assembly(str(module))
            options = binding.create_pipeline_tuning_options(speed_level=2)
            options.loop_vectorization = options.slp_vectorization = True
            passes = binding.create_pass_builder(machine, options)
            passes.getModulePassManager().run(parsed, passes)
            self._engine = binding.create_mcjit_compiler(parsed, machine)  # takes the machine over
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        return self._engine.get_function_address(name)
