"""Run notebooks in a fresh kernel of this very Python, and record their outputs."""

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import notebook_solve
from notebook_text import ROOT, read_notebook, write_notebook

ANSI = re.compile(r"\x1b\[[0-9;]*m")
PACKAGES = ("numba", "numba-cuda", "numpy", "matplotlib", "opencv-python", "opencv-python-headless", "nbconvert")
VARIABLES = ("GPUKIT_", "NUMBA_", "CUDA_")


class NotebookError(Exception):
    """A cell failed: the message names notebook and cell, and shows the cell's source and the error."""

    def __init__(self, name, notebook, index, reason):
        shown = "\n".join(f"    | {line}" for line in notebook.cells[index].source.strip().splitlines())
        number = sum(cell.cell_type == "code" for cell in notebook.cells[: index + 1])
        super().__init__(f"{name}: code cell {number} failed\n{shown}\n{reason}")


@dataclass
class Result:
    """A run: the digest of all that went into it, its seconds, where and when it ran."""

    digest: str
    seconds: float
    device: str
    date: str

    @classmethod
    def load(cls, path):
        """Read the result stored in ``path``; None if there is none."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def save(self, path):
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def execute(notebook, name, folder, timeout=600):
    """Run all cells of ``notebook`` in place, in a fresh kernel whose working directory is ``folder``.

    NotebookError if a cell raises, takes more than ``timeout`` seconds, or kills the kernel. Outputs up to that cell,
    its own included, are kept.
    """
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    begun = []
    # With no folder to look in, "python3" is this interpreter's kernel, whatever a user has registered by that name.
    specs = KernelSpecManager(kernel_dirs=[])
    with tempfile.TemporaryDirectory() as private:
        files = {"transport": "ipc", "connection_file": f"{private}/kernel.json"}
        client = NotebookClient(
            notebook,
            km=AsyncKernelManager(kernel_name="python3", kernel_spec_manager=specs, **files),
            timeout=timeout,
            record_timing=False,
            coalesce_streams=True,
            shutdown_kernel="immediate",
            resources={"metadata": {"path": str(folder)}},
            on_cell_start=lambda cell, cell_index: begun.append(cell_index),
        )
        try:
            client.execute(cleanup_kc=True, env=_environment(private))
        except CellExecutionError:
            failed = [output for output in notebook.cells[begun[-1]].outputs if output.output_type == "error"]
            reason = ANSI.sub("", "\n".join(failed[-1].traceback))
        except CellTimeoutError:
            reason = f"TimeoutError: the cell ran for more than {timeout:g} s"
        except DeadKernelError:
            reason = "DeadKernelError: the kernel died while it ran the cell"
        else:
            return
    raise NotebookError(name, notebook, begun[-1], reason)


def _environment(private):
    """The variables of a kernel: figures are shown in the notebook, and what it keeps for its user stays here."""
    kept = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    return {**kept, "IPYTHONDIR": private, "GPUKIT_STATE": private}


def digest(notebook):
    """Digest what decides what a notebook shows: its cells, packages, data, these tools, versions, settings."""
    found = hashlib.sha256(json.dumps([[cell.cell_type, cell.source] for cell in notebook.cells]).encode())
    for folder, pattern in (("gpukit", "*.py"), ("warpstep", "*"), ("data", "*"), ("tools", "*")):
        for path in sorted((ROOT / folder).rglob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    found.update(repr([platform.python_version(), *map(_version, PACKAGES)]).encode())
    set_here = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    set_here.pop("GPUKIT_STATE", None)
    found.update(repr(sorted(set_here.items())).encode())
    driver = Path("/proc/driver/nvidia/version")
    found.update(driver.read_bytes() if driver.exists() else b"")
    return found.hexdigest()


def run(path, build, device, timeout=600, answers=None):
    """Run one notebook. Its outputs and its Result go to ``build/notebooks``; the notebook itself stays as it is.

    With the ``answers`` of `notebook_solve` in place of the starters, every check must pass.
    """
    notebook = _to_run(path, answers)
    (build / "notebooks").mkdir(parents=True, exist_ok=True)
    stored = result_path(path, build)
    stored.unlink(missing_ok=True)
    key = digest(notebook)
    began = time.perf_counter()
    try:
        execute(notebook, path.stem, path.parent, timeout)
        for index, reason in notebook_solve.refused(notebook) if answers else ():
            raise NotebookError(path.stem, notebook, index, reason)
    finally:
        write_notebook(notebook, output_path(path, build))
    seconds = time.perf_counter() - began
    Result(key, round(seconds, 1), device, datetime.date.today().isoformat()).save(stored)


def output_path(path, build):
    """Return where the outputs of the notebook ``path`` go."""
    return build / "notebooks" / path.name


def result_path(path, build):
    """Return where the result of the notebook ``path`` goes."""
    return build / "notebooks" / f"{path.stem}.json"


def up_to_date(path, build, answers=None):
    """Return the stored result of a notebook if nothing that went into it has changed since, else None."""
    result = Result.load(result_path(path, build))
    if result is None or not output_path(path, build).exists():
        return None
    try:
        return result if result.digest == digest(_to_run(path, answers)) else None
    except notebook_solve.StarterError:
        return None  # the run itself will say so


def _to_run(path, answers):
    notebook = read_notebook(path)
    if answers:
        notebook_solve.fill(notebook, answers)
    return notebook


def record(path, timeout=600):
    """Run one notebook and store its outputs in it, without what belongs to this machine or this run.

    A notebook that fails is left as it was.
    """
    notebook = read_notebook(path)
    execute(notebook, path.stem, path.parent, timeout)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            _scrub(output)
    write_notebook(notebook, path)


def device_line():
    """Say in one line where kernels run. A child process asks, so that its memory on the GPU is freed."""
    command = [sys.executable, "-c", "from gpukit.doctor import device_line; print(device_line())"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1]
        sys.exit(f"gpukit has no place to run kernels ({reason}); `{sys.executable} -m gpukit doctor` says what to do")
    return done.stdout.strip()


def scrub_text(text):
    """Remove paths of this machine and addresses that differ from run to run."""
    text = re.sub(r"[^\s'\"<>(]*/ipykernel_\d+/\d+\.py", "<cell>", text)
    text = re.sub(r"[^\s'\"<>(]*/site-packages/", "site-packages/", text)
    text = text.replace(f"{ROOT}/", "").replace(str(ROOT), ".").replace(str(Path.home()), "~")
    return re.sub(r"\bat 0x[0-9a-fA-F]+", "at 0x...", text)


def _scrub(output):
    if "metadata" in output:
        output.metadata = {kind: {"alt": about["alt"]} for kind, about in output.metadata.items() if "alt" in about}
    if "text" in output:
        output["text"] = scrub_text(output["text"])
    for kind, content in output.get("data", {}).items():
        if isinstance(content, str) and not (kind.startswith("image/") and kind != "image/svg+xml"):
            output["data"][kind] = scrub_text(content)


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
