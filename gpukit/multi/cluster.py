"""Batches on a Dask cluster: results in order, bounded memory, and batches of a lost worker computed again.

Dask does the work: this adds the order, the bound, and which device a worker uses. It needs ``pip install
"gpukit[multi]"``.
"""

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gpukit.backend import cuda, on_gpu
from warpstep.values import check_callable, check_int, describe

__all__ = ["local_cluster", "map_frames", "reduce"]

#: Batches that each worker has: one that it computes, and others that wait.
AHEAD = 2
MAX_AHEAD = 1024


def map_frames(
    function: Callable[[Any], Any],
    batches: Iterable[Any],
    client: Any,
    *,
    ahead: int = AHEAD,
    retries: int = 2,
    progress: Callable[[int], Any] | None = None,
) -> Iterator[Any]:
    """Compute ``function(batch)`` for each batch on the workers of a cluster; yield the results in order.

    At most ``ahead`` batches per worker are in flight, including results that have not been taken yet. So there may be
    any number of batches, more than fit in memory. If a worker is lost, another one computes its batches again.

    Parameters
    ----------
    function : callable
        Of a batch. It is sent to the workers, and so is what it refers to, kernels too.
    batches : iterable
        Arrays; or better, paths or numbers from which ``function`` loads its batch: batches are sent over the network.
    client : distributed.Client
    ahead : int
        Batches in flight per worker, 1 or more.
    retries : int
        How many times a batch is tried again after ``function`` has raised, before the exception is raised here.
    progress : callable, optional
        Called with the number of batches done after each.

    Yields
    ------
    Any
        The result of each batch.

    Raises
    ------
    ImportError
        If Dask is not installed.
    TypeError, ValueError
        For an argument of another kind, at the call.

    Examples
    --------
    >>> with local_cluster(2) as client:  # doctest: +SKIP
    ...     for small in map_frames(shrink, paths, client):
    ...         show(small)
    """
    _check_client(client)
    check_callable("function", function, "a function of a batch")
    if progress is not None:
        check_callable("progress", progress, "a function of a number")
    ahead, retries = check_int("ahead", ahead, 1, MAX_AHEAD), check_int("retries", retries, 0)
    try:
        iterator = iter(batches)
    except TypeError as error:
        raise TypeError(f"batches is {describe(batches)}; it must be iterable") from error
    return _in_order(function, iterator, client, ahead, retries, progress)


def _in_order(function, batches, client, ahead, retries, progress):
    under_way, done = deque(), 0
    try:
        while True:
            workers = max(len(client.scheduler_info(n_workers=-1)["workers"]), 1)
            while len(under_way) < ahead * workers:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                under_way.append(client.submit(function, batch, retries=retries, pure=False))
            if not under_way:
                return
            result = under_way.popleft().result()
            done += 1
            if progress is not None:
                progress(done)
            yield result
    finally:
        for future in under_way:  # the caller wants no more
            future.cancel()


def reduce(
    function: Callable[[Any], Any],
    combine: Callable[[Any, Any], Any],
    batches: Iterable[Any],
    client: Any,
    **options: Any,
) -> Any:
    """Compute ``function(batch)`` on the workers, and combine the results here, from the first to the last.

    Parameters
    ----------
    function, batches, client, **options
        As for `map_frames`.
    combine : callable
        Of the results so far and the next one.

    Returns
    -------
    Any
        The same for any number of workers.

    Raises
    ------
    ValueError
        If there are no batches.

    Examples
    --------
    >>> total = reduce(np.sum, np.add, frames, client)  # doctest: +SKIP
    """
    check_callable("combine", combine, "a function of two results")
    results = map_frames(function, batches, client, **options)
    try:
        first = next(results)
    except StopIteration:
        raise ValueError("batches is empty; there is nothing to combine") from None
    return functools.reduce(combine, results, first)


@contextmanager
def local_cluster(workers: int | None = None, **options: Any) -> Iterator[Any]:
    """Start workers on this machine, each with a device of its own; end them after the ``with`` block.

    With GPUs, worker i uses device i modulo their number: through dask-cuda where it is installed, otherwise through
    ``CUDA_VISIBLE_DEVICES``. Without a GPU each worker has an emulated device.

    Parameters
    ----------
    workers : int, optional
        As many as there are devices unless given.
    **options
        Of ``distributed.Nanny``, such as ``memory_limit``.

    Yields
    ------
    distributed.Client

    Raises
    ------
    ImportError
        If Dask is not installed.

    Examples
    --------
    >>> with local_cluster(workers=2) as client:  # doctest: +SKIP
    ...     total = reduce(np.sum, np.add, frames, client)
    """
    distributed = _distributed()
    workers = len(cuda.gpus) if workers is None else check_int("workers", workers, 1, 256)
    if on_gpu() and find_spec("dask_cuda"):
        cluster = import_module("dask_cuda").LocalCUDACluster(n_workers=workers, **options)
    else:
        cluster = distributed.SpecCluster(
            workers={i: _worker(distributed, i, options) for i in range(workers)},
            scheduler={"cls": distributed.Scheduler, "options": {"dashboard": False, "host": "127.0.0.1"}},
            silence_logs=logging.CRITICAL,  # the loss of a worker is an error to the scheduler, and is made good here
        )
    with cluster, distributed.Client(cluster) as client:
        yield client


def _worker(distributed, number, options):
    """What a worker is: a process with one thread and one device."""
    env = {"GPUKIT_DEVICES": "1"}
    if on_gpu():
        env = {"CUDA_VISIBLE_DEVICES": str(number % len(cuda.gpus))}
    given = {"nthreads": 1, "env": env, "silence_logs": logging.ERROR}
    return {"cls": distributed.Nanny, "options": given | options}


def _check_client(client):
    distributed = _distributed()
    if not isinstance(client, distributed.Client):
        raise TypeError(f"client is {describe(client)}; it must be a distributed.Client, as multi.local_cluster gives")


def _distributed():
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise ImportError(
            "gpukit.multi runs batches on a Dask cluster, and Dask is not installed: pip install 'gpukit[multi]'"
        ) from error
    return distributed
