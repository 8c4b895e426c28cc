"""The service shows the names of a thesaurus beside the URIs of labels."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.server.conftest import DEVICE, NETWORK, PRINTER

pytestmark = pytest.mark.usefixtures("one_thread")


def test_answers_have_titles_beside_uris(titled, serving):
    client = serving("titled")
    tags = client.tag(["paper in the printer"], k=3).json()["tags"][0]
    assert {tag["label"]: tag["title"] for tag in tags} == {PRINTER: "Drucker", NETWORK: "Netze", DEVICE: "Geräte"}
    found = client.ask("GET", "/labels", params={"q": "kopier"}).json()["labels"]
    assert [(label["name"], label["title"]) for label in found] == [(PRINTER, "Drucker")]
    about = client.ask("GET", f"/labels/{quote(PRINTER, safe='')}").json()
    assert about["paths"] == [[DEVICE, PRINTER]]
    assert about["titles"] == {DEVICE: "Geräte", PRINTER: "Drucker"}
    assert {near["title"] for near in about["near"]} == {"Netze", "Geräte"}
    why = client.ask("POST", "/explain", json={"text": "paper", "label": PRINTER}).json()
    assert (why["title"], why["titles"][DEVICE]) == ("Drucker", "Geräte")
    (best, *_) = client.ask("POST", "/ground", json={"phrase": "Kopierer"}).json()["labels"]
    assert (best["label"], best["title"], best["paths"]) == (PRINTER, "Drucker", [["Geräte", "Drucker"]])


def test_models_without_a_thesaurus_have_no_titles(client):
    assert "title" not in client.tag(["wifi"]).json()["tags"][0][0]
    assert "title" not in client.ask("GET", "/labels/printer").json()
