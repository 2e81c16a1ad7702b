"""Import `bench`, which measures gpukit. It lies beside gpukit in a checkout, and is not in the wheel."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def load(module: str) -> ModuleType:
    """Import a module of `bench`; ImportError, which says where to find it, if there is none."""
    if not (ROOT / "bench" / "__init__.py").is_file():
        raise ImportError(
            "the measurements of gpukit are not installed with it: clone its repository and run `make bench` there"
        )
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(module)
