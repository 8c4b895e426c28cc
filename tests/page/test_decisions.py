"""Decisions of the page's users, kept by the service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from test_page import DOCUMENT, row, set_threshold, write


def sent(page: Page, server: Any, act: Callable[[], None]) -> dict[str, Any]:
    """Return the line that the service keeps of what a click decides."""
    with page.expect_response("**/corrections") as answer:
        act()
    assert answer.value.status == 200
    return json.loads(kept_file(server).read_text().splitlines()[-1])


def fill(page: Page) -> None:
    for field, text in DOCUMENT.items():
        page.get_by_label(field, exact=True).fill(text)
    expect(page.locator("#legend")).to_contain_text("words support printer")
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")


def kept_file(server: Any) -> Path:
    (file,) = (server.log.parent / "kept").iterdir()
    return file


def test_decisions_are_kept_with_rank_score_and_version(tab, fielded):
    page = tab(server=fielded)
    fill(page)
    set_threshold(page, 0)
    expected = fielded.post("tag", texts=[DOCUMENT], k=50)
    best = expected["tags"][0][0]
    accept, reject = (row(page, "printer").locator(f".{kind}") for kind in ("accept", "reject"))
    line = sent(page, fielded, accept.click)
    details = line.pop("correction")
    assert line == {**DOCUMENT, "labels": ["printer"], "rejected": [], "model": "memos"}
    assert best["label"] == "printer"
    assert details["shown"] == {"printer": {"rank": 1, "score": best["score"]}}
    assert details["version"] == expected["model"]["version"]
    expect(page.locator("#server-keeps")).to_be_visible()
    assert sent(page, fielded, reject.click)["rejected"] == ["printer"]
    line = sent(page, fielded, reject.click)  # again: taken back
    assert (line["labels"], line["rejected"], line["correction"]["undone"]) == ([], [], ["printer"])
    rest = sent(page, fielded, page.get_by_role("button", name="Accept the rest").click)
    assert rest["labels"] == [tag["label"] for tag in expected["tags"][0][:10]]
    line = sent(page, fielded, page.locator("#corrected .remove").click)
    assert sorted(line["correction"]["undone"]) == sorted(rest["labels"])


def test_a_label_that_was_not_proposed_has_no_rank(tab, fielded):
    page = tab(server=fielded)
    fill(page)
    set_threshold(page, 1)
    field = page.get_by_role("combobox", name="Find a label by name or text")
    field.fill("network")
    expect(page.locator("#found [role=option]").first).to_contain_text("network")
    line = sent(page, fielded, lambda: field.press("Enter"))
    assert (line["labels"], line["correction"]["shown"]) == (["network"], {})


def test_what_cannot_be_sent_is_said_and_sent_again(tab, fielded):
    page = tab(server=fielded)
    fill(page)
    set_threshold(page, 0)
    full = json.dumps({"error": "the server's disk is full"})
    page.route("**/corrections", lambda route: route.fulfill(status=507, body=full))
    row(page, "printer").locator(".accept").click()
    expect(page.get_by_role("alert")).to_contain_text("the server's disk is full")
    page.unroute("**/corrections")
    assert sent(page, fielded, page.get_by_role("button", name="Try again").click)["labels"] == ["printer"]
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_service_that_keeps_nothing_is_sent_nothing(tab):
    page = tab()
    write(page, "paper jam in the printer")
    row(page, "printer").locator(".accept").click()
    expect(page.locator("#corrected .kept")).to_have_text("printer")
    expect(page.locator("#server-keeps")).to_be_hidden()
    assert not [url for url in tab.asked if url.endswith("/corrections")]
