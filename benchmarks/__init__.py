"""Long checks, with their figures in results/. Run them as `python -m benchmarks.NAME`."""
