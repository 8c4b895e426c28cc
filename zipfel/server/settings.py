"""Settings of the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zipfel.config import Settings, setting
from zipfel.errors import ConfigError

K = 1000  # maximum length of a ranking


@dataclass(frozen=True)
class ServeSettings(Settings):
    """Address and limits of the service."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 is all addresses of this machine")
    port: int = setting(8000, "port to listen on; 0 picks a free one", at_least=0, at_most=65535)
    workers: int = setting(1, "processes; they share one memory-mapped copy of the models", at_least=1)
    copy: bool = setting(False, "read models into memory, so that their files may be overwritten; one copy a process")
    max_length: int = setting(100_000, "maximum characters per text; more gives status 413", at_least=1)
    max_texts: int = setting(256, "maximum texts per request; more gives status 413", at_least=1)
    max_body: int = setting(4 << 20, "maximum bytes per request body; more gives status 413", at_least=1)
    max_queue: int = setting(1024, "maximum queued texts per model and process; more gives status 429")

    def check(self) -> None:
        """Check that the queue can hold the largest request."""
        if self.max_queue < self.max_texts:
            raise ConfigError(f"max_queue must be at least max_texts, {self.max_texts}; found {self.max_queue}")


def named_folders(words: Sequence[str]) -> dict[str, Path]:
    """Return folders by model name.  words: `NAME=FOLDER`, or `FOLDER`, which names the model too."""
    folders: dict[str, Path] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        path = Path(folder if equals else word)
        name = name if equals else _name_of(path)
        if not name:
            raise ConfigError(f"expected NAME=FOLDER or FOLDER; found {word!r}")
        if name in folders:
            raise ConfigError(f"two models have the name {name!r}; give one another name: NAME=FOLDER")
        folders[name] = path
    return folders


def _name_of(folder: Path) -> str:
    """Return the last part of a path; `light` for `runs/light/model`, where `zipfel train` saves the model."""
    path = Path(folder.absolute())
    return path.parent.name if path.name == "model" and path.parent.name else path.name
