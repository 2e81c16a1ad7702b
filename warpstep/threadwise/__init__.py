"""A kernel as machine code, one thread after another, by LLVM.

A launch starts in lockstep, as NumPy operations. One that turns out to be long goes on here, if its kernel has neither
barriers nor warp operations. The results are the same, because machine code stops wherever they could differ: at
anything that is an error, and at a thread that meets what another one wrote in the same launch. Memory is then put
back, and the lockstep program runs the launch after all.
"""
