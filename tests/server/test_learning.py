"""POST /v1/projects/ID/learn: what is learned is saved and served, and nothing half of it."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tests.server.conftest import TAGS, TEXTS
from zipfel.errors import DataError
from zipfel.server import catalog, learning
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")

TONER = "toner toner toner"  # words that no training text has


@pytest.fixture
def folder(models):
    """Return the folder of a model that remembers points; each test has its own."""
    shutil.rmtree(models / "learner", ignore_errors=True)
    return shutil.copytree(models / "mnn", models / "learner")


@pytest.fixture
def learner(folder, serving):
    return serving("learner", "glas", learn=True)


def indexed(text, *uris):
    return {"text": text, "subjects": [{"uri": uri, "label": "any"} for uri in uris]}


def learn(client, *documents, project="learner"):
    return client.ask("POST", f"/v1/projects/{project}/learn", json=list(documents))


def counts(folder):
    labels = Tagger.load(folder, "cpu").labels_
    return dict(zip(labels.names, labels.counts, strict=True))


def version(client):
    return client.ask("GET", "/models").json()["models"][0]["version"]


def test_documents_count_at_once_and_are_saved(learner, folder):
    text, before, old = "the wifi is slow today", counts(folder), version(learner)
    tags = learner.tag([text], k=1, model="learner").json()["tags"][0]
    assert tags[0]["label"] == "network"
    skipped = [indexed(text), {"subjects": [{"uri": "printer"}]}]
    answer = learn(learner, *[indexed(text, "printer", "printer")] * 12, *skipped)
    assert (answer.status_code, answer.content) == (204, b"")
    tags = learner.tag([text], k=1, model="learner").json()["tags"][0]
    assert tags[0]["label"] == "printer"
    assert counts(folder) == {**before, "printer": before["printer"] + 12}
    assert version(learner) == catalog.version_of(folder) != old


def test_nothing_to_learn_changes_nothing(learner, folder):
    old = version(learner)
    assert learn(learner).status_code == 204
    assert learn(learner, indexed("a text"), indexed(" ", "printer"), {"subjects": []}).status_code == 204
    assert catalog.version_of(folder) == version(learner) == old


@pytest.mark.parametrize(
    ("project", "sent", "status", "detail"),
    [
        ("learner", {"json": [indexed("wifi", "network"), indexed("wifi", "http://x")]}, 400,
         "document 1: unknown subject 'http://x'; nothing was learned"),
        ("learner", {"json": [{"text": 5, "subjects": []}]}, 400, "[0].text: Input should be a valid string"),
        ("learner", {"json": [{"text": "x", "subjects": [{}]}]}, 400, "[0].subjects[0].uri: Field required"),
        ("learner", {"json": {"text": "x"}}, 400, "Input should be a valid list"),
        ("learner", {"content": b"[", "headers": {"Content-Type": "application/json"}}, 400, "not valid JSON"),
        ("learner", {"content": b"[]", "headers": {"Content-Type": "text/plain"}}, 415, "with the header Content-Type"),
        ("glas", {"json": [indexed("wifi", "network")]}, 403, "glas cannot add points without training"),
        ("none", {"json": []}, 404, "unknown model 'none'"),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_is_refused_as_a_whole(learner, folder, project, sent, status, detail):
    old = version(learner)
    answer = learner.ask("POST", f"/v1/projects/{project}/learn", **sent)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert detail in answer.json()["detail"]
    assert catalog.version_of(folder) == old


def test_limits_hold(folder, serving):
    client = serving("learner", learn=True, max_length=10, max_texts=2)
    assert learn(client, indexed("x" * 11, "printer")).status_code == 413
    assert learn(client, *[indexed("x", "printer")] * 3).status_code == 413


def test_the_fields_of_a_document_count_for_its_length(models, serving):
    tagger = Tagger("mnn", settings={"dimension": 16, "epochs": 3}, text={"min_count": 1}, validation=0, device="cpu")
    tagger.fit({"text": TEXTS, "title": TEXTS}, TAGS).save(models / "columns")
    client = serving("columns", learn=True, max_length=20)
    document = {**indexed("x", "printer"), "metadata": {"title": "y" * 20}}
    assert learn(client, document, project="columns").status_code == 413


def test_only_some_requests_may_wait(learner, folder, monkeypatch):
    monkeypatch.setattr(learning, "WAITING", 1)
    asked = ("POST", "/v1/projects/learner/learn", {"json": [indexed("wifi", "network")]})
    assert sorted(answer.status_code for answer in learner.together(asked, asked)) == [204, 429]
    assert learn(learner, indexed("wifi", "network")).status_code == 204


def test_a_model_that_cannot_be_written_stays_as_it_was(learner, folder, monkeypatch):
    def full(*arguments, **named):
        raise DataError("cannot be written: No space left on device", folder)

    old = version(learner)
    monkeypatch.setattr(Tagger, "save", full)
    answer = learn(learner, indexed("wifi", "network"))
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("nothing was learned")
    assert str(folder) not in answer.text
    assert catalog.version_of(folder) == version(learner) == old
    assert learner.tag(["wifi"], model="learner").status_code == 200


def test_processes_that_learn_at_a_time_lose_nothing(folder):
    slots, before = [catalog.Slot("learner", folder) for _ in range(3)], counts(folder)
    with ThreadPoolExecutor(3) as threads:
        made = [threads.submit(learning._changed, slot, ["wifi"], [["network"]]) for slot in slots for _ in range(2)]
        assert len({each.result().version for each in made}) >= 1
    assert counts(folder)["network"] == before["network"] + 6


def test_a_worker_lets_the_others_load_the_model(learner, monkeypatch):
    sent = []
    monkeypatch.setattr(learning, "parent_process", lambda: SimpleNamespace(pid=123))
    monkeypatch.setattr(learning, "os", SimpleNamespace(**{**vars(os), "kill": lambda *words: sent.append(words)}))
    assert learn(learner, indexed("wifi", "network")).status_code == 204
    assert sent == [(123, signal.SIGHUP)]


def test_texts_become_the_columns_of_the_model():
    assert learning._columns(["a", {"text": "b"}], ["text"]) == ["a", "b"]
    rows = [{"text": "a", "title": "A"}, {"text": "b"}, "c"]
    assert learning._columns(rows, ["text", "title"]) == {"text": ["a", "b", "c"], "title": ["A", "", ""]}
