"""What programs read from the dashboard.

A failure means: an answer is not what its description says, is larger than its page,
or is given to somebody who may not open the dashboard.
"""

import http.client
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.dashboard.activity import About
from kyverno_mp.dashboard.api import DESCRIPTION, ENDPOINTS
from kyverno_mp.dashboard.exceptions import Exempted, Published
from kyverno_mp.limits import DASHBOARD_ROWS, DASHBOARD_TOKEN_CHARACTERS_MIN
from tests.schemas import validate
from tests.unit.dashboard.test_site import HOSTILE
from tests.unit.dashboard.world import LOCAL, World, entry, full, serving


def ask(world: World, target: str) -> Any:
    """Return an answer that must be given."""
    status, body = world.get(target)
    assert status == 200, body
    return json.loads(body)


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("standalone", [False, True])
@pytest.mark.parametrize("text", ["", *HOSTILE])
def test_answers_are_as_described(path: str, text: str, *, standalone: bool) -> None:
    """Names that a page must escape are strings here."""
    world = full(text, standalone=standalone)
    described = ask(world, DESCRIPTION)
    operation = described["paths"][path]["get"]
    content = operation["responses"]["200"]["content"]["application/json"]
    schema = {**content["schema"], "components": described["components"]}
    answer = ask(world, path)
    validate(answer, schema)
    # A field that the description lacks would pass.
    name = content["schema"]["$ref"].rpartition("/")[2]
    assert (
        answer.keys() == described["components"]["schemas"][name]["properties"].keys()
    )


def test_results_are_filtered_and_paged() -> None:
    world = World()
    for number in range(3 * DASHBOARD_ROWS):
        is_bad = number < DASHBOARD_ROWS + 1
        result = "fail" if is_bad else "pass"
        world.report(str(number), entry(number, result=result, namespace="team-1"))
    first = ask(world, "/api/v1/results?result=fail&namespace=team-1")
    assert (first["count"], first["page"], first["pages"]) == (DASHBOARD_ROWS + 1, 1, 2)
    assert len(first["results"]) == DASHBOARD_ROWS
    assert {item["result"] for item in first["results"]} == {"fail"}
    last = ask(world, "/api/v1/results?result=fail&namespace=team-1&page=2")
    assert len(last["results"]) == 1
    assert ask(world, "/api/v1/results?namespace=-")["count"] == 0


def test_groups_count_reports_or_reviews() -> None:
    world = full()
    stored = ask(world, "/api/v1/groups?by=namespace")
    assert (stored["of"], stored["count"]) == ("reports", 12)
    reviews = ask(world, "/api/v1/groups?by=policy&of=reviews")
    assert [item["value"] for item in reviews["groups"]] == ["require-labels"]
    assert reviews["groups"][0]["results"]["fail"] == 12 * 12


def test_the_summary_counts_policies_and_results() -> None:
    found = ask(full(), "/api/v1/summary")
    assert (found["policies"], found["policiesReady"]) == (2, 1)
    assert (found["ready"], found["reviewsPerSecond"]) == (True, 12.5)
    assert sum(found["stored"].values()) == 240
    assert ask(full(standalone=True), "/api/v1/summary")["stored"] is None


def test_an_exception_with_many_rules_has_a_short_list() -> None:
    world = World()
    rules = tuple(f"policy: rule-{number}" for number in range(5000))
    published = Published(1, {"policy": About()}, (Exempted("a/b", rules),), 1)
    world.pod.published_now = published
    (item,) = ask(world, "/api/v1/exceptions")["exceptions"]
    assert item["rulesCount"] == len(rules)
    assert item["rules"] == list(rules[:20])
    assert item["expires"] == ""
    ends = "2199-01-31T00:00:00Z"
    published.exceptions = (Exempted("a/b", rules, ends),)
    (item,) = ask(world, "/api/v1/exceptions")["exceptions"]
    assert item["expires"] == ends


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/api/v1/groups?by=x", 400),
        ("GET", "/api/v1/groups?of=x", 400),
        ("GET", "/api/v1/results?page=0x1", 400),
        ("GET", "/api/v1/summary?page=1", 400),
        ("GET", "/api/v2/summary", 404),
        ("POST", "/api/v1/summary", 405),
    ],
)
def test_errors_are_objects(method: str, target: str, status: int) -> None:
    path, _, query = target.partition("?")
    response = full().site.respond(method, path, query, LOCAL)
    assert (response.status, response.content_type) == (status, "application/json")
    assert list(json.loads(response.body)) == ["error"]


def test_a_token_is_required(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t" * DASHBOARD_TOKEN_CHARACTERS_MIN)
    site = World(token_file=token).site
    headers = {"host": "dashboard.example.org"}
    for path in (*ENDPOINTS, DESCRIPTION):
        assert site.respond("GET", path, "", headers).status == 401
        named = {**headers, "authorization": f"Bearer {token.read_text()}"}
        assert site.respond("GET", path, "", named).status == 200


def test_other_sites_cannot_read_it() -> None:
    """No header allows another origin, and another site's name is refused."""
    with serving(full().site) as port:
        for host, status in (("127.0.0.1", 200), ("evil.example.org", 421)):
            link = http.client.HTTPConnection("127.0.0.1", port)
            with closing(link):
                headers = {"Host": host, "Origin": "https://evil.example.org"}
                link.request("GET", "/api/v1/denials", headers=headers)
                answer = link.getresponse()
                answer.read()
            assert answer.status == status
            names = {name.lower() for name in answer.headers}
            assert not [name for name in names if name.startswith("access-control")]
