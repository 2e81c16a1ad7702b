"""Kernels whose counts and errors are known from a real GPU: what `gpukit.trace` is held to."""
