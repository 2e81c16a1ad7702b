"""``pytest --gpukit``: the tests of code that uses ``numba.cuda``, without a GPU.

The emulator takes the place of ``numba.cuda`` before the first conftest.py is imported. With ``--gpukit=strict``
launches are traced, and a race or another finding fails the test that made the launch.
"""

import pytest

_OPTION = "gpukit"
_ALLOWED = "'race', 'race:kernel', 'race:file.py' or 'race:file.py:12', and so for the other kinds"


def pytest_addoption(parser):
    group = parser.getgroup("gpukit", "GPU tests without a GPU")
    # Two flags instead of one with an optional value: that would take the folder for it in `pytest --gpukit tests`.
    for name, mode, text in (
        ("--gpukit", "on", "run numba.cuda on gpukit's emulator"),
        ("--gpukit=strict", "strict", "also trace launches; a race or another finding fails its test"),
    ):
        group.addoption(name, dest=_OPTION, action="store_const", const=mode, default=None, help=text)
    parser.addini("gpukit_allow", f"findings that fail no test under --gpukit=strict: {_ALLOWED}", "linelist", [])


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Install the emulator, before a conftest.py or a test module can ask whether there is a GPU."""
    if getattr(early_config.known_args_namespace, _OPTION) is None:
        return
    from warpstep import run

    if not run.installed():
        try:
            run.install()
        except ImportError as error:
            raise pytest.UsageError(f"--gpukit: {error}") from error
        early_config.add_cleanup(run.uninstall)


def pytest_configure(config):
    config.addinivalue_line("markers", f"gpukit(allow=[...]): findings that do not fail this test: {_ALLOWED}")
    if config.getoption(_OPTION) == "strict":
        config.pluginmanager.register(_Strict(), "gpukit-strict")


def pytest_report_header(config):
    mode = config.getoption(_OPTION)
    if mode is None:
        return None
    from warpstep.device import current

    major, minor = current().compute_capability
    text = f"gpukit: numba.cuda is the emulator, compute capability {major}.{minor}"
    if mode == "strict":
        text += "; findings fail tests (traced: the launches 1, 2, 3, 4, 8, 16 ... of a kernel in a test)"
    return text


class _Strict:
    """Traces the launches of each phase of a test, and fails it for findings."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):
        return (yield from self._watch(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        return (yield from self._watch(item, "call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item):
        return (yield from self._watch(item, "teardown"))

    def _watch(self, item, phase):
        from warpstep.run import Launches

        marked = [entry for mark in item.iter_markers("gpukit") for entry in mark.kwargs.get("allow", ())]
        allowed = [*item.config.getini("gpukit_allow"), *marked]
        launches = Launches(wanted=_is_sampled)
        try:
            with launches:
                result = yield
        except BaseException:
            report = launches.report_findings(allowed)
            if report:
                item.add_report_section(phase, "gpukit", report)
            raise
        report = launches.report_findings(allowed)
        if report:
            pytest.fail(report, pytrace=False)
        return result


def _is_sampled(number):
    """Choose the launches that are traced: the first three of a kernel, then each power of two."""
    return number <= 3 or number & (number - 1) == 0
