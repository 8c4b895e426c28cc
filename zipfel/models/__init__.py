"""The five systems, a paper each; held next to the paper."""
