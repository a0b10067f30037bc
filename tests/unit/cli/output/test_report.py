"""Reports of files and of a cluster in every format; names in them may be hostile.

A failure means: a failure is missing for people or pipelines, or a name in a report
becomes code in the page.
"""

import base64
import json
import re
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.unit.cli.conftest import Command
from tests.unit.cli.sarif_essentials import check_sarif
from tests.unit.kube.fake_api import FakeApi
from tests.unit.kube.test_discovery import group, resource

SCRIPT = "<script>alert(1)</script>"
WG, OPEN = "wgpolicyk8s.io/v1alpha2", "openreports.io/v1alpha1"


def result(policy: str, word: str, severity: str = "", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"policy": policy, "rule": "r", "result": word, **more}
    return {**found, "severity": severity} if severity else found


def report(
    *results: dict[str, Any],
    namespace: str = "apps",
    name: str = "u-1",
    version: str = WG,
    kind: str = "PolicyReport",
) -> dict[str, Any]:
    scope = {"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": namespace}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "scope": scope,
        "results": list(results),
    }


REPORTS = [
    report(
        result("p-high", "fail", "high", category="Pods", message="not allowed"),
        result("p-low", "pass", "low"),
    ),
    report(
        result("team/p-own", "error", "critical"),
        result(SCRIPT, "warn", message="<b>\x1b[31mred\nsecond line|cell"),
        namespace="other",
        name="u-2",
        version=OPEN,
        kind="Report",
    ),
    report(
        result(
            "p-low",
            "skip",
            "low",
            resources=[
                {"kind": "Namespace", "name": "a"},
                {"kind": "Node", "name": "b"},
            ],
        ),
        namespace="",
        kind="ClusterPolicyReport",
        name="u-3",
    ),
]
COUNTS = {"fail": 1, "error": 1, "warn": 1, "pass": 1, "skip": 2}


@pytest.fixture
def reports_file(tmp_path: Path) -> Path:
    file = tmp_path / "reports.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": REPORTS}))
    return file


def _json(command: Command, *arguments: object) -> Any:
    done = command("report", *arguments, "--output", "json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def _named(found: Any) -> list[str]:
    return [f"{one['policy']} {one['result']}" for one in found["results"]]


FORMS = {
    "a List": lambda: json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": REPORTS}
    ),
    "an array": lambda: json.dumps(REPORTS),
    "JSON lines": lambda: "\n".join(map(json.dumps, REPORTS)) + "\n",
    "JSON lines of lists": lambda: "\n".join(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [one]})
        for one in REPORTS
    ),
    "documents of YAML": lambda: "".join(
        f"---\n{json.dumps(one)}\n" for one in REPORTS
    ),
    "other kinds between": lambda: (
        "---\nkind: Pod\napiVersion: v1\n"
        "---\nkind: [Report]\napiVersion: wgpolicyk8s.io/v1alpha2\n"
        + "".join(f"---\n{json.dumps(one)}\n" for one in REPORTS)
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_file_format(command: Command, tmp_path: Path, form: str) -> None:
    file = tmp_path / "reports"
    file.write_text(FORMS[form]())
    assert _json(command, file)["summary"] == COUNTS


def test_a_folder(command: Command, tmp_path: Path) -> None:
    for one, name in zip(REPORTS, ("a.yaml", "b.json", "sub/c.yml"), strict=True):
        file = tmp_path / "reports" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(one))
    (tmp_path / "reports" / "notes.txt").write_text("a: [")
    assert _json(command, tmp_path / "reports")["summary"] == COUNTS


def test_most_urgent_results_come_first(command: Command, reports_file: Path) -> None:
    found = _json(command, reports_file)
    assert _named(found) == [
        "p-high fail",
        "team/p-own error",
        f"{SCRIPT} warn",
        "p-low pass",
        "p-low skip",
        "p-low skip",
    ]
    skipped = [one for one in found["results"] if one["result"] == "skip"]
    assert [(one["kind"], one["name"]) for one in skipped] == [
        ("Namespace", "a"),
        ("Node", "b"),
    ]
    assert all("namespace" not in one for one in skipped)


def test_output_of_apply_is_readable(
    command: Command, tmp_path: Path, policy_file: Path, pods_file: Path
) -> None:
    for form in ("yaml", "json"):
        made = command(
            "apply", policy_file, "-r", pods_file, "-p", "--output-format", form
        )
        file = tmp_path / f"made.{form}"
        file.write_text(made.out)
        found = _json(command, file, "--group-by", "namespace")
        assert found["groups"] == [
            {"name": "apps", "fail": 1, "error": 0, "warn": 0, "pass": 1, "skip": 0}
        ]
        first = found["results"][0]
        assert (first["severity"], first["category"]) == ("high", "Images")
        assert (first["kind"], first["name"]) == ("Pod", "bad")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--result", "fail,error"], ["p-high fail", "team/p-own error"]),
        (
            ["--result", "fail", "--result", "error"],
            ["p-high fail", "team/p-own error"],
        ),
        (["--policy", "p-*"], ["p-high fail", "p-low pass"] + 2 * ["p-low skip"]),
        (["--policy", "*/p-own"], ["team/p-own error"]),
        (["-n", "other"], ["team/p-own error", f"{SCRIPT} warn"]),
        (["-n", "o*", "--severity", "critical"], ["team/p-own error"]),
        (["--category", "Pods"], ["p-high fail"]),
        (["--severity", "info"], []),
    ],
)
def test_filters(
    command: Command, reports_file: Path, flags: list[str], expected: list[str]
) -> None:
    assert _named(_json(command, reports_file, *flags)) == expected


@pytest.mark.parametrize(
    ("dimension", "expected"),
    [
        ("policy", {"p-high", "team/p-own", SCRIPT, "p-low"}),
        ("namespace", {"apps", "other", "(cluster)"}),
        ("severity", {"critical", "high", "low", "(no severity)"}),
        ("category", {"Pods", "(no category)"}),
    ],
)
def test_groups(
    command: Command, reports_file: Path, dimension: str, expected: set[str]
) -> None:
    found = _json(command, reports_file, "--group-by", dimension)["groups"]
    assert {one["name"] for one in found} == expected
    summed = {word: sum(one[word] for one in found) for word in COUNTS}
    assert summed == COUNTS


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ([], 0),
        (["--fail-on", "fail"], 1),
        (["--fail-on", "skip,pass", "--result", "fail"], 0),
        (["--fail-on", "fail", "--fail-on", "error", "-n", "other"], 1),
        (["--fail-on", "fail,error", "--severity", "low"], 0),
    ],
)
@pytest.mark.parametrize(
    "output", ["table", "json", "sarif", "junit", "markdown", "html"]
)
def test_exit_code(
    command: Command, reports_file: Path, output: str, flags: list[str], code: int
) -> None:
    done = command("report", reports_file, "-o", output, *flags)
    assert (done.code, done.err) == (code, "")
    assert done.out


def test_table(command: Command, reports_file: Path) -> None:
    done = command("report", reports_file, "--limit", "3")
    lines = done.out.splitlines()
    assert lines[0].split() == ["POLICY", *map(str.upper, COUNTS), "TOTAL"]
    assert lines[-2] == "... and 3 more results (--limit 0: all)"
    assert lines[-1] == "fail: 1, error: 1, warn: 1, pass: 1, skip: 2"
    assert "\x1b" not in done.out
    assert "<b>\\u001b[31mred second line|cell" in done.out


def test_markdown_is_escaped(command: Command, reports_file: Path) -> None:
    done = command("report", reports_file, "-o", "markdown")
    assert "<script" not in done.out
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in done.out
    row = next(one for one in done.out.splitlines() if one.startswith("| warn"))
    assert row.count(" | ") == 5
    assert "second line\\|cell" in row


def test_sarif_and_junit(command: Command, reports_file: Path) -> None:
    log = json.loads(command("report", reports_file, "-o", "sarif").out)
    check_sarif(log)
    found = log["runs"][0]["results"]
    assert [(one["ruleId"], one["level"]) for one in found] == [
        ("p-high/r", "error"),
        ("team/p-own/r", "error"),
        (f"{SCRIPT}/r", "warning"),
    ]
    root = ET.fromstring(command("report", reports_file, "-o", "junit").out)
    assert root.get("tests") == "6"
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == (
        *("1", "1"),
        "2",
    )


def test_sarif_has_a_physical_location_for_each_result(
    command: Command, tmp_path: Path
) -> None:
    """GitHub rejects the whole file if one result has only a logical location."""
    role = {"kind": "ClusterRole", "name": "system:a b"}
    raw = [
        report(result("p", "fail")),
        report(
            result("q", "warn", resources=[role]),
            namespace="",
            kind="ClusterPolicyReport",
        ),
    ]
    file = tmp_path / "r.json"
    file.write_text(json.dumps(raw))
    log = json.loads(command("report", file, "-o", "sarif").out)
    check_sarif(log)
    places = [one["locations"][0] for one in log["runs"][0]["results"]]
    assert [one["physicalLocation"] for one in places] == [
        {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}
        for uri in ("apps/Pod/web", "ClusterRole/system%3Aa%20b")
    ]
    assert [one["logicalLocations"][0]["fullyQualifiedName"] for one in places] == [
        *("apps/Pod/web", "/ClusterRole/system:a b"),
    ]


class _Elements(HTMLParser):
    """Collects elements with their attributes, and the texts of table cells."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _page(text: str) -> _Elements:
    parser = _Elements()
    parser.feed(text)
    return parser


def test_page_has_no_scripts_and_loads_nothing(
    command: Command, reports_file: Path
) -> None:
    text = command("report", reports_file, "-o", "html", "--title", SCRIPT).out
    page = _page(text)
    names = {tag for tag, _ in page.elements}
    assert not names & {
        "script",
        "img",
        "link",
        "iframe",
        "object",
        "base",
        "form",
        "b",
    }
    for tag, attributes in page.elements:
        active = [one for one in attributes if one.startswith("on") or one == "style"]
        assert not active, tag
        href = attributes.get("href") or "#"
        assert href.startswith("#")
        assert "src" not in attributes
    assert page.texts.count(SCRIPT) == 4  # title, heading, its group and its result
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(sha256(style[1].encode()).digest()).decode()
    policies = [a["content"] for _, a in page.elements if "http-equiv" in a]
    expected = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none';"
    assert policies == [f"{expected} form-action 'none'"]
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_page_keeps_what_looks_like_a_command(command: Command, tmp_path: Path) -> None:
    """A workflow that prints the page must not obey it, and readers see the message."""
    message = "a\n::error::b ##[group]c"
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report(result("p", "fail", message=message))))
    text = command("report", file, "-o", "html").out
    assert "##[" not in text
    assert not re.search(r"^\s*::", text, re.MULTILINE)
    assert message in _page(text).texts


def test_page_is_accessible(command: Command, reports_file: Path) -> None:
    page = _page(command("report", reports_file, "-o", "html").out)
    ids = {a["id"] for _, a in page.elements if "id" in a}
    assert {"policy", "namespace", "severity", "category", "results"} <= ids
    for tag, attributes in page.elements:
        if tag == "a":
            assert (attributes["href"] or "")[1:] in ids
        if tag == "svg":
            assert attributes["aria-hidden"] == "true", "the numbers stand beside it"
        if attributes.get("role") == "region":
            assert attributes["tabindex"] == "0", "it scrolls, so it takes the keyboard"
            assert attributes["aria-labelledby"] in ids
        if tag == "th":
            assert attributes["scope"] in ("col", "row")
    assert ("html", {"lang": "en"}) in page.elements
    words = [text for text in page.texts if text in ("Fail", "Error", "Warn", "Pass")]
    assert len(words) > 4, "no result is told by its colour alone"


def test_page_of_many_results_is_truncated(command: Command, tmp_path: Path) -> None:
    results = [result(f"p-{number}", "pass") for number in range(3000)]
    results.append(result("p-last", "fail"))
    file = tmp_path / "many.json"
    file.write_text(json.dumps(report(*results)))
    text = command("report", file, "-o", "html").out
    assert "The 1,000 most urgent of 3,001 results." in text
    assert "2,951 more with 2,951 results are not shown." in text
    rows = text.partition('id="results"')[2]
    assert rows.count("<tr>") == 1001
    assert "p-last" in rows.partition("</tr>")[2].partition("</tr>")[0]
    everything = command("report", file, "-o", "html", "--limit", "0").out
    assert everything.partition('id="results"')[2].count("<tr>") == 3002


def test_output_file(command: Command, reports_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = command("report", reports_file, "-o", "html", "--output-file", file)
    assert (done.code, done.out) == (0, "")
    assert file.read_text().startswith("<!DOCTYPE html>")
    done = command("report", reports_file, "--output-file", tmp_path / "no" / "f")
    assert done.code == 1
    assert "No such file" in done.err


BAD = """
{reports} --result failed | 1 | 'failed' is not one of fail, error
{reports} --severity urgent | 1 | 'urgent' is not one of critical
{reports} --fail-on failed | 1 | --fail-on: 'failed'
{reports} --group-by kind | 1 | 'kind' is not one of
{reports} --cluster | 1 | name files, or --cluster, not both
{reports} --selector a=b | 1 | --selector has no meaning without --cluster
{reports} --limit -1 | 1 | --limit
{gone} | 1 | no such file
{pods} | 1 | no policy reports in
{broken} | 2 | [policy.syntax]
{unknown} | 2 | unknown result: 'passed'
{odd} | 2 | results is not a list
--cluster --kubeconfig {gone} | 2 | cannot read
| 1 | name files or folders with reports
"""


@pytest.mark.parametrize("line", BAD.strip().splitlines())
def test_invalid_input(
    command: Command, reports_file: Path, pods_file: Path, tmp_path: Path, line: str
) -> None:
    texts = {
        "broken": "a: [",
        "unknown": json.dumps(report(result("p", "passed"))),
        "odd": json.dumps({**report(), "results": {"a": 1}}),
    }
    files = {"reports": reports_file, "pods": pods_file, "gone": tmp_path / "gone"}
    for name, text in texts.items():
        files[name] = tmp_path / f"{name}.yaml"
        files[name].write_text(text)
    words, code, said = (part.strip() for part in line.split("|"))
    done = command("report", *words.format(**files).split())
    assert (done.code, done.out) == (int(code), "")
    assert said in done.err
    assert "Traceback" not in done.err


def _serve(api: FakeApi) -> None:
    api.answers["/apis"] = {
        "kind": "APIGroupDiscoveryList",
        "items": [
            group(
                "wgpolicyk8s.io",
                "v1alpha2",
                resource("policyreports", "PolicyReport"),
                resource(
                    "clusterpolicyreports", "ClusterPolicyReport", scope="Cluster"
                ),
            ),
            group("openreports.io", "v1alpha1", resource("reports", "Report")),
        ],
    }
    for one in REPORTS:
        metadata, kind = one["metadata"], one["kind"]
        space = metadata["namespace"]
        within = f"/namespaces/{space}" if space else ""
        plural = {"ClusterPolicyReport": "clusterpolicyreports", "Report": "reports"}
        api.put(
            f"/apis/{one['apiVersion']}{within}/{plural.get(kind, 'policyreports')}"
            f"/{metadata['name']}",
            scope=one["scope"],
            results=one["results"],
            metadata={"labels": {"team": space}},
        )


def test_cluster(command: Command, api: FakeApi) -> None:
    _serve(api)
    assert _json(command, "--cluster")["summary"] == COUNTS
    assert _named(_json(command, "--cluster", "-n", "apps")) == [
        "p-high fail",
        "p-low pass",
    ]
    assert _named(_json(command, "--cluster", "-n", "o*", "--result", "error")) == [
        "team/p-own error"
    ]


def test_selector_for_a_cluster(command: Command, api: FakeApi) -> None:
    _serve(api)
    done = command("report", "--cluster", "-l", "team=apps", "-o", "json")
    assert done.code == 0
    asked = [path for _, path, _ in api.requests if "reports?" in path]
    assert len(asked) == 3
    assert all("labelSelector=team%3Dapps" in path for path in asked)


def test_a_cluster_without_reports(command: Command, api: FakeApi) -> None:
    done = command("report", "--cluster")
    assert (done.code, done.out) == (1, "")
    assert "the cluster has no kind of policy reports" in done.err


def test_report_kind_removed_meanwhile(command: Command, api: FakeApi) -> None:
    """Otherwise, the other reports would not be shown."""
    _serve(api)
    before = len(_named(_json(command, "--cluster")))
    api.fault("GET /apis/wgpolicyk8s.io/v1alpha2/clusterpolicyreports", 404)
    after = len(_named(_json(command, "--cluster")))
    assert 0 < after < before


def test_an_invalid_report_in_a_cluster_hides_no_other(
    command: Command, api: FakeApi
) -> None:
    """Its author may write reports in one namespace only; the CRD allows the row."""
    _serve(api)
    scope = {"kind": "Pod", "name": "x"}
    api.put(
        "/apis/wgpolicyk8s.io/v1alpha2/namespaces/evil/policyreports/odd",
        scope=scope,
        results=[{"policy": "p"}],
    )
    assert _json(command, "--cluster", "-n", "apps")["results"]
    found = _json(command, "--cluster")
    assert found["summary"] == COUNTS | {"error": COUNTS["error"] + 1}
    (odd,) = (one for one in found["results"] if one.get("namespace") == "evil")
    assert odd["result"] == "error"
    assert "report odd: results[0] has an unknown result" in odd["message"]
    assert (odd["kind"], odd["name"]) == ("Pod", "x")


def test_a_report_names_only_objects_of_its_namespace(
    command: Command, api: FakeApi
) -> None:
    """A user who writes reports in one namespace must not add rows to another."""
    _serve(api)
    own = {"kind": "Pod", "name": "x", "namespace": "apps"}
    api.put(
        "/apis/wgpolicyk8s.io/v1alpha2/namespaces/evil/policyreports/odd",
        scope=own,
        results=[
            {"policy": "odd", "result": "pass"},
            {"policy": "odd", "result": "pass", "resources": [own]},
        ],
    )
    found = _json(command, "--cluster", "--policy", "odd")["results"]
    assert [one["namespace"] for one in found] == ["evil", "evil"]
