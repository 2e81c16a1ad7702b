"""`gpukit bench` finds the measurements in a checkout, and says where they are otherwise."""

import sys

import pytest

from gpukit import __main__ as command
from gpukit import _bench, on_gpu, prediction


def test_it_runs_the_measurements_of_the_checkout(capsys):
    with pytest.raises(SystemExit, match="0"):
        command.main(["bench", "--help"])
    assert "usage: gpukit bench [NAME ...]" in capsys.readouterr().out
    assert _bench.load("bench.ratios") is sys.modules["bench.ratios"]


def test_without_a_checkout_it_says_where_to_find_them(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_bench, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="2"):
        command.main(["bench", "matmul"])
    assert "clone its repository and run `make bench` there" in capsys.readouterr().err
    if on_gpu():
        prediction.measured.cache_clear()
        with pytest.raises(ImportError, match="clone its repository"):
            prediction.measured()
