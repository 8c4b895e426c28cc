"""Recipes of the repository: all can be read, and all names in them are known."""

from __future__ import annotations

import pytest

from benchmarks.peers import install
from zipfel.bench.contestants import checkout, models, peers, read_recipe
from zipfel.bench.race import validated
from zipfel.errors import ConfigError, DataError
from zipfel.models.base import model_names, settings_of

# Settings that an adapter hands on to its library as they are; the others stand in its source.
HANDED_ON = {"sklearn": {"C"}, "floret": {"dim", "epoch", "lr"}, "napkinxc": set()}
PEERS = {
    "omikuji-parabel", "omikuji-bonsai", "omikuji-parabel-texts", "omikuji-bonsai-texts", "napkinxc", "pecos",
    "sklearn", "fasttext", "knn", "cosine", "knn-cosine",
}  # fmt: skip


@pytest.mark.parametrize("model", model_names())
def test_models_have_recipes_with_known_settings(model):
    (contestant,) = models(model, checkout())
    for data in ("", *contestant.recipe.data):
        for settings in validated(contestant, data):
            assert settings.pop("model") == model
            assert settings_of(model, settings.pop("preset"), settings)


def test_a_named_preset_is_taken_as_it_is():
    (contestant,) = models("glas:fast", checkout())
    assert contestant.settings("anything") == {"model": "glas", "preset": "fast"}


def test_auto_is_a_contestant_with_no_settings_of_its_own():
    plain, fast = models("auto,auto:fast", checkout())
    assert plain.settings("anything") == {"model": "auto", "preset": "default"}
    assert fast.settings("anything") == {"model": "auto", "preset": "fast"}
    assert (plain.title, plain.ours, plain.is_auto) == ("zipfel auto", True, True)
    assert validated(plain, "anything") == []
    assert plain.name in {model.name for model in models("all", checkout())}
    assert not (checkout() / "recipes" / "auto.toml").exists()  # nothing but `zipfel train DATA`


def test_peers_have_adapters_environments_and_known_settings(tmp_path):
    found = {peer.name: peer for peer in peers("all", checkout(), tmp_path)}
    assert set(found) == PEERS
    for peer in found.values():
        assert peer.adapter.is_file()
        assert peer.recipe.about["environment"] in install.PEERS
        known, source = HANDED_ON.get(peer.recipe.about["adapter"], set()), peer.adapter.read_text()
        protocol = (peer.adapter.parent / "protocol.py").read_text()
        for settings in (peer.settings(""), *validated(peer, "")):
            assert all(name in known or f'"{name}"' in source + protocol for name in settings), peer.name


def test_what_differs_for_a_data_set_goes_over_the_base(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('[base]\na = 1\nb = 2\n[data."LF-X"]\nb = 3\n[tune]\nc = [1, 2]\nd = [5, 6]\n')
    recipe = read_recipe(path)
    assert recipe.settings("LF-X") == {"a": 1, "b": 3}
    assert recipe.settings("other") == {"a": 1, "b": 2}
    assert recipe.grid() == [{"c": 1, "d": 5}, {"c": 1, "d": 6}, {"c": 2, "d": 5}, {"c": 2, "d": 6}]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[bas]\n", "did you mean 'base'"), ("[tune]\na = 3\n", "lists of values"), ("[base\n", "not valid TOML")],
)
def test_an_invalid_recipe_is_refused(tmp_path, text, problem):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(DataError, match=rf"r\.toml: .*{problem}"):
        read_recipe(tmp_path / "r.toml")


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="unknown model 'glass'; did you mean 'glas'"):
        models("glass", checkout())
    with pytest.raises(ConfigError, match="unknown peer 'omikuji'; did you mean 'omikuji-"):
        peers("omikuji", checkout(), tmp_path)
    with pytest.raises(ConfigError, match="a peer has no presets"):
        peers("knn:fast", checkout(), tmp_path)
    assert models("none", checkout()) == []
