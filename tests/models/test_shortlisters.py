"""The shortlisters of DECAF besides clusters (Table 5): a tree and HNSW, from Module II to labels added later."""

from __future__ import annotations

import sys
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from stopped import Stop, stops_after
from torch.nn.functional import normalize

from zipfel.data.batches import bags
from zipfel.data.dataset import Dataset, Part
from zipfel.errors import DataError
from zipfel.index.exact import ExactIndex
from zipfel.index.hnsw import HnswIndex
from zipfel.models import decaf, shortlisters
from zipfel.models.base import Tensors, labelled
from zipfel.models.decaf import Decaf
from zipfel.models.decaf_network import Network
from zipfel.models.shortlisters import Shortlister, label_sums, nodes_of_points, tree_sizes
from zipfel.tagger import Tagger
from zipfel.training.run import Run
from zipfel.training.trainer import Schedule

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS, WORDS = 40, 60
LONELY, UNKNOWN = 7, 9  # labels without points; the second has no text either
SMALL: dict[str, Any] = {
    "dimension": 16, "batch_size": 32, "min_steps": 1, "epochs": 4, "learning_rate": 0.03, "dropout": 0.0,
    "module1_epochs": 8, "module1_learning_rate": 0.03, "module1_dropout": 0.0, "beam": 3,
}  # fmt: skip
SETTINGS = {
    "hnsw": {**SMALL, "shortlist": "hnsw"},
    "parabel": {**SMALL, "shortlist": "parabel"},
    "hnsw, two": {**SMALL, "shortlist": "hnsw", "learners": 2, "lite": True},
    "parabel, paper": {**SMALL, "shortlist": "parabel", "cosine": False, "relu": True, "add_missed_labels": False},
}


def planted(points: int = 240, seed: int = 0) -> Part:
    """Points with a word of their label, one that ten labels share, and noise."""
    numbers = np.random.default_rng(seed)
    X, Y = np.zeros((points, WORDS), dtype=np.float32), np.zeros((points, LABELS), dtype=np.float32)
    for row in range(points):
        label = row % LABELS
        Y[row, label] = label not in (LONELY, UNKNOWN)
        X[row, [label, 40 + label // 10, 44 + int(numbers.integers(16))]] = 1
    return labelled(Part(csr_array(Y), X=csr_array(X)))


def texts() -> csr_array:
    Z = np.eye(LABELS, WORDS, dtype=np.float32)
    Z[UNKNOWN] = 0
    return csr_array(Z)


def fitted(kind: str, run: Run | None = None, validation: float = 0.2, **changes: Any) -> Tagger:
    tagger = Tagger("decaf", settings={**SETTINGS[kind], **changes}, validation=validation, device="cpu", seed=1)
    return tagger.fit_dataset(Dataset(planted(), Z=texts()), run)


@pytest.fixture(scope="module", params=SETTINGS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tagger(kind: str) -> Tagger:
    return fitted(kind)


def network_of(tagger: Tagger) -> Network:
    network = tagger.model_.networks[0]
    assert isinstance(network, Network)
    return network


def shortlister_of(tagger: Tagger) -> Shortlister:
    shortlister = network_of(tagger).shortlister
    assert shortlister is not None
    return shortlister


# --- What is learned --------------------------------------------------------------------------------------------------


def test_planted_labels_are_on_the_lists(kind, tagger):
    shortlister, test = shortlister_of(tagger), planted(seed=1)
    index = shortlister.index()
    lists = index.search(shortlister.encoder()(bags(test.X)), 1).ids
    assert (lists >= 0).sum(dim=1).float().mean() <= 15  # three clusters of five
    assert shortlister.recall(test, index) > 0.9
    assert tagger.score(test.X, test.Y) > (0.7 if "paper" in kind else 0.85)


def test_recall_of_lists_equals_loops(tagger):
    shortlister, part = shortlister_of(tagger), planted(40, seed=2)
    index, hits = shortlister.index(), 0
    for row in range(len(part)):
        found = index.search(shortlister.encoder()(bags(part.X[[row]])), 1).ids[0].tolist()
        hits += sum(label in found for label in part.Y[[row]].indices)
    assert shortlister.recall(part, index) == hits / part.Y.nnz


@pytest.mark.parametrize("kind", ["hnsw"], indirect=True)
def test_labels_lie_at_the_means_of_their_points_else_at_their_texts(kind):
    shortlister, part = shortlister_of(fitted("hnsw", validation=0)), planted()
    encode, sums = shortlister.encoder(), np.zeros((LABELS, 16))
    points = encode(bags(part.X))
    for row in range(len(part)):
        for label in part.Y[[row]].indices:
            sums[label] += points[row].numpy()
    sums[LONELY] = encode(bags(texts()[[LONELY]]))[0].numpy()
    wanted = [(np.array(row) / max(np.linalg.norm(row), 1e-9)).tolist() for row in sums]
    others = [label for label in range(LABELS) if label != UNKNOWN]
    torch.testing.assert_close(shortlister.heads[others], torch.tensor(wanted)[others], rtol=1e-3, atol=1e-4)
    assert shortlister.heads[UNKNOWN].norm().item() == pytest.approx(1)  # somewhere
    assert isinstance(shortlister.graph, HnswIndex)


@pytest.mark.parametrize("kind", ["hnsw"], indirect=True)
def test_without_faiss_all_vectors_are_looked_at(kind, tagger, monkeypatch, tmp_path):
    found = tagger.rank(planted(seed=1).X, 5).ids
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.warns(UserWarning, match="using an exact index instead of hnsw"):
        plain = fitted("hnsw")
    assert isinstance(shortlister_of(plain).graph, ExactIndex)
    assert np.array_equal(plain.rank(planted(seed=1).X, 5).ids, found)
    plain.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert np.array_equal(loaded.rank(planted(seed=1).X, 5).ids, found)


def test_leaves_are_balanced_and_shortlists_are_no_longer_than_those_of_clusters():
    shortlister = shortlister_of(fitted("parabel", epochs=1, module1_epochs=1))
    sizes = shortlister.clusters.bincount()
    assert (len(sizes), int(shortlister.beam), shortlister.heads.shape) == (32, 10, (62, 17))
    assert sizes.max() - sizes.min() <= 1


@given(labels=st.integers(1, 300_000), share=st.floats(0.001, 1))
def test_sizes_of_trees(labels, share):
    width = max(1, int(share * labels))
    leaves, beam = tree_sizes(labels, width)
    largest = -(-labels // leaves)
    assert leaves & (leaves - 1) == 0
    assert 1 <= leaves <= labels
    assert 1 <= beam <= 10
    assert largest <= 100
    assert beam == 1 or beam * labels / leaves <= width


@given(truth=st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_nodes_of_points_equal_loops(truth, seed):
    leaves = np.random.default_rng(seed).integers(0, 8, 10).astype(np.int32)
    Y = csr_array(np.array([[float(label in row) for label in range(10)] for row in truth]))
    found = nodes_of_points(Y, leaves, 8).toarray().tolist()
    nodes = [(level, node) for level in (1, 2, 3) for node in range(2**level)]
    for row, ours in zip(truth, found, strict=True):
        assert ours == [float(any(leaves[label] >> (3 - level) == node for label in row)) for level, node in nodes]


def test_nodes_learn_from_the_points_that_visit_them():
    """The loss of a step equals a loop over points and the nodes whose parents hold a label of theirs."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        plain = shortlisters.train

        def spy(run: Run, stage: str, module: Any, points: int, objective: Any, *more: Any) -> Any:
            with torch.no_grad():
                module.weights.normal_(generator=torch.Generator().manual_seed(0))
                loss = objective(np.arange(6), torch.Generator())["nodes"].item()
                seen.append((stage, module.weights.tolist(), loss))
                module.weights.zero_()
            return plain(run, stage, module, points, objective, *more)

        patch.setattr(shortlisters, "train", spy)
        tagger = fitted("parabel", validation=0, epochs=1, module1_epochs=1)
    ((stage, nodes, loss),), shortlister, part = seen, shortlister_of(tagger), planted()
    leaves, total = shortlister.clusters.tolist(), 0.0
    for row, x in enumerate(shortlister.encoder()(bags(part.X[:6])).tolist()):
        own = {leaves[label] for label in part.Y[[row]].indices}
        for level in range(1, 6):
            for node in range(2**level):
                if node >> 1 in {leaf >> (6 - level) for leaf in own}:
                    *w, b = nodes[2**level - 2 + node]
                    chance = reference.sigmoid(reference.dot(x, w) + b)
                    held = node in {leaf >> (5 - level) for leaf in own}
                    total -= float(np.log(chance if held else 1 - chance))
    assert stage == "tree-0"
    assert loss == pytest.approx(total / 6, rel=1e-4)


@pytest.mark.parametrize("shortlist", ["hnsw", "parabel"])
@pytest.mark.parametrize("labels", [2, 3, 12])
def test_few_labels(shortlist, labels, tmp_path):
    X = csr_array(np.eye(labels, dtype=np.float32)[np.arange(60) % labels])
    settings = {**SMALL, "shortlist": shortlist, "beam": None, "epochs": 10}
    tagger = Tagger("decaf", settings=settings, device="cpu", validation=0).fit_dataset(Dataset(Part(X, X=X)))
    assert tagger.score(X, X) > 0.9
    assert np.array_equal(np.sort(tagger.rank(X, labels).ids, axis=1), np.tile(np.arange(labels), (60, 1)))
    tagger.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert np.array_equal(loaded.rank(X, 2).scores, tagger.rank(X, 2).scores)


# --- Runs that are stopped --------------------------------------------------------------------------------------------


def state_of(tagger: Tagger) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in tagger.model_.tensors().all.items()}


def opened(folder: Path) -> Run:
    run = Run(folder, seed=1)
    run.open({})
    return run


@pytest.mark.parametrize("kind", ["hnsw, two", "parabel"])
def test_a_run_stopped_often_ends_the_same(tmp_path, monkeypatch, kind):
    changes = {"epochs": 1, "module1_epochs": 1, "validation": 0}
    plain, stops = fitted(kind, **changes), 0
    monkeypatch.setattr(decaf, "Schedule", partial(Schedule, checkpoint_seconds=0))
    while True:
        run = opened(tmp_path)
        stops_after(5)(run)
        try:
            further = fitted(kind, run, **changes)
            break
        except Stop:
            stops += 1
    ours, theirs = state_of(further), state_of(plain)
    assert stops >= 3
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    stages = {path.stem for path in tmp_path.glob("*.safetensors")}
    assert stages >= ({"leaves-0", "tree-0", "shortlists-0"} if kind == "parabel" else {"shortlists-0", "shortlists-1"})


def test_ctrl_c_while_nodes_learn(tmp_path, monkeypatch):
    plain = fitted("parabel", epochs=1, module1_epochs=1)

    def interrupted(*given: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shortlisters, "nodes_on_the_way", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fitted("parabel", opened(tmp_path), epochs=1, module1_epochs=1)
    ours, theirs = state_of(fitted("parabel", opened(tmp_path), epochs=1, module1_epochs=1)), state_of(plain)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


# --- Labels that come later -------------------------------------------------------------------------------------------


def test_a_graph_grows_by_labels_that_come_and_is_saved_with_them(tmp_path):
    tagger = fitted("hnsw, two")
    model = tagger.model_
    owned = [network.shortlister for network in model.networks]
    graphs = [shortlister.graph for shortlister in owned]
    model.add_label_texts(csr_array(np.eye(2, WORDS, 3, dtype=np.float32)))
    model.learners()
    assert [len(graph) for graph in graphs] == [LABELS] * 2  # they join once they are learned
    model.learned.fill_(LABELS + 2)
    before = [shortlister.index().search(shortlister.heads[-2:], 1).ids for shortlister in owned]
    for shortlister, graph, ids in zip(owned, graphs, before, strict=True):
        assert shortlister.graph is graph  # nothing is built anew
        assert len(graph) == LABELS + 2
        assert LABELS in ids[0].tolist()
        assert LABELS + 1 in ids[1].tolist()
    loaded = Decaf.restored(WORDS, LABELS + 2, model.settings, Tensors(*deepcopy(model.tensors())))
    for network, ids in zip(loaded.networks, before, strict=True):
        shortlister = network.shortlister
        assert isinstance(shortlister.graph, HnswIndex)
        assert torch.equal(shortlister.index().search(shortlister.heads[-2:], 1).ids, ids)


def test_labels_that_lie_elsewhere_now_have_a_new_graph():
    shortlister = shortlister_of(fitted("hnsw", epochs=1, module1_epochs=1))
    vectors = torch.stack([shortlister.heads[0] + 0.01 * shortlister.heads[1], torch.zeros(16)])
    before = shortlister.heads.clone()
    shortlister.assign(torch.tensor([30, 31]), vectors)
    torch.testing.assert_close(shortlister.heads[30], normalize(vectors[:1], dim=1)[0])
    others = torch.arange(LABELS) != 30
    assert torch.equal(shortlister.heads[others], before[others])  # of 31 nothing is known
    assert 30 in shortlister.index().open(shortlister.heads[:1]).ids[0].tolist()
    assert len(shortlister.graph) == LABELS


def test_labels_without_points_or_texts_are_spread_evenly(kind, tagger):
    model, more = deepcopy(tagger.model_), 70  # more than there are clusters
    before = [deepcopy(network.shortlister) for network in model.networks]
    model.add_labels(more, torch.Generator().manual_seed(0))
    for network, old in zip(model.networks, before, strict=True):
        shortlister = network.shortlister
        if "hnsw" in kind:
            torch.testing.assert_close(shortlister.heads[LABELS:].norm(dim=1), torch.ones(more))
            assert torch.equal(shortlister.heads[:LABELS], old.heads)
        else:
            leaves = len(set(old.clusters.tolist()))
            assert shortlister.clusters[LABELS:].tolist() == [label % leaves for label in range(more)]
            assert torch.equal(shortlister.clusters[:LABELS], old.clusters)
    assert sorted(model.predictor().rank(texts()[:3], LABELS + more).ids[0]) == list(range(LABELS + more))


def test_a_saved_shortlister_of_another_width_is_refused(tagger):
    model = tagger.model_
    serve, train = deepcopy(model.tensors())
    heads = "networks.0.shortlister.heads"
    serve[heads] = serve[heads][:, 1:].contiguous()
    with pytest.raises(DataError, match="heads"):
        Decaf.restored(WORDS, LABELS, model.settings, Tensors(serve, train))


def test_a_search_takes_the_vectors_of_tokens_that_it_has_none_of(kind):
    tagger = fitted(kind, epochs=1, module1_epochs=1)
    shortlister, learned = shortlister_of(tagger), deepcopy(network_of(tagger).tokens)
    with torch.no_grad():
        learned.rows += 1
        shortlister.tokens.rows[[3, 5]] = 0
    before = shortlister.tokens.rows.detach().clone()
    assert shortlister.take_new_tokens(learned)
    after, known = shortlister.tokens.rows.detach(), before.any(dim=1)
    assert torch.equal(after[~known], learned.rows[~known])
    assert torch.equal(after[known], before[known])
    assert not shortlister.take_new_tokens(learned)


@pytest.mark.parametrize("shortlist", ["beam", "parabel"])
@pytest.mark.parametrize("clusters", [[0] * (LABELS + 1), [-1, *[0] * (LABELS - 1)], [99, *[0] * (LABELS - 1)]])
def test_saved_clusters_are_one_for_each_label_and_known(shortlist, clusters):
    model = fitted("parabel", shortlist=shortlist, epochs=1, module1_epochs=1).model_
    serve, train = model.tensors()
    serve["networks.0.shortlister.clusters"] = torch.tensor(clusters, dtype=torch.int32)
    with pytest.raises(DataError, match="clusters"):
        Decaf.restored(WORDS, LABELS, model.settings, Tensors(serve, train))


def test_sums_of_labels_take_texts_where_there_are_no_points():
    network = network_of(fitted("parabel", epochs=1, module1_epochs=1))
    with_texts, without = (label_sums(network.tokens, planted(), Z, torch.zeros(LABELS, 16)) for Z in (texts(), None))
    torch.testing.assert_close(with_texts[LONELY], network.tokens.rows[LONELY].detach())
    assert not without[LONELY].any()
    assert not with_texts[UNKNOWN].any()
    others = [label for label in range(LABELS) if label not in (LONELY, UNKNOWN)]
    assert torch.equal(with_texts[others], without[others])
