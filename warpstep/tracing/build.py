"""From a traced launch to the records of a `Recording`: sums by place in the source, coverage, traffic, occupancy."""

import functools
import linecache
from collections import defaultdict
from typing import Any

import numpy as np

from warpstep import device
from warpstep.integers import ceil_div
from warpstep.limits import SECTOR
from warpstep.tracing.advice import advise
from warpstep.tracing.counting import Counts
from warpstep.tracing.recorder import Recorder
from warpstep.tracing.records import (
    BOXES,
    FINDINGS,
    TENSOR,
    Access,
    Barrier,
    Branch,
    Coverage,
    Finding,
    Heat,
    Occupancy,
    Operations,
    Request,
    Traffic,
)
from warpstep.tracing.steps import Steps

ARITHMETIC = ("fp16", "fp32", "fp64", "int32", "int64", "int64_divisions", "fp64_conversions", *TENSOR)


def summarize(prepared, recorder: Recorder, registers: int | None, advice: bool, stopped: str = "") -> dict[str, Any]:
    """Sum up a traced launch: the fields of a `Recording`.

    Parameters
    ----------
    prepared : launch.Prepared
    recorder : Recorder
        Counts are scaled from the blocks that it has seen to the whole grid, unless the launch was stopped.
    registers : int or None
        Registers per thread.
    advice : bool
        Whether to make advice.
    stopped : str
        The error that ended the launch.
    """
    launch, blocks = prepared.run, recorder.blocks_begun
    function = prepared.overload.kernel.py_func
    scale = 1 if stopped else launch.blocks / blocks
    accesses = _accesses(recorder, scale)
    branches = _branches(recorder, scale)
    operations = _operations(recorder, scale)
    coverage = [_coverage(recorder, name, array) for name, array in prepared.transfers.arrays]
    overhead, shared_overhead = _overhead(recorder, scale)
    checked = coverage if blocks == launch.blocks and not stopped else []
    return {
        "kernel": function.__name__,
        "filename": function.__code__.co_filename,
        "source": prepared.overload.kernel.source,
        "grid": launch.grid,
        "block": launch.block,
        "shared_bytes": launch.dynamic_shared,
        "blocks": blocks,
        "accesses": accesses,
        "branches": branches,
        "barriers": _barriers(recorder, scale),
        "operations": operations,
        "overhead": overhead,
        "shared_overhead": shared_overhead,
        "findings": _findings(recorder),
        "advice": advise(prepared, recorder, accesses, branches, operations, checked) if advice else [],
        "coverage": coverage,
        "occupancy": _occupancy(launch, registers),
        "traffic": _traffic(recorder, accesses, operations, coverage, scale),
        "stopped": stopped,
        "heat": _heat(prepared, recorder),
        "steps": Steps(recorder.log),
        "where": _where(launch),
    }


def _where(launch):
    if launch.element is not None:
        return f"PE {launch.element.number} of {len(launch.element.world.elements)}"
    return f"device {launch.device}" if device.count() > 1 else ""


def _place(filename, line):
    """The fields of a `Place`."""
    return {"line": line, "filename": filename, "code": linecache.getline(filename, line).strip()}


def _site(site):
    return _place(site.filename, site.line)


def _in_order(records):
    """Sort records by file and line; files come in the order of their first record, as a rule the kernel's first."""
    files = {r.filename: i for i, r in reversed(list(enumerate(records)))}
    return sorted(records, key=lambda r: (files[r.filename], r.line))


def _accesses(recorder, scale):
    groups = defaultdict(list)
    for (number, space, op, itemsize, array), count in recorder.accesses.items():
        site = recorder.sites[number]
        groups[site.filename, site.line, array, space, op, itemsize].append(count)
    remote = {each.name for each in recorder.launch.remote if each.allowed}
    result = []
    for (filename, line, array, space, op, itemsize), counts in groups.items():
        requests = sum(c.requests for c in counts)
        sums = np.sum([c.counts for c in counts], axis=0).tolist()
        scaled = {name: round(n * scale) for name, n in zip(Counts._fields, sums, strict=True)}
        result.append(
            Access(
                **_place(filename, line),
                array=array,
                space=space,
                op=op,
                itemsize=itemsize,
                requests=round(requests * scale),
                active_lanes=sum(c.lanes for c in counts) / requests,
                worst=None if op in BOXES else Request(**max(counts, key=lambda c: c.excess).worst),
                link_bytes=scaled["sectors"] * SECTOR if space == "global" and array in remote else 0,
                **scaled,
            )
        )
    return _in_order(result)


def _branches(recorder, scale):
    return _in_order(
        [
            Branch(
                **_site(recorder.sites[number]),
                warps=round(count.warps * scale),
                split=round(count.split * scale),
                waiting_lanes=count.waiting / count.split if count.split else 0.0,
            )
            for number, count in recorder.branches.items()
        ]
    )


def _barriers(recorder, scale):
    passed = defaultdict(int)
    for (number, kind), times in recorder.barriers.items():
        site = recorder.sites[number]
        passed[site.filename, site.line, kind] += times
    return _in_order(
        [
            Barrier(**_place(filename, line), kind=kind, passed=round(times * scale))
            for (filename, line, kind), times in passed.items()
        ]
    )


def _operations(recorder, scale):
    sums = {}
    for label, counted in enumerate(recorder.launch.program.operations):
        block = recorder.blocks.get(label)
        if block is None:
            continue
        places = set()
        for (place, kind), each in counted.items():
            entry = sums.setdefault(place, dict.fromkeys((*ARITHMETIC, "threads", "warps"), 0))
            entry[kind] += each * block.threads
            places.add(place)
        for place in places:
            # A line may lie in several basic blocks: the one that runs most stands for it.
            if block.threads > sums[place]["threads"]:
                sums[place] |= {"threads": block.threads, "warps": block.warps}
    result = []
    for place, entry in sums.items():
        counts = {kind: round(entry[kind] * scale) for kind in (*ARITHMETIC, "threads")}
        result.append(Operations(**_place(*place), **counts, active_lanes=entry["threads"] / entry["warps"]))
    return _in_order(result)


def _overhead(recorder, scale):
    """Estimate the warp instructions that the source does not show: all, and those whose values a warp shares."""
    numbers = recorder.launch.program.overhead()
    counts = ([n * block.warps for n in numbers[label]] for label, block in recorder.blocks.items())
    return [round(sum(column) * scale) for column in zip([0, 0], *counts, strict=True)]


def _findings(recorder):
    found = [
        Finding(
            **_site(recorder.sites[p.site]),
            kind=p.kind,
            message=p.message,
            cure=recorder.cure(p),
            array=p.array,
            block=p.block,
            threads=p.threads,
            count=p.count,
        )
        for p in recorder.problems.values()
        if recorder.matters(p)
    ]
    return sorted(found, key=lambda f: (FINDINGS.index(f.kind), f.line))


def _coverage(recorder, name, array):
    host = array.host
    if not host.size:
        return Coverage(name, host.shape, host.dtype, 0, 0, 0, None)
    cells = recorder.memories[array.allocation.address]
    start = array.gpu_data.offset
    read, written = (_elements(flags, cells.size, host, start) for flags in (cells.read, cells.written))
    first = None
    if written.any() and not written.all():
        first = tuple(int(i) for i in np.unravel_index(int(np.argmin(written)), host.shape))
    counts = int(np.count_nonzero(read)), int(np.count_nonzero(written))
    return Coverage(name, host.shape, host.dtype, host.size, *counts, first)


def _elements(flags, size, host, start):
    """Flags by cell as flags by element of a strided array that starts at a byte offset."""
    offset = np.int64(start)
    for axis, (extent, stride) in enumerate(zip(host.shape, host.strides, strict=True)):
        steps = np.arange(extent, dtype=np.int64) * stride
        offset = offset + steps.reshape(-1, *[1] * (host.ndim - axis - 1))
    return flags[offset // size]


def _heat(prepared, recorder):
    """The maps of the arguments, and of the shared arrays; None if there are none."""
    if recorder.heat is None:
        return None
    found = []
    for name, array in prepared.transfers.arrays:
        made = recorder.heat.get(array.allocation.address)
        if made is not None and array.host.size:
            host = array.host
            width = max(1, made.unit // host.dtype.itemsize)
            cells = _offsets(host, array.gpu_data.offset, width) // made.unit
            found.append(Heat(name, "global", host.shape, host.dtype, width, *made.of(cells)))
    for key, made in recorder.heat.items():
        if isinstance(key, tuple):
            width = max(1, made.unit // made.dtype.itemsize)
            cells = np.arange(0, made.nbytes, made.dtype.itemsize * width) // made.unit
            shape = made.shape if made.shape else (made.nbytes // made.dtype.itemsize,)
            found.append(Heat(key[0], "shared", shape, made.dtype, width, *made.of(cells)))
    return found


def _offsets(host, start, width):
    """Byte offset of every ``width``-th element of a strided array, in C order."""
    index = np.unravel_index(np.arange(0, host.size, width), host.shape)
    return sum((i * stride for i, stride in zip(index, host.strides, strict=True)), np.int64(start))


def _traffic(recorder, accesses, operations, coverage, scale):
    # An element that is read through two names counts twice. Scaled counts end at the size of the array: blocks that
    # share elements have shown all of them already.
    needed = sum(
        min(round(touched * scale), c.elements) * c.dtype.itemsize for c in coverage for touched in (c.read, c.written)
    )
    cold = {
        name: SECTOR * sum(_sectors(recorder.memories[address], name, scale) for address in recorder.arguments)
        for name in ("read", "written")
    }
    moved = SECTOR * sum(a.sectors for a in accesses if a.space == "global")
    return Traffic(
        needed,
        moved,
        sum(getattr(o, kind) for o in operations for kind in ("fp16", "fp32", "fp64", *TENSOR)),
        cold["read"],
        cold["written"],
    )


def _sectors(cells, name, scale):
    """Distinct sectors of an allocation that were "read" or "written", scaled, at most all."""
    flags, each = getattr(cells, name), SECTOR // cells.size
    words = np.pad(flags, (0, -flags.size % each)).view(f"u{min(each, 8)}")  # several flags at a time
    touched = functools.reduce(np.bitwise_or, words.reshape(-1, max(each // 8, 1)).T)
    return min(round(np.count_nonzero(touched) * scale), touched.size)


def _occupancy(launch, registers):
    limits = device.current()
    shared = launch.program.static_bytes + launch.dynamic_shared
    warps = ceil_div(launch.threads, limits.warp_size)
    max_warps = limits.max_threads_per_multiprocessor // limits.warp_size
    bounds = device.resident_blocks(limits, warps, shared, registers)
    limited_by = min(bounds, key=bounds.__getitem__)
    blocks = bounds[limited_by]
    return Occupancy(limits.card, blocks * warps, max_warps, blocks, registers, shared, limited_by)
