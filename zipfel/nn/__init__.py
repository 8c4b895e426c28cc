"""Encoders, classifiers and optimisers; losses and regularizers as pure functions."""
