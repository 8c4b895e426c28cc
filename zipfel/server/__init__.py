"""The service: models behind HTTP, in one process or several that share one mapped copy."""
