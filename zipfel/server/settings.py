"""What an operator may set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zipfel.config import setting
from zipfel.errors import ConfigError

K = 1000  # the longest ranking that may be asked for


@dataclass(frozen=True)
class ServeSettings:
    """How the service listens, and what it refuses."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 is every one of this machine")
    port: int = setting(8000, "port to listen on; 0 takes a free one")
    workers: int = setting(1, "processes; all map one copy of the models")
    max_length: int = setting(100_000, "characters of a text; more is answered with 413")
    max_texts: int = setting(256, "texts of a request; more is answered with 413")
    max_body: int = setting(4 << 20, "bytes of a request; more is answered with 413")
    max_queue: int = setting(1024, "texts that may wait for a model in a process; more is answered with 429")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("workers", "max_length", "max_texts", "max_body"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; found {getattr(self, name)}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must lie in 0..65535; found {self.port}")
        if self.max_queue < self.max_texts:
            raise ConfigError(f"max_queue must hold a request of max_texts, {self.max_texts}; found {self.max_queue}")


def named_folders(words: Sequence[str]) -> dict[str, Path]:
    """Return folders by the name they are served under, given as `name=folder`, or called like their folder."""
    folders: dict[str, Path] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        path = Path(folder if equals else word)
        name = name if equals else _name_of(path)
        if not name:
            raise ConfigError(f"expected NAME=FOLDER or FOLDER; found {word!r}")
        if name in folders:
            raise ConfigError(f"two models are called {name!r}; name them apart: NAME=FOLDER")
        folders[name] = path
    return folders


def _name_of(folder: Path) -> str:
    """Return the last part of a path; of `runs/light/model`, as training leaves it, that is `light`."""
    path = Path(folder.absolute())
    return path.parent.name if path.name == "model" and path.parent.name else path.name
