"""Every figure of the hot path against its baseline, side by side in one run."""
