"""Settings of all models: ranges hold for every preset, and an old name is answered with the new one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from zipfel.errors import ConfigError
from zipfel.models.base import BUILT_IN, model_class, settings_of

GOLDEN = Path(__file__).parents[1] / "golden" / "presets.json"
PROMISES = GOLDEN.with_name("settings.json")
PRESETS = [(model, preset) for model in BUILT_IN for preset in model_class(model).presets]
RENAMED = {
    "glas": {
        "rate": "learning_rate", "batch": "batch_size", "steps": "min_steps", "strength": "regularizer_weight",
        "keep": "feature_dropout",
    },
    "mnn": {"rate": "learning_rate", "batch": "batch_size", "keep": "feature_dropout"},
    "dxml": {
        "rate": "learning_rate", "batch": "batch_size", "keep": "feature_dropout", "straight": "linear_path",
        "weighted": "weighted_edges", "vectors": "label_vectors", "walks": "walks_per_label", "length": "walk_length",
        "hidden": "hidden_size", "optimiser": "optimizer", "targets": "whiten",
    },
    "lightdxml": {
        "rate": "learning_rate", "batch": "batch_size", "steps": "min_steps", "tokens": "token_init",
        "label_rate": "label_learning_rate", "cycle": "cycle_epochs", "shared": "shared_negatives",
        "shortlist": "shortlist_size", "half": "float16",
    },
    "decaf": {
        "rate": "learning_rate", "batch": "batch_size", "steps": "min_steps", "drop": "dropout",
        "first_drop": "module1_dropout", "first_epochs": "module1_epochs", "first_rate": "module1_learning_rate",
        "halve": "halve_learning_rate", "judged": "beam_chosen_on", "missed": "add_missed_labels",
        "start": "refinement_init", "tokens": "token_init", "lift": "boost_rare_labels",
    },
    "astec": {},
    "linear": {},
    "blend": {},
}  # fmt: skip
CONVERSIONS = {"keep": "1 - keep", "targets": "true for white, false for raw"}
NAMES = [(model, old, new) for model, names in RENAMED.items() for old, new in names.items()]


def presets() -> dict[str, dict[str, object]]:
    """Return all values of all presets; `python tests/models/test_settings.py` writes both files."""
    named = ((f"{model} {preset}", model_class(model).presets[preset]) for model, preset in PRESETS)
    return {name: json.loads(json.dumps(dataclasses.asdict(settings))) for name, settings in named}


def promises() -> dict[str, dict[str, object]]:
    """Return the range and search of each setting of a model, and the abilities of its presets."""
    found: dict[str, dict[str, object]] = {}
    for model, preset in PRESETS:
        settings = model_class(model).presets[preset]
        of_model = found.setdefault(model, {})
        of_model[f"abilities of {preset}"] = str(model_class(model).abilities(settings))
        for field in dataclasses.fields(settings):
            of_model[field.name] = [dict(field.metadata.get("bounds") or {}), str(field.metadata.get("search"))]
    return json.loads(json.dumps(found))


def test_ranges_searches_and_abilities_change_only_on_purpose():
    assert promises() == json.loads(PROMISES.read_text())


def test_presets_change_only_on_purpose():
    """Figures in ledgers belong to these values. After a change on purpose, write the file anew."""
    assert presets() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(("model", "preset"), PRESETS)
def test_every_preset_refuses_a_setting_out_of_range(model, preset):
    """A negative learning rate, or what a model without one has."""
    name, wanted = {"linear": ("C", "above 0"), "blend": ("tail", "at least 0 and at most 1")}.get(
        model, ("learning_rate", "above 0")
    )
    message = rf"^{name} must be {wanted}; found -1\.0$"
    with pytest.raises(ConfigError, match=message):
        settings_of(model, preset, {name: -1.0})
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(model_class(model).presets[preset], **{name: -1.0})


@pytest.mark.parametrize(("model", "old", "new"), NAMES)
def test_an_old_name_is_refused_with_the_new_one(model, old, new):
    conversion = f", which is {CONVERSIONS[old]}" if old in CONVERSIONS else ""
    with pytest.raises(ConfigError) as caught:
        settings_of(model, changes={old: 1})
    assert str(caught.value) == f"unknown setting {old!r}; it is now called {new}{conversion}"
    assert old not in {field.name for field in dataclasses.fields(settings_of(model))}


@pytest.mark.parametrize("model", BUILT_IN)
def test_every_old_name_is_listed_here(model):
    fields = dataclasses.fields(settings_of(model))
    declared = {was.partition(":")[0]: field.name for field in fields if (was := field.metadata["was"])}
    assert declared == RENAMED[model]


@pytest.mark.parametrize("model", ["decaf", "lightdxml"])
def test_a_removed_setting_is_unknown(model):
    with pytest.raises(ConfigError, match=r"^unknown setting 'keep'; (?!it is now called)"):
        settings_of(model, changes={"keep": 0.9})


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(presets(), indent=1) + "\n")
    PROMISES.write_text(json.dumps(promises(), indent=1) + "\n")
