"""The way to `bench`, which measures gpukit and lies beside it in a checkout; a wheel has only gpukit."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def load(module):
    """Import a module of `bench`, or raise ImportError that says where to find it."""
    if not (ROOT / "bench" / "__init__.py").is_file():
        raise ImportError(
            "the measurements of gpukit are not installed with it: clone its repository and say `make bench` there"
        )
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    return importlib.import_module(module)
