"""What programs take from the bindings below ``nvshmem.core``."""
