"""To be deleted with its last user, conv."""

import contextlib
import math
import threading
from collections import OrderedDict

from gpukit._host.arrays import address_of, as_device_array, handle_of, maker, span, stream_of
from gpukit._host.keys import array_key
from gpukit._host.prepared import prepare


class Plans:
    """What a host function launched, kept for calls with arrays of the same kind.

    A host function checks its arguments, decides on kernels, grids and work memory, and launches. For a call like an
    earlier one, on arrays elsewhere in memory, only the addresses differ: the launches are repeated with them.

    Calls are alike if all inputs and ``out`` agree in library, dtype, shape, strides, device, and the address modulo
    16, and the stream and parameters are the same. Only arrays that the launches use in place can be exchanged: where a
    host function copies one first, no plan is kept.

    Parameters
    ----------
    most : int
        Plans kept; that used least recently goes first. While there are half as many, nobody looks who is used.

    Examples
    --------
    >>> plans = Plans()
    >>> def double(x, out=None, stream=None):
    ...     call = plans.call((x,), out, stream)
    ...     if call.plan is not None:
    ...         return call.again()
    ...     ...                                   # checks; result = Output(x, x.shape, out, stream)
    ...     return call.first([(kernel[grid, block, stream], (x, result.device))], result)
    """

    def __init__(self, most=256):
        self.most = most
        self.kept = OrderedDict()

    def call(self, inputs, out, stream, *parameters):
        """A `Call` of the host function; ``inputs`` are arrays or None, parameters anything that decides the launches.

        Call.plan is None unless a call like this was made before.
        """
        return Call(self, inputs, out, stream, parameters)

    def keep(self, key, plan):
        self.kept[key] = plan
        while len(self.kept) > self.most:
            self.kept.popitem(last=False)


class Call:
    """One call of a host function; made by `Plans.call`.

    Attributes
    ----------
    plan : Plan or None
        From an earlier call like this one.
    """

    __slots__ = ("inputs", "key", "out", "plan", "plans", "pointers")

    def __init__(self, plans, inputs, out, stream, parameters):
        self.plans, self.inputs, self.out = plans, inputs, out
        self.plan = self.key = None
        handle = handle_of(stream_of(stream)) if stream else 0
        keys, self.pointers = [], []
        for array in inputs if out is None else (*inputs, out):
            if array is None:
                keys.append(None)
                continue
            found = array_key(array, handle)
            if found is None:
                return
            keys.append(found[0])
            keys.append(found[1] % 16)
            self.pointers.append(found[1])
        kinds = tuple(map(type, parameters))
        exactly = (parameters, kinds) if _PLAIN.issuperset(kinds) else tuple(map(_exactly, parameters))
        self.key = (*keys, out is None, stream or None, exactly)
        try:
            self.plan = plans.kept.get(self.key)
        except TypeError:
            # A parameter cannot be hashed.
            self.key = None
            return
        if self.plan is not None:
            if out is not None and self.plan.overlaps(self.pointers):
                self.plan = None
            elif len(plans.kept) > plans.most // 2:
                with contextlib.suppress(KeyError):  # another thread's call has just pushed it out
                    plans.kept.move_to_end(self.key)

    def first(self, launches, result):
        """Launch, keep the launches as a plan if they can be repeated, and give back the result.

        Parameters
        ----------
        launches : list of (configured kernel, arguments)
            In order.
        result : Output
        """
        if self.key is None or result.on_host or result.device is not result.target:
            with _one_call:
                for launch, arguments in launches:
                    launch(*arguments)
            return result.finish()
        prepared = [prepare(launch, *arguments) for launch, arguments in launches]
        with _one_call:
            for launch in prepared:
                launch()
        plan = Plan(prepared, [array for array in self.inputs if array is not None], result)
        if plan.complete:
            self.plans.keep(self.key, plan)
        return result.finish()

    def again(self):
        """Launch what the plan has with the arrays of this call; gives back the result."""
        out = self.out
        if out is None:
            out, pointer = self.plan.make()
            self.pointers.append(pointer)
        self.plan.launch(self.pointers)
        return out


#: Types of parameters that tell them apart together with their values; a bare object stands for others.
_PLAIN = frozenset({int, bool, str, type(None), object})


def _exactly(parameter):
    """A key that tells 1 from 1.0 and True, which are equal, and 0.0 from -0.0."""
    if isinstance(parameter, tuple):
        return tuple(map(_exactly, parameter))
    if isinstance(parameter, float):
        return float, parameter, math.copysign(1, parameter)
    return type(parameter), parameter


#: Work memory belongs to a stream, not to a call: on the stream the launches of one call must follow one another,
#: without those of another thread's call between them.
_one_call = threading.Lock()
#: Bytes of work memory that one plan may keep to itself.
MOST_KEPT = 64 << 20


class Plan:
    """Prepared launches, and which of their arrays lie in the inputs or the output of a call.

    Attributes
    ----------
    make : function
        That gives a new output and its address.
    complete : bool
        Whether it can stand for other calls: the launches use every input and the output in place, which lie apart,
        and keep little memory.
    """

    def __init__(self, prepared, arrays, result):
        self.make = maker(arrays[0], tuple(result.device.shape), result.device.dtype)
        given = [as_device_array(array) for array in arrays]
        self.starts = [address_of(array) for array in (*given, result.device)]
        spans = [span(array) for array in (*given, result.device)]
        self.reach = [(low - start, high - start) for (low, high), start in zip(spans, self.starts, strict=True)]
        apart = all(a[1] <= b[0] or b[1] <= a[0] for i, a in enumerate(spans) for b in spans[:i])
        self.steps, used, kept = [], set(), 0
        for launch in prepared:
            where = []
            for position, array in launch.arrays():
                low, high = span(array)
                inside = [i for i, (start, stop) in enumerate(spans) if start <= low < high <= stop]
                if inside:
                    where.append((position, inside[0], address_of(array) - self.starts[inside[0]]))
                else:
                    kept += high - low
            used.update(source for _, source, _ in where)
            launch.bind({position: tuple(rest) for position, *rest in where})
            self.steps.append(launch)
        self.complete = apart and used == set(range(len(spans))) and kept <= MOST_KEPT

    def overlaps(self, pointers):
        """Whether the output, which is the last pointer, shares memory with an input."""
        *others, out = pointers
        low, high = self.reach[-1]
        start, stop = out + low, out + high
        for pointer, (low, high) in zip(others, self.reach, strict=False):
            if pointer + low < stop and start < pointer + high:
                return True
        return False

    def launch(self, pointers):
        with _one_call:
            for launch in self.steps:
                launch.relaunch(pointers)
