"""Everything that enters zipfel: data sets, file formats, text to features, splits, synthetic and real data."""
