"""Several devices: the answers of `two_devices`, from the emulator and from two GPUs; access to another's memory."""

import gc
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import two_devices

from warpstep import KernelError, cuda, trace, use_device
from warpstep.device import end_access
from warpstep.run import emulated

#: What ``numba.cuda`` answers on a machine with two GPUs that are linked.
ANSWERS = {
    "the_list": [2, [0, 1], 1, 1, "<Managed Device 0>, <Managed Device 1>", 1],
    "numbers_that_are_not_there": [[*["IndexError"] * 4, "ValueError", "TypeError", "done"], 0, 0],
    "the_current_device": [0, 1, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0],
    "a_context_of_another_device": [0, 1, True, 1, True],
    "leaving_in_another_order": ["AssertionError", 1, None, 0],
    "switching_where_a_context_is_required": ["RuntimeError", 0, 0, "switch"],
    "which_device_an_array_is_on": [1, 1, 1, 0, [1, 1]],
    "copies_between_devices": [[3000, 3040, 3040, 7, 3040, 3080, 3040, 7], 1],
    "an_array_of_the_host_goes_to_the_current_device": 2000,
    "memory_that_the_host_shares": [3000, 3000],
    "one_kernel_on_both": [[2000, 2000, 2000], 1],
    "a_stream_of_another_device": ["done", None, "done", None],
    "events_of_another_device": [
        [None, "CUDA_ERROR_INVALID_HANDLE", None, None] + ["CUDA_ERROR_INVALID_HANDLE", None, True, None, None],
        "CUDA_ERROR_INVALID_HANDLE",
    ],
    "identity": [[False, True, False, True, False, 2], True],
    "who_can_access_whom": [[[False, True], [True, False]], *["CUDA_ERROR_INVALID_DEVICE"] * 2],
    "asking_for_access": [
        "TypeError",
        "AssertionError",
        "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        None,
        "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
    ],
    "a_kernel_with_access": [5940, 5000],
}
FATAL = {
    "a_launch_in_a_stream_of_another_device": [2000, 0],
    "a_kernel_that_reads_without_access": "illegal address",
    "a_kernel_that_does_not_reach_the_array": "done",
    "setting_an_element_without_access": "illegal address",
    "transposing_without_access": "illegal address",
}


@pytest.fixture
def two():
    """Two emulated devices, neither of which may access the other's memory."""
    with use_device(count=2):
        yield


def test_the_emulator_answers_as_numba_cuda(two, capsys):
    assert {name: two_devices.ask(cuda, name) for name in two_devices.QUESTIONS} == ANSWERS
    end_access(0)
    found = {name: two_devices.ask(cuda, name) for name in two_devices.FATAL}
    assert found == {name: "peer-access" if answer == "illegal address" else answer for name, answer in FATAL.items()}
    assert capsys.readouterr().out.count("[SUPPORTED]") == 2


@pytest.mark.gpu
def test_numba_cuda_answers_so():
    if len(cuda_of_the_gpu().gpus) < 2:
        pytest.skip("needs two GPUs")

    found = {}
    command = [sys.executable, two_devices.__file__, "gpu"]
    # A kernel that goes wrong takes its process with it.
    started = [
        subprocess.Popen([*command, *names], stdout=subprocess.PIPE, text=True)
        for names in ([], *zip(FATAL, strict=True))
    ]
    for process in started:
        for line in process.communicate(timeout=120)[0].splitlines():
            found |= json.loads(line) if line.startswith("{") else {}
    assert found == ANSWERS | FATAL


def cuda_of_the_gpu():
    from numba import cuda

    return cuda


@cuda.jit
def inside(u, out):
    """All but the first and the last element."""
    i = cuda.grid(1) + 1
    if i < u.size - 1:
        out[i] = u[i]


def test_a_copy_that_no_event_orders_before_the_kernel(two):
    streams, arrays = [], []
    for number in (0, 1):
        with cuda.gpus[number]:
            streams.append(cuda.stream())
            arrays.append([cuda.to_device(np.ones(1000, np.float32)) for _ in range(2)])
    (x, _), (y, out) = arrays

    def traced(kernel=scale, order=lambda: None, part=slice(None)):
        y[part].copy_to_device(x[part], stream=streams[0])
        order()
        with cuda.gpus[1]:
            found = trace(kernel[4, 256, streams[1]], y, out).findings
            cuda.synchronize()
        streams[0].synchronize()
        return [(f.kind, f.line - kernel.py_func.__code__.co_firstlineno, f.array) for f in found]

    def with_event():
        event = cuda.event()
        event.record(streams[0])
        event.wait(streams[1])

    def other_event():
        event = cuda.event()
        event.wait(streams[1])  # not recorded yet
        event.record(streams[0])

    assert traced() == traced(order=other_event) == [("race", 4, "x")]
    assert traced(order=cuda.gpus[1].get_primary_context().synchronize) == []  # of device 0, the current one
    with cuda.gpus[1]:
        assert traced(order=cuda.synchronize) == [("race", 4, "x")]
    assert traced(order=with_event) == traced(order=streams[0].synchronize) == []
    # Only bytes that both use count: the halo may come while the inside is computed.
    assert traced(kernel=inside, part=slice(0, 1)) == []
    assert traced(kernel=inside, part=slice(0, 2)) == [("race", 5, "u")]
    assert not trace(scale[4, 256], x, arrays[0][1]).findings
    y.copy_to_device(x)  # without a stream: both devices wait
    with cuda.gpus[1]:
        assert not trace(scale[4, 256, streams[1]], y, out).findings
    out.copy_to_host(stream=streams[0])
    with cuda.gpus[1]:
        assert "writes out; a copy in stream" in trace(scale[4, 256, streams[1]], y, out).findings[0].message


def test_each_device_has_its_own_memory(two):
    """Asked of any context, the answer is that of the current device, as from the driver."""
    gc.collect()

    def free():
        found = []
        for number in (0, 1):
            with cuda.gpus[number]:
                found.append([gpu.get_primary_context().get_memory_info().free for gpu in cuda.gpus])
        return np.array(found)

    before = free()
    held = two_devices.on(cuda, 1, 1000)
    assert (before - free()).tolist() == [[0, 0], [4000, 4000]]
    memory = cuda.gpus[1].get_primary_context().memalloc(100)
    assert (before - free()).tolist() == [[100, 100], [4000, 4000]]
    assert (memory.context.device.id, two_devices.owner(held)) == (0, 1)


def test_numbas_driver_shows_both_devices_and_copies_between_them(two):
    x, y = two_devices.on(cuda, 0, fill=3), two_devices.on(cuda, 1, fill=1)
    with emulated():
        from numba.cuda.cudadrv import driver

        assert (driver.driver.get_device_count(), driver.driver.get_device(1).id) == (2, 1)
        driver.device_to_device(y, x, 400)
    assert cuda.get_current_device().id == 0 and y.copy_to_host().sum() == 300 + 900


def test_environment():
    def run(devices, code="from warpstep import device; print(device.count())"):
        environment = {**os.environ, "GPUKIT_DEVICES": devices}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    assert run("8").stdout == "8\n"
    assert "GPUKIT_DEVICES is '9'; it must be an int from 1 to 8, or unset" in run("9").stderr


@cuda.jit
def scale(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]


def test_access_to_the_memory_of_another_device(two):
    x = cuda.to_device(np.ones(1000, np.float32))
    with cuda.gpus[1]:
        out = cuda.device_array(1000, np.float32)
        with pytest.raises(KernelError, match="'x' is on device 0; this kernel runs on device 1") as caught:
            scale[4, 256](x, out)
        line = scale.py_func.__code__.co_firstlineno + 4
        assert (caught.value.kind, caught.value.line, caught.value.thread) == ("peer-access", line, (0, 0, 0))
        refused = trace(scale[4, 256], x, out)
        assert [(f.kind, f.line, f.array, f.count) for f in refused.findings] == [("peer-access", line, "x", 1000)]
        assert "enable_peer_access(cuda.gpus[0].get_primary_context().handle)" in refused.findings[0].cure
        assert refused.total().link_bytes == 0

        cuda.current_context().enable_peer_access(cuda.gpus[0].get_primary_context().handle)
        scale[4, 256](x, out)
        made = trace(scale[4, 256], x, out)
        assert not made.findings and (out.copy_to_host() == 2).all()
        assert {a.array: (a.op, a.link_bytes) for a in made.accesses} == {"x": ("load", 4000), "out": ("store", 0)}
        assert made.total("global", "load").link_bytes == 4000 and "4,000 B" in str(made)
        large = made.predict(grid=400_000)
        assert large.limit == "link" and large.uses["link"].seconds == pytest.approx(4e8 / large.ceilings.link)
    with pytest.raises(KernelError, match="no access to the memory of device 1"):
        scale[4, 256](x, out)  # the right holds in one direction
    with cuda.gpus[1]:
        cuda.get_current_device().reset()
        with pytest.raises(KernelError, match="peer-access|no access"):
            scale[4, 256](x, cuda.device_array(1000, np.float32))
        cuda.current_context().enable_peer_access(cuda.gpus[0].get_primary_context().handle)
    with use_device(count=1):
        pass  # device 1 goes, and its rights with it
    with cuda.gpus[1], pytest.raises(KernelError, match="no access"):
        scale[4, 256](x, cuda.device_array(1000, np.float32))
