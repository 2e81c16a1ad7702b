"""The measurements of gpukit: ``gpukit bench`` runs them, and `bench.__main__` lists them.

The module of a measurement has ``measurements(options)``, which yields (title, function) pairs; a function returns a
list of records and whether all results were right. It may have ``head()``, which says what the records are kept with,
and ``add_options(parser)``. A tool has ``run(options)`` instead, which returns the exit status. No module of this
package imports gpukit before it is needed in Numba's simulator, where gpukit cannot be imported.
"""

import warpstep._compilers  # noqa: F401 - before numba.cuda
