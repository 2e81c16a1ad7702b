"""Every public function has an example in its docstring, and all examples give what they show."""

import doctest
import importlib
import inspect
import itertools
import re

import make_site
import matplotlib.pyplot as plt
import numpy as np
import pytest

import gpukit
import warpstep
from gpukit.backend import cuda, on_gpu

MODULES = list(itertools.chain(*make_site.MODULES.values()))


def vars_of(name):
    module = importlib.import_module(name)
    return {key: getattr(module, key) for key in module.__all__}


def public(name):
    """The functions and classes that a module's page documents: those that no page before it has."""
    before = itertools.takewhile(lambda other: other != name, MODULES)
    known = {id(value) for other in before for value in vars_of(other).values()}
    return {key: value for key, value in vars_of(name).items() if callable(value) and id(value) not in known}


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name):
    own = warpstep.cuda if name.startswith("warpstep") else cuda
    names = {"np": np, "gpukit": gpukit, "cuda": own} | vars_of(name)
    finder, runner = doctest.DocTestFinder(recurse=True), doctest.DocTestRunner()
    for key, value in public(name).items():
        if on_gpu() and key == "heat_by_signals":
            continue  # on GPUs it needs nvshmem4py and its headers
        for example in finder.find(value, key, module=False, globs=names):
            runner.run(example)
            plt.close("all")
    assert runner.failures == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_has_one(name):
    """Or says whose it shares."""
    functions = public(name)
    for key, value in functions.items():
        if inspect.isfunction(value):
            text = inspect.getdoc(value)
            see = re.search(r"^See `(\w+)`\.$", text, re.MULTILINE)
            assert ">>> " in (inspect.getdoc(functions[see[1]]) if see else text), key
