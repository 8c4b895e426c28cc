"""Tagging inside other engines: Ray Data, Spark, Dask (docs/guide/scale.md)."""

from zipfel.engines.batch import BatchTagger

__all__ = ["BatchTagger"]
