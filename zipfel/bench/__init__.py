"""Contestants side by side: zipfel's models and their peers on the same features, each in a process of its own."""
