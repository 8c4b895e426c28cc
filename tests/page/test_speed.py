"""Typing into a very long text."""

from __future__ import annotations

import itertools
import statistics

from playwright.sync_api import Page, expect

LONG = ("paper jam in the printer, no wifi and spam in my mailbox\n" * 1800)[:99_900]
PASTE = """text => {
  document.querySelector("#text").value = text;
  document.querySelector("#text").dispatchEvent(new Event("input", { bubbles: true }));
}"""
MARKS = 500  # most marks that the page paints


def seconds_of_keys(page: Page, keys: str) -> list[float]:
    """Return the processor time of the page's main thread for each key, which a busy machine hardly lengthens."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def worked() -> float:
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    times = [worked()]
    for key in keys:
        page.keyboard.press(key)
        times.append(worked())
    return [after - before for before, after in itertools.pairwise(times)]


def test_a_key_in_a_text_of_100_000_characters_takes_less_than_50_ms(page):
    with page.expect_response(lambda answer: answer.url.endswith("/explain")):
        page.evaluate(PASTE, LONG)
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#mirror mark").first).to_be_attached()
    page.route("**/tag", lambda route: None)  # from here on, only the work of typing
    page.focus("#text")
    for place in ("Control+Home", "Control+End"):
        page.keyboard.press(place)
        seconds = seconds_of_keys(page, "no printer here ")
        assert statistics.median(seconds) < 0.05, seconds
    assert page.locator("#mirror").text_content() == f"no printer here {LONG}no printer here \u200b"
    assert 0 < page.locator("#mirror mark").count() <= MARKS
