"""Benchmarks: README.md lists them, results/ holds their figures. Run one with `python -m benchmarks.NAME`."""
