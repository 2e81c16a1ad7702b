"""What programs do with two devices, and what comes of it: the same questions to ``numba.cuda`` and to the emulator.

    python tests/warpstep/two_devices.py gpu|emulator [QUESTION ...]

prints the answers as JSON, one line for each. A question is a function of ``cuda``; it runs in a thread of its own, for
each thread has its own current device.
"""

import json
import os
import re
import sys
import threading

import numpy as np

N = 1000
QUESTIONS = {}
#: Questions after which the process has no use of its devices any more.
FATAL = {}


def question(function):
    QUESTIONS[function.__name__] = function
    return function


def fatal(function):
    FATAL[function.__name__] = function
    return function


def outcome(call, *args, **named):
    """What a call returns, or the name of what it raises; of an error of the driver, its code."""
    try:
        found = call(*args, **named)
    except Exception as error:
        code = re.search(r"CUDA_ERROR_\w+", str(error))
        return code[0] if code else type(error).__name__
    return found if isinstance(found, str | int | float | list | tuple | dict | None) else "done"


def here(cuda):
    return cuda.get_current_device().id


def on(cuda, device, n=N, fill=None):
    """An array on a device."""
    with cuda.gpus[device]:
        if fill is None:
            return cuda.device_array(n, np.float32)
        return cuda.to_device(np.full(n, fill, np.float32))


def owner(array):
    return array.gpu_data.context.device.id


def in_thread(call, *args):
    found = []
    thread = threading.Thread(target=lambda: found.append(outcome(call, *args)))
    thread.start()
    thread.join()
    return found[0]


def make_add(cuda):
    @cuda.jit
    def add(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] += x[i]

    return add


@question
def the_list(cuda):
    return (
        len(cuda.gpus),
        [g.id for g in cuda.gpus],
        cuda.gpus[1].id,
        cuda.gpus[-1].id,
        str(cuda.gpus),
        len(cuda.gpus[:1]),
    )


@question
def numbers_that_are_not_there(cuda):
    calls = [
        (cuda.select_device, 97),
        (cuda.current_context, 97),
        (cuda.gpus.__getitem__, 97),
        (cuda.gpus.__getitem__, -97),
        (cuda.select_device, "x"),
        (cuda.gpus.__getitem__, None),
        (cuda.gpus.__getitem__, "0"),
    ]
    return [outcome(*call) for call in calls], here(cuda), outcome(lambda: cuda.select_device(None).id)


@question
def the_current_device(cuda):
    found = [here(cuda), cuda.select_device(1).id, here(cuda), cuda.current_context().device.id, cuda.gpus.current.id]
    found.append(in_thread(here, cuda))
    with cuda.gpus[0]:
        found.append(here(cuda))
        with cuda.gpus[1], cuda.gpus[1]:
            found.append(here(cuda))
        found.append(here(cuda))
    return [*found, here(cuda), cuda.select_device(-2).id, here(cuda)]


@question
def a_context_of_another_device(cuda):
    context = cuda.gpus[1].get_primary_context()
    return (
        here(cuda),
        context.device.id,
        cuda.current_context(1) is context,
        here(cuda),
        context == cuda.current_context(),
    )


@question
def leaving_in_another_order(cuda):
    def select_inside():
        with cuda.gpus[1]:
            cuda.select_device(0)

    return outcome(select_inside), here(cuda), outcome(cuda.current_context().pop), here(cuda)


@question
def switching_where_a_context_is_required(cuda):
    @cuda.require_context
    def switch(number):
        return cuda.select_device(number).id

    return outcome(switch, 1), outcome(switch, 0), here(cuda), switch.__name__


@question
def which_device_an_array_is_on(cuda):
    x = on(cuda, 1)
    with cuda.gpus[1]:
        views = [owner(cuda.to_device(x[1:3])), owner(cuda.device_array_like(x))]
    with cuda.gpus[0]:
        return owner(x), owner(x[3:9]), owner(x.reshape(10, 100)), owner(cuda.device_array_like(x)), views


@question
def copies_between_devices(cuda):
    x, y, found = on(cuda, 0, fill=3), on(cuda, 1), []
    stream = cuda.stream()
    for current in (0, 1):
        with cuda.gpus[current]:
            y.copy_to_device(x)
            found.append(float(y.copy_to_host().sum()))
            y[:10].copy_to_device(on(cuda, current, 10, fill=7))
            x[10:20].copy_to_device(y[:10], stream=stream)
            stream.synchronize()
            found += [float(y.copy_to_host().sum()), float(x.copy_to_host().sum()), float(y[3])]
    return found, owner(y)


@question
def an_array_of_the_host_goes_to_the_current_device(cuda):
    add, x, out = make_add(cuda), np.ones(N, np.float32), on(cuda, 1, fill=1)
    with cuda.gpus[1]:
        add[4, 256](x, out)
    return float(out.copy_to_host().sum())


@question
def memory_that_the_host_shares(cuda):
    add, sums = make_add(cuda), []
    with cuda.gpus[0]:
        mapped, managed = cuda.mapped_array(N, np.float32), cuda.managed_array(N, np.float32)
        mapped[:] = managed[:] = 2
    for shared in (mapped, managed):
        with cuda.gpus[1]:
            out = cuda.to_device(np.ones(N, np.float32))
            add[4, 256](shared, out)
            sums.append(float(out.copy_to_host().sum()))
    return sums


@question
def one_kernel_on_both(cuda):
    add, sums = make_add(cuda), []
    for current in (0, 1, 0):
        with cuda.gpus[current]:
            out = cuda.to_device(np.ones(N, np.float32))
            add[4, 256](cuda.to_device(np.ones(N, np.float32)), out)
            sums.append(float(out.copy_to_host().sum()))
    return sums, len(add.overloads)


@question
def a_stream_of_another_device(cuda):
    with cuda.gpus[1]:
        stream = cuda.stream()
    out, host = cuda.to_device(np.ones(N, np.float32)), np.ones(N, np.float32)
    found = [outcome(cuda.to_device, host, stream=stream)]
    found.append(outcome(out.copy_to_device, host, stream=stream))
    found.append(outcome(out.copy_to_host, stream=stream))
    found.append(outcome(stream.synchronize))
    return found


@question
def events_of_another_device(cuda):
    event = cuda.event()
    streams = []
    for current in (0, 1):
        with cuda.gpus[current]:
            streams.append(cuda.stream())
    found = [outcome(event.record, stream) for stream in streams]
    found += [outcome(event.wait, stream) for stream in streams]
    with cuda.gpus[1]:
        other = cuda.event()
        found += [outcome(event.record), outcome(event.synchronize), outcome(event.query), outcome(event.wait)]
        found += [outcome(other.record)]
        other.synchronize()
    event.record()
    event.synchronize()
    return found, outcome(event.elapsed_time, other)


@question
def identity(cuda):
    first, second = (cuda.gpus[i]._device for i in (0, 1))
    found = [first == second, first == cuda.gpus[0]._device, first.uuid == second.uuid, first.name == second.name]
    found.append(first.get_device_identity() == second.get_device_identity())
    found.append(len({first.uuid, second.uuid}))
    return found, cuda.detect()


@question
def who_can_access_whom(cuda):
    contexts = [gpu.get_primary_context() for gpu in cuda.gpus]
    found = [[context.can_access_peer(number) for number in (0, 1)] for context in contexts]
    return found, outcome(contexts[0].can_access_peer, 97), outcome(contexts[0].can_access_peer, -1)


@question
def asking_for_access(cuda):
    contexts = [gpu.get_primary_context() for gpu in cuda.gpus]
    found = []
    with cuda.gpus[0]:
        enable = cuda.current_context().enable_peer_access
        found.append(outcome(enable, contexts[1]))
        found.append(outcome(enable, contexts[1].handle, 1))
        found.append(outcome(enable, contexts[0].handle))
        found.append(outcome(enable, contexts[1].handle))
        found.append(outcome(enable, contexts[1].handle))
        # It is the current device that gets the right, whichever context is asked.
        found.append(outcome(contexts[1].enable_peer_access, contexts[0].handle))
    return found


@question
def a_kernel_with_access(cuda):
    add, x, out = make_add(cuda), on(cuda, 1, fill=5), on(cuda, 1, fill=1)
    with cuda.gpus[0]:
        add[4, 256](x, out)  # asking_for_access has asked
        add[4, 256](x, on(cuda, 0, fill=1))
        out[:10] = 0
        return float(out.copy_to_host().sum()), float(x.reshape(10, 100).T.copy_to_host().sum())


def _without_access(cuda, call):
    x, out = on(cuda, 0, fill=1), on(cuda, 1, fill=1)
    with cuda.gpus[1]:
        try:
            call(x, out)
            cuda.synchronize()
            return "done"
        except Exception as error:
            return "illegal address" if "ILLEGAL_ADDRESS" in str(error) else getattr(error, "kind", repr(error))


@fatal
def a_launch_in_a_stream_of_another_device(cuda):
    x, out = on(cuda, 1, fill=1), on(cuda, 1, fill=1)
    with cuda.gpus[1]:
        stream = cuda.stream()
    with cuda.gpus[0]:
        make_add(cuda)[4, 256, stream](x, out)
        stream.synchronize()
        return float(out.copy_to_host().sum()), here(cuda)


@fatal
def a_kernel_that_reads_without_access(cuda):
    return _without_access(cuda, make_add(cuda)[4, 256])


@fatal
def a_kernel_that_does_not_reach_the_array(cuda):
    @cuda.jit
    def guarded(x, out):
        i = cuda.grid(1)
        if i < x.size and i < 0:
            out[i] = x[i]

    return _without_access(cuda, guarded[4, 256])


@fatal
def setting_an_element_without_access(cuda):
    def assign(x, out):
        x[3] = 2

    return _without_access(cuda, assign)


@fatal
def transposing_without_access(cuda):
    return _without_access(cuda, lambda x, out: x.reshape(10, 100).T)


def ask(cuda, name):
    """The answer to one question, as JSON has it."""
    function = QUESTIONS.get(name) or FATAL[name]
    answer = in_thread(function, cuda)
    return json.loads(json.dumps(answer))


def main(backend, *names):
    if backend == "gpu":
        from gpukit.backend import cuda
    else:
        from warpstep import cuda, set_device

        set_device(count=2)
    for name in names or QUESTIONS:
        print(json.dumps({name: ask(cuda, name)}), flush=True)
    os._exit(0)  # a context that a kernel has broken cannot be closed


if __name__ == "__main__":
    main(*sys.argv[1:])
