"""IVF's own behaviour: clusters and probes."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from zipfel.index import recall
from zipfel.index.exact import ExactIndex
from zipfel.index.ivf import IvfIndex

pytestmark = pytest.mark.usefixtures("one_thread")
VECTORS = normalize(torch.randn(3000, 24, generator=torch.Generator().manual_seed(0)))
QUERIES = normalize(torch.randn(64, 24, generator=torch.Generator().manual_seed(1)))
LENGTHS = torch.randn(3000, 1, generator=torch.Generator().manual_seed(2)).exp()


@pytest.mark.parametrize("lengths", [1, LENGTHS], ids=["unit", "any length"])
def test_all_clusters_are_exact_and_more_never_find_less(lengths):
    vectors = VECTORS * lengths
    index, exact = IvfIndex.build(vectors), ExactIndex(vectors)
    found = []
    for index.probes in (1, 2, 5, 10, 25, 54, 99):
        found.append(recall(index, exact, QUERIES, 20))
    assert found == sorted(found)
    assert found[0] < 0.5
    assert found[-2:] == [1, 1]


def test_rows_lie_in_the_nearest_cluster():
    index = IvfIndex.build(VECTORS)
    distances = torch.cdist(VECTORS, index.centroids)
    assert torch.equal(index.assignment, distances.argmin(dim=1))
    means = torch.stack([VECTORS[index.assignment == cluster].mean(dim=0) for cluster in range(len(index.centroids))])
    assert (means - index.centroids).norm(dim=1).mean() < 0.2 * distances.min(dim=1).values.mean()


def test_one_probe_looks_at_one_cluster_and_pads_what_it_does_not_find():
    index = IvfIndex.build(VECTORS, clusters=100, probes=1)
    unit = bool(torch.isclose(VECTORS.norm(dim=1), torch.ones(len(VECTORS)), atol=1e-3).all())
    products = QUERIES @ index.centroids.T
    nearest = torch.cdist(QUERIES, index.centroids).argmin(dim=1) if unit else products.argmax(dim=1)
    shortlist = index.search(QUERIES, 500)
    for cluster, ids, scores in zip(nearest, shortlist.ids, shortlist.scores, strict=True):
        wanted = (index.assignment == cluster).nonzero()[:, 0].tolist()
        assert sorted(ids[ids >= 0].tolist()) == wanted
        assert (ids == -1).sum() == 500 - len(wanted) > 0
        assert (scores[ids == -1] == -torch.inf).all()


@pytest.mark.parametrize(
    ("rows", "wanted", "clusters"),
    [(1, None, 1), (2, None, 1), (3, None, 1), (10, None, 3), (2500, None, 50), (10, 9, 5), (1, 4, 1), (40, 4, 4)],
)
def test_how_many_clusters(rows, wanted, clusters):
    index = IvfIndex.build(VECTORS[:rows], clusters=wanted)
    assert index.centroids.shape == (clusters, 24)
    assert index.assignment.shape == (rows,)


def test_few_rows_make_no_noise(capfd):
    IvfIndex.build(VECTORS[:30])
    assert capfd.readouterr() == ("", "")


def test_new_rows_go_into_the_nearest_cluster():
    index = IvfIndex.build(VECTORS[:2000])
    index.add(VECTORS[2000:])
    assert torch.equal(index.assignment, torch.cdist(VECTORS, index.centroids).argmin(dim=1))


def test_probes_are_kept():
    index = IvfIndex.build(VECTORS, probes=7)
    assert IvfIndex.of_state(index.state(), VECTORS).probes == 7
