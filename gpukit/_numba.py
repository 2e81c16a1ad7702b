"""The only file of gpukit that names numba-cuda's private modules."""

from numba.cuda.core import config

__all__ = ["PER_THREAD_DEFAULT_STREAM"]

#: Whether each thread has a default stream of its own (NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM).
PER_THREAD_DEFAULT_STREAM = bool(config.CUDA_PER_THREAD_DEFAULT_STREAM)
