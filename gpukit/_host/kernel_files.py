"""Files of compiled kernels, which all processes of a user share.

A file is written under another name and then renamed, so that several processes may write at once, and it holds a
checksum: one that is not whole counts as none. It is machine code, so files are read only from a folder that belongs to
the user or to root, and that nobody else may write.
"""

from __future__ import annotations  # for the doctor, on Pythons that are too old for gpukit

import contextlib
import hashlib
import json
import os
import sys
import time
from pathlib import Path

__all__ = ["ENVIRONMENT_VARIABLE", "files", "folder", "read", "tidy", "write"]

#: Names the folder; "off" does without one.
ENVIRONMENT_VARIABLE = "GPUKIT_CACHE"
#: The first bytes of a file: another number for another format.
MAGIC = b"gpukit kernel 1\n"
#: Bytes of all files together at most; those not used for longest are dropped first.
MAX_BYTES = 256 << 20
#: How a file's name ends, and that of one that is being written.
SUFFIX, PARTIAL = ".kernel", ".partial"
#: Seconds between two notes of a file's use, and after which nobody can be writing it any more.
NOTED, ABANDONED = 86400, 3600


def folder() -> Path | None:
    """Return the folder of compiled kernels, which need not exist; None if there is to be none."""
    named = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if named:
        return None if named.lower() == "off" else Path(named)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "gpukit"


def write(path: Path, head: dict, *blocks: bytes):
    """Write a file, in whole or not at all: what JSON can hold, and blocks of bytes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(path.parent):
        return
    text = json.dumps([head, list(map(len, blocks))]).encode()
    data = b"".join((len(text).to_bytes(4, "little"), text, *blocks))
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        partial.write_bytes(MAGIC + hashlib.sha256(data).digest() + data)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read(path: Path) -> tuple | None:
    """Read (what JSON can hold, blocks of bytes); None if the file is not there, or not as it was written."""
    try:
        found = path.read_bytes() if is_private(path.parent) else b""
        used = path.stat().st_mtime
    except OSError:
        return None
    start = len(MAGIC) + hashlib.sha256().digest_size
    if found[:start] != MAGIC + hashlib.sha256(found[start:]).digest():
        return None
    if time.time() - used > NOTED:
        with contextlib.suppress(OSError):
            os.utime(path)
    text, at = start + 4, start + 4 + int.from_bytes(found[start : start + 4], "little")
    head, sizes = json.loads(found[text:at])
    blocks = []
    for size in sizes:
        blocks.append(found[at : at + size])
        at += size
    return head, *blocks


def is_private(place: Path) -> bool:
    """Whether a folder belongs to the user or to root, and nobody else may write it."""
    if not hasattr(os, "geteuid"):
        return True
    status = place.stat()
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def files(place: Path) -> list[tuple[float, int, Path]]:
    """List (time of the last use, bytes, path) of the files in a folder, beginning with the oldest."""
    found = []
    with contextlib.suppress(OSError):
        for path in place.iterdir():
            if path.suffix in (SUFFIX, PARTIAL):
                with contextlib.suppress(OSError):
                    found.append((path.stat().st_mtime, path.stat().st_size, path))
    return sorted(found)


def tidy(place: Path, most: int = MAX_BYTES):
    """Drop the files that were not used for longest, until the others have at most so many bytes."""
    found, now = files(place), time.time()
    excess = sum(size for _, size, _ in found) - most
    for used, size, path in found:
        if excess > 0 or path.suffix == PARTIAL and now - used > ABANDONED:
            with contextlib.suppress(OSError):
                path.unlink()
            excess -= size
