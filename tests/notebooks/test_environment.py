"""The virtual environment that `make` works in: what is removed, and what is mended."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import environment
import pytest
import yaml
from packaging.specifiers import SpecifierSet

from gpukit import doctor

ROOT = Path(environment.__file__).resolve().parent.parent
EXTRAS = {"extra": "none"}


@pytest.fixture
def make_environment(tmp_path, monkeypatch):
    """Call the tool on a folder, with stand-ins for `python -m venv` and pip; gives back the folder's stamp."""

    class Calls(list):
        fails = ()

        def __call__(self, venv, *arguments):
            monkeypatch.setattr(sys, "argv", ["environment.py", "--venv", str(venv), "--extra", "none", *arguments])
            environment.main()
            return json.loads((venv / environment.STAMP).read_text())

    calls = Calls()

    def build(python, venv):
        calls.append("venv")
        assert Path(python).exists()
        (venv / "bin").mkdir(exist_ok=True)
        (venv / "bin" / "python").symlink_to(python)
        (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
        return "venv" in calls.fails

    def pip(venv, *arguments):
        calls.append("pip")
        assert json.loads((venv / environment.STAMP).read_text())["unfinished"]
        return "pip" in calls.fails

    monkeypatch.setattr(environment, "build", build)
    monkeypatch.setattr(environment, "pip", pip)
    monkeypatch.setattr(environment, "mend_opencv", lambda venv: None)
    return calls


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def foreign(folder):
    """A virtual environment that somebody else made, with work in it."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (folder / "results.csv").write_text("weeks of work\n")
    return folder


def test_an_environment_is_made_once(tmp_path, make_environment):
    venv = tmp_path / "new" / "venv"
    stamp = make_environment(venv)
    assert stamp["root"] == str(ROOT)
    assert stamp["extra"] == "none"
    assert "unfinished" not in stamp
    assert make_environment(venv) == stamp
    assert make_environment == ["venv", "pip"]


def test_an_environment_made_by_others_stays(tmp_path, make_environment):
    venv = foreign(tmp_path / "theirs")
    before = files(venv)
    with pytest.raises(SystemExit, match="theirs was not made by gpukit"):
        make_environment(venv)
    assert files(venv) == before
    assert make_environment == []


def test_a_folder_that_is_no_environment_stays(tmp_path, make_environment):
    (tmp_path / "thesis.tex").write_text("chapter 1")
    with pytest.raises(SystemExit, match="was not made by gpukit"):
        make_environment(tmp_path)
    assert files(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize("stamp", ["", "[1, 2]", '"gpukit"', "{}"])
def test_a_stamp_that_is_not_gpukits_protects_nothing_and_removes_nothing(tmp_path, make_environment, stamp):
    venv = foreign(tmp_path / "theirs")
    (venv / environment.STAMP).write_text(stamp)
    with pytest.raises(SystemExit, match="was not made by gpukit"):
        make_environment(venv)
    assert (venv / "results.csv").exists()


@pytest.mark.parametrize("step", ["venv", "pip"])
def test_an_environment_that_was_not_finished_is_made_again(tmp_path, make_environment, step):
    venv = tmp_path / "venv"
    make_environment.fails = (step,)
    with pytest.raises(SystemExit):
        make_environment(venv)
    make_environment.fails = ()
    make_environment.clear()
    assert "unfinished" not in make_environment(venv)
    assert make_environment == ["venv", "pip"]


def test_an_environment_that_was_moved_is_made_again(tmp_path, make_environment):
    venv = tmp_path / "venv"
    stamp = make_environment(venv)
    (venv / environment.STAMP).write_text(json.dumps({**stamp, "root": "/elsewhere/gpukit"}))
    (venv / "left_over").write_text("")
    make_environment.clear()
    assert make_environment(venv) == stamp
    assert make_environment == ["venv", "pip"]
    assert "left_over" not in files(venv)


def test_an_environment_without_its_python_is_made_again(tmp_path, make_environment):
    venv = tmp_path / "venv"
    make_environment(venv)
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to(tmp_path / "gone")
    make_environment.clear()
    make_environment(venv)
    assert make_environment == ["venv", "pip"]


def test_the_environments_own_python_builds_its_successor(tmp_path, make_environment):
    venv = tmp_path / "venv"
    stamp = make_environment(venv)
    (venv / environment.STAMP).write_text(json.dumps({**stamp, "root": "/elsewhere/gpukit"}))
    make_environment(venv, "--python", str(venv / "bin" / "python"))


def test_a_changed_project_is_installed_into_the_same_environment(tmp_path, make_environment):
    venv = tmp_path / "venv"
    stamp = make_environment(venv)
    (venv / environment.STAMP).write_text(json.dumps({**stamp, "project": "an older one"}))
    (venv / "kept").write_text("")
    make_environment.clear()
    assert make_environment(venv) == stamp
    assert make_environment == ["pip"]
    assert "kept" in files(venv)


def test_the_packages_are_the_tested_ones_unless_the_newest_are_asked_for(tmp_path, monkeypatch, make_environment):
    asked = []
    monkeypatch.setattr(environment, "pip", lambda venv, *arguments: asked.append(arguments))
    for options in ((), ("--newest",)):
        make_environment(tmp_path / "venv", *options)
    tested, newest = asked
    assert tested[1:3] == ("-c", str(ROOT / "constraints.txt")) and "-c" not in newest and "--upgrade" in newest


def test_the_range_of_python_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    versions = [(3, minor) for minor in range(environment.OLDEST[1], environment.NEWEST[1] + 1)]
    dotted = [f"3.{minor}" for _, minor in versions]
    assert (doctor.MIN_PYTHON, doctor.MAX_PYTHON) == (versions[0], versions[-1])
    assert project["requires-python"] == f">={dotted[0]},<3.{versions[-1][1] + 1}"
    assert [name for name in dotted if f"Programming Language :: Python :: {name}" in project["classifiers"]] == dotted
    assert workflow["jobs"]["cpu"]["strategy"]["matrix"]["python"] == dotted


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
class TestDistclean:
    @pytest.fixture
    def distclean(self, tmp_path):
        """Run `make distclean` in a folder with three environments of gpukit: .venv, a, and "a b"; one of others: b."""
        (tmp_path / "tools").mkdir()
        for name in ("Makefile", "tools/environment.py", "constraints.txt"):
            shutil.copy(ROOT / name, tmp_path / name)
        for name in ("gpukit", "warpstep", "bench", "tests", "notebooks"):
            (tmp_path / name).mkdir()
        for name in (".venv", "a", "a b"):
            foreign(tmp_path / name)
            stamp = {"root": str(tmp_path), "python": [3, 11, 0], "extra": "none", "project": ""}
            (tmp_path / name / "gpukit.json").write_text(json.dumps(stamp))
        foreign(tmp_path / "b")

        def _distclean(*arguments):
            command = ["make", "-C", str(tmp_path), f"PYTHON={sys.executable}", "distclean", *arguments]
            variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
            done = subprocess.run(command, capture_output=True, text=True, env=variables)
            left = {name for name in (".venv", "a", "b", "a b") if (tmp_path / name / "results.csv").exists()}
            return done, left

        return _distclean

    def test_removes_the_environment(self, distclean):
        assert distclean()[1] == {"a", "b", "a b"}

    def test_takes_a_name_with_a_space_as_one(self, distclean):
        assert distclean("VENV=a b")[1] == {".venv", "a", "b"}

    @pytest.mark.parametrize("name", ["b", "$$HOME", "nothing; rm -rf a", "it's", "."])
    def test_removes_nothing_else(self, distclean, name):
        done, left = distclean(f"VENV={name}")
        assert left == {".venv", "a", "b", "a b"}
        if name in ("b", "."):
            assert done.returncode
            assert "was not made by gpukit" in done.stderr


def test_pinned_packages_take_the_first_python_of_the_oldest_version():
    """Debian 12 has Python 3.11.2. Where a pinned package wants a later one, pip tries combinations for very long."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", environment.CONSTRAINTS.read_text(), re.MULTILINE))
    refusing = []
    for distribution in metadata.distributions():
        name, wanted = distribution.metadata["Name"], distribution.metadata["Requires-Python"]
        if pinned.get(name) == distribution.version and wanted and "3.11.0" not in SpecifierSet(wanted):
            refusing.append(f"{name} {distribution.version} {wanted}")
    assert refusing == []
