"""Finding the nearest vectors: of labels, or of points."""
