"""The console in a real browser: chatting about pictures, and what it draws of the prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from triptych.cli.cluster import LocalCluster
from triptych.cli.script import FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
# No other test of this folder shows the first one, so that it must be encoded.
SHAPES, PARTY = str(FOLDER / "shapes.png"), str(FOLDER / "party.png")
WAIT_S = 60.0


class Page:
    """What a user does."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self._browser = browser
        browser.get(url)

    def all(self, selector: str) -> list[WebElement]:
        return self._browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self._browser.find_element(By.CSS_SELECTOR, selector)

    def until(self, holds: Callable[[], object]) -> None:
        WebDriverWait(self._browser, WAIT_S).until(lambda _: holds())

    def attach(self, path: str) -> None:
        before = len(self.all("#pending .picture"))
        self.one("#file").send_keys(path)
        self.until(lambda: len(self.all("#pending .picture")) == before + 1)

    def type(self, text: str) -> None:
        """A question, sent by the keyboard; returns once its prompt is drawn."""
        before = len(self.all("figure"))
        self.one("#prompt").send_keys(text, Keys.ENTER)
        self.until(lambda: len(self.all("figure")) == before + 1 and self.one("#send").is_enabled())

    def runs(self) -> list[set[str]]:
        """Classes of every run of the last prompt."""
        return [set((run.get_attribute("class") or "").split()) for run in self.all("article:last-child .run")]

    def complaints(self) -> list[str]:
        entries = self._browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries]


@pytest.fixture
def page(browser: webdriver.Chrome, served: LocalCluster) -> Iterator[Page]:
    page = Page(browser, served.http_url)
    page.until(lambda: page.one("#state").text == "ready")
    yield page
    assert page.complaints() == []


def test_a_text_is_answered_and_its_prompt_drawn(page: Page) -> None:
    page.type("Who are you?")
    assert page.one(".answer .text").text == "I am the Triptych demo model."
    assert page.runs() == [{"run", "uncached"}]


def test_a_picture_is_encoded_once_and_the_next_turn_reuses_what_it_can(page: Page) -> None:
    page.attach(SHAPES)
    page.type("How many shapes are there?")
    assert page.one(".answer .text").text == "4"
    first = page.runs()
    page.type("What shape is red?")
    second = page.runs()
    assert any(run >= {"image", "encoded", "created"} for run in first)
    assert any(run >= {"image", "read"} for run in second) and not any("encoded" in run for run in second)
    assert page.all(".text")[-1].text == "star" and page.all(".divergence") == []


def test_known_pictures_are_listed_and_can_be_asked_about(page: Page) -> None:
    page.attach(PARTY)
    page.type("What shape is purple?")
    page.until(lambda: page.all("#known button"))
    assert "16 tokens" in page.one("#known li").text
    page.one("#reset").click()
    page.one("#known button").click()
    page.type("What shape is orange?")
    assert page.one(".answer .text").text == "circle"


def test_a_picture_left_out_is_marked_and_not_sent(page: Page) -> None:
    page.attach(PARTY)
    page.type("What shape is purple?")
    page.one(".question .picture button").click()
    assert "unsent" in (page.one(".question .picture").get_attribute("class") or "")
    page.type("Who are you?")
    assert not any("image" in run for run in page.runs())
    assert "an earlier picture is gone (message 1" in page.one("article:last-child .divergence").text
    assert len(page.all("article:last-child .block.diverged")) == 1


def test_a_failure_is_shown_and_the_question_given_back(page: Page) -> None:
    page.one("#temperature").clear()
    page.one("#temperature").send_keys("-1")
    page.one("#prompt").send_keys("Who are you?", Keys.ENTER)
    page.until(lambda: page.one("#error").is_displayed())
    assert "temperature" in page.one("#error").text and page.all("article") == []
    assert page.one("#prompt").get_attribute("value") == "Who are you?"
    # The browser itself notes that a request was refused.
    assert all("status of 400" in message for message in page.complaints())


def test_text_of_a_user_never_becomes_markup(page: Page) -> None:
    page.type("<img src=x onerror=alert(1)>")
    assert page.one(".question").text == "<img src=x onerror=alert(1)>"
    assert page.all(".question img") == []
