"""Initial token vectors: FastText vectors learned from the texts of train, or those of a file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from zipfel.data.token_vectors import read_vectors, train_fasttext
from zipfel.errors import ConfigError, DataError, did_you_mean
from zipfel.models.base import Lesson
from zipfel.nn.encoders import EmbeddingTable
from zipfel.training.run import Run


def start_tokens(
    table: EmbeddingTable, lesson: Lesson, token_init: str, std: float, run: Run, deterministic: bool = True
) -> None:
    """Initialise token vectors with FastText on the texts of train (`fasttext`), or with those of a file.

    Without texts, FastText has nothing to learn from: token vectors stay random, and the run notes it.

    std: the standard deviation of random ones, to which learning rates are tuned; vectors are scaled to it.
    """
    rows = table.rows
    if token_init == "fasttext" and (lesson.terms is None or lesson.train.texts is None):
        run.note("token vectors start at random: token_init=fasttext learns from texts, and these points have none")
        return

    def vectors() -> dict[str, Tensor]:
        return {"tokens": token_vectors(lesson, token_init, rows.shape[1], run, deterministic)}

    loaded = run.stage("tokens", vectors)["tokens"].to(rows.device)
    known = loaded.abs().amax(dim=1) > 0
    if not bool(known.any()):
        raise DataError(f"{token_init} has a vector for none of {len(known):,} terms")
    loaded = loaded / loaded[known].square().mean().sqrt() * std
    rows.copy_(torch.where(known[:, None], loaded, rows))


def token_vectors(lesson: Lesson, token_init: str, width: int, run: Run, deterministic: bool) -> Tensor:
    """Return initial vectors of tokens, [V, D]; 0 where a token has none."""
    if lesson.terms is None:
        raise ConfigError(f"token_init={token_init} needs features with names, such as words of texts")
    if token_init == "fasttext":
        assert lesson.train.texts is not None
        symbols = any(not any(map(str.isalnum, term)) for term in lesson.terms)
        numbers = run.numbers("tokens")
        return torch.from_numpy(
            train_fasttext(lesson.train.texts, lesson.terms, width, numbers, deterministic, symbols)
        )
    if not Path(token_init).suffix:
        near = did_you_mean(token_init, ("random", "fasttext"))
        raise ConfigError(f"token_init must be random, fasttext or a file; found {token_init!r}{near}")
    read, _ = read_vectors(Path(token_init), lesson.terms)
    if read.shape[1] != width:
        raise ConfigError(f"{token_init} has vectors of width {read.shape[1]}; set dimension={read.shape[1]}")
    return torch.from_numpy(read)
