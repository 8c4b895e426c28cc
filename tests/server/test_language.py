"""POST /candidates and POST /ground."""

from __future__ import annotations

import pytest

from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")


def test_candidates_are_those_of_the_model(client, models):
    answer = client.ask("POST", "/candidates", json={"text": "wifi and paper", "k": 2})
    expected = Tagger.load(models / "glas").candidates("wifi and paper", 2)
    assert answer.status_code == 200
    assert answer.json()["candidates"] == [each._asdict() for each in expected]
    assert answer.json()["prompt"].startswith(f"1. {expected[0].label}: ")
    assert answer.json()["model"]["id"] == "glas"


def test_a_phrase_is_grounded(client):
    answer = client.ask("POST", "/ground", json={"phrase": "printers", "k": 1})
    (label,) = answer.json()["labels"]
    assert (label["label"], label["text"], label["by"]) == ("printer", "Printers and PAPER", "name")


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [("/candidates", {"text": 3}, 400, "text: Input should be a valid string"),
     ("/candidates", {"text": "a", "k": 0}, 400, "k: Input should be greater than or equal to 1"),
     ("/candidates", {"text": {"nope": "a"}}, 404, "the model has no text field 'nope'"),
     ("/ground", {"phrase": "x" * 1001}, 400, "phrase: String should have at most 1000 characters"),
     ("/ground", {"phrase": "a", "model": "glass"}, 404, "unknown model 'glass'; did you mean 'glas'?")],
)  # fmt: skip
def test_bad_requests_get_one_line(client, path, body, status, error):
    answer = client.ask("POST", path, json=body)
    assert (answer.status_code, answer.json()["error"][: len(error)]) == (status, error)
