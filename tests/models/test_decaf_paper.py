"""The preset `paper` of DECAF, value by value: sources are in docs/papers/decaf.md."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from zipfel.config import from_mapping
from zipfel.models.decaf import Decaf
from zipfel.models.decaf_settings import PRESETS, DecafSettings
from zipfel.models.shortlisters import smallest_beam


def test_the_paper_preset():
    paper = PRESETS["paper"]
    assert (paper.learners, paper.shortlist, paper.beam_chosen_on, paper.add_missed_labels) == (
        3, "beam", "train", False,
    )  # fmt: skip
    assert paper.loss == "logistic"
    assert (paper.label_text, paper.refinement, paper.refinement_init, paper.token_init, paper.lite) == (
        True, True, "text", "random", False,
    )  # fmt: skip
    assert (paper.cosine, paper.relu, paper.residual) == (False, True, True)
    assert (paper.module1_dropout, paper.module1_learning_rate, paper.module1_epochs) == (0.5, 0.01, 20)
    assert (paper.dropout, paper.learning_rate, paper.epochs, paper.batch_size, paper.halve_learning_rate) == (
        0.2, 0.008, 10, 255, True,
    )  # fmt: skip
    assert (paper.label_bias, paper.unit_cluster_texts, paper.text_in_classifiers, paper.module1) == (
        True, True, True, True,
    )  # fmt: skip
    assert (paper.dimension, paper.clusters, paper.beam, paper.min_steps) == (300, None, None, 1)
    clusters = [paper.cluster_count(labels) for labels in (131_073, 312_330, 1_305_265)]
    assert clusters == [2**15, 2**17, 2**17]  # Sec. 4 of the paper


def test_scale_and_offset_at_the_start():
    scales = [DecafSettings().initial_scale(count) for count in (1, 2, 1000)]
    assert scales == pytest.approx([2.5 * math.log(2), 2.5 * math.log(2), 2.5 * math.log(1000)])
    for cosine, scale in ((True, 2.5 * math.log(8)), (False, 0.0)):
        (network,) = Decaf(5, 8, DecafSettings(dimension=4, cosine=cosine), torch.Generator()).all_networks()
        assert network.offset.item() == pytest.approx(-scale / 3)


@pytest.mark.parametrize(
    ("ranks", "beam"), [([0] * 85 + [3] * 15, 4), ([0] * 86 + [3] * 14, 1), ([2], 3), ([0] * 17 + [1, 5, 5], 2)]
)
def test_exactly_85_of_100_labels_are_not_more(ranks, beam):
    assert smallest_beam(np.array(ranks)) == beam


def test_settings_saved_before_a_bias_existed_are_those_of_a_model_without():
    added = {"label_bias", "unit_cluster_texts", "labels_per_cluster", "module1", "text_in_classifiers"}
    saved = {name: value for name, value in asdict(DecafSettings(dimension=16)).items() if name not in added}
    settings_ = from_mapping(DecafSettings, saved)
    assert settings_ == DecafSettings(dimension=16)
    model = Decaf(5, 8, settings_, torch.Generator())
    assert not [name for name in model.state_dict() if ".bias" in name]
    assert model.networks[0].composed_classifiers.shape == (8, 16)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_model_of_paper_saved_before_a_bias_existed_is_restored_without(has_bias):
    """Settings that a saved model lacks are those of its preset, which has a bias now."""
    wanted = replace(PRESETS["paper"], dimension=4, learners=1)
    model = Decaf(5, 8, replace(wanted, label_bias=has_bias), torch.Generator())
    restored = Decaf.restored(5, 8, wanted, model.tensors())
    assert restored.settings.label_bias == has_bias
    assert restored.networks[0].composed_classifiers.shape == (8, 4 + has_bias)
    assert (restored.networks[0].bias is not None) == has_bias
    restored.add_labels(2, torch.Generator())
    assert restored.networks[0].composed_classifiers.shape == (10, 4 + has_bias)
