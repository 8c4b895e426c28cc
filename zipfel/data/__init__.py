"""Data sets and how they come in: file formats, text features, splits, synthetic and real data."""
