"""A report on a model: how good it is, on which labels, how well calibrated, and where it errs."""
