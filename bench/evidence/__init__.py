"""Comparisons of `gpukit.trace` with counts and errors that are known from a real GPU."""
