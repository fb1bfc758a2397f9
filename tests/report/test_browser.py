"""A report in a real browser: nothing is blocked, the graph moves, nodes tell about themselves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qdqtune.records._printable import printable
from qdqtune.report._html import page_html
from tests.report.runs import HOSTILE, run_of

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens runs as a page; in the end, nothing may have complained or run."""
    said: list[str] = []
    pages = []

    def opened(*runs: Any, **settings: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(page_html(runs), "utf-8")
        page = browser.new_page(**settings)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url)
                if not request.url.startswith("file:") else None)  # fmt: skip
        page.goto(file.as_uri())
        pages.append(page)
        return page

    yield opened
    for page in pages:
        assert page.evaluate("window.hurt") is None
        page.close()
    assert not said


def scale_of(page: Any) -> float:
    return float(page.evaluate("document.querySelector('svg.graph').getScreenCTM().a"))


def test_the_graph_zooms_moves_and_fits_again(open_page: Open) -> None:
    page = open_page(run_of(nodes=60))
    before = scale_of(page)
    page.click(".zoom-in")
    assert scale_of(page) > 1.2 * before
    box = page.locator("svg.graph").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    where = page.get_attribute("svg.graph", "viewBox")
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 80, middle[1] + 40)
    page.mouse.up()
    assert page.get_attribute("svg.graph", "viewBox") != where
    page.click(".zoom-fit")
    assert scale_of(page) == pytest.approx(before)


def test_the_wheel_zooms_with_a_key_and_scrolls_the_page_without(open_page: Open) -> None:
    page = open_page(run_of(nodes=60))
    page.locator("svg.graph").hover()
    before = scale_of(page)
    page.mouse.wheel(0, 100)
    assert scale_of(page) == before
    page.locator("svg.graph").hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_function(
        "before => document.querySelector('svg.graph').getScreenCTM().a > before", arg=before
    )


@pytest.mark.parametrize("name", ["stem", *HOSTILE])
def test_a_click_shows_what_is_known_of_a_node(open_page: Open, name: str) -> None:
    page = open_page(run_of((name, "b", "c")))
    page.locator("#n1 rect").click()
    details = page.locator(".node-details")
    shown = details.evaluate("each => each.textContent")
    assert printable(name) in shown
    assert f"because of {printable(name)}" in shown
    assert "2.000 ms before, 1.000 ms now" in shown or "1.500 ms now" in shown
    assert "21.5 dB" in shown
    assert details.locator("script, img, b").count() == 0


def test_search_marks_nodes_and_enter_goes_to_them(open_page: Open) -> None:
    page = open_page(run_of(nodes=200))
    page.fill("input[type=search]", "node_12")
    assert page.inner_text(".matches") == "11 found"
    assert page.locator(".n.hit").count() == 11
    page.press("input[type=search]", "Enter")
    assert "node_12" in page.inner_text(".node-details")
    page.press("input[type=search]", "Enter")
    assert "node_120" in page.inner_text(".node-details")
    page.fill("input[type=search]", "")
    assert page.locator(".n.hit").count() == 0


def test_a_layer_leads_to_its_node_in_its_own_graph(open_page: Open) -> None:
    page = open_page(run_of(), run_of(("other", "b", "c")))
    page.locator("a[data-graph='r1-']").first.click()
    assert page.locator("#r1-graph .n.on").count() == 1
    assert page.locator("#r0-graph .n.on").count() == 0


def test_a_point_leads_to_its_command(open_page: Open) -> None:
    page = open_page(run_of())
    page.locator("svg.chart a[href='#c0001']").first.click()
    assert page.evaluate("document.querySelector(':target').id") == "c0001"


@pytest.mark.parametrize("width", [400, 800, 1600])
def test_no_width_makes_the_page_scroll_sideways(open_page: Open, width: int) -> None:
    page = open_page(run_of(HOSTILE), viewport={"width": width, "height": 900}, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_colours_follow_the_reader(open_page: Open) -> None:
    colours = {
        open_page(run_of(), color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    }
    assert len(colours) == 2


def test_paper_is_white_whatever_the_reader_prefers(open_page: Open) -> None:
    page = open_page(run_of(), color_scheme="dark")
    dark = page.evaluate("getComputedStyle(document.querySelector('.caption')).color")
    page.emulate_media(media="print")
    style = "getComputedStyle(document.querySelector('.caption')).color"
    assert page.evaluate(style) != dark
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("button.copy").first.is_visible()
