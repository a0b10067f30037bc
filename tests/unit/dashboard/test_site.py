"""The pages of the dashboard as a browser receives them.

A failure means: a name becomes code in the page, a user without the token can read it,
or a page costs more than its content.
"""

import base64
import re
from collections.abc import Mapping
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kyverno_mp.dashboard.exceptions import Exempted
from kyverno_mp.dashboard.history import REPORTS, Series
from kyverno_mp.dashboard.site import FAILED, REFUSED, SERVED, UNKNOWN
from kyverno_mp.leader.status import PolicyStatus, Status
from kyverno_mp.limits import (
    DASHBOARD_EXCEPTIONS_MAX,
    DASHBOARD_RESULTS_MAX,
    DASHBOARD_ROWS,
    DASHBOARD_TOKEN_CHARACTERS_MIN,
)
from tests.unit.dashboard.world import LOCAL, SCRIPT, TARGETS, World, entry, full

TAGS = frozenset(
    re.findall(
        r"\w+",
        "html head meta title style body a header nav ul li main h1 h2 p section div"
        " span table thead tbody tr th td svg rect polyline figure figcaption time"
        " footer form label select option input datalist button dl dt dd",
    )
)
HOSTILE = (
    SCRIPT,
    "</style><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "'--><!--",
    "a&amp;b",
    "\u202egnp.exe",
    "\x00\x1b[31m",
    "\ud800",
)


class Elements(HTMLParser):
    """Tags, attributes and visible texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for one, attributes in self.elements if one == tag]


def parsed(text: str) -> Elements:
    found = Elements()
    found.feed(text)
    found.close()
    return found


def check_is_ours(text: str) -> None:
    """Fail for an element, an attribute or a target that our pages never contain."""
    for tag, attributes in parsed(text).elements:
        assert tag in TAGS, tag
        assert not [name for name in attributes if name.startswith("on")]
        assert not attributes.keys() & {"src", "style", "srcset", "background"}
        for name in ("href", "action"):
            target = attributes.get(name, "/")
            assert target[:1] in ("/", "#"), target
            assert not target.startswith("//")


def targets_of(world: World) -> list[str]:
    """Return the targets of all pages and of all links on them."""
    found = list(TARGETS)
    for target in TARGETS:
        links = parsed(world.get(target)[1]).all("a")
        found += [one["href"].partition("#")[0] or "/" for one in links]
    return sorted(set(found))


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("standalone", [False, True])
def test_names_are_escaped(text: str, *, standalone: bool) -> None:
    """The name is in every field of every page, and on the pages linked with it."""
    world = full(text, standalone=standalone)
    targets = targets_of(world)
    assert len(targets) > len(TARGETS)
    for target in targets:
        status, page = world.get(target)
        assert status == 200, target
        check_is_ours(page)
        assert not any("\ud800" <= one <= "\udfff" for one in page)
        assert "\u202e" not in page
        assert "\x1b" not in page


@settings(max_examples=40)
@given(st.text(min_size=1, max_size=40))
def test_texts_are_escaped(text: str) -> None:
    world = full(text)
    for target in TARGETS:
        status, page = world.get(target)
        assert status == 200
        check_is_ours(page)


def test_link_with_a_hostile_name_leads_to_its_results() -> None:
    world = full(SCRIPT)
    links = [
        one["href"]
        for one in parsed(world.get("/")[1]).all("a")
        if one["href"].startswith("/results?")
    ]
    assert len(links) == 4  # policy, namespace, severity, category
    for link in links:
        status, page = world.get(link)
        assert status == 200
        assert "1 result," in page
        assert SCRIPT in parsed(page).texts


@pytest.mark.parametrize("target", TARGETS)
def test_content_security_policy_allows_only_its_style(target: str) -> None:
    path, _, query = target.partition("?")
    found = full().site.respond("GET", path, query, LOCAL)
    given_policy = found.headers["Content-Security-Policy"]
    directives = dict(
        one.strip().partition(" ")[::2] for one in given_policy.split(";")
    )
    text = found.body.decode()
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(sha256(style.encode()).digest()).decode()
    assert directives == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest}'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    assert "url(" not in style
    assert "@import" not in style
    assert found.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("target", TARGETS)
def test_page_is_usable_without_mouse_or_sight(target: str) -> None:
    """One heading, labels, named regions, the current page, a way past the menu."""
    page = parsed(full().get(target)[1])
    ids = [one["id"] for _, one in page.elements if "id" in one]
    assert len(ids) == len(set(ids))
    assert len(page.all("h1")) == 1
    assert page.all("html") == [{"lang": "en"}]
    assert page.all("a")[0] == {"class": "skip-link", "href": "#content"}
    for tag, attributes in page.elements:
        for name in ("aria-labelledby", "for", "list"):
            assert attributes.get(name, ids[0]) in ids
        if attributes.get("role") == "region":
            assert attributes["tabindex"] == "0"
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
        if tag == "svg":
            assert attributes["aria-hidden"] == "true"
    labelled = {one["for"] for one in page.all("label")}
    assert labelled == {one["id"] for one in page.all("input") + page.all("select")}
    (menu,) = [one for one in page.all("nav") if one["aria-label"] == "Pages"]
    assert menu
    assert len([one for one in page.all("a") if one.get("aria-current") == "page"]) == 1


@pytest.mark.parametrize(
    ("method", "target", "status", "outcome"),
    [
        ("GET", "/", 200, SERVED),
        ("HEAD", "/policies", 200, SERVED),
        ("GET", "/nothing", 404, UNKNOWN),
        ("GET", "//evil.example", 404, UNKNOWN),
        ("GET", "", 400, UNKNOWN),
        ("POST", "/results", 405, UNKNOWN),
        ("DELETE", "/", 405, UNKNOWN),
        ("GET", "/results?page=0x1", 400, UNKNOWN),
        ("GET", "/results?page=-1", 400, UNKNOWN),
        ("GET", "/results?page=9999999", 400, UNKNOWN),
        ("GET", "/results?page=\u0663", 400, UNKNOWN),
        ("GET", "/results?page=1&page=2", 400, UNKNOWN),
        ("GET", "/results?color=red", 400, UNKNOWN),
        ("GET", "/results?result=maybe", 400, UNKNOWN),
        ("GET", "/results?policy=%ff", 400, UNKNOWN),
        ("GET", "/results?policy=" + "a" * 513, 400, UNKNOWN),
        ("GET", "/results?" + "a=b&" * 20, 400, UNKNOWN),
        ("GET", "/groups?by=color", 400, UNKNOWN),
        ("GET", "/groups?of=rumours", 400, UNKNOWN),
        ("GET", "/report", 400, UNKNOWN),
        ("GET", "/policy", 400, UNKNOWN),
        ("GET", "/policies?name=x", 400, UNKNOWN),
    ],
)
def test_unknown_pages_and_parameters_are_an_error(
    method: str, target: str, status: int, outcome: str
) -> None:
    path, _, query = target.partition("?")
    found = full().site.respond(method, path, query, LOCAL)
    assert (found.status.value, found.outcome) == (status, outcome)
    check_is_ours(found.body.decode())
    assert "default-src 'none'" in found.headers["Content-Security-Policy"]
    assert ("Allow" in found.headers) == (status == 405)


def test_failed_page_is_an_error_and_the_next_one_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = full()
    world.pod.rows = None  # type: ignore[assignment]
    found = world.site.respond("GET", "/processes", "", LOCAL)
    assert (found.status.value, found.outcome) == (500, FAILED)
    assert "NoneType" not in found.body.decode()
    assert "/processes" in caplog.text
    assert world.get("/policies")[0] == 200


TOKEN = "a-token-of-some-length"


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "is_admitted"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN}", True),
        (basic(f"anyone:{TOKEN}"), True),
        (basic(f":{TOKEN}"), True),
        ("", False),
        (f"Bearer {TOKEN}x", False),
        (f"Bearer {TOKEN[:-1]}", False),
        ("Bearer", False),
        (TOKEN, False),
        (basic(TOKEN), False),
        (basic(f"{TOKEN}:"), False),
        ("Basic %%%", False),
        ("Basic \xff\xfe", False),
        (f"Digest {TOKEN}", False),
    ],
)
def test_configured_token_is_required(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    authorization: str,
    *,
    is_admitted: bool,
) -> None:
    """Every page requires the token, even a missing page, under any user name."""
    caplog.set_level("DEBUG")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    world = World(token_file=file)
    headers = {"host": "kyverno.example.com", "authorization": authorization}
    for path, admitted in (("/", 200), ("/nothing", 404)):
        found = world.site.respond("GET", path, "", headers)
        assert found.status.value == (admitted if is_admitted else 401)
        asks = found.headers.get("WWW-Authenticate", "")
        assert asks.startswith("Basic ") == (not is_admitted)
        assert TOKEN.encode() not in found.body
        assert (found.outcome == REFUSED) == (not is_admitted)
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "content", ["", "\n", "x" * (DASHBOARD_TOKEN_CHARACTERS_MIN - 1), None]
)
def test_unusable_token_admits_no_one(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    for given_token in (content or "", ""):
        headers = {**LOCAL, "authorization": f"Bearer {given_token}"}
        found = World(token_file=file).site.respond("GET", "/", "", headers)
        assert (found.status.value, found.outcome) == (503, REFUSED)


def test_new_token_is_effective_immediately(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("y" * DASHBOARD_TOKEN_CHARACTERS_MIN)
    world = World(token_file=file)
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert world.site.respond("GET", "/", "", headers).status.value == 401
    file.write_text(TOKEN)
    assert world.site.respond("GET", "/", "", headers).status.value == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:9081"}, 200),
        ({"host": "localhost:1"}, 200),
        ({"host": "LOCALHOST"}, 200),
        ({"host": "[::1]:9081"}, 200),
        ({"host": "10.1.2.3"}, 200),
        ({"host": "rebound.example.com"}, 421),
        ({"host": "127.0.0.1.example.com"}, 421),
        ({"host": "localhost,evil.example"}, 421),
        ({"host": ""}, 421),
        ({}, 421),
    ],
)
def test_dns_rebinding_is_rejected_without_a_token(
    headers: Mapping[str, str], status: int
) -> None:
    assert World().site.respond("GET", "/", "", headers).status.value == status


def test_paging_costs_only_the_shown_results() -> None:
    """100,000 results are sorted once and filtered once for any number of pages."""
    world, per_report = World(), 20
    count = 100_000
    for number in range(0, count, per_report):
        world.report(str(number), *(entry(number + at) for at in range(per_report)))
    page = parsed(world.get("/results")[1])
    assert world.results.looked_at == count
    assert len(page.all("tr")) == DASHBOARD_ROWS + 1
    last = count // DASHBOARD_ROWS
    for number in (2, 3, last // 2, last - 1, last, last + 1):
        assert world.get(f"/results?page={number}")[0] == 200
    assert world.results.looked_at == count
    assert f"Page {last:,} of {last:,}" in world.get(f"/results?page={last + 1}")[1]
    names = set()
    for number in range(1, 6):
        text = world.get(f"/results?policy=policy-3&page={number}")[1]
        assert len(text) < 200_000
        names |= set(re.findall(r">Pod/(pod-\d+)<", text))
    assert len(names) == 5 * DASHBOARD_ROWS
    assert world.results.looked_at == 2 * count
    for target in ("/", "/groups", "/groups?by=namespace"):
        world.get(target)
    assert world.results.looked_at == 2 * count


def test_list_is_sorted_again_only_after_a_while() -> None:
    world = World()
    world.report("a", entry(1))
    world.get("/results")
    world.results.put(("PolicyReport", "", "b"), [entry(2)])
    before = world.results.looked_at
    assert "1 result," in world.get("/results")[1]
    assert world.results.looked_at == before
    world.clock.now_s += 60
    assert "2 results," in world.get("/results")[1]


def test_reports_above_the_limit_are_counted_and_named() -> None:
    world, per_report = World(), 1000
    same = [entry(1)] * per_report
    for number in range(DASHBOARD_RESULTS_MAX // per_report + 2):
        world.report(str(number), *same)
    assert world.results.left_out == 2 * per_report
    _, page = world.get("/")
    total = DASHBOARD_RESULTS_MAX + 2 * per_report
    assert f"{total:,} results in" in page
    assert f"{2 * per_report:,} results are not listed" in page
    assert f"{DASHBOARD_RESULTS_MAX:,} results," in world.get("/results")[1]
    world.results.remove(("PolicyReport", "", "0"))
    assert world.results.totals().total == total - per_report


def test_filters_select_and_groups_count() -> None:
    world = full()
    assert "20 results," in world.get("/results?result=fail")[1]
    assert "0 results," in world.get("/results?result=fail&category=nothing")[1]
    without = world.get("/results?category=-")[1]
    assert "80 results," in without
    assert world.get("/results?result=&policy=&page=1")[1] == world.get("/results")[1]
    names = parsed(world.get("/groups?by=namespace")[1]).texts
    assert {f"team-{number}" for number in range(12)} <= set(names)
    assert "2 results" not in world.get("/report?namespace=no&kind=Pod&name=pod-1")[1]
    assert "message 1" in world.get("/report?namespace=team-1&kind=Pod&name=pod-1")[1]


def test_deleted_result_is_no_longer_counted() -> None:
    world = World()
    world.report("a", entry(1, policy="gone"))
    world.report("b", entry(2, policy="here"))
    world.results.remove(("PolicyReport", "", "a"))
    world.clock.now_s += 60
    assert [one.name for one in world.results.groups("policy")] == ["here"]
    assert "gone" not in world.get("/results")[1]
    assert world.results.totals().total == 1


def test_policies_show_their_state_and_cost() -> None:
    world = full()
    _, text = world.get("/policies")
    texts = parsed(text).texts
    assert "2 policies, 1 ready" in texts
    assert " spec.rules[0]: no such field" in texts
    assert {"263", "80 µs", "21.0 ms"} <= set(texts)
    # Entries that need attention come first.
    assert text.index("Not ready<") < text.index("Ready</span></td>")
    _, text = world.get("/policy?name=require-labels")
    assert {"Pod Security", "high", "enforce", "check"} <= set(parsed(text).texts)


def test_many_policies_are_paged() -> None:
    world = World()
    world.pod.said = Status(
        policies=tuple(
            PolicyStatus(
                "ClusterPolicy", "", f"p{at:05}", ready=True, message="", rule_count=1
            )
            for at in range(10_000)
        )
    )
    _, text = world.get("/policies?page=100")
    assert len(parsed(text).all("tr")) == DASHBOARD_ROWS + 1
    assert "p09999" in text
    assert "Page 100 of 100" in text


def test_pages_without_a_cluster_name_missing_data() -> None:
    world = full(standalone=True)
    for target in ("/", "/results", "/groups"):
        assert "no stored reports without a cluster" in world.get(target)[1]
    assert "require-labels" in world.get("/groups")[1]
    assert "3,156 results of rules" in world.get("/")[1]


def test_pages_name_possibly_missing_data() -> None:
    world = World()
    assert world.watch is not None
    world.watch.synced = False
    assert "still being read" in world.get("/results")[1]
    world.watch.wrong = ["policyreports cannot be read: forbidden"]
    assert "cannot be read: forbidden" in world.get("/results")[1]
    world.pod.published_now.exceptions_count = DASHBOARD_EXCEPTIONS_MAX + 1
    assert "are listed" in world.get("/exceptions")[1]


def test_an_exception_that_has_ended_is_no_longer_shown_as_valid() -> None:
    world = World()
    world.pod.published_now.exceptions = (
        Exempted("a/lasts", ("policy: r",)),
        Exempted("a/ends", ("policy: r",), "2199-01-31T00:00:00Z"),
        Exempted("a/has-ended", ("policy: r",), "2020-01-31T00:00:00Z"),
    )
    text = world.get("/exceptions")[1]
    assert "<td>2199-01-31T00:00:00Z</td>" in text
    assert "<td>expired 2020-01-31T00:00:00Z</td>" in text
    assert text.count("expired ") == 1


def test_charts_show_the_history_since_the_start() -> None:
    world = full()
    course = world.history.course(Series(REPORTS))
    assert [one.counts.total for one in course] == [20 * n for n in range(1, 13)]
    _, text = world.get("/")
    assert "Latest: 12 fail, 1 error, 3 warn, 240 pass, 7 skip." in text
    assert text.count("<polyline") >= 10
