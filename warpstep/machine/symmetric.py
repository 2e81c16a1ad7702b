"""Symmetric memory in kernels: the same array of other processing elements."""

from typing import Any

import numpy as np

from warpstep.machine.memory import Either, View, contiguous, is_lane_array


def my_pe(batch, site):
    """Return the number of the processing element."""
    return np.int32(_element(batch, site).number)


def n_pes(batch, site):
    """Return how many processing elements there are."""
    return np.int32(len(_element(batch, site).world.elements))


def _element(batch, site) -> Any:
    element = batch.launch.element
    if element is None:
        batch.unsupported(site, "a function of NVSHMEM outside of nvshmem.run(), which starts the processing elements,")
    return element


def flat_elements(batch, view, site):
    """View the elements of a contiguous array in the order of memory, as one dimension."""
    if view.__class__ is Either:
        return Either(view.mask, flat_elements(batch, view.first, site), flat_elements(batch, view.second, site))
    shape, strides = view.shape, view.strides
    if all(isinstance(n, int) for n in (*shape, *strides)) and strides == contiguous(shape[::-1])[::-1]:
        shape, strides = shape[::-1], strides[::-1]  # in the order of Fortran
    size, step = 1, 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        fits = (
            isinstance(step, int)
            and isinstance(stride, int)
            and (stride == step or isinstance(extent, int) and extent == 1)
        )
        if not fits:
            batch.unsupported(site, f"a transfer of array {view.name!r}, which is not contiguous,")
        size, step = size * extent, step * extent
    return view.with_window(view.base, (size,), (1,))


def peer_array(batch, view, pe, mask, site):
    """View a symmetric array as that of element ``pe``, which may differ by thread."""
    if view.__class__ is Either:
        first, second = (peer_array(batch, part, pe, mask, site) for part in (view.first, view.second))
        return Either(view.mask, first, second)
    if not is_lane_array(pe):
        return _peer(batch, view, int(pe), mask, site)
    shape = batch.shape
    numbers = np.unique(np.broadcast_to(pe, shape)[np.broadcast_to(True if mask is None else mask, shape)])
    found = None
    for number in numbers.tolist():
        lanes = np.broadcast_to(pe == number, shape)
        there = _peer(batch, view, number, lanes if mask is None else lanes & mask, site)
        found = there if found is None else Either(lanes, there, found)
    return view if found is None else found


def _peer(batch, view, pe, mask, site):
    element = _element(batch, site)
    world = element.world
    if not 0 <= pe < len(world.elements):
        batch.fail("out-of-bounds", f"there is no PE {pe}: there are {len(world.elements)}", site, mask, "", view.name)
        return view  # in a trace, which goes on
    part = world.find(view.address)
    if part is None:
        cure = "Allocate it with nvshmem.core.array in all elements: only such an array has a counterpart there."
        message = f"{view.name!r} of PE {element.number} is not in the symmetric heap, and is accessed on PE {pe}"
        batch.fail("peer-access", message, site, mask, cure, view.name)
        return view
    there = world.arrays[part.array][pe]
    if pe == part.element or there is None:
        return view
    items = there.bytes[part.offset : part.offset + view.items.nbytes].view(view.items.dtype)
    name = view.name.partition(" of PE ")[0]
    found = View(
        view.space, items, view.base, view.shape, view.strides, f"{name} of PE {pe}", there.address + part.offset
    )
    found.dtype, found.aligned = view.dtype, view.aligned
    found.whole = found.whole and found.dtype == items.dtype
    batch.launch.reach(found.name, there)
    return found


def sync_words(batch, site):
    """View the words of the element in which barriers on the device count: arrivals and rounds."""
    element = _element(batch, site)
    allocation = element.world.arrays[0][element.number]
    return View("global", allocation.bytes.view(np.int64), 0, (2,), (1,), "barrier", allocation.address)
