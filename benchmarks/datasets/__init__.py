"""Data sets for judging rules, built out of packages: `python -m benchmarks.datasets NAME FOLDER` (README.md)."""
