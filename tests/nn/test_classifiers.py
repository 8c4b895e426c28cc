"""One-vs-all classifiers: scores, saved vectors, labels added later."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from torch import nn

from zipfel.nn.classifiers import EXTRA, Combination, OneVsAll
from zipfel.nn.optim import Adam

pytestmark = pytest.mark.usefixtures("one_thread")


def made(labels: int = 6, width: int = 4, cosine: bool = True, seed: int = 0, biases: bool = False) -> OneVsAll:
    return OneVsAll(labels, width, cosine, torch.Generator().manual_seed(seed), biases=biases)


def unit(rows: int, width: int = 4, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return nn.functional.normalize(torch.randn(rows, width, generator=generator), dim=1)


@pytest.mark.parametrize("cosine", [True, False])
def test_scores_equal_loops(cosine):
    classifier, x, labels = made(cosine=cosine), unit(3), torch.tensor([1, 2, 5])
    found = classifier(x, labels).tolist()
    for row, point in enumerate(x.tolist()):
        for place, label in enumerate(labels.tolist()):
            w = classifier.labels.rows[label].tolist()
            plain = reference.dot(w, point)
            scaled = classifier.scale.item() * reference.cosine(w, point) + classifier.offset.item()
            assert found[row][place] == pytest.approx(scaled if cosine else plain, abs=1e-5)


@pytest.mark.parametrize("cosine", [True, False])
def test_prediction_multiplies_with_what_learning_does(cosine):
    classifier, x = made(cosine=cosine), unit(5)
    with torch.no_grad():
        classifier.scale.mul_(1.5 if cosine else 1)
        scale, offset = classifier.scale_and_offset()
        torch.testing.assert_close(scale * (x @ classifier.composed().T) + offset, classifier(x, torch.arange(6)))
    assert not scale.requires_grad
    assert not offset.requires_grad
    assert not classifier.composed().requires_grad


@pytest.mark.parametrize("cosine", [True, False])
def test_scale_and_offset_are_learned_with_cosines_only(cosine):
    classifier = made(cosine=cosine)
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    optimiser = Adam(classifier, 0.1)
    classifier.train()
    classifier(unit(3), torch.tensor([0, 4])).sum().backward()
    optimiser.step(0.1)
    moved = {name: not torch.equal(value, before[name]) for name, value in classifier.state_dict().items()}
    assert moved == {"labels.rows": True, "scale": cosine, "offset": cosine}
    rows = (classifier.labels.rows != before["labels.rows"]).any(dim=1)
    assert rows.tolist() == [True, False, False, False, True, False]  # what is on no list stays


@pytest.mark.parametrize("cosine", [True, False])
def test_biases_start_at_0_and_are_added_to_scores(cosine):
    classifier, plain, x = made(cosine=cosine, biases=True), made(cosine=cosine), unit(3)
    assert not classifier.biases.rows.any()
    torch.testing.assert_close(classifier(x, torch.arange(6)), plain(x, torch.arange(6)))
    with torch.no_grad():
        classifier.biases.rows.copy_(torch.arange(6.0)[:, None])
    torch.testing.assert_close(
        classifier(x, torch.tensor([5, 2])), plain(x, torch.tensor([5, 2])) + torch.tensor([5, 2])
    )
    scale, offset = classifier.scale_and_offset()
    torch.testing.assert_close(scale * (x @ classifier.composed().T) + offset, classifier(x, torch.arange(6)))
    assert classifier.scaled().shape[1] == classifier.widened(x).shape[1] == 4 + EXTRA


def test_cosines_start_with_a_scale_and_an_offset_that_follow_the_labels():
    assert made(100).scale.item() == pytest.approx(2.5 * math.log(100))
    assert made(100).offset.item() == pytest.approx(-2.5 * math.log(100) / 3)
    plain = made(100, cosine=False)
    assert (plain.scale.item(), plain.offset.item()) == (1, 0)


@pytest.mark.parametrize("biases", [True, False])
def test_new_labels_are_as_long_as_old_ones_and_have_no_bias(biases):
    classifier = made(width=400, biases=biases)
    if biases:
        classifier.biases.rows.data += 7
    classifier.grow(5, torch.Generator().manual_seed(1))
    lengths = classifier.labels.rows.norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(11), rtol=0.15, atol=0)
    assert not biases or classifier.biases.rows[:, 0].tolist() == [7.0] * 6 + [0.0] * 5


@pytest.mark.parametrize("labels", [0, 1, 2])
def test_few_labels_have_a_scale_above_0(labels):
    assert made(labels).scale > 0
    assert made(labels).offset < 0


def test_lengths_come_back():
    classifier = made()
    with torch.no_grad():
        classifier.labels.rows[2] *= 10
    rows, composed, lengths = classifier.labels.rows.clone(), classifier.composed(), classifier.lengths()
    torch.testing.assert_close(composed.norm(dim=1), torch.ones(6))
    stored = made(seed=3)
    stored.labels.rows = nn.Parameter(composed.clone(), requires_grad=False)
    stored.stored_lengths = lengths["classifier.lengths"]
    assert torch.equal(stored.composed(), composed)  # as they were stored: not divided by a length near 1 again
    assert torch.equal(stored.lengths()["classifier.lengths"], lengths["classifier.lengths"])
    stored.restore_lengths()
    torch.testing.assert_close(stored.labels.rows.detach(), rows)
    assert stored.stored_lengths is None
    again = stored.labels.rows.clone()
    stored.restore_lengths()
    assert torch.equal(stored.labels.rows, again)
    torch.testing.assert_close(stored.lengths()["classifier.lengths"], rows.norm(dim=1))


def test_without_cosines_nothing_is_left_out():
    classifier = made(cosine=False)
    assert torch.equal(classifier.composed(), classifier.labels.rows)
    assert classifier.lengths() == {}


def test_labels_come_behind_those_that_are_there():
    classifier = made()
    rows = classifier.labels.rows.clone()
    classifier.labels.rows = nn.Parameter(nn.functional.normalize(rows, dim=1), requires_grad=False)
    classifier.stored_lengths = rows.norm(dim=1)
    classifier.grow(3, torch.Generator().manual_seed(1))
    assert classifier.labels.rows.shape == (9, 4)
    torch.testing.assert_close(classifier.labels.rows[:6].detach(), rows)
    assert not classifier.labels.rows.requires_grad
    assert len(classifier.labels.rows[6:].unique(dim=0)) == 3
    assert classifier(unit(2), torch.arange(9)).shape == (2, 9)
    before = classifier.labels.rows.clone()
    classifier.grow(0, torch.Generator())
    assert torch.equal(classifier.labels.rows, before)


# --- DECAF's combination block ---


def test_a_combination_begins_with_half_of_each():
    a, b = torch.tensor([[2.0, -4.0]]), torch.tensor([[6.0, 1.0]])
    assert Combination(2)(a, b).tolist() == [[4.0, -1.5]]


def test_a_combination_equals_loops_and_leaves_alone_what_is_single():
    block, (a, b) = Combination(4), (unit(3), unit(3, seed=2))
    with torch.no_grad():
        for parameter, seed in ((block.alpha, 3), (block.beta, 4)):
            parameter.normal_(0, 2, generator=torch.Generator().manual_seed(seed))
    alpha, beta = block.alpha.tolist(), block.beta.tolist()
    wanted = [reference.combination(alpha, x, beta, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    torch.testing.assert_close(block(a, b).detach(), torch.tensor(wanted))
    assert block(a, None) is a
    assert block(None, b) is b
