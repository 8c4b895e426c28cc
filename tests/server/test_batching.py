"""Batches of requests, and the limits of requests and queues."""

from __future__ import annotations

import threading

import pytest

from zipfel.server import body

pytestmark = pytest.mark.usefixtures("one_thread")


def asked(texts: list[str], **more: object) -> tuple[str, str, dict[str, object]]:
    return "POST", "/tag", {"json": {"texts": texts, **more}}


def test_requests_that_arrive_together_are_tagged_together_and_answered_apart(client):
    slot = client.service.catalog.slot("glas")
    alone = [slot.current.tagger.predict([f"paper {n} wifi"], 1 + n % 3)[0] for n in range(20)]
    answers = client.together(*(asked([f"paper {n} wifi"], k=1 + n % 3) for n in range(20)))
    tags = [answer.json()["tags"][0] for answer in answers]
    assert tags == [[{"label": tag.label, "score": tag.score} for tag in row] for row in alone]
    counted = client.service.metrics()
    assert "zipfel_batch_texts_sum 20" in counted
    batches = int(counted.partition("zipfel_batch_texts_count ")[2].split()[0])
    assert 1 <= batches <= 3


def test_no_texts_give_no_tags(client):
    assert client.tag([]).json()["tags"] == []


def test_a_request_is_refused_when_the_queue_is_full(serving, monkeypatch):
    client = serving("glas", max_texts=2, max_queue=4)
    busy, tagger = threading.Event(), client.service.catalog.slot("glas").current.tagger
    tag = tagger.tag

    def slow(requests):
        busy.wait(0.3)
        return tag(requests)

    monkeypatch.setattr(tagger, "tag", slow)
    answers = client.together(*(asked(["paper", "wifi"]) for _ in range(9)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 7
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    assert refused[0].json() == {"error": "the queue has no room: 4 texts are waiting; try again in a moment"}
    assert [answer.status_code for answer in answers if answer not in refused] == [200, 200]
    assert client.tag(["paper"]).status_code == 200


def test_a_request_that_fails_does_not_fail_others_of_its_batch(client, monkeypatch):
    tagger = client.service.catalog.slot("glas").current.tagger
    tag, batches = tagger.tag, []

    def picky(requests):
        batches.append(len(requests))
        if any("poison" in request.X for request in requests):
            raise RuntimeError
        return tag(requests)

    monkeypatch.setattr(tagger, "tag", picky)
    answers = client.together(asked(["paper"]), asked(["poison"]), asked(["wifi"]))
    assert [answer.status_code for answer in answers] == [200, 500, 200]
    assert max(batches) > 1  # they were in one batch at first


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a"] * 4, "a request may have at most 3 texts and extra labels; found 4"),
        (["a", "b" * 51], "a text may have at most 50 characters; text 1 has 51"),
        (["c" * 600], "a request body may have at most 500 bytes"),
    ],
)
def test_limits_of_a_request(serving, texts, message):
    client = serving("glas", max_texts=3, max_length=50, max_body=500)
    answer = client.tag(texts)
    assert (answer.status_code, answer.json()) == (413, {"error": message})
    assert client.tag(["b" * 50] * 3).status_code == 200
    assert client.service.bodies.held == 0


def test_an_extra_label_counts_once_against_the_limits(serving):
    client = serving("glas", max_texts=3, max_length=50)
    assert client.tag(["a"], extra={"x": "b" * 51}).status_code == 413
    assert client.tag(["a"], extra={"x" * 51: "b"}).status_code == 413
    assert client.tag(["a"], extra={"x" * 50: "b" * 50}).status_code == 200
    assert client.tag(["a"], extra={"x": "b", "y": "b"}).status_code == 200
    for texts, extra in ((["a"], "xyz"), (["a", "b"], "xy")):
        answer = client.tag(texts, extra=dict.fromkeys(extra, "b"))
        assert answer.status_code == 413
        assert answer.json() == {"error": "a request may have at most 3 texts and extra labels; found 4"}


def test_a_body_without_a_length_is_counted_as_it_arrives(serving):
    client = serving("glas", max_body=500)

    async def endless():
        for _ in range(100):
            yield b" " * 10

    answer = client.ask("POST", "/tag", content=endless())
    assert (answer.status_code, answer.json()) == (413, {"error": "a request body may have at most 500 bytes"})


def test_a_body_too_large_to_discard_ends_the_connection(serving, monkeypatch):
    monkeypatch.setattr(body, "DISCARDED", 1000)
    client = serving("glas", max_body=500)
    declared = client.ask("POST", "/tag", content=b" " * 1001)
    assert (declared.status_code, declared.headers["connection"]) == (413, "close")

    async def endless():
        while True:
            yield b" " * 100

    undeclared = client.ask("POST", "/tag", content=endless())
    assert (undeclared.status_code, undeclared.headers["connection"]) == (413, "close")


def test_bodies_of_all_requests_together_are_limited(serving, monkeypatch):
    monkeypatch.setattr(body, "HELD", 1000)
    client = serving("glas")
    assert client.tag(["a" * 2000]).status_code == 429
    assert client.tag(["a" * 900]).status_code == 200
    assert client.service.bodies.held == 0


def test_a_body_that_does_not_arrive_is_given_up(serving, monkeypatch):
    monkeypatch.setattr(body, "PATIENCE", 0.05)
    client = serving("glas")

    async def stuck():
        import asyncio

        yield b"{"
        await asyncio.sleep(5)

    answer = client.ask("POST", "/tag", content=stuck())
    assert (answer.status_code, answer.headers["connection"]) == (408, "close")
