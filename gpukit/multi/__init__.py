"""Several devices: a stencil with halos, a product, an all-reduce, and batches on a cluster.

``stencil``, ``product`` and ``ring`` make schedules of `gpukit.streams` that cross devices; ``devices`` says which may
reach whose memory. ``cluster`` sends batches to the workers of a Dask cluster. ``shmem`` has the stencil once more, by
signals from inside the kernel.
"""

from gpukit.multi.cluster import local_cluster, map_frames, reduce
from gpukit.multi.devices import choose_devices, connect, copy_to_devices, rows_of, synchronize
from gpukit.multi.product import WAYS, Product, product
from gpukit.multi.ring import RINGS, AllReduce, all_reduce, bus_bandwidth
from gpukit.multi.shmem import heat_by_signals
from gpukit.multi.stencil import VARIANTS, Heat, heat

__all__ = [
    "RINGS",
    "VARIANTS",
    "WAYS",
    "AllReduce",
    "Heat",
    "Product",
    "all_reduce",
    "bus_bandwidth",
    "choose_devices",
    "connect",
    "copy_to_devices",
    "heat",
    "heat_by_signals",
    "local_cluster",
    "map_frames",
    "product",
    "reduce",
    "rows_of",
    "synchronize",
]
