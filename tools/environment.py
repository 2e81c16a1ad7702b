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
OLDEST, NEWEST = [3, 11], [3, 13]
NEEDED = "gpukit needs Python 3.11, 3.12 or 3.13: install one and say `make PYTHON=python3.13 ...`"
EXTRAS = ("auto", "none", "cu12", "cu13")


def main():
    parser = argparse.ArgumentParser(prog="tools/environment.py", description="Make the virtual environment of gpukit.")
    parser.add_argument("--venv", default=".venv", help="its folder (default: .venv)")
    parser.add_argument("--python", help="the Python to take (default: that of the environment if there is one)")
    parser.add_argument("--extra", default="auto", choices=EXTRAS, help="CUDA wheels (default: those the driver takes)")
    arguments = parser.parse_args()
    venv = ROOT / arguments.venv
    python = find_python(arguments.python, venv)
    present = read_stamp(venv)
    wanted = {
        "root": str(ROOT),
        "python": version_of(python),
        "extra": find_extra(python, present) if arguments.extra == "auto" else arguments.extra,
        "project": hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest(),
    }
    if present != wanted:
        install(venv, python, present, wanted)


def find_python(asked, venv):
    """The Python to build with: the one asked for, or the environment's own, or the first on the path that will do."""
    if asked:
        found = shutil.which(asked)
        if found is None:
            sys.exit("PYTHON=%s: there is no such command" % asked)
        if not suits(found):
            sys.exit("PYTHON=%s is Python %s; %s" % (asked, dotted(version_of(found)), NEEDED))
        return found
    candidates = [str(venv / "bin" / "python"), sys.executable]
    candidates += [shutil.which("python3.%d" % minor) for minor in (13, 12, 11)]
    for python in candidates:
        if python and suits(python):
            return python
    return sys.exit("python3 is Python %s; %s" % (dotted(sys.version_info[:3]), NEEDED))


def suits(python):
    return OLDEST <= version_of(python)[:2] <= NEWEST


def version_of(python):
    """The version of a Python, as three numbers; zeros if it does not run."""
    command = [python, "-c", "import sys; print(*sys.version_info[:3])"]
    try:
        return [int(number) for number in subprocess.check_output(command, stderr=subprocess.DEVNULL).split()]
    except (OSError, subprocess.CalledProcessError):
        return [0, 0, 0]


def dotted(version):
    return ".".join(str(number) for number in version)


def find_extra(python, present):
    """The CUDA wheels that the driver takes. What is installed stays while no GPU is in reach."""
    code = "from gpukit.doctor import probe_driver, wheel_extra; print(wheel_extra(*probe_driver()) or 'none')"
    found = subprocess.check_output([python, "-c", code], cwd=str(ROOT), universal_newlines=True).strip()
    return present.get("extra", found) if found == "none" else found


def read_stamp(venv):
    """What the environment was made of; empty if it is not there, or was not finished."""
    try:
        return json.loads((venv / "gpukit.json").read_text())
    except (OSError, ValueError):
        return {}


def install(venv, python, present, wanted):
    """Make the environment, or bring the one that is there up to date."""
    fresh = not all(present.get(key) == wanted[key] for key in ("root", "python"))
    if fresh or {present["extra"], wanted["extra"]} == {"cu12", "cu13"}:
        create(venv, python, wanted)
    elif present:
        (venv / "gpukit.json").unlink()  # until all is done, there is no environment to rely on
    extras = "dev" if wanted["extra"] == "none" else "dev," + wanted["extra"]
    print("installing gpukit[%s] in %s: some minutes the first time" % (extras, shown(venv)), flush=True)
    if pip(venv, "install", "-e", "%s[%s]" % (ROOT, extras)):
        sys.exit("pip could not install gpukit[%s]: see above" % extras)
    mend_opencv(venv)
    (venv / "gpukit.json").write_text(json.dumps(wanted, indent=1) + "\n")


def create(venv, python, wanted):
    check_parts(python, wanted["python"])
    if venv.exists():
        if any(venv.iterdir()) and not (venv / "pyvenv.cfg").exists():
            sys.exit("%s is there and is no virtual environment: remove it, or say `make VENV=...`" % shown(venv))
        shutil.rmtree(str(venv))
    print("making %s with Python %s" % (shown(venv), dotted(wanted["python"])), flush=True)
    if subprocess.call([python, "-m", "venv", str(venv)]):
        sys.exit("Python could not make the virtual environment: see above")


def check_parts(python, version):
    """Debian and Ubuntu ship Python without what makes environments: name the package that brings it."""
    if subprocess.call([python, "-c", "import ensurepip, venv"], stderr=subprocess.DEVNULL):
        system = os.path.realpath(python).startswith("/usr/bin/")
        default = system and version_of("/usr/bin/python3")[:2] == version[:2]
        package = "python3-venv" if default else "python%s-venv" % dotted(version[:2])
        sys.exit("%s cannot make virtual environments. Mend it with:\n  sudo apt install %s" % (python, package))


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
