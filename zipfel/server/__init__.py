"""The HTTP service: one or several processes that share one memory-mapped copy of the models."""
