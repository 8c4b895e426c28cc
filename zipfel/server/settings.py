"""Settings of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

from zipfel.config import Settings, read_toml, setting
from zipfel.errors import ConfigError, DataError

K = 1000  # maximum length of a ranking


@dataclass(frozen=True)
class ServeSettings(Settings):
    """Address and limits of the service."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 is all addresses of this machine")
    port: int = setting(8000, "port to listen on; 0 picks a free one", at_least=0, at_most=65535)
    unix_socket: Path | None = setting(None, "listen on this Unix socket instead of a port")
    root_path: str = setting("", "path under which a proxy shows the service, such as /tags")
    tls_cert: Path | None = setting(None, "certificate chain for TLS (PEM); read again on SIGHUP")
    tls_key: Path | None = setting(None, "private key for TLS (PEM); read again on SIGHUP")
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "host names that requests may be for, such as tags.example.org,*.example.com; * is any; IP addresses and "
        "localhost always are (default: no others on a loopback address, else any)",
    )
    cors_origins: tuple[str, ...] = setting((), "origins whose pages may call the service, such as https://example.org")
    trusted_proxies: tuple[str, ...] = setting(
        (), "addresses or networks of proxies, such as 10.0.0.0/8, whose X-Forwarded-For names the client"
    )
    token_file: Path | None = setting(
        None, "file with the tokens that requests may send, `NAME TOKEN` on each line; read again on SIGHUP; "
        "default: the one in $ZIPFEL_TOKEN"
    )  # fmt: skip
    corrections: Path | None = setting(
        None, "keep the labels that people accept and reject (the page's, and POST /corrections) in this folder"
    )
    learn: bool = setting(
        False, "let models that remember points learn from POST /v1/projects/ID/learn, which saves them"
    )
    workers: int = setting(1, "processes; they share one memory-mapped copy of the models", at_least=1)
    copy: bool = setting(False, "read models into memory, so that their files may be overwritten; one copy a process")
    device: str = setting("cpu", "where models compute: cpu, cuda, cuda:1, mps, or auto")
    drain: float = setting(0.0, "seconds to keep answering after SIGTERM, while /ready gives status 503", at_least=0)
    timeout: float = setting(30.0, "seconds to work on a request; longer gives status 503", above=0)
    max_length: int = setting(100_000, "maximum characters per text; more gives status 413", at_least=1)
    max_texts: int = setting(256, "maximum texts per request; more gives status 413", at_least=1)
    max_body: int = setting(4 << 20, "maximum bytes per request body; more gives status 413", at_least=1)
    max_queue: int = setting(1024, "maximum queued texts per model and process; more gives status 429")

    def check(self) -> None:
        """Check that the queue can hold the largest request, and that addresses and paths are well-formed."""
        if self.max_queue < self.max_texts:
            raise ConfigError(f"max_queue must be at least max_texts, {self.max_texts}; found {self.max_queue}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key must be given together")
        if self.root_path and not (self.root_path.startswith("/") and not self.root_path.endswith("/")):
            raise ConfigError(f"root_path must begin with / and must not end with it; found {self.root_path!r}")
        for proxy in self.trusted_proxies:
            try:
                ip_network(proxy)
            except ValueError:
                raise ConfigError(f"trusted_proxies must be IP addresses or networks; found {proxy!r}") from None


@dataclass(frozen=True)
class Sources:
    """Where the models come from: folders by model id, or a file that names them and is read again on SIGHUP.

    A model may have several folders: the first answers requests that choose no version.
    """

    folders: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    file: Path | None = None

    def read(self) -> Mapping[str, Sequence[Path]]:
        """Return the folders by model id; the first model is the default."""
        return self.folders if self.file is None else _read_models(self.file)


def _read_models(file: Path) -> dict[str, list[Path]]:
    """Read the table `[models]` of a TOML file: `NAME = "FOLDER"` or `NAME = ["FOLDER", ...]`, relative to the file."""
    content = read_toml(file)
    table = content.get("models")
    if not isinstance(table, dict) or not table or len(content) > 1:
        raise DataError('expected one table [models] with a line NAME = "FOLDER" for each model', file)
    models = {}
    for name, value in table.items():
        if not name:
            raise DataError("a model must have a name", file)
        folders = value if isinstance(value, list) else [value]
        if not folders or not all(isinstance(folder, str) and folder for folder in folders):
            raise DataError(f"{name} must be a folder or a list of folders; found {value!r}", file)
        models[name] = [file.parent / folder for folder in dict.fromkeys(folders)]
    return models


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
