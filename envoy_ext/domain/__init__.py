"""The sans-IO core: standard library only, no clock, no randomness, no logging.

Time enters as a `now` argument in monotonic seconds; waiting leaves as a deadline; work to be
done leaves as a `Step`. `tests/test_import_directions.py` holds this package to that promise.
"""
