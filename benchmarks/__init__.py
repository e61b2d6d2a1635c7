"""What observing costs: `python -m benchmarks` prints one table."""
