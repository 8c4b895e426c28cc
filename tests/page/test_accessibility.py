"""axe-core looks at the page in all its states: light, dark, and on a narrow screen."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from test_page import JAM, give_token, row, set_threshold, write
from tickets import HOSTILE, TOKEN

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"color_scheme": "light", "viewport": {"width": 320, "height": 640}},
    "narrow and dark": {"color_scheme": "dark", "viewport": {"width": 320, "height": 640}},
}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def check(page: Page) -> None:
    """Check the page as it is now."""
    results = Axe().run(page, options=RULES)
    assert results.violations_count == 0, results.generate_report()
    assert results.response["passes"]


@pytest.fixture(params=LOOKS)
def look(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of a page; nothing moves, so that colours are not measured halfway."""
    return {"reduced_motion": "reduce", **LOOKS[request.param]}


def test_an_empty_page_with_several_models(tab, fielded, look):
    page = tab(server=fielded, **look)
    expect(page.get_by_role("combobox", name="Model")).to_be_visible()
    check(page)


def test_tags_marks_details_choices_new_labels_and_a_search(tab, look):
    page = tab(**look)
    write(page, f"{JAM}, no spam in my mailbox")
    set_threshold(page, 0)
    check(page)
    row(page, "printer").locator(".main").click()
    expect(page.locator(".follow").first).to_be_visible()
    row(page, "printer").locator(".accept").click()
    row(page, HOSTILE).locator(".reject").click()
    page.get_by_label("Name of a new label").fill("ink")
    page.get_by_label("Text of a new label").fill("ink and toner")
    page.keyboard.press("Enter")
    expect(page.locator("#invented .name")).to_have_text("ink")
    check(page)
    page.fill("#search", "m")
    expect(page.get_by_role("option").first).to_be_visible()
    page.locator("#search").press("ArrowDown")
    check(page)
    set_threshold(page, 1)
    expect(page.locator("#more")).to_contain_text("No tag scores 1.00 or more")
    check(page)


def test_an_error_and_a_text_without_a_known_word(tab, look):
    page = tab(**look)
    write(page, "zyzzyva")
    check(page)
    page.fill("#text", "x" * 100_001)
    expect(page.get_by_role("alert")).to_contain_text("at most 100000 characters")
    page.fill("#text", "x")  # axe reads all text: a long one takes it seconds
    page.route("**/tag", lambda route: route.abort())
    page.fill("#text", "y")
    expect(page.get_by_role("alert")).to_contain_text("does not respond")
    check(page)


def test_the_question_for_a_token_and_a_refusal(tab, locked, look):
    page = tab(server=locked, **look)
    expect(page.get_by_role("dialog")).to_be_visible()
    check(page)
    give_token(page, "wrong")
    expect(page.get_by_role("dialog")).to_contain_text("Wrong token.")
    check(page)
    give_token(page, TOKEN)
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_the_page_of_the_api(tab, look):
    page = tab("docs", **look)
    expect(page.get_by_role("heading", name="zipfel: API")).to_be_visible()
    check(page)
    assert page.evaluate("document.documentElement.scrollWidth") == page.viewport_size["width"]
