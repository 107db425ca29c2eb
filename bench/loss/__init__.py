"""The parts of `bench/loss_under_load.py`: who asks, what is asked, what is written down, and the judge."""
