"""Take README's screenshot of the page: `python docs/images/shoot.py URL`.

URL must serve a model of EURLEX57K whose labels are called by their titles (`Tagger.rename_labels`).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

TITLE = "Anti-dumping duty on bicycles from China"
TEXT = (
    "A duty is imposed on imports of bicycles. The investigation has shown that they are sold below their normal "
    "value, and that producers in the Union are injured."
)

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 860, "height": 1120}, device_scale_factor=1.5)
    page.goto(sys.argv[1])
    page.locator("#threshold").evaluate(
        "slider => { slider.value = 0.2; slider.dispatchEvent(new Event('input', { bubbles: true })) }"
    )
    page.get_by_label("title").fill(TITLE)
    page.get_by_label("content").fill(TEXT)
    page.get_by_label("Name of a new label").fill("e-bike")
    page.get_by_label("Text of a new label").fill("bicycles with an electric motor")
    page.keyboard.press("Enter")
    page.wait_for_timeout(2000)
    page.get_by_role("button", name="Accept China").click()
    page.get_by_role("button", name="Reject spare part").click()
    page.locator("li.tag .main").first.click()
    page.wait_for_timeout(1000)
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(500)
    page.screenshot(path=Path(__file__).parent / "page.png")
    browser.close()
