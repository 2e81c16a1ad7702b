# Numba has no types, and type checkers read its older copy of numba.cuda in place of numba-cuda's.
from typing import Any

def __getattr__(name: str) -> Any: ...
