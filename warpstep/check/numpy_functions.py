"""NumPy functions that kernels do not have, and what takes their place."""

_LOOP = "write a loop over the elements"
_LOCAL = "use cuda.local.array or cuda.shared.array, whose shape is a constant, or pass an array in"
_SORT = "sort before the launch, or write the sort into the kernel"

RANDOM = "use xoroshiro128p_uniform_float32 and its like of numba.cuda.random"
MISSING = dict.fromkeys(
    ("zeros", "ones", "empty", "full", "array", "zeros_like", "ones_like", "empty_like", "copy"), _LOCAL
)
MISSING |= dict.fromkeys(("linspace", "arange"), "compute each element from its index")
MISSING |= dict.fromkeys(("dot", "matmul", "inner", "outer", "vdot", "convolve", "cumsum", "median"), _LOOP)
MISSING |= dict.fromkeys(("amax", "amin", "max", "min"), _LOOP)
MISSING |= dict.fromkeys(("sort", "argsort", "unique", "partition"), _SORT)
MISSING |= dict.fromkeys(
    ("concatenate", "stack", "vstack", "hstack", "append", "reshape", "transpose"), "index the arrays"
)
MISSING |= {"where": "write `a if condition else b`", "clip": "write min(max(x, low), high)"}
METHODS = dict.fromkeys(("copy", "dot", "astype", "flatten", "tolist", "min", "max", "cumsum"), _LOOP)
