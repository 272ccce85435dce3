"""The page in a real headless Chromium: every state, a phone, light and dark, hostile text, lost contact.

SPARKCTL_SCREENSHOTS=DIR keeps the pictures.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.dashboard.access import Access
from launcher.dashboard.http_server import DashboardServer
from launcher.dashboard.page_state import page_state
from launcher.dashboard.run_facts import Moment
from tests.launcher.dashboard.chromium import open_chromium, set_screen
from tests.launcher.dashboard.moments import broken, earlier_runs, loading, moment, serving

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.timeout(120)

KEY = "0123456789abcdef0123456789abcdef"


class Page:
    """A browser on a server whose moment the test sets."""

    def __init__(self, chrome: Chrome) -> None:
        self.chrome = chrome
        self.moment = moment()
        self.server = DashboardServer("127.0.0.1", 0, Access(), lambda: page_state(self.moment))
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/"

    def show(self, now: Moment) -> None:
        self.moment = now
        self.chrome.get(self.url)
        self.wait(lambda: self.run("return document.body.dataset.ready") == "yes")

    def run(self, script: str) -> Any:
        return self.chrome.execute_script(script)

    def text(self, selector: str = "main") -> str:
        return str(self.run(f"return document.querySelector({selector!r})?.innerText ?? ''"))

    def wait(self, what: Callable[[], object], timeout_s: float = 12.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < deadline, self.text("body")
            time.sleep(0.05)

    def complaints(self) -> list[str]:
        """What the browser itself has against the page: blocked by CSP, not found, an uncaught error."""
        return [str(entry["message"]) for entry in self.chrome.get_log("browser")]  # type: ignore[no-untyped-call]

    def picture(self, name: str) -> None:
        folder = os.environ.get("SPARKCTL_SCREENSHOTS")
        if folder:
            assert self.chrome.save_screenshot(str(Path(folder) / f"{name}.png"))

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_chromium(tmp_path_factory.mktemp("chromium")) as chrome:
        yield chrome


@pytest.fixture
def page(chrome: Chrome) -> Iterator[Page]:
    page = Page(chrome)
    set_screen(chrome, 1180, 960)
    page.complaints()
    yield page
    page.close()


def test_serving_shows_every_figure_and_plot(page: Page) -> None:
    page.show(moment(serving(), ended=earlier_runs()))
    text = page.text()
    for word in (
        "serving",
        "node-2",
        "Tokens per second",
        "Engram hit rate",
        "100 us",
        "8,192 tokens",
        "pays from 1.31",
    ):
        assert word in text, word
    assert "not measured" not in text
    drawn = page.run(
        "return [...document.querySelectorAll('.plot .line')].map(p => p.getAttribute('d').length)"
    )
    assert len(drawn) == 6 and min(drawn) > 100
    assert page.run("return document.title") == "1/1 serving - sparkctl"
    assert page.complaints() == []
    page.picture("serving")


def test_no_cluster_says_how_to_start_one(page: Page) -> None:
    page.show(moment(ended=earlier_runs()))
    assert "No cluster is running" in page.text() and "sparkctl up --nodes 3" in page.text()
    assert "rank 1 failed" in page.text("#ended")
    page.picture("nothing")


def test_loading_shows_phase_and_time_left(page: Page) -> None:
    page.show(moment(loading(), ended=earlier_runs()))
    assert "about 1 min 21 s left (usually 3 min 1 s, as the last start)" in page.text()
    assert "loading weights 42 % (20/48)" in page.text(".nodes")
    assert "not measured" in page.text(".figures")
    page.picture("loading")


@pytest.mark.parametrize("kind", ["unreachable", "frozen", "dead", "orphaned"])
def test_a_broken_node_is_told_by_word_and_shape(page: Page, kind: str) -> None:
    page.show(moment(broken(kind)))
    assert kind in page.text(".run-head") and kind in page.text("tr[data-status]:last-child")
    shapes = page.run(
        "return [...document.querySelectorAll('.nodes .badge')]"
        ".map(b => b.innerText + b.querySelector('path').getAttribute('d'))"
    )
    assert len(set(shapes)) == 2
    assert "No token: timed out" in page.text()
    page.picture(kind)


def test_hostile_log_lines_stay_text(page: Page) -> None:
    page.show(moment(broken("dead")))
    assert "<script>" in page.text(".errors") and "***" in page.text(".errors")
    assert "sk-thisisasecretvalue123" not in page.chrome.page_source
    assert page.run("return document.querySelectorAll('.errors script, .errors img').length") == 0
    assert "owned" not in page.chrome.title and page.complaints() == []


def test_several_runs_and_what_changes_follow_live_without_a_jump(page: Page) -> None:
    page.show(moment(serving("20260911-233000-00aa"), loading(), ended=earlier_runs()))
    assert page.run("return document.querySelectorAll('.run').length") == 2
    page.show(moment(serving()))
    height = page.run("return document.querySelector('.figures').offsetHeight")
    page.run("window.before = document.querySelector('.nodes tbody tr')")
    page.moment = moment(serving(engram=False))
    page.wait(lambda: "not measured" in page.text(".figures"))
    assert page.run("return document.querySelector('.figures').offsetHeight") == height
    assert page.run("return window.before === document.querySelector('.nodes tbody tr')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_reads_it_without_scrolling_sideways(page: Page, scheme: str) -> None:
    set_screen(page.chrome, 375, 1400, scheme)
    page.show(moment(broken("frozen"), loading(), ended=earlier_runs()))
    assert page.run("return document.documentElement.scrollWidth") <= 375
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    light = int(background.split("(")[1].split(",")[0]) > 128
    assert light == (scheme == "light")
    page.picture(f"phone-{scheme}")


def test_the_keyboard_reaches_all_that_can_be_used(page: Page) -> None:
    from selenium.webdriver import ActionChains, Keys

    page.show(moment(serving()))
    reached = []
    for _ in range(3):
        ActionChains(page.chrome).send_keys(Keys.TAB).perform()
        reached.append(page.run("return document.activeElement.id || document.activeElement.className"))
    assert reached == ["skip", "pause", "scroll"]
    page.run("document.getElementById('pause').focus()")
    ActionChains(page.chrome).send_keys(Keys.ENTER).perform()
    assert page.run("return document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    assert page.text("#live") == "paused"


def test_a_server_that_goes_away_is_said_so(page: Page) -> None:
    page.show(moment(serving()))

    def fail() -> dict[str, Any]:
        raise OSError("as if the launcher's machine were in trouble")

    page.server.read_state = fail
    page.wait(lambda: "no answer from sparkctl dashboard since" in page.text("#live"))
    assert page.run("return document.body.className") == "is-stale"
    page.server.read_state = lambda: page_state(page.moment)
    page.wait(lambda: page.text("#live") == "live")


def test_a_key_is_taken_from_the_link_and_not_left_in_it(page: Page) -> None:
    page.server.access = Access(key=KEY)
    page.moment = moment(serving())
    page.chrome.get(page.url)
    page.wait(lambda: "Key of this page" in page.text())
    page.chrome.get(f"{page.url}?#key={KEY}")
    page.wait(lambda: "node-2" in page.text())
    assert KEY not in page.chrome.current_url and KEY not in page.chrome.page_source
