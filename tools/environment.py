"""Make the virtual environment that `make` works in, or find that it is there already.

Any Python 3 can read this file, so that it can say which Python to take; the rest of gpukit needs Python 3.11.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = [3, 11], [3, 14]
NEEDED = "gpukit needs Python 3.11 to 3.14: install one and run `make PYTHON=python3.13 ...`"
EXTRAS = ("auto", "none", "cu12", "cu13")
CONSTRAINTS = ROOT / "constraints.txt"
STAMP = "gpukit.json"  # in the environment's folder: what it was made from. A folder without it is never touched


def main():
    parser = argparse.ArgumentParser(prog="tools/environment.py", description="Make the virtual environment of gpukit.")
    parser.add_argument("--venv", default=".venv", help="its folder (default: .venv)")
    parser.add_argument("--python", help="the Python to use (default: that of the environment if there is one)")
    parser.add_argument("--extra", default="auto", choices=EXTRAS, help="CUDA wheels (default: those the driver takes)")
    parser.add_argument("--newest", action="store_true", help="the newest packages, not those of constraints.txt")
    parser.add_argument("--remove", action="store_true", help="remove the environment instead")
    arguments = parser.parse_args()
    venv = ROOT / arguments.venv
    present = read_stamp(venv)
    if not present and os.path.lexists(str(venv)) and (not venv.is_dir() or any(venv.iterdir())):
        sys.exit("%s was not made by gpukit: remove it yourself, or use another folder: `make VENV=...`" % shown(venv))
    if arguments.remove:
        remove(venv)
        return
    python, version = find_python(arguments.python, venv)
    pins = "" if arguments.newest else CONSTRAINTS.read_text()
    wanted = {
        "root": str(ROOT),
        "venv": str(venv),
        "python": version,
        "extra": find_extra(python, present) if arguments.extra == "auto" else arguments.extra,
        "project": hashlib.sha256(((ROOT / "pyproject.toml").read_text() + pins).encode()).hexdigest(),
    }
    if present != wanted or look_at(str(venv / "bin" / "python"))[1] != version:
        install(venv, python, present, wanted, ["--upgrade"] if arguments.newest else ["-c", str(CONSTRAINTS)])


def read_stamp(venv):
    """What the environment was made from; empty if gpukit made no environment there."""
    try:
        stamp = json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and "root" in stamp else {}


def write_stamp(venv, stamp):
    """Write the stamp whole or not at all."""
    new = venv / (STAMP + ".new")
    new.write_text(json.dumps(stamp, indent=1) + "\n")
    os.replace(str(new), str(venv / STAMP))


def find_python(asked, venv):
    """The Python to build with and its version: the one asked for, or the environment's, or the first that will do."""
    if asked:
        if shutil.which(asked) is None:
            sys.exit("PYTHON=%s: there is no such command" % asked)
        python, version = look_at(shutil.which(asked))
        if not suits(version):
            sys.exit("PYTHON=%s is Python %s; %s" % (asked, dotted(version), NEEDED))
        return python, version
    candidates = [str(venv / "bin" / "python"), sys.executable]
    candidates += [shutil.which("python3.%d" % minor) for minor in (13, 12, 11, 14)]
    for candidate in filter(None, candidates):
        python, version = look_at(candidate)
        if suits(version):
            return python, version
    return sys.exit("python3 is Python %s; %s" % (dotted(sys.version_info[:3]), NEEDED))


def suits(version):
    return OLDEST <= version[:2] <= NEWEST


def look_at(python):
    """The interpreter below a Python, which stays when a virtual environment goes; and its version, zeros if none."""
    code = "import os, sys; print(os.path.realpath(getattr(sys, '_base_executable', sys.executable)))"
    code += "; print(*sys.version_info[:3])"
    try:
        said = subprocess.check_output([python, "-c", code], stderr=subprocess.DEVNULL, universal_newlines=True)
        base, version = said.splitlines()[-2:]
        return base, [int(number) for number in version.split()]
    except (OSError, ValueError, subprocess.CalledProcessError):
        return python, [0, 0, 0]


def dotted(version):
    return ".".join(str(number) for number in version)


def find_extra(python, present):
    """The CUDA wheels that the driver takes. What is installed stays while no GPU is in reach."""
    code = "from gpukit.doctor import probe_driver, wheel_extra; print(wheel_extra(*probe_driver()) or 'none')"
    found = subprocess.check_output([python, "-c", code], cwd=str(ROOT), universal_newlines=True).strip()
    return present.get("extra", found) if found == "none" else found


def install(venv, python, present, wanted, versions):
    """Make the environment, or bring the one that is there up to date; ``versions`` are pip's arguments for these."""
    same = all(present.get(key) == wanted[key] for key in ("root", "venv", "python")) and "unfinished" not in present
    works = look_at(str(venv / "bin" / "python"))[1] == wanted["python"]
    if not (same and works) or {present.get("extra"), wanted["extra"]} == {"cu12", "cu13"}:
        create(venv, python, wanted)
    else:
        write_stamp(venv, dict(present, unfinished=True))  # until all is done, there is no environment to rely on
    extras = "dev" if wanted["extra"] == "none" else "dev," + wanted["extra"]
    print("installing gpukit[%s] in %s: some minutes the first time" % (extras, shown(venv)), flush=True)
    if pip(venv, "install", *versions, "-e", "%s[%s]" % (ROOT, extras)):
        sys.exit("pip could not install gpukit[%s]: see above" % extras)
    if sys.platform == "darwin":
        add_numba_cuda(venv)
    mend_opencv(venv)
    write_stamp(venv, wanted)


def create(venv, python, wanted):
    """Make a fresh environment. Its stamp comes first, so that one left half made is known as gpukit's."""
    check_parts(python, wanted["python"])
    print("making %s with Python %s" % (shown(venv), dotted(wanted["python"])), flush=True)
    venv.mkdir(parents=True, exist_ok=True)
    write_stamp(venv, dict(wanted, unfinished=True))
    empty(venv)
    if build(python, venv):
        sys.exit("Python could not make the virtual environment: see above")


def build(python, venv):
    return subprocess.call([python, "-m", "venv", str(venv)])


def remove(venv):
    """Remove an environment that bears the stamp."""
    if venv.is_dir():
        empty(venv)
        (venv / STAMP).unlink()
        (venv.unlink if venv.is_symlink() else venv.rmdir)()


def empty(venv):
    """Remove all but the stamp: an environment half removed is still gpukit's."""
    for path in venv.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(str(path))
        elif path.name != STAMP:
            path.unlink()


def check_parts(python, version):
    """Debian and Ubuntu ship Python without what makes environments: name the package that brings it."""
    if subprocess.call([python, "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL):
        system = os.path.realpath(python).startswith("/usr/bin/")
        default = system and look_at("/usr/bin/python3")[1][:2] == version[:2]
        package = "python3-venv" if default else "python%s-venv" % dotted(version[:2])
        sys.exit("%s cannot make virtual environments. Mend it with:\n  sudo apt install %s" % (python, package))


def add_numba_cuda(venv):
    """Install numba-cuda on macOS, for which it has no wheels."""
    code = "import sys; from gpukit.doctor import linux_wheel; sys.stdout.write(chr(10).join(linux_wheel()))"
    command = [str(venv / "bin" / "python"), "-c", code]
    if pip(venv, *subprocess.check_output(command, universal_newlines=True).splitlines()):
        sys.exit("pip could not install numba-cuda: see above")


def mend_opencv(venv):
    """Take the build of OpenCV without windows where the usual one misses libraries of the system, such as libGL."""
    command = [str(venv / "bin" / "python"), "-c", "import cv2; cv2.resize"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode == 0:
        return
    print("opencv-python does not import here (%s)" % done.stderr.strip().splitlines()[-1])
    print("taking opencv-python-headless in its place; gpukit opens no windows", flush=True)
    pip(venv, "uninstall", "-y", "opencv-python", "opencv-python-headless")
    if pip(venv, "install", "opencv-python-headless") or subprocess.call(command):
        sys.exit("OpenCV cannot be imported: see above")


def pip(venv, *arguments):
    """Run pip in the environment; on a terminal it shows what it does. Returns its exit status."""
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    python = str(venv / "bin" / "python")
    return subprocess.call([python, "-m", "pip", "--disable-pip-version-check", *quiet, *arguments])


def shown(path):
    """A path as one would type it in the project's folder."""
    return os.path.relpath(str(path), str(ROOT))


if __name__ == "__main__":
    main()
