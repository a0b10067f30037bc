"""The dashboard in a browser: light and dark, narrow, by keyboard, without JavaScript.

A failure means: users see something other than the content that the unit tests check.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.browser import Browser, browsing
from tests.packages.tools import Missing, find
from tests.unit.dashboard.world import SCRIPT, TARGETS, full, serving

# Starting a browser takes time on a busy machine.
pytestmark = pytest.mark.timeout(1200)
TAB, ENTER = 9, 13
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        find("chromium")
    except Missing as missing:
        pytest.skip(str(missing))
    with browsing(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with serving(full().site) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    with serving(full(SCRIPT).site) as port:
        yield f"http://127.0.0.1:{port}"


def keep(browser: Browser, name: str) -> None:
    """Save a screenshot if KYVERNO_MP_SCREENSHOTS names a folder."""
    folder = os.environ.get("KYVERNO_MP_SCREENSHOTS")
    if folder:
        (Path(folder) / f"{name}.png").write_bytes(browser.picture())


@pytest.mark.parametrize("target", TARGETS)
def test_page_loads_without_console_errors(
    browser: Browser, site: str, target: str
) -> None:
    """The browser applies our style sheet; the policy blocks none of our resources."""
    browser.open(site + target)
    assert browser.complaints() == []
    assert browser.value("document.title").endswith(" - kyverno-mp")
    assert browser.value("getComputedStyle(document.body).margin") == "0px"
    requested = "performance.getEntriesByType('resource').map(one => one.name)"
    assert not [one for one in browser.value(requested) if "favicon" not in one]
    keep(browser, target.strip("/").replace("/", "_").replace("?", "_") or "overview")


@pytest.mark.parametrize("target", TARGETS)
def test_script_in_a_name_is_shown_as_text(
    browser: Browser, hostile: str, target: str
) -> None:
    browser.open(hostile + target)
    assert browser.complaints() == []
    assert "pwned" not in browser.value("document.title").replace(SCRIPT, "")
    assert browser.value("document.scripts.length") == 0
    assert browser.value("document.images.length") == 0
    assert SCRIPT in browser.value("document.body.innerText")
    keep(browser, f"hostile_{TARGETS.index(target)}")


def test_page_follows_the_preferred_color_scheme(browser: Browser, site: str) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.call("Emulation.setEmulatedMedia", features=[feature])
        browser.open(f"{site}/")
        seen[scheme] = browser.value(BACKGROUND)
        keep(browser, f"overview_{scheme}")
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert seen == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}


@pytest.mark.parametrize("target", TARGETS)
def test_narrow_window_scrolls_in_one_direction(
    browser: Browser, site: str, hostile: str, target: str
) -> None:
    """Wide tables scroll by themselves (WCAG 2.2, 1.4.10: 320 pixels)."""
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=320,
        height=700,
        deviceScaleFactor=1,
        mobile=False,
    )
    try:
        for base in (site, hostile):
            browser.open(base + target)
            assert browser.value("document.documentElement.scrollWidth") <= 320
            keep(browser, f"narrow_{TARGETS.index(target)}_{base == hostile}")
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def test_everything_is_reachable_by_keyboard(browser: Browser, site: str) -> None:
    """The skip link comes first, then the menu; Enter follows a link."""
    browser.open(f"{site}/")
    focused = "document.activeElement.innerText"
    seen = []
    for _ in range(8):
        browser.key("Tab", TAB)
        seen.append(browser.value(focused))
    menu = ["Overview", "Results", "Groups", "Policies", "Exceptions", "Processes"]
    assert seen == ["Skip to the content", "kyverno-mp", *menu]
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert browser.value(outline) == "solid"
    browser.events.clear()
    browser.key("Enter", ENTER)
    browser.wait_loaded()
    assert browser.value("location.pathname") == "/processes"


def test_charts_have_text_for_screen_readers(browser: Browser, site: str) -> None:
    browser.open(f"{site}/results")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles: dict[str, list[str]] = {}
    for one in nodes:
        role, name = one.get("role", {}), one.get("name", {})
        roles.setdefault(role.get("value", ""), []).append(name.get("value", ""))
    assert "Results" in roles["heading"]
    assert {"Pages", "Pages of the list"} <= set(roles["navigation"])
    assert {"Policy", "Namespace", "Category"} <= set(roles["combobox"])
    assert roles["button"] == ["Show"]
    assert "Message" in roles["columnheader"]
    assert "image" not in roles


def test_page_works_without_javascript(browser: Browser, site: str) -> None:
    """Filters are a form, pages are links."""
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(f"{site}/results")
        for _ in range(30):
            browser.key("Tab", TAB)
            if browser.value("document.activeElement.id") == "policy":
                break
        browser.call("Input.insertText", text="policy-3")
        browser.events.clear()
        browser.key("Enter", ENTER)
        browser.wait_loaded()
        assert "policy=policy-3" in browser.value("location.search")
        text = browser.value("document.querySelector('table').innerText")
        assert "policy-3" in text
        assert "policy-4" not in text
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
