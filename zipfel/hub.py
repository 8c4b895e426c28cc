"""The Hugging Face Hub: saved models go to its repositories and come from there, through `huggingface_hub`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zipfel import __version__, persistence
from zipfel.card.folder import card_of
from zipfel.card.text import PLACE
from zipfel.data.formats.atomic import check_new, new_folder
from zipfel.data.formats.readme import NAME, is_edited, sealed
from zipfel.errors import ConfigError, DataError, ZipfelError, check_installed

OWN = re.compile(r"README\.md|model\.json|(serve|train)/[\w.-]+\.(json|safetensors)", re.ASCII)
PURPOSE = ("the Hugging Face Hub", "hub", "huggingface_hub")


def push(folder: Path, repo_id: str, private: bool | None = None, message: str | None = None) -> str:
    """Upload a saved model in one commit, after checking its files; return the commit's address.

    The repository is made if it is missing.  private: whether it is then; None is the account's default.
    """
    check_installed(*PURPOSE)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, get_token

    persistence.verify(folder)
    if get_token() is None:
        raise ConfigError("push needs a token that may write: set HF_TOKEN, or run `hf auth login`")
    with _in_one_line(repo_id):
        api = _api()
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        names = ["model.json", *persistence.read_about(folder)["files"]]
        card = _named(_card(folder), repo_id)
        adds = [CommitOperationAdd(NAME, card.encode()), *(CommitOperationAdd(name, folder / name) for name in names)]
        gone = [name for name in api.list_repo_files(repo_id) if OWN.fullmatch(name) and name not in (NAME, *names)]
        deletions = [CommitOperationDelete(name) for name in gone]
        title = message or f"zipfel {__version__}: {persistence.read_about(folder)['model']}"
        return str(api.create_commit(repo_id, [*adds, *deletions], commit_message=title).commit_url)


def pull(repo_id: str, out: Path, revision: str | None = None, replace: bool = False) -> int:
    """Download a model into a new folder, which appears when all files match their checksums; return their number.

    revision: a branch, a tag or a commit.  replace: an older model may be there.
    """
    check_installed(*PURPOSE)
    from huggingface_hub import snapshot_download

    replace = replace and (out / "model.json").is_file()
    if not replace:
        check_new(out)
    with _in_one_line(repo_id, revision):
        info = _api().model_info(repo_id, revision=revision)
        names = [file.rfilename for file in info.siblings or () if OWN.fullmatch(file.rfilename)]
        if "model.json" not in names:
            raise DataError(f"{repo_id} has no saved model: model.json is missing")
        with new_folder(out, replace) as target:
            with _in_one_line(repo_id, revision):  # its errors are OSErrors, as those of the folder
                about: dict[str, Any] = {"library_name": "zipfel", "library_version": __version__}
                snapshot_download(repo_id, revision=info.sha, local_dir=target, allow_patterns=names, **about)
            shutil.rmtree(target / ".cache", ignore_errors=True)
            return persistence.verify(target)


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="zipfel", library_version=__version__)


def _card(folder: Path) -> str:
    path = folder / NAME
    return path.read_text("utf-8", "replace") if path.is_file() else card_of(folder)


def _named(card: str, repo_id: str) -> str:
    """Return a card with the name on the Hub where it belongs."""
    named = card.replace(PLACE, repo_id)
    return named if is_edited(card) else sealed(named)


@contextmanager
def _in_one_line(repo_id: str, revision: str | None = None) -> Iterator[None]:
    """Turn errors of the Hub into one line."""
    from huggingface_hub import errors

    try:
        yield
    except ZipfelError:
        raise
    except errors.HFValidationError as error:
        raise ConfigError(f"{repo_id!r} is not a repository name such as owner/name: {_first(error)}") from None
    except errors.GatedRepoError:
        raise DataError(f"{repo_id}: its owner must grant access; ask for it on the Hub's page") from None
    except errors.RevisionNotFoundError:
        raise DataError(f"{repo_id} has no revision {revision!r}") from None
    except errors.RepositoryNotFoundError:
        token = "or the token may not read it" if _has_token() else "or private: set HF_TOKEN, or run `hf auth login`"
        raise DataError(f"{repo_id}: no such repository, {token}") from None
    except errors.HfHubHTTPError as error:
        raise DataError(_refused(repo_id, error)) from None
    except Exception as error:  # such as no connection: its classes are those of the Hub library's own client
        chain = (error, error.__cause__)  # "Error while uploading" is a RuntimeError
        if not any(type(one).__module__.startswith(("httpx", "huggingface_hub", "hf_xet")) for one in chain):
            raise
        raise DataError(f"{repo_id}: no connection to the Hub, or it broke off: {_first(error)}") from None


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def _refused(repo_id: str, error: Any) -> str:
    status = error.response.status_code
    if status == 401:
        return f"{repo_id}: the Hub does not accept the token; set HF_TOKEN, or run `hf auth login`"
    if status == 403:
        return f"{repo_id}: the token may not write there"
    return f"{repo_id}: the Hub answers {status}: {error.server_message or _first(error)}"


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
