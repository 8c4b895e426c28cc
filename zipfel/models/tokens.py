"""Where token vectors begin: at random, at FastText vectors of train's texts, or at those of a file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from zipfel.data.token_vectors import read_vectors, train_fasttext
from zipfel.errors import ConfigError, DataError, did_you_mean
from zipfel.models.base import Lesson
from zipfel.nn.encoders import Table
from zipfel.training.run import Run


def start_tokens(
    table: Table, lesson: Lesson, tokens: str, spread: float, run: Run, deterministic: bool = True
) -> None:
    """Begin with token vectors that are learned from the texts of train (`fasttext`), or read from a file.

    spread: that of random ones, which all learning rates are for.
    """
    rows = table.rows

    def vectors() -> dict[str, Tensor]:
        return {"tokens": token_vectors(lesson, tokens, rows.shape[1], run, deterministic)}

    found = run.stage("tokens", vectors)["tokens"].to(rows.device)
    known = found.abs().amax(dim=1) > 0
    if not bool(known.any()):
        raise DataError(f"{tokens} has a vector for none of {len(known):,} terms")
    found = found / found[known].square().mean().sqrt() * spread
    rows.copy_(torch.where(known[:, None], found, rows))


def token_vectors(lesson: Lesson, tokens: str, width: int, run: Run, deterministic: bool) -> Tensor:
    """Return the vectors that tokens begin with, [V, D]; 0 where a token has none."""
    if lesson.terms is None:
        raise ConfigError(f"tokens={tokens} needs features with names, such as those made of texts")
    if tokens == "fasttext":
        if lesson.train.texts is None:
            raise ConfigError("tokens=fasttext learns from texts, and these points have none; tokens=random does not")
        numbers = run.numbers("tokens")
        return torch.from_numpy(train_fasttext(lesson.train.texts, lesson.terms, width, numbers, deterministic))
    if not Path(tokens).suffix:
        near = did_you_mean(tokens, ("random", "fasttext"))
        raise ConfigError(f"tokens must be random, fasttext or a file; found {tokens!r}{near}")
    found, _ = read_vectors(Path(tokens), lesson.terms)
    if found.shape[1] != width:
        raise ConfigError(f"{tokens} has vectors of width {found.shape[1]}; set dimension={found.shape[1]}")
    return torch.from_numpy(found)
