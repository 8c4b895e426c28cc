"""Stages, the run folder that keeps their results, and the one trainer."""
