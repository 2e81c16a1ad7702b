# %% [markdown]
# # 02b When a launch fails
#
# A launch breaks a limit, or a kernel reads past the end of an array. Who says so, when, and does anything work afterwards?
#
# **After this chapter you will be able to**
#
# - tell an error at the launch from one that shows up later and from one that ends the process;
# - make a failing launch say which limit it broke, or check the limits beforehand;
# - predict which mistakes a GPU never reports, and find them with a trace.
#
# **You need** [02 A matrix product](02_matmul.ipynb). No GPU: without one, you read what an H200 said.
#
# **Time:** 25 minutes.

# %%
import re
import warnings
from math import prod

import numpy as np

import gpukit
from gpukit import cuda, device, emulator, errors, exercises, matmul, plot, results, show

warnings.filterwarnings("ignore", ".*Grid size")  # grids are small on purpose here
rng = np.random.default_rng(2)
print("kernels run on:", device.info().name)

# %% [markdown]
# Someone wants larger blocks for the matrix product and asks for 64 x 64 threads, where a block may have 1024. The documents' program is in C++, and never asks whether there was an error. This is what it reported:

# %%
case = results.documents("A7")["tables"][0]["rows"][0]
print(f"{case['milliseconds']} ms; an element that should be {case['expected']} is {case['found']}")

# %% [markdown]
# The launch did nothing and said nothing. The program went on, measured a time, and printed zeros.
#
# ## At once, later, for good
#
# A launch only queues a kernel, and the host goes on. So there are three kinds of error on a GPU:
#
# 1. **At once.** The driver refuses the launch, because it breaks a limit. Nothing ran, and everything else still works.
# 2. **Later.** The kernel runs and goes wrong. The host learns of it in the next call that waits: a synchronisation, a copy, perhaps a call that has nothing to do with it.
# 3. **For good.** An access to memory that is not there, for example, costs the process its **context**, which is all that the driver keeps for it: its memory, its kernels, its settings. The error is **sticky**: every call from then on fails, however right it is, and only a new process helps. In a notebook, restart the kernel.

# %%
plot.errors_in_time();

# %% [markdown]
# And some mistakes are never reported.
#
# **Predict.** When does a GPU report each of these, `"at once"`, `"later"` or `"never"`? Write four words, `("later", ...)`.
#
# 1. A block of 64 x 64 threads.
# 2. An index 2<sup>40</sup> elements past the end of an array.
# 3. An index a few elements past the end.
# 4. A grid with one dimension for a problem with two.

# %%
my_when = None
exercises.check("02b-when", my_when)

# %% [markdown]
# Here are the first two, made on purpose on an H200: when it reported them, in which words, and what became of an innocent launch in the same process afterwards. The output is folded.

# %% jupyter={"outputs_hidden": true}
STAGES = {"launch": "at the launch", "synchronize": "at the next synchronisation", "checked": "in errors.checked()"}


def said(mistake, checked=False):
    [told] = results.load("errors-h200", backend="gpu", mistake=mistake, checked=checked)
    message = told["message"].replace("\n", "\n  ")
    return f"{mistake}, {STAGES[told['stage']]}:\n  {told['error']}: {message}\n  afterwards: {told['afterwards']}\n"


print(said("block_too_large"))
print(said("far_out_of_bounds"))

# %% [markdown]
# Python raises an exception, which is more than C++ does. But neither message names a limit, a line or a thread.
#
# ## Messages that help
#
# `errors.checked()` translates these messages. It watches the launches inside its block, waits for them at the end, and raises `LaunchError` or `KernelError`, on a GPU and on the emulator alike, with the limit, the value, and the line of the launch:

# %%
a, b = (cuda.to_device(rng.random((1024, 1024), np.float32)) for _ in range(2))
out = cuda.to_device(np.full((1024, 1024), np.nan, np.float32))

try:
    with errors.checked():
        matmul.naive[(16, 16), (64, 64)](a, b, out)
except errors.LaunchError as error:
    print(error)
print("elements of the result that were written:", np.count_nonzero(~np.isnan(out.copy_to_host())))

# %% [markdown]
# For the sticky error, it said this on the H200:

# %%
print(said("far_out_of_bounds", checked=True))

# %% [markdown]
# On a GPU, the launch is the most that can be named. The emulator stops at the statement and names line, block and thread, and the process goes on. `gpukit.trace(kernel[grid, block], ...)` runs in it on any machine:


# %%
@cuda.jit
def add_one_far_away(array):
    array[cuda.grid(1) + (1 << 40)] += 1


trace = gpukit.trace(add_one_far_away[1, 32], np.zeros(32, np.float32))
for finding in trace.findings:
    print(f"line {finding.line}, block {finding.block}, thread {finding.threads[0]}: {finding.code}")
    print(finding.message)

# %% [markdown]
# > **From the source.** The documents wrap every runtime call, and every launch, in a macro that prints file, line, name and text of the error. In C++ that is necessary: `cudaPeekAtLastError` returns the last error and leaves it, `cudaGetLastError` also clears it, but not a sticky one. Numba needs no such macros, because every call raises an exception if the driver reports an error. What the macros cannot find, `checked()` cannot find either: a launch that is legal and wrong, as at the end of [02](02_matmul.ipynb).
#
# ## Before the launch
#
# `errors.check_launch` checks without launching. It knows the limits of the device, for grid, block and shared memory (which is the subject of the next chapter), and what the compiler knows of the kernel.

# %%
for grid, block, shared_bytes in (((1, 70_000), 32, 0), (0, 256, 0), (1, 256, 10**6)):
    try:
        errors.check_launch(matmul.naive, grid, block, shared_bytes)
    except errors.LaunchError as error:
        print(error, end="\n\n")

# %% [markdown]
# These are the limits of grid and block:

# %%
info = device.info()
rows = [["threads per block", info.max_threads_per_block]]
rows += [[f"block, {axis}", size] for axis, size in zip("xyz", info.max_block_dim, strict=True)]
rows += [[f"grid, {axis}", size] for axis, size in zip("xyz", info.max_grid_dim, strict=True)]
show.Table(["limit", info.name], rows)

# %% [markdown]
# Write the part of `check_launch` that deals with them. Grid and block are tuples of three sizes.


# %%
def fits(grid, block):
    # About 4 lines: return True if the device takes this launch, else False. The limits are in
    # the table above
    ...


exercises.check("02b-fits", fits)

# %% [markdown]
# ## All of them
#
# Ten mistakes in one table. "Raw" is what the H200 says by itself, without the prefix CUDA_ERROR. "Afterwards" is what became of the innocent launch. Some of the mistakes concern things that come in later chapters.

# %% jupyter={"source_hidden": true}
def in_short(told):
    if told["stage"] == "no end":
        return "never returns"
    code = re.search(r"CUDA_ERROR_(\w+)", told["message"])
    return code[1] if code and not told["checked"] else told["error"] or "nothing"


told = {(r["mistake"], r["backend"], r["checked"]): r for r in results.load("errors-h200")}
rows = []
for name in dict.fromkeys(mistake for mistake, _, _ in told):
    raw, checked, emulated = told[name, "gpu", False], told[name, "gpu", True], told[name, "emulator", True]
    when = {"launch": "at once", "synchronize": "later"}.get(raw["stage"], "")
    after = {"works": "works", "": ""}.get(raw["afterwards"], "fails")
    rows.append([name, in_short(raw), when, after, in_short(checked), in_short(emulated)])
show.Table(["mistake", "H200, raw", "when", "afterwards", "H200, checked", "emulator"], rows)

# %% [markdown]
# Three rows deserve a second look.
#
# - `past_the_end`: to a GPU, an index a little past the end of an array is no error. The memory there belongs to something else, and a store overwrites it. NVIDIA's `compute-sanitizer` finds some of these accesses on a GPU; a trace finds each one that the launch makes, on any machine.
# - `endless_loop`: on a GPU nothing stops it. The emulator does.
# - `too_many_registers`: only a GPU can refuse this launch. The emulator has no compiler, and does not know how many registers a kernel needs.
#
# Here the emulator stops a loop that waits for a flag that nobody sets:


# %%
@emulator.cuda.jit
def wait_for_a_flag(flag):
    while flag[0] == 0:
        pass


try:
    wait_for_a_flag[1, 32](np.zeros(1, np.int32))
except errors.KernelError as error:
    print(error)

# %% [markdown]
# ## Key points
#
# - Errors come at once, later, or for good. Limits are checked at the launch; wild addresses show up when the host waits, and cost the process its context.
# - `errors.check_launch` checks limits before a launch, `errors.checked()` waits and translates, `gpukit.trace` names line, block and thread.
# - An index a little past the end, and a grid that is too small, are never reported. Trace the kernel, and check the result.
#
# **Back:** [02 A matrix product](02_matmul.ipynb). **Next:** [03 Shared memory](03_shared_memory.ipynb).
