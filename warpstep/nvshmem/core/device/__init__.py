"""Functions of NVSHMEM for kernels."""
