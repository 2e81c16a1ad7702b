"""A kernel as machine code, one thread after another, by LLVM.

A launch starts in lockstep, as NumPy operations. One that turns out to be long goes on here, if its kernel has neither
barriers nor warp operations. The results are the same, because machine code stops wherever they could differ: at
anything that is an error, and at a thread that meets what another one wrote in the same launch. Memory is then put
back, and the lockstep program runs the launch after all.

What a device leaves open may come out in another order: the sum of float atomics, the old values that atomics return,
and which thread's value stays in an element that several write and none reads.
"""
