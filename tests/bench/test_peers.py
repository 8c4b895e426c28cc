"""Adapters of peers: their common code, and the two that need only numpy and scipy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, save_npz

from benchmarks.peers import install
from zipfel.bench.contestants import checkout


@pytest.fixture
def adapters(monkeypatch):
    """Let adapters be imported, as they are beside each other."""
    monkeypatch.syspath_prepend(str(checkout() / "peers"))
    import neighbours_adapter
    import protocol

    return protocol, neighbours_adapter


def test_the_best_of_dense_and_of_sparse_scores_are_the_same(adapters):
    protocol, _ = adapters
    scores = np.random.default_rng(0).integers(1, 9, (20, 40)).astype(np.float32)  # many ties
    ids, values = protocol.best(csr_matrix(scores), 5)
    order = np.lexsort((np.broadcast_to(np.arange(40), scores.shape), -scores), axis=1)[:, :5]
    assert (values == np.take_along_axis(scores, order, axis=1)).all()
    assert (np.take_along_axis(scores, ids, axis=1) == values).all()
    assert (protocol.best(scores, 5)[1] == values).all()
    assert [len(set(row)) for row in ids] == [5] * 20


def test_short_rows_are_padded(adapters):
    protocol, _ = adapters
    ids, values = protocol.best(csr_matrix([[0, 3.0, 0], [1.0, 0, 2.0]]), 2)
    assert ids.tolist() == [[1, -1], [2, 0]]
    assert values.tolist() == [[3.0, -np.inf], [2.0, 1.0]]
    assert protocol.padded([[(7, 0.5)], []], 2)[0].tolist() == [[7, -1], [-1, -1]]


@pytest.mark.parametrize("mix", [0.0, 0.4, 1.0])
def test_neighbours_and_texts_are_mixed_as_stated(adapters, tmp_path, mix):
    protocol, neighbours = adapters
    rng = np.random.default_rng(1)
    X, Z, asked = rng.random((30, 8)) + 0.1, rng.random((6, 8)) + 0.1, rng.random((4, 8)) + 0.1
    Y = (rng.random((30, 6)) < 0.3) | (np.arange(30)[:, None] % 6 == np.arange(6))
    for name, matrix in (("X.trn", X), ("Y.trn", Y.astype(np.float32)), ("Z", Z)):
        save_npz(tmp_path / f"{name}.npz", csr_matrix(matrix))
    task = protocol.Task(tmp_path, tmp_path, 0, 1, {"mix": mix, "neighbours": 3})
    neighbours.train(task)
    assert task.measured["train_seconds"] > 0
    ids, scores = neighbours.load(task)(csr_matrix(asked), 2)
    for row, one in enumerate(asked):
        cosines = X @ one / np.linalg.norm(X, axis=1) / np.linalg.norm(one)
        near = np.argsort(-cosines)[:3]
        votes = (cosines[near, None] * Y[near]).sum(axis=0)
        texts = Z @ one / np.linalg.norm(Z, axis=1)
        expected = (1 - mix) * votes / votes.max() + mix * texts / texts.max()
        order = np.argsort(-expected, kind="stable")[:2]
        assert scores[row].tolist() == pytest.approx(expected[order].tolist(), rel=1e-4)
        assert ids[row].tolist() == order.tolist()


def test_texts_of_labels_become_training_points_and_empty_rows_are_left_out(adapters, tmp_path):
    protocol, _ = adapters
    matrices = {"X.trn": [[1, 0], [0, 0], [0, 2]], "Y.trn": [[1, 0], [1, 0], [0, 0]], "Z": [[3, 0], [0, 0]]}
    for name, matrix in matrices.items():
        save_npz(tmp_path / f"{name}.npz", csr_matrix(np.array(matrix, dtype=np.float32)))
    X, Y = protocol.Task(tmp_path, tmp_path, 0, 1, {"label_texts": True}).train()
    assert X.toarray().tolist() == [[1, 0], [3, 0]]
    assert Y.toarray().tolist() == [[1, 0], [1, 0]]
    assert protocol.Task(tmp_path, tmp_path, 0, 1, {}).train()[0].toarray().tolist() == [[1, 0]]


def test_adapters_of_peers_do_not_import_zipfel():
    for path in (checkout() / "peers").glob("*.py"):
        if path.name != "zipfel_adapter.py":
            assert "import zipfel" not in path.read_text()
            assert "from zipfel" not in path.read_text()


def test_every_environment_pins_what_it_installs():
    for path in install.REQUIREMENTS.glob("*.txt"):
        assert all("==" in line for line in path.read_text().split()), path.name
    made = install.commands("pecos", Path("x"))
    assert [command[-3:] for command in made[1:]] == [
        ["--disable-pip-version-check", "-r", str(install.REQUIREMENTS / "pecos.txt")],
        ["--no-deps", "-r", str(install.REQUIREMENTS / "pecos.no-deps.txt")],
    ]


def test_what_cannot_be_installed_is_written_down(tmp_path, monkeypatch):
    monkeypatch.setattr(
        install, "commands", lambda peer, folder: [[sys.executable, "-c", "import sys; sys.exit('no')"]]
    )
    assert not install.installed("pecos", tmp_path)
    assert (tmp_path / "pecos" / "failed.txt").read_text() == "no\n"
    run = subprocess.run([sys.executable, install.__file__, "pecoss"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "unknown peer 'pecoss'; there are cosine, fasttext, " in run.stderr


def test_a_peer_is_installed_by_its_name_or_by_that_of_its_environment(tmp_path, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(install, "installed", lambda peer, into: made.append(peer) or True)
    monkeypatch.setattr(sys, "argv", ["install.py", "knn", "sklearn", "omikuji-bonsai", "--into", str(tmp_path)])
    assert install.main() == 0
    assert made == ["sklearn", "omikuji"]
    assert capsys.readouterr().out == "sklearn: installed\nomikuji: installed\n"
