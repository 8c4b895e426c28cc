"""zipfel: tag text with labels from a set of hundreds to millions, most of them rare.

Importing this package is cheap: each public name is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zipfel.data.dataset import Dataset as Dataset
    from zipfel.data.dataset import Part as Part
    from zipfel.data.formats import TableSettings as TableSettings
    from zipfel.data.formats import read as read
    from zipfel.data.formats import write as write
    from zipfel.data.text import TextFeatures as TextFeatures
    from zipfel.data.text import TextSettings as TextSettings
    from zipfel.errors import ZipfelError as ZipfelError
    from zipfel.explain import Reason as Reason
    from zipfel.tagger import Tagger as Tagger
    from zipfel.tagging import Tag as Tag
    from zipfel.training.machine import set_threads as set_threads
    from zipfel.types import Ranking as Ranking

__version__ = "0.2.0"

_HOMES = {
    "Dataset": "zipfel.data.dataset",
    "Part": "zipfel.data.dataset",
    "Ranking": "zipfel.types",
    "Reason": "zipfel.explain",
    "TableSettings": "zipfel.data.formats",
    "Tag": "zipfel.tagging",
    "Tagger": "zipfel.tagger",
    "TextFeatures": "zipfel.data.text",
    "TextSettings": "zipfel.data.text",
    "ZipfelError": "zipfel.errors",
    "read": "zipfel.data.formats",
    "set_threads": "zipfel.training.machine",
    "write": "zipfel.data.formats",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'zipfel' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
