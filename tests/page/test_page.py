from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Response, expect
from tickets import HOSTILE, LABEL_TEXTS, TOKEN

import zipfel

JAM = "paper jam in the printer"


def tags_of(response: Response, text: str) -> bool:
    """Whether these are the tags of this text: earlier texts may still get theirs."""
    return response.url.endswith("/tag") and response.request.post_data_json["texts"] == [text]


def write(page: Page, text: str) -> None:
    """Fill in a text and wait until its tags and their words are there."""
    with page.expect_response(lambda answer: tags_of(answer, text)):
        page.fill("#text", text)
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#legend")).not_to_be_empty()


def row(page: Page, label: str):
    return page.locator("li.tag").filter(has=page.locator(".line .name").get_by_text(label, exact=True))


def labels(page: Page) -> list[str]:
    return page.locator("li.tag .line .name").all_text_contents()


def set_threshold(page: Page, value: float) -> None:
    page.locator("#threshold").fill(str(value))


def give_token(page: Page, token: str) -> None:
    page.get_by_label("Token", exact=True).fill(token)
    page.keyboard.press("Enter")


def length_of_bar(page: Page, label: str) -> float:
    style = row(page, label).locator(".fill").get_attribute("style")
    return float(re.search(r"scaleX\(([\d.e-]+)\)", style)[1])


class TestTags:
    def test_shows_what_the_service_says(self, page, server):
        write(page, JAM)
        set_threshold(page, 0)
        expected = server.tags(JAM)
        assert labels(page) == list(expected)[:10]
        assert labels(page)[0] == "printer"
        for label, score in expected.items():
            expect(row(page, label).locator(".score")).to_have_text(f"{score:.2f}")
            assert length_of_bar(page, label) == pytest.approx(score, abs=1e-4)

    def test_bars_move_as_one_types(self, page, server):
        write(page, "no wifi")
        set_threshold(page, 0)
        kept = row(page, "mail").element_handle()
        before = length_of_bar(page, "mail")
        page.locator("#text").press_sequentially(", and spam in my mailbox", delay=5)
        expect(page.locator("li.tag .line .name").first).to_have_text("mail")
        assert length_of_bar(page, "mail") > before
        assert page.evaluate("row => row.isConnected", kept)  # the same bar, so that its change is animated
        transition = "row => getComputedStyle(row.querySelector('.fill')).transitionProperty"
        assert page.evaluate(transition, kept) == "transform"

    def test_says_when_no_word_is_known(self, page, server):
        note = page.locator("#unknown")  # its text is announced to screen readers, too
        write(page, JAM)
        set_threshold(page, 0)
        for text in ("zyzzyva", JAM, "qqq"):
            write(page, text)
            expect(note).to_be_visible(visible=text != JAM)
        assert labels(page) == list(server.tags("zyzzyva"))[:10]

    def test_waits_until_the_typing_rests(self, tab):
        page = tab()
        page.locator("#text").press_sequentially("my mailbox is full of spam", delay=5)
        expect(page.locator("li.tag")).not_to_have_count(0)
        asked = [url for url in tab.asked if url.endswith("/tag")]
        assert 1 <= len(asked) <= 8  # of 26 keys; a busy machine may let some of them wait

    def test_control_enter_does_not_wait(self, tab, server):
        page = tab()
        page.clock.install()
        page.clock.pause_at(page.evaluate("Date.now()") + 1000)  # so the wait after a key never ends
        page.fill("#text", JAM)
        page.press("#text", "Control+Enter")
        expect(page.locator("li.tag")).not_to_have_count(0)

    def test_drops_answers_to_older_texts(self, page):
        held = []
        page.route("**/tag", lambda route: held.append(route))
        page.fill("#text", "spam in my mailbox")
        page.press("#text", "Control+Enter")
        page.wait_for_timeout(100)
        page.fill("#text", JAM)
        page.press("#text", "Control+Enter")
        page.wait_for_timeout(100)
        assert len(held) >= 2
        held[-1].continue_()
        expect(page.locator("li.tag .line .name").first).to_have_text("printer")
        for route in held[:-1]:
            route.abort()  # as the browser has done already
        page.wait_for_timeout(200)
        expect(page.locator("li.tag .line .name").first).to_have_text("printer")
        expect(page.locator("#problem")).to_be_hidden()

    def test_an_empty_field_offers_an_example(self, page):
        expect(page.locator("#answer")).to_be_hidden()
        page.get_by_role("button", name="Show me an example").click()
        expect(page.locator("#text")).to_have_value(re.compile("Printers and scanners|Mailboxes"))
        expect(page.locator("li.tag")).not_to_have_count(0)
        page.fill("#text", "  ")
        expect(page.locator("#answer")).to_be_hidden()
        expect(page.locator("#empty")).to_be_visible()

    def test_the_slider_needs_no_server(self, tab, server):
        page = tab()
        write(page, JAM)
        before = [url for url in tab.asked if url.endswith("/tag")]
        scores = server.tags(JAM)
        middle = round((scores["printer"] + sorted(scores.values())[-2]) / 2, 2)
        set_threshold(page, middle)
        assert labels(page) == ["printer"]
        expect(page.locator("#threshold-value")).to_have_text(f"{middle:.2f}")
        set_threshold(page, 1)
        expect(page.locator("#more")).to_contain_text("No tag scores 1.00 or more; the best, printer, scores 0.")
        set_threshold(page, 0)
        assert len(labels(page)) == len(scores)
        assert [url for url in tab.asked if url.endswith("/tag")] == before

    def test_announces_the_tags_to_screen_readers(self, page):
        write(page, JAM)
        expect(page.locator("#said")).to_have_text(re.compile(r"^\d+ tags\. First: printer\.$"))

    def test_the_text_outlives_a_reload(self, page):
        write(page, JAM)
        page.reload()
        expect(page.locator("#text")).to_have_value(JAM)
        expect(page.locator("li.tag .line .name").first).to_have_text("printer")


class TestMarks:
    @pytest.mark.parametrize("text", ["paper jam in the printer", "🖨️👩‍🔧 paper 🧻 jam in\nthe 𝒫 printer 🙂"])
    def test_the_words_that_pulled_are_marked(self, page, server, text):
        write(page, text)
        reasons = server.post("explain", text=text, label="printer")["reasons"]
        floor = 0.05 * max(abs(reason["weight"]) for reason in reasons)  # fainter ones would only be noise
        strong = [reason for reason in reasons if abs(reason["weight"]) >= floor]
        pulled = {text[start:end] for reason in strong for start, end in reason["places"]}
        assert {"paper", "printer"} <= pulled
        marked = page.locator("#mirror mark").all_text_contents()
        assert set(marked) == pulled
        against = [reason["term"] for reason in strong if reason["weight"] < 0]
        assert page.locator("#mirror mark.against").count() == len(against)
        assert ("count against it" in page.locator("#legend").text_content()) == bool(against)
        assert page.locator("#mirror").text_content() == text + "\u200b"

    def test_the_mirror_lies_under_the_text(self, page):
        write(page, "printer " * 200 + "\n\n" + "x" * 500 + "\n")
        sizes = "element => [element.offsetLeft, element.offsetTop, element.offsetWidth, element.offsetHeight]"
        field, mirror = page.locator("#text"), page.locator("#mirror")
        assert field.evaluate(sizes) == mirror.evaluate(sizes)
        assert field.evaluate("field => field.scrollHeight") == mirror.evaluate("mirror => mirror.offsetHeight")

    def test_the_caret_stays_in_sight(self, page):
        write(page, "printer\n" * 60)
        page.focus("#text")
        page.keyboard.press("Control+End")
        page.keyboard.type("last")
        assert page.locator(".sheet").evaluate("box => box.scrollTop + box.clientHeight > box.scrollHeight - 60")

    def test_marks_follow_the_tag_that_is_looked_at(self, page):
        write(page, "paper and spam")
        set_threshold(page, 0)
        for label, word in (("mail", "spam"), ("printer", "paper")):
            row(page, label).locator(".main").hover()
            expect(page.locator("#legend b")).to_have_text(label)
            expect(page.locator("#mirror mark:not(.against)").filter(has_text=word)).to_have_count(1)

    def test_marks_move_along_with_typing(self, tab):
        page = tab()
        write(page, "the printer")
        expect(page.locator("#mirror mark", has_text="printer")).to_have_count(1)
        page.route("**/tag", lambda route: None)  # no answer comes any more
        page.locator("#text").evaluate("field => field.setSelectionRange(0, 0)")
        page.keyboard.type("oh 🙂 ")
        expect(page.locator("#mirror")).to_have_text("oh 🙂 the printer\u200b")
        assert "printer" in page.locator("#mirror mark").all_text_contents()


class TestDetail:
    def test_shows_the_details_of_a_label(self, page, server):
        write(page, JAM)
        row(page, "printer").locator(".main").click()
        detail = page.get_by_role("region", name="About printer")
        said = server.get("labels/printer")
        expect(detail.locator(".about")).to_have_text(LABEL_TEXTS["printer"])
        expect(detail.locator(".path")).to_have_text("hardware › printer")
        expect(detail.locator(".frequency")).to_have_text("15 training texts have this label.")
        assert said["count"] == 15
        near = [other["label"] for other in said["near"]]
        assert near
        expect(detail.locator(".follow .code")).to_have_text(near)
        expect(detail.locator(".follow .meaning").first).to_have_text(LABEL_TEXTS[near[0]])
        expect(detail.locator(".words li").filter(has_text="paper")).to_have_count(1)

    def test_neighbours_can_be_followed_and_accepted(self, page):
        write(page, JAM)
        row(page, "printer").locator(".main").click()
        page.locator(".follow", has=page.locator(".code", has_text="mail")).click()
        detail = page.get_by_role("region", name="About mail")
        expect(detail.locator(".path")).to_be_hidden()
        expect(detail.locator(".about")).to_have_text(LABEL_TEXTS["mail"])
        page.get_by_role("button", name="Back").click()
        expect(page.get_by_role("region", name="About printer")).to_be_visible()
        page.locator(".detail").get_by_role("button", name="Accept mail").click()
        expect(row(page, "mail").locator(".accept")).to_have_attribute("aria-pressed", "true")

    def test_escape_closes_it_and_goes_back(self, page):
        write(page, JAM)
        main = row(page, "printer").locator(".main")
        main.press("Enter")
        expect(main).to_have_attribute("aria-expanded", "true")
        page.locator(".follow").first.focus()
        page.keyboard.press("Escape")
        expect(page.locator(".detail")).to_have_count(0)
        expect(main).to_be_focused()
        expect(main).to_have_attribute("aria-expanded", "false")
        page.keyboard.press("Escape")
        expect(page.locator("#text")).to_be_focused()


class TestNewLabels:
    def test_one_competes_in_this_session_only(self, page, tab, server):
        write(page, "the coffee machine leaks")
        page.get_by_label("Name of a new label").fill("kitchen")
        page.get_by_label("Text of a new label").fill("the machine in the kitchen: coffee")
        page.keyboard.press("Enter")
        expect(page.locator("#invented li")).to_have_count(1)
        expect(page.locator("#invented .note")).to_have_text(re.compile(r"^rank \d+, score 0\.\d\d$"))
        set_threshold(page, 0)
        expect(row(page, "kitchen")).to_have_class(re.compile("invented"))
        page.reload()
        expect(row(page, "kitchen")).to_have_count(1)
        assert server.get("labels?q=kitchen")["labels"] == []
        assert page.evaluate("localStorage.length") == 0
        other = tab()
        write(other, "the coffee machine leaks")
        set_threshold(other, 0)
        assert "kitchen" not in labels(other)
        page.get_by_role("button", name="Remove kitchen").click()
        expect(row(page, "kitchen")).to_have_count(0)

    def test_one_that_the_model_has_is_refused(self, page):
        write(page, JAM)
        page.get_by_label("Name of a new label").fill("mail")
        page.get_by_label("Text of a new label").fill("letters")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("the model already has a label 'mail'")
        expect(page.get_by_label("Text of a new label")).to_have_value("letters")
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("alert")).to_be_hidden()


class TestCorrections:
    def downloaded(self, page: Page, folder: Path) -> Path:
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Download JSONL").click()
        assert waiting.value.suggested_filename == "corrections.jsonl"
        waiting.value.save_as(folder / "corrections.jsonl")
        return folder / "corrections.jsonl"

    def correct(self, page: Page, text: str, accepted: str, rejected: str | None = None) -> None:
        write(page, text)
        set_threshold(page, 0)
        row(page, accepted).locator(".accept").click()
        if rejected:
            row(page, rejected).locator(".reject").click()

    def test_what_is_downloaded_trains_a_model(self, page, tmp_path, zipfel_command):
        odd = 'a "quoted" 🖨️ printer,\nin two lines; ünïcode'
        self.correct(page, odd, "printer", rejected="mail")
        self.correct(page, "spam again", "mail")
        self.correct(page, "no wifi", "network")
        file = self.downloaded(page, tmp_path)
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert rows == [
            {"text": odd, "labels": ["printer"], "rejected": ["mail"], "model": "tickets"},
            {"text": "spam again", "labels": ["mail"], "rejected": [], "model": "tickets"},
            {"text": "no wifi", "labels": ["network"], "rejected": [], "model": "tickets"},
        ]
        dataset = zipfel.read(file)
        assert dataset.train.texts == {"text": [row["text"] for row in rows]}
        assert dataset.label_names == ["mail", "network", "printer"]
        settings = ["min_steps=1", "dimension=8", "epochs=1"]
        options = [word for setting in settings for word in ("--set", setting)]
        outcome = zipfel_command("train", file, "--model", "glas", "--out", tmp_path / "run", "--holdout", 0,
                                 "--min-count", 1, *options)  # fmt: skip
        assert outcome.code == 0, outcome.err
        assert zipfel_command("predict", tmp_path / "run", "spam").code == 0

    def test_a_text_without_an_accepted_tag_is_left_out(self, page, tmp_path):
        write(page, JAM)
        row(page, "printer").locator(".reject").click()
        expect(page.locator("#left-out")).to_have_text("1 text is left out until a tag is accepted.")
        expect(page.get_by_role("button", name="Download JSONL")).to_be_disabled()
        self.correct(page, "spam again", "mail")
        rows = [json.loads(line) for line in self.downloaded(page, tmp_path).read_text().splitlines()]
        assert [row["text"] for row in rows] == ["spam again"]

    def test_a_choice_can_be_changed_and_taken_back(self, page):
        write(page, JAM)
        accept, reject = (row(page, "printer").locator(f".{kind}") for kind in ("accept", "reject"))
        accept.click()
        reject.click()
        expect(accept).to_have_attribute("aria-pressed", "false")
        expect(reject).to_have_attribute("aria-pressed", "true")
        reject.click()
        expect(reject).to_have_attribute("aria-pressed", "false")
        expect(page.locator("#corrections")).to_be_hidden()

    def test_the_rest_is_accepted_at_once(self, page):
        write(page, JAM)
        set_threshold(page, 0)
        row(page, "mail").locator(".reject").click()
        page.get_by_role("button", name="Accept the rest").click()
        kept = page.locator("#corrected .kept").all_text_contents()
        assert set(kept) == set(LABEL_TEXTS) - {"mail"}
        expect(page.get_by_role("button", name="Accept the rest")).to_be_disabled()

    def test_a_missing_label_is_found_and_accepted(self, page):
        write(page, JAM)
        set_threshold(page, 1)
        field = page.get_by_role("combobox", name="Find a label by name or text")
        field.fill("ROUTER")
        expect(page.get_by_role("option")).to_have_text(["networkCables, wifi and routers"])
        field.press("Enter")
        expect(page.get_by_role("listbox")).to_be_hidden()
        expect(row(page, "network").locator(".accept")).to_have_attribute("aria-pressed", "true")
        field.fill("zzz")
        expect(page.get_by_role("listbox", include_hidden=True)).to_have_text("No matching label.")
        field.press("Escape")
        expect(page.get_by_role("listbox")).to_be_hidden()

    def test_they_outlive_a_reload_and_can_be_opened_again(self, page):
        self.correct(page, "spam again", "mail")
        write(page, JAM)
        page.reload()
        expect(page.locator("#corrected .kept")).to_have_text("mail")
        page.locator("#corrected .excerpt").click()
        expect(page.locator("#text")).to_have_value("spam again")
        expect(row(page, "mail").locator(".accept")).to_have_attribute("aria-pressed", "true")
        page.locator("#corrected .remove").click()
        expect(page.locator("#corrections")).to_be_hidden()
        expect(row(page, "mail").locator(".accept")).to_have_attribute("aria-pressed", "false")


class TestKeys:
    def test_arrows_move_and_letters_decide(self, page, server):
        write(page, JAM)
        set_threshold(page, 0)
        first, second = list(server.tags(JAM))[:2]
        page.focus("#text")
        page.keyboard.press("Control+End")
        page.keyboard.press("ArrowDown")
        expect(row(page, first).locator(".main")).to_be_focused()
        page.keyboard.press("a")
        page.keyboard.press("ArrowDown")
        expect(row(page, second).locator(".main")).to_be_focused()
        page.keyboard.press("r")
        expect(row(page, first).locator(".accept")).to_have_attribute("aria-pressed", "true")
        expect(row(page, second).locator(".reject")).to_have_attribute("aria-pressed", "true")
        page.keyboard.press("End")
        expect(page.locator("li.tag .main").last).to_be_focused()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowUp")
        expect(page.locator("#text")).to_be_focused()

    def test_letters_are_letters_in_a_field(self, page):
        write(page, JAM)
        page.locator("#search").press_sequentially("ra")
        expect(page.locator("#search")).to_have_value("ra")
        expect(page.locator("#corrections")).to_be_hidden()

    def test_one_tag_is_in_the_order_of_tab_and_shows_its_focus(self, page):
        write(page, JAM)
        set_threshold(page, 0)
        assert page.locator("li.tag .main[tabindex='0']").count() == 1
        page.focus("#accept-rest")
        page.keyboard.press("Tab")
        expect(page.locator("li.tag .main").first).to_be_focused()
        outline = page.locator("li.tag .main").first.evaluate("button => getComputedStyle(button).outlineStyle")
        assert outline == "solid"

    def test_everything_that_can_be_pressed_has_a_name(self, page):
        write(page, JAM)
        row(page, "printer").locator(".main").click()
        row(page, "printer").locator(".accept").click()
        expect(page.locator(".follow").first).to_be_visible()
        for role in ("button", "textbox", "combobox", "slider"):
            for one in page.get_by_role(role).all():
                assert re.search(rf'{role} "[^"]+', one.aria_snapshot()), one.evaluate("one => one.outerHTML")


class TestSafety:
    def test_markup_is_text_wherever_it_comes_from(self, page, server):
        assert HOSTILE in server.tags("markup in an image")
        write(page, f"markup in an image {HOSTILE}")
        row(page, HOSTILE).locator(".main").click()
        expect(page.locator(".detail .about")).to_have_text(LABEL_TEXTS[HOSTILE])
        row(page, HOSTILE).locator(".accept").click()
        expect(page.locator("#corrected .kept")).to_have_text(HOSTILE)
        page.fill("#search", "<img")
        expect(page.get_by_role("option").locator(".name")).to_have_text(HOSTILE)
        page.get_by_label("Name of a new label").fill("<script>document.title='owned'</script>")
        page.get_by_label("Text of a new label").fill("<svg onload=\"document.title='owned'\">")
        page.keyboard.press("Enter")
        expect(page.locator("#invented .name")).to_have_text("<script>document.title='owned'</script>")
        page.wait_for_timeout(200)
        assert page.title() == "zipfel"
        assert page.locator("main img, main script, main b:not(#legend b)").count() == 0

    def test_a_failed_request_is_shown_and_can_be_retried(self, page):
        page.route("**/tag", lambda route: route.abort())
        page.fill("#text", JAM)
        expect(page.get_by_role("alert")).to_contain_text("The server does not respond. Is it still running?")
        page.unroute("**/tag")
        page.get_by_role("button", name="Try again").click()
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(page.locator("li.tag .line .name").first).to_have_text("printer")

    def test_shows_the_error_message_of_the_server(self, page):
        page.fill("#text", "x" * 100_001)
        expect(page.get_by_role("alert")).to_contain_text("a text may have at most 100000 characters")

    def test_shows_the_status_of_an_answer_that_is_not_json(self, page):
        page.route("**/tag", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
        page.fill("#text", JAM)
        expect(page.get_by_role("alert")).to_contain_text("The server responded with status 502.")

    def test_asks_for_a_token_and_keeps_it_for_the_session(self, tab, locked):
        page = tab(server=locked)
        dialog = page.get_by_role("dialog")
        give_token(page, "wrong")
        expect(dialog).to_contain_text("Wrong token.")
        give_token(page, TOKEN)
        expect(dialog).to_be_hidden()
        write(page, JAM)
        expect(page.locator("li.tag .line .name").first).to_have_text("printer")
        page.reload()
        expect(page.locator("li.tag .line .name").first).to_have_text("printer")
        expect(dialog).to_be_hidden()
        assert TOKEN not in page.evaluate("JSON.stringify(localStorage) + document.cookie")

    def test_without_a_token_it_says_so(self, tab, locked):
        page = tab(server=locked)
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("alert")).to_contain_text("token")


class TestLooks:
    def background(self, page: Page) -> int:
        found = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return sum(map(int, re.findall(r"\d+", found)[:3]))

    def test_follows_the_color_scheme_of_the_system_until_the_user_changes_it(self, tab):
        page = tab(color_scheme="dark")
        assert self.background(page) < 150
        page.get_by_role("button", name="Use light colours").click()
        assert self.background(page) > 600
        page.reload()
        assert self.background(page) > 600
        page.get_by_role("button", name="Use dark colours").click()
        assert self.background(page) < 150
        assert page.evaluate("localStorage.length") == 0  # back to what the system says

    def test_fits_a_small_telephone(self, tab):
        page = tab(viewport={"width": 360, "height": 640})
        write(page, "printer " + "x" * 200)
        set_threshold(page, 0)
        row(page, HOSTILE).locator(".main").click()
        row(page, HOSTILE).locator(".accept").click()
        expect(page.locator(".follow").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        for box in (one.bounding_box() for one in page.locator("li.tag .choice").all()):
            assert box["width"] >= 36
            assert box["x"] + box["width"] <= 360

    def test_moves_nothing_for_those_who_want_it_calm(self, tab):
        page = tab(reduced_motion="reduce")
        write(page, JAM)
        assert page.locator(".fill").first.evaluate("fill => getComputedStyle(fill).transitionDuration") == "0s"
        assert page.evaluate("document.getAnimations().length") == 0


def test_one_of_several_models_can_be_chosen(tab, locked):
    page = tab(server=locked)
    give_token(page, TOKEN)
    write(page, "a red apple")
    set_threshold(page, 0)
    page.get_by_role("combobox", name="Model").select_option("things")
    expect(page.locator("li.tag .line .name")).to_have_text(["fruit", "vehicle"])
    row(page, "fruit").locator(".main").click()
    expect(page.get_by_role("region", name="About fruit").locator(".frequency")).to_contain_text("5 training texts")
    page.fill("#search", "e")
    expect(page.get_by_role("option").locator(".name")).to_have_text(["vehicle"])


def test_several_models_fit_on_a_narrow_screen(tab, fielded):
    page = tab(server=fielded, viewport={"width": 320, "height": 640})
    page.get_by_role("combobox", name="Model").select_option("tickets")
    write(page, JAM)
    row(page, "printer").locator(".main").click()
    expect(page.locator(".follow").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    expect(page.get_by_role("link", name="The API")).to_be_visible()


def test_a_reload_keeps_the_model_and_each_model_has_its_own_choices(tab, locked, tmp_path):
    page = tab(server=locked)
    give_token(page, TOKEN)
    write(page, "a red apple")
    set_threshold(page, 0)
    row(page, "printer").locator(".accept").click()
    page.get_by_role("combobox", name="Model").select_option("things")
    expect(page.locator("li.tag .line .name")).to_have_text(["fruit", "vehicle"])  # no row of the accepted printer
    row(page, "fruit").locator(".accept").click()
    page.reload()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("things")
    expect(row(page, "fruit").locator(".accept")).to_have_attribute("aria-pressed", "true")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download JSONL").click()
    download.value.save_as(tmp_path / "corrections.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "corrections.jsonl").read_text().splitlines()]
    assert [(row["model"], row["labels"]) for row in rows] == [("tickets", ["printer"]), ("things", ["fruit"])]
    page.locator("#corrected .excerpt").first.click()  # it opens with its model
    expect(page.get_by_role("combobox", name="Model")).to_have_value("tickets")
    expect(row(page, "printer").locator(".accept")).to_have_attribute("aria-pressed", "true")


def test_after_an_error_no_choice_can_be_booked_on_the_previous_text(page):
    write(page, JAM)
    page.route("**/tag", lambda route: route.fulfill(status=503, json={"error": "too many connections"}))
    page.fill("#text", "spam again")
    expect(page.locator("#problem")).to_contain_text("too many connections")
    expect(page.locator("#answer")).to_be_hidden()
    page.unroute("**/tag")
    write(page, "spam again")
    expect(page.locator("#problem")).to_be_hidden()
    expect(row(page, "mail")).to_be_visible()


def test_a_choice_before_the_tags_of_a_new_text_arrive_is_not_booked(page):
    write(page, JAM)
    page.route("**/tag", lambda route: None)  # never answered
    page.fill("#text", "spam again")
    row(page, "printer").locator(".accept").click()
    page.get_by_role("button", name="Accept the rest").click()
    expect(page.locator("#corrections")).to_be_hidden()


def test_an_error_of_the_search_goes_when_the_search_works_again(page):
    write(page, JAM)
    page.route("**/labels?*", lambda route: route.fulfill(status=429, json={"error": "the queue has no room"}))
    page.fill("#search", "mail")
    expect(page.locator("#problem")).to_contain_text("the queue has no room")
    expect(page.locator("#answer")).to_be_visible()
    page.unroute("**/labels?*")
    page.fill("#search", "mai")
    expect(page.locator("#problem")).to_be_hidden()


def test_it_says_how_many_tags_are_below_the_threshold_and_links_to_the_api(page, server):
    write(page, JAM)
    scores = list(server.tags(JAM).values())
    set_threshold(page, 0.2)
    below = sum(score < 0.2 for score in scores)
    expect(page.locator("#more")).to_have_text(f"{below} more below the threshold" if below else "")
    set_threshold(page, 0)
    assert below > 0
    page.get_by_role("link", name="The API").click()
    expect(page.get_by_role("heading", name="zipfel: API")).to_be_visible()


DOCUMENT = {"title": "paper", "body": "jam in the 👍 printer"}


class TestFields:
    def fill(self, page: Page) -> None:
        page.get_by_label("title", exact=True).fill(DOCUMENT["title"])
        with page.expect_response(lambda answer: answer.url.endswith("/explain")):
            page.get_by_label("body", exact=True).fill(DOCUMENT["body"])
        expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
        expect(page.locator("#legend")).to_contain_text("words support printer")

    def test_a_model_with_fields_gets_an_input_for_each(self, tab, fielded):
        page = tab(server=fielded)
        self.fill(page)
        set_threshold(page, 0)
        expected = fielded.post("tag", texts=[DOCUMENT], k=50)["tags"][0]
        assert labels(page) == [tag["label"] for tag in expected][:10]
        for tag in expected:
            expect(row(page, tag["label"]).locator(".score")).to_have_text(f"{tag['score']:.2f}")
        marks = [field.locator("mark").all_text_contents() for field in page.locator(".mirror").all()]
        assert "paper" in marks[0]
        assert "printer" in marks[1]

    def test_the_document_survives_a_reload(self, tab, fielded):
        page = tab(server=fielded)
        self.fill(page)
        page.reload()
        expect(page.get_by_label("title", exact=True)).to_have_value(DOCUMENT["title"])
        expect(page.get_by_label("body", exact=True)).to_have_value(DOCUMENT["body"])
        expect(row(page, "printer")).to_be_visible()

    def test_another_model_gets_its_own_inputs(self, tab, fielded):
        page = tab(server=fielded)
        self.fill(page)
        page.get_by_label("Model", exact=True).select_option("tickets")
        expect(page.locator("#text")).to_have_value("paper\njam in the 👍 printer")
        write(page, JAM)
        assert labels(page)[0] == "printer"
        page.get_by_label("Model", exact=True).select_option("memos")
        expect(page.get_by_label("body", exact=True)).to_have_value(JAM)
        expect(page.get_by_label("title", exact=True)).to_have_value("")

    def test_text_typed_just_before_another_model_is_chosen_stays(self, tab, fielded):
        page = tab(server=fielded)
        self.fill(page)
        page.evaluate("""() => {  // at once: the typed text has not been tagged yet
            const [title, model] = [document.querySelector("#field-0"), document.querySelector("#models")];
            title.value = "typed";
            title.dispatchEvent(new Event("input"));
            model.value = "tickets";
            model.dispatchEvent(new Event("change"));
        }""")
        expect(page.locator("#text")).to_have_value(f"typed\n{DOCUMENT['body']}")

    def test_corrections_are_rows_with_the_fields(self, tab, fielded, tmp_path):
        page = tab(server=fielded)
        self.fill(page)
        row(page, "printer").locator(".accept").click()
        with page.expect_download() as download:
            page.get_by_role("button", name="Download JSONL").click()
        download.value.save_as(tmp_path / "corrections.jsonl")
        assert json.loads((tmp_path / "corrections.jsonl").read_text()) == {
            **DOCUMENT, "labels": ["printer"], "rejected": [], "model": "memos"
        }  # fmt: skip
        page.get_by_label("body", exact=True).fill("other words")
        page.locator("#corrected .excerpt").click()
        expect(page.get_by_label("body", exact=True)).to_have_value(DOCUMENT["body"])
