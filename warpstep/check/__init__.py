"""Find mistakes in ``@cuda.jit`` kernels from their source: ``gpukit check file.py``.

Nothing is imported, compiled or run: the files are parsed, and each kernel is walked once with the types, the threads
and the bound tests that its source shows. docs/check.md describes the rules.
"""
