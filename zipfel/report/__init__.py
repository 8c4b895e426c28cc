"""A page about a model: how good it is, on which labels, how sure it may be, and where it errs."""
