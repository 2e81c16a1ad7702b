"""From a traced launch to the records of a report: sums by place in the source, coverage, traffic, occupancy."""

import inspect
import linecache
import math
from collections import defaultdict

import numpy as np

from warpstep import device
from warpstep.tracing.advice import advise
from warpstep.tracing.records import (
    FINDINGS,
    Access,
    Barrier,
    Branch,
    Coverage,
    Finding,
    Occupancy,
    Operations,
    Recording,
    Request,
    Traffic,
)

SECTOR = 32
#: Registers are given to a warp in units of so many.
REGISTER_UNIT = 256
SHARED_UNIT = 128


def record(prepared, recorder, blocks, registers):
    """Make a `Recording`.

    Parameters
    ----------
    prepared : emulator.launch.Prepared
    recorder : emulator.recorder.Recorder
    blocks : int
        Blocks that were traced; counts are scaled to the whole grid.
    registers : int or None
        Registers per thread.
    """
    launch = prepared.run
    function = prepared.overload.kernel.py_func
    scale = launch.blocks / blocks
    accesses = _accesses(recorder, scale)
    operations = _operations(launch, recorder, scale)
    overhead, shared_overhead = _overhead(launch, recorder, scale)
    branches = _branches(recorder, scale)
    coverage = _coverage(prepared, recorder)
    traffic = _traffic(recorder, accesses, operations, coverage, scale)
    return Recording(
        kernel=function.__name__,
        filename=function.__code__.co_filename,
        source=_source(function),
        grid=launch.grid,
        block=launch.block,
        shared_bytes=launch.dynamic_shared,
        blocks=blocks,
        accesses=accesses,
        branches=branches,
        barriers=_barriers(recorder, scale),
        operations=operations,
        overhead=overhead,
        shared_overhead=shared_overhead,
        findings=_findings(recorder),
        advice=advise(prepared, recorder, accesses, branches, operations, coverage, blocks == launch.blocks),
        coverage=coverage,
        occupancy=_occupancy(prepared, registers),
        traffic=traffic,
    )


def _source(function):
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return 0, ""
    return first, "".join(lines)


def place(site):
    """Keyword arguments of a `Place` for a site of the program."""
    code = linecache.getline(site.filename, site.line).strip()
    return {"line": site.line, "filename": site.filename, "code": code}


def _in_order(records):
    """Records in the order of the source: the kernel's own file first, as it is in most of them."""
    files = {r.filename: i for i, r in reversed(list(enumerate(records)))}
    return sorted(records, key=lambda r: (files[r.filename], r.line))


def _accesses(recorder, scale):
    sums = {}
    for (number, space, op, itemsize, array), count in recorder.accesses.items():
        site = recorder.sites[number]
        key = (site.filename, site.line, array, space, op, itemsize)
        sums.setdefault(key, (site, []))[1].append(count)
    result = []
    for (_, _, array, space, op, itemsize), (site, counts) in sums.items():
        requests = sum(c.requests for c in counts)
        wavefronts, ideal, conflicts, sectors, ideal_sectors, lines, l1_wavefronts = (
            round(n * scale) for n in sum(c.counts for c in counts).tolist()
        )
        worst = max(counts, key=lambda c: c.excess).worst
        result.append(
            Access(
                **place(site),
                array=array,
                space=space,
                op=op,
                itemsize=itemsize,
                requests=round(requests * scale),
                wavefronts=wavefronts,
                ideal_wavefronts=ideal,
                bank_conflicts=conflicts,
                sectors=sectors,
                ideal_sectors=ideal_sectors,
                active_lanes=sum(c.lanes for c in counts) / requests,
                lines=lines,
                l1_wavefronts=l1_wavefronts,
                worst=Request(**worst),
            )
        )
    return _in_order(result)


def _branches(recorder, scale):
    result = []
    for number, count in recorder.branches.items():
        waiting = count.waiting / count.split if count.split else 0.0
        site = recorder.sites[number]
        result.append(
            Branch(
                **place(site), warps=round(count.warps * scale), split=round(count.split * scale), waiting_lanes=waiting
            )
        )
    return _in_order(result)


def _barriers(recorder, scale):
    passed = defaultdict(int)
    for (number, kind), times in recorder.barriers.items():
        site = recorder.sites[number]
        passed[site.line, site.filename, kind] += times
    return _in_order(
        [
            Barrier(line, filename, linecache.getline(filename, line).strip(), kind, round(times * scale))
            for (line, filename, kind), times in passed.items()
        ]
    )


_KINDS = ("fp16", "fp32", "fp64", "int32", "int64", "int64_divisions", "fp64_conversions")


def _operations(launch, recorder, scale):
    sums = {}
    for label, counted in enumerate(launch.program.operations):
        block = recorder.blocks.get(label)
        if block is None:
            continue
        lines = set()
        for (at, kind), each in counted.items():
            entry = sums.setdefault(at, dict.fromkeys((*_KINDS, "threads", "warps"), 0))
            entry[kind] += each * block.threads
            lines.add(at)
        for key in lines:
            # A line may lie in several basic blocks: the one that runs most is the line.
            if block.threads > sums[key]["threads"]:
                sums[key] |= {"threads": block.threads, "warps": block.warps}
    result = []
    for (filename, line), entry in sums.items():
        lanes = entry["threads"] / entry["warps"]
        counts = {kind: round(entry[kind] * scale) for kind in (*_KINDS, "threads")}
        result.append(
            Operations(line, filename, linecache.getline(filename, line).strip(), **counts, active_lanes=lanes)
        )
    return _in_order(result)


def _overhead(launch, recorder, scale):
    """Instructions of warps that nobody wrote, by estimate: all of them, and those for what a warp's lanes share."""
    numbers = launch.program.overhead()
    counts = ([n * block.warps for n in numbers[label]] for label, block in recorder.blocks.items())
    return [round(sum(column) * scale) for column in zip([0, 0], *counts, strict=True)]


def _findings(recorder):
    found = [
        Finding(
            **place(recorder.sites[p.site]),
            kind=p.kind,
            message=p.message,
            cure=p.cure,
            array=p.array,
            block=p.block,
            threads=p.threads,
            count=p.count,
        )
        for p in recorder.problems.values()
    ]
    return sorted(found, key=lambda f: (FINDINGS.index(f.kind), f.line))


def _coverage(prepared, recorder):
    result = []
    for name, array in prepared.transfers.arrays:
        host = array.host
        if not host.size:
            result.append(Coverage(name, host.shape, host.dtype, 0, 0, 0, None))
            continue
        cells = recorder.memories[array.allocation.address]
        start = array.gpu_data.offset
        read, written = (_elements(flags, cells.size, host, start) for flags in (cells.read, cells.written))
        first = None
        if written.any() and not written.all():
            first = tuple(int(i) for i in np.unravel_index(int(np.argmin(written)), host.shape))
        result.append(
            Coverage(
                name,
                host.shape,
                host.dtype,
                host.size,
                int(np.count_nonzero(read)),
                int(np.count_nonzero(written)),
                first,
            )
        )
    return result


def _elements(flags, size, host, start):
    """Truth by cell to truth by element of a strided array that starts at a byte offset."""
    offset = np.int64(start)
    for axis, (extent, stride) in enumerate(zip(host.shape, host.strides, strict=True)):
        steps = np.arange(extent, dtype=np.int64) * stride
        offset = offset + steps.reshape(-1, *[1] * (host.ndim - axis - 1))
    return flags[offset // size]


def _traffic(recorder, accesses, operations, coverage, scale):
    # An element that is read twice through two names is counted twice. Blocks that were left out touch no more than
    # there is: what all blocks share was seen already.
    needed = sum(
        min(round(touched * scale), c.elements) * c.dtype.itemsize for c in coverage for touched in (c.read, c.written)
    )
    memories = [recorder.memories[address] for address in recorder.arguments]
    cold = [
        SECTOR * sum(min(round(sectors * scale), most) for sectors, most in (_sectors(m, name) for m in memories))
        for name in ("read", "written")
    ]
    moved = sum(a.sectors for a in accesses if a.space == "global")
    flops = sum(o.fp16 + o.fp32 + o.fp64 for o in operations)
    return Traffic(needed, moved * SECTOR, flops, *cold)


def _sectors(cells, name):
    """(sectors of an allocation that were read, or written; sectors that it has)."""
    flags, starts = getattr(cells, name), np.arange(0, getattr(cells, name).size, SECTOR // cells.size)
    return np.count_nonzero(np.logical_or.reduceat(flags, starts)) if flags.size else 0, starts.size


def _occupancy(prepared, registers):
    limits, launch = device.current(), prepared.run
    static = sum(-(-n // 16) * 16 for n in launch.program.static_shared.values())
    shared = static + launch.dynamic_shared
    warps = -(-launch.threads // limits.warp_size)
    most = limits.max_threads_per_multiprocessor // limits.warp_size
    bounds = {"threads": most // warps, "blocks": limits.max_blocks_per_multiprocessor}
    reserved = shared + limits.reserved_shared_memory_per_block
    if shared:
        unit = -(-reserved // SHARED_UNIT) * SHARED_UNIT
        bounds["shared memory"] = limits.max_shared_memory_per_multiprocessor // unit
    if registers is not None:
        per_warp = math.ceil(registers * limits.warp_size / REGISTER_UNIT) * REGISTER_UNIT
        bounds["registers"] = limits.max_registers_per_multiprocessor // per_warp // warps
    limited_by = min(bounds, key=bounds.get)
    blocks = bounds[limited_by]
    return Occupancy(limits.card, blocks * warps, most, blocks, registers, shared, limited_by)
