"""What the README shows works."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def output_of(script, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_scripts_run(tmp_path):
    first, traced = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    assert output_of(first, tmp_path).split() in (["False", "1998.0"], ["True", "1998.0"])
    report = output_of(traced, tmp_path)
    assert "race, line" in report and report.endswith("8 ['race']\n")


def test_its_targets_and_files_exist():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = re.findall(r"^make ([a-z]+)", README, re.MULTILINE)
    told = " ".join(re.findall(r"`make ([a-z ]+)`", README)).split()
    assert shown == ["notebooks", "lab", "test"]
    assert set(shown + told) <= set(targets)

    text = re.sub(r"```.+?```", "", README, flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    chapters = [f"notebooks/{path.name}" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    assert [link for link in links if link.endswith(".ipynb")] == chapters
