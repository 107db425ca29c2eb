"""Fuzz targets: what reads bytes of others is fed bytes that nobody would send.

Each target is a module with three functions. `check(data)` plays one input and raises when a promise of the
code does not hold; `seeds()` gives inputs that reach far in; `mutate(data, most, rnd, scramble)` changes
one in a way that keeps its structure. None of them needs a fuzzer: `test_replay` plays seeds and former
findings as a unit test, `run` hands the targets to atheris (`make fuzz`).
"""
