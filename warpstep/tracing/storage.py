"""Traces as JSON, to be saved on one machine and read on another."""

import base64
import json
import zlib
from dataclasses import asdict
from typing import Any

import numpy as np

from warpstep.limits import WARP
from warpstep.tracing.records import (
    Access,
    Advice,
    Barrier,
    Branch,
    Coverage,
    Finding,
    Heat,
    Occupancy,
    Operations,
    Recording,
    Request,
    Traffic,
)
from warpstep.tracing.steps import Steps

FORMAT = "warpstep trace 1"
#: What the entries of a trace that are no plain data hold, one or a list of them.
RECORDS = {
    "accesses": Access,
    "advice": Advice,
    "barriers": Barrier,
    "branches": Branch,
    "coverage": Coverage,
    "findings": Finding,
    "heat": Heat,
    "occupancy": Occupancy,
    "operations": Operations,
    "traffic": Traffic,
    "worst": Request,
}


def to_json(recording: Recording) -> str:
    """Write all fields of a trace as JSON."""
    return json.dumps({"format": FORMAT, **asdict(recording)}, default=_plain)


def from_json(text: str) -> dict[str, Any]:
    """Read the fields of a trace that `to_json` wrote; ValueError for any other text."""
    values = json.loads(text)
    if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
        raise ValueError(f"there is no {FORMAT!r} in it")
    return _fields(values)


def _plain(value):
    if isinstance(value, np.dtype):
        return np.lib.format.dtype_to_descr(value)
    if isinstance(value, Steps):
        return value.data
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.size > WARP:
        packed = zlib.compress(value.astype("<i8").tobytes())
        return {"int64": base64.b64encode(packed).decode()}
    return value.tolist()


def _fields(values):
    return {name: _field(name, value) for name, value in values.items()}


def _field(name, value):
    if value is None:
        return None
    if name in RECORDS:
        make = RECORDS[name]
        return [make(**_fields(v)) for v in value] if isinstance(value, list) else make(**_fields(value))
    if name == "dtype":
        return np.lib.format.descr_to_dtype(value)
    if name == "steps":
        return Steps(data=value)
    if name in ("active", "addresses", "reads", "writes", "writer", "thread"):
        if isinstance(value, dict):
            return np.frombuffer(zlib.decompress(base64.b64decode(value["int64"])), "<i8")
        return np.array(value)
    return _tuples(value)


def _tuples(value):
    """JSON knows no tuples: every list inside a record was one."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
