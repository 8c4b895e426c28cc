"""The benchmark: zipfel's models and their peers on the same features, each in its own process."""
