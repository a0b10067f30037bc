"""Apply prints the output that pipelines read, and exits with the right code."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from tests.unit.cli.conftest import LATEST_POLICY, Command, pod
from tests.unit.cli.sarif_essentials import check_sarif

FAILED = (
    "policy no-latest -> resource apps/Pod/bad failed:\n"
    "1 - tagged validation error: A tag is required. rule tagged failed at path"
    " /spec/containers/0/image/\n"
)
SUMMARY = "\npass: 1, fail: 1, warn: 0, error: 0, skip: 0 \n"


def test_text(command: Command, policy_file: Path, pods_file: Path) -> None:
    done = command("apply", policy_file, "-r", pods_file)
    banner = "\nApplying 3 policy rule(s) to 2 resource(s)...\n"
    assert (done.code, done.out) == (1, banner + FAILED + SUMMARY)


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_jobs_do_not_change_the_output(
    command: Command, policy_file: Path, tmp_path: Path, jobs: int
) -> None:
    file = tmp_path / "many.yaml"
    names = [f"pod-{number}" for number in range(23)]
    file.write_text("".join(pod(name, "nginx:latest") for name in names))
    done = command("apply", policy_file, "-r", file, "--jobs", jobs)
    told = [x.split("/")[2].split()[0] for x in done.out.splitlines() if "->" in x]
    assert told == names
    assert done.code == 1


def test_sarif_names_file_line_and_severity(
    command: Command, policy_file: Path, pods_file: Path
) -> None:
    done = command("apply", policy_file, "-r", pods_file, "--output-format", "sarif")
    (found,) = check_sarif(json.loads(done.out))
    place = json.loads(json.dumps(found))["locations"][0]
    assert found["ruleId"] == "no-latest/tagged"
    assert place["physicalLocation"]["region"] == {"startLine": 20, "startColumn": 5}
    assert place["physicalLocation"]["artifactLocation"]["uri"] == pods_file.as_uri()
    assert place["logicalLocations"] == [{"fullyQualifiedName": "apps/Pod/bad"}]
    rule = json.loads(done.out)["runs"][0]["tool"]["driver"]["rules"][0]
    assert rule["properties"] == {"tags": ["Images"], "security-severity": "8.0"}
    assert done.code == 1


def test_junit_is_well_formed(
    command: Command, tmp_path: Path, pods_file: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    text = LATEST_POLICY.replace("A tag is required.", "'<b> & \"q\"'")
    policy.write_text(text)
    done = command("apply", policy, "-r", pods_file, "--output-format", "junit")
    suites = ET.fromstring(done.out)
    assert suites.attrib == {"tests": "2", "failures": "1"}
    failure = suites.find("testsuite/testcase/failure")
    assert failure is not None
    assert '<b> & "q"' in str(failure.text)


def test_markdown(command: Command, policy_file: Path, pods_file: Path) -> None:
    done = command("apply", policy_file, "-r", pods_file, "--output-format", "markdown")
    row = "| no-latest | tagged | apps/Pod/bad | Fail | validation error: "
    assert row in done.out
    assert done.out.endswith(SUMMARY)


def test_generated_exceptions_make_the_run_pass(
    command: Command, policy_file: Path, pods_file: Path, tmp_path: Path
) -> None:
    done = command("apply", policy_file, "-r", pods_file, "--generate-exceptions")
    (document,) = yaml.safe_load_all(done.out)
    assert document == {
        "apiVersion": "kyverno.io/v2beta1",
        "kind": "PolicyException",
        "metadata": {
            "name": "no-latest-tagged-apps-bad",
            "labels": {"cleanup.kyverno.io/ttl": "720h0m0s"},
        },
        "spec": {
            "exceptions": [{"policyName": "no-latest", "ruleNames": ["tagged"]}],
            "match": {
                "all": [
                    {
                        "resources": {
                            "kinds": ["Pod"],
                            "names": ["bad"],
                            "namespaces": ["apps"],
                        }
                    }
                ]
            },
        },
    }
    exceptions = tmp_path / "exceptions.yaml"
    exceptions.write_text(done.out)
    again = command("apply", policy_file, "-r", pods_file, "-e", exceptions)
    assert again.code == 0
    assert "with 1 exception(s)" in again.out
    assert "pass: 1, fail: 0, warn: 0, error: 0, skip: 1" in again.out


def test_exceptions_of_controllers_cover_their_pods(
    command: Command, policy_file: Path, tmp_path: Path
) -> None:
    file = tmp_path / "cron.yaml"
    template = {"spec": {"containers": [{"name": "c", "image": "x:latest"}]}}
    job = {"spec": {"template": template}}
    meta = {"name": "nightly", "namespace": "apps"}
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": meta}
    file.write_text(json.dumps({**cron, "spec": {"jobTemplate": job}}))
    done = command(
        "apply", policy_file, "-r", file, "--generate-exceptions",
        "--generated-exception-ttl", "0",
    )  # fmt: skip
    (document,) = yaml.safe_load_all(done.out)
    (entry,) = document["spec"]["match"]["all"]
    assert entry["resources"]["kinds"] == ["CronJob", "Job", "Pod"]
    assert entry["resources"]["names"] == ["nightly", "nightly-*"]
    names = document["spec"]["exceptions"][0]["ruleNames"]
    assert names == ["autogen-cronjob-tagged", "autogen-tagged", "tagged"]
    assert "labels" not in document["metadata"]


def test_exceptions_inside_policies(
    command: Command, policy_file: Path, pods_file: Path
) -> None:
    exceptions = command(
        "apply", policy_file, "-r", pods_file, "--generate-exceptions"
    ).out
    policy_file.write_text(LATEST_POLICY + exceptions)
    assert command("apply", policy_file, "-r", pods_file).code == 1
    flags = ("-r", pods_file, "--exceptions-within-policies")
    assert command("apply", policy_file, *flags).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-s", "a=b", "-f", "v.yaml", "p.yaml", "-r", "x"], "pass the values either"),
        (["-r", "x"], "require policy"),
        (["-", "-r", "-"], "a stdin pipe can be used for either"),
        (["p", "-r", "x", "--json", "y"], "both resource and json files can not"),
        (["p"], "resource file(s) or cluster required"),
        (["p", "-r", "x", "--crd-path", "c", "--kubeconfig", "k"], "crd-paths and"),
        (["p", "--json", "y"], "failed to load JSON payload (unrecognized payload"),
        (
            ["p", "--http-payload", "gone.json"],
            "failed to parse HTTP payload from gone",
        ),
        (
            ["p", "-r", "x", "--context-file", "gone.yaml"],
            "open gone.yaml: no such file",
        ),
        (["p", "-r", "gone.yaml"], "failed to load resources (stat gone.yaml"),
        (
            ["p", "-r", "x", "-f", "gone.yaml"],
            "failed to decode yaml (unable to load variable file: gone.yaml (open gone",
        ),
        (
            ["p", "-r", "x", "-u", "gone.yaml"],
            "failed to load request info (unable to read yaml (unable to read yaml (op",
        ),
        (["p", "-r", "x", "--generated-exception-ttl", "1"], 'invalid argument "1"'),
        (["p", "-r", "x", "-p=maybe"], 'invalid argument "maybe" for "-p, --policy'),
    ],
)
def test_rejected_arguments(
    command: Command, arguments: list[str], message: str
) -> None:
    done = command("apply", *arguments)
    assert done.code == 1
    assert f"Error: {message}" in done.err


def test_cluster_flags_have_no_effect_without_a_cluster(
    command: Command, policy_file: Path, pods_file: Path
) -> None:
    done = command(
        "apply", policy_file, "-r", pods_file, "--concurrent", 4, "--batch-size", 9,
        "--continue-on-error=false", "--show-performance", "-v", 4,
        "--continue-on-fail",
    )  # fmt: skip
    assert done.out.endswith(SUMMARY)


def test_resources_from_a_pipe(policy_file: Path, pods_file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kyverno_mp", "apply", str(policy_file), "-r", "-"],
        input=pods_file.read_bytes(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert FAILED in done.stdout.decode()


def test_warnings(command: Command, policy_file: Path, pods_file: Path) -> None:
    policy_file.write_text(LATEST_POLICY.replace("Enforce", "Audit"))
    flags = ("-r", pods_file, "--audit-warn", "--warn-exit-code", 3)
    done = command("apply", policy_file, *flags)
    assert done.code == 3
    assert "failed as audit warning:" in done.out
    assert done.out.endswith("exit as warnExitCode is 3")


@pytest.mark.parametrize(
    ("text", "code"), [("0x10", 16), ("010", 8), ("1_0", 10), ("-1", -1)]
)
def test_exit_code_of_warnings_is_read_as_by_go(
    command: Command, policy_file: Path, pods_file: Path, text: str, code: int
) -> None:
    policy_file.write_text(LATEST_POLICY.replace("Enforce", "Audit"))
    flags = ("-r", pods_file, "--audit-warn", "--warn-exit-code", text)
    done = command("apply", policy_file, *flags)
    assert done.out.endswith(f"exit as warnExitCode is {code}")
    assert done.code == code


@pytest.mark.parametrize("text", [str(2**63), "x", " 5", ""])
def test_exit_code_of_warnings_has_64_bits(
    command: Command, policy_file: Path, pods_file: Path, text: str
) -> None:
    flags = ("-r", pods_file, "--warn-exit-code", text)
    done = command("apply", policy_file, *flags)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: Invalid value for '--warn-exit-code': ")


CLEANUP = """
apiVersion: kyverno.io/v2beta1
kind: ClusterCleanupPolicy
metadata: {name: old-pods}
spec:
  schedule: "*/5 * * * *"
  match: {any: [{resources: {kinds: [Pod]}}]}
  conditions:
    all: [{key: "{{ target.metadata.name }}", operator: Equals, value: good}]
"""


def test_cleanup_reports_objects_to_delete(
    command: Command, tmp_path: Path, pods_file: Path
) -> None:
    policy = tmp_path / "cleanup.yaml"
    policy.write_text(CLEANUP)
    done = command("apply", policy, "-r", pods_file)
    assert done.code == 1
    assert done.out == (
        "\nApplying 1 policy rule(s) to 2 resource(s)...\n"
        "policy old-pods -> resource apps/Pod/bad failed:\n"
        "1 - old-pods resource did not match\n"
        "\npass: 1, fail: 1, warn: 0, error: 0, skip: 0 \n"
    )
    done = command("apply", policy, "-r", pods_file, "-p", "--output-format", "json")
    rows = json.loads(done.out)["results"]
    told = {
        (row["result"], row["message"], row["properties"]["process"]) for row in rows
    }
    assert told == {
        ("pass", "resource matched", ""),
        ("fail", "resource did not match", ""),
    }


GENERATE = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: note}
spec:
  rules:
  - name: write
    match: {any: [{resources: {kinds: [Pod]}}]}
    generate:
      apiVersion: v1
      kind: ConfigMap
      name: note
      namespace: "{{ request.object.metadata.namespace }}"
      data: {data: {pod: "{{ request.object.metadata.name }}"}}
"""


def test_generated_objects_are_printed_or_written(
    command: Command, tmp_path: Path, pods_file: Path
) -> None:
    policy = tmp_path / "generate.yaml"
    policy.write_text(GENERATE)
    done = command("apply", policy, "-r", pods_file)
    assert done.code == 0
    assert "\npolicy note applied to apps/Pod/bad:\napiVersion: v1\n" in done.out
    assert done.out.count("\n\nGenerate:\nGeneration completed successfully.") == 2
    assert done.out.endswith("\npass: 2, fail: 0, warn: 0, error: 0, skip: 0 \n")
    folder = tmp_path / "out"
    command("apply", policy, "-r", pods_file, "-o", folder)
    written = list(yaml.safe_load_all((folder / "note-generated.yaml").read_text()))
    found = [each["data"]["pod"] for each in written if each]
    assert sorted(found) == ["bad", "good"]


OTHER_STAGES = """
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: labelled}
spec:
  rules:
  - name: label
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {seen: sure}}}}
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: made}
spec:
  rules:
  - name: make
    match: {any: [{resources: {kinds: [Pod]}}]}
    generate:
      apiVersion: v1
      kind: ConfigMap
      name: "{{ request.object.metadata.name }}"
      namespace: apps
      data: {data: {a: b}}
"""


@pytest.mark.parametrize("flags", [[], ["-t"], ["--output-format", "junit"], ["-i"]])
def test_worker_processes_return_all_stages(
    command: Command, policy_file: Path, pods_file: Path, flags: list[str]
) -> None:
    policy_file.write_text(LATEST_POLICY + OTHER_STAGES)
    base = ("apply", policy_file, "-r", pods_file, *flags, "--jobs")
    alone, shared = command(*base, 1), command(*base, 2)
    assert (alone.code, alone.out, alone.err) == (shared.code, shared.out, shared.err)
    if not flags:
        assert "seen: sure" in alone.out
        assert "kind: ConfigMap" in alone.out


@pytest.mark.parametrize(
    ("beside", "counts"),
    [
        # A value of the wrong type: only that document is skipped.
        ({"rules": [{"name": "x", "mutate": {"patchesJson6902": [1]}}]}, True),
        # An unknown field: the whole path is skipped.
        ({"rules": [{"name": "x", "mutat": {}}]}, False),
    ],
)
def test_invalid_document_and_the_others_of_its_file(
    command: Command,
    policy_file: Path,
    pods_file: Path,
    beside: object,
    *,
    counts: bool,
) -> None:
    bad = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "bad"},
        "spec": beside,
    }
    policy_file.write_text(f"{yaml.safe_dump(bad)}---\n{policy_file.read_text()}")
    done = command("apply", policy_file, "-r", pods_file)
    assert (FAILED in done.out) is counts
    assert done.code == int(counts)
    assert f"skipped: {policy_file}" in done.err
    assert "spec.rules[0].mutat" in done.err


@pytest.mark.parametrize(
    "beside",
    [
        "a: [\n",
        "hello\n",
        "kind: ClusterPolicy\n",
        "apiVersion: kyverno.io/v9\nkind: ClusterPolicy\nmetadata: {name: a}\n",
        "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a}\n",
    ],
)
def test_kind_without_a_schema_is_skipped_alone(
    command: Command, policy_file: Path, pods_file: Path, beside: str
) -> None:
    policy = policy_file.read_text()
    for text in (f"{beside}---\n{policy}", f"{policy}\n---\n{beside}"):
        policy_file.write_text(text)
        done = command("apply", policy_file, "-r", pods_file)
        assert FAILED in done.out
        assert f"skipped: {policy_file}" in done.err


@pytest.mark.parametrize(
    ("switch", "is_on"),
    [("-p=1", True), ("--policy-report=true", True), ("--policy-report=f", False)],
)
def test_switches_take_a_value(
    command: Command, policy_file: Path, pods_file: Path, switch: str, *, is_on: bool
) -> None:
    done = command("apply", policy_file, "-r", pods_file, switch)
    assert ("kind: ClusterReport" in done.out) is is_on


_READS_ROLES = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: roles}
spec:
  background: false
  rules:
    - name: r
      match: {any: [{resources: {kinds: [Pod]}}]}
      validate:
        message: no admin
        deny:
          conditions:
            all:
              - {key: "{{ request.roles }}", operator: AnyNotIn, value: ["a:admin"]}
"""


@pytest.mark.parametrize("roles", ["", "roles: []\n"])
def test_user_without_roles_has_no_list_of_roles(
    command: Command, policy_file: Path, pods_file: Path, tmp_path: Path, roles: str
) -> None:
    """An empty list would allow every object: no element of it is missing."""
    policy_file.write_text(_READS_ROLES)
    file = tmp_path / "user.yaml"
    file.write_text(
        "apiVersion: cli.kyverno.io/v1alpha1\nkind: UserInfo\nmetadata: {name: u}\n"
        + roles
        + "userInfo: {username: ann}\n"
    )
    done = command("apply", policy_file, "-r", pods_file, "-u", file, "-p")
    assert "error: 2\n  fail: 0\n  pass: 0\n" in done.out
    assert done.code == 1


_NAMES_ROLE = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  background: false
  rules:
    - name: r
      match: {any: [{resources: {kinds: [Pod]}, clusterRoles: [admin]}]}
      validate:
        message: no account
        deny:
          conditions:
            all:
              - {key: "x{{ serviceAccountName }}", operator: Equals, value: x}
"""


@pytest.mark.parametrize(
    ("text", "failures"),
    [
        ("", 2),
        ("roles: null\n", 2),
        ("userInfo: {username: ''}\n", 2),
        ("synchronize: false\n", 2),
        ("roles: []\n", 0),
        ("userInfo: {groups: []}\n", 0),
        ("userInfo: {extra: {}}\n", 0),
        ("userInfo: {uid: u}\n", 0),
        ("synchronize: true\n", 0),
    ],
)
def test_user_without_any_value_is_no_user(
    command: Command,
    policy_file: Path,
    pods_file: Path,
    tmp_path: Path,
    text: str,
    failures: int,
) -> None:
    """Otherwise a rule with user criteria would not check any object."""
    policy_file.write_text(_NAMES_ROLE)
    file = tmp_path / "user.yaml"
    head = "apiVersion: cli.kyverno.io/v1alpha1\nkind: UserInfo\nmetadata: {name: u}\n"
    file.write_text(head + text)
    done = command("apply", policy_file, "-r", pods_file, "-u", file)
    assert f"pass: 0, fail: {failures}, warn: 0, error: 0, skip: 0 \n" in done.out
    assert done.code == (1 if failures else 0)


def test_deprecated_files_cause_a_warning(
    command: Command, policy_file: Path, pods_file: Path, tmp_path: Path
) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("userInfo: {username: ann}\n")
    done = command("apply", policy_file, "-r", pods_file, "-u", file)
    text = "uses a deprecated schema that will be removed in 1.15\n"
    assert done.out.startswith(f"\nWARNING: user infos file ({file}) {text}")
    file.write_text("globalValues: {a: b}\n")
    done = command("apply", policy_file, "-r", pods_file, "-f", file)
    assert done.out == f"\nWARNING: values file ({file}) {text}"
    assert done.code == 1


def test_names_of_namespaced_and_cleanup_policies(
    command: Command, policy_file: Path, pods_file: Path
) -> None:
    text = LATEST_POLICY.replace("kind: ClusterPolicy", "kind: Policy")
    policy_file.write_text(
        text.replace("name: no-latest", "name: p\n  namespace: apps")
    )
    done = command("apply", policy_file, "-r", pods_file)
    assert "\npolicy p -> resource apps/Pod/bad failed:\n" in done.out
    done = command("apply", policy_file, "-r", pods_file, "-t")
    assert "│ apps/p │ tagged │ apps/Pod/bad " in done.out
    clean_up = {
        "apiVersion": "kyverno.io/v2",
        "kind": "ClusterCleanupPolicy",
        "metadata": {"name": "c"},
        "spec": {
            "schedule": "* * * * *",
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        },
    }
    policy_file.write_text(yaml.safe_dump(clean_up))
    done = command("apply", policy_file, "-r", pods_file, "-t")
    assert "│ c      │      │ apps/Pod/bad " in done.out


@pytest.mark.parametrize("counts", [False, True])
def test_without_a_cluster_every_kind_has_a_namespace(
    command: Command, tmp_path: Path, pods_file: Path, *, counts: bool
) -> None:
    policy = tmp_path / "generate.yaml"
    text = GENERATE.replace("kind: ConfigMap", "kind: Namespace")
    policy.write_text(text if counts else re.sub("      namespace: .*\n", "", text))
    done = command("apply", policy, "-r", pods_file)
    assert ("Policies Skipped" not in done.out) is counts
    assert done.code == int(not counts)


def test_empty_report_is_not_written(
    command: Command, policy_file: Path, tmp_path: Path
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
    for output in ("yaml", "json"):
        flags = ("-p", "--output-format", output)
        done = command("apply", policy_file, "-r", file, *flags)
        assert (done.code, done.out) == (0, "")


def test_generated_objects_are_listed_with_their_trigger(
    command: Command, policy_file: Path, pods_file: Path
) -> None:
    policy_file.write_text(LATEST_POLICY + OTHER_STAGES)
    done = command("apply", policy_file, "-r", pods_file)
    found = re.findall(
        r"^policy (\w+) applied to apps/Pod/(\w+):", done.out, re.MULTILINE
    )
    assert [name for name, _ in found] == ["labelled", "made"] * 2
    assert found[0][1] == found[1][1] != found[2][1] == found[3][1]


def test_a_document_that_is_no_policy_costs_only_itself(
    command: Command, policy_file: Path, pods_file: Path
) -> None:
    policy_file.write_text(f"{pods_file.read_text()}\n---\n{policy_file.read_text()}")
    done = command("apply", policy_file, "-r", pods_file)
    assert FAILED in done.out
    assert "policy type not supported v1, Kind=Pod" in done.err


NOTHING = "{key: '{{ request.object.nothing }}', operator: Equals, value: x}"


@pytest.mark.parametrize(
    ("name", "validate", "reason"),
    [
        (
            "deny",
            f"deny: {{conditions: {{any: [{NOTHING}]}}}}",
            'Unknown key "nothing" in path [expr.unknown_key]',
        ),
        (
            "pattern",
            "pattern: {metadata: {name: '{{ request.object.nothing }}'}}",
            'Unknown key "nothing" in path',
        ),
    ],
)
def test_each_error_is_one_line_with_its_reason(
    command: Command, tmp_path: Path, name: str, validate: str, reason: str
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {{name: {name}}}\n"
        "spec: {background: false, rules: [{name: r, match: {any: [{resources:"
        f" {{kinds: [ConfigMap]}}}}]}}, validate: {{message: m, {validate}}}}}]}}\n"
    )
    maps = tmp_path / "maps.yaml"
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: shop}\n"
    maps.write_text("---\n".join(text % each for each in ("a", "b")))
    done = command("apply", policy, "-r", maps)
    assert done.code == 1
    for line, resource in zip(done.err.splitlines(), ("a", "b"), strict=True):
        assert line.startswith(
            f"error: policy {name}, rule r, shop/ConfigMap/{resource}:"
        )
        assert reason in line
        assert line.endswith("]")


VERIFYING = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: signed}
spec:
  validationFailureAction: Enforce
  rules:
  - name: by-us
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ["*"]
      attestations: [{type: t}]
      additionalExtensions: {a: b}
"""


@pytest.mark.parametrize("flags", [(), ("--policy-report",), ("--jobs", "2")])
def test_skipped_rules_never_pass(
    command: Command, tmp_path: Path, pods_file: Path, flags: tuple[str, ...]
) -> None:
    """A pipeline that relies on signatures must not succeed."""
    policy = tmp_path / "signed.yaml"
    policy.write_text(VERIFYING)
    done = command("apply", policy, "-r", pods_file, *flags)
    assert done.code == 1
    assert "error: 2" in done.out
    lacking = "verifyImages.additionalExtensions"
    first, *errors = done.err.splitlines()
    assert first == f"policy signed, rule by-us: not evaluated: {lacking}"
    assert [lacking in error for error in errors] == [True, True]


def test_skipped_rules_are_shown_in_tables(
    command: Command, tmp_path: Path, pods_file: Path
) -> None:
    policy = tmp_path / "signed.yaml"
    policy.write_text(VERIFYING)
    done = command("apply", policy, "-r", pods_file, "-t", "--detailed-results")
    # The table wraps the message.
    assert done.out.count("verifyImages.additionalExtensions") == 2


def test_invalid_file_in_a_folder_is_reported_with_its_path(
    command: Command, tmp_path: Path, pods_file: Path
) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "b.yaml").write_text("a: 1\nb: [\n")
    done = command("apply", folder, tmp_path / "none", "-r", pods_file)
    assert done.err == (
        f"policy path skipped: {folder}: {folder / 'b.yaml'}: line 3, column 1:"
        " did not find expected node content [policy.syntax]\n"
        f"policy path skipped: {tmp_path / 'none'}: no such file or directory\n"
        f"Error: could not be read: {folder / 'b.yaml'}, {tmp_path / 'none'}\n"
    )
    (folder / "b.yaml").write_text(LATEST_POLICY.replace("rules:", "ruels:"))
    (folder / "a.yaml").write_text(LATEST_POLICY)
    done = command("apply", folder, "-r", pods_file)
    assert done.code == 1, "no policy of the folder was applied"
    assert "b.yaml: policy no-latest: spec.ruels: unknown field" in done.err
    assert "[policy.unknown_field]\n" in done.err


def test_yaml_error_has_the_line_in_the_file(
    command: Command, policy_file: Path, pods_file: Path
) -> None:
    above = policy_file.read_text()
    policy_file.write_text(f"{above}---\na: 1\nb: [\n---\nx: 1\n")
    line = above.count("\n") + 4
    done = command("apply", policy_file, "-r", pods_file)
    assert FAILED in done.out
    assert f"{policy_file}: line {line}, column 1: did not find" in done.err


def test_pod_security_decodes_files_like_go(command: Command, tmp_path: Path) -> None:
    """A field of the wrong type is an error even if no control reads it."""
    policy, pods = tmp_path / "policy.yaml", tmp_path / "pods.yaml"
    policy.write_text(
        "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: p}\n"
        "spec:\n  rules:\n  - name: r\n"
        "    match: {any: [{resources: {kinds: [Pod]}}]}\n"
        "    validate: {podSecurity: {level: baseline}}\n"
    )
    pods.write_text(pod("good") + pod("bad") + "  nodeSelector: 1\n")
    done = command("apply", policy, "-r", pods)
    assert "pass: 1, fail: 0, warn: 0, error: 1, skip: 0" in done.out
    assert done.code == 1


ODD = """
apiVersion: example.com/v1
kind: Odd
metadata: {name: NAME, namespace: apps}
spec: {a: 2, b: 2000000, c: [999999, {d: 12345678901}], e: 1.5}
"""
LABELS = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: labels}
spec:
  background: false
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Odd], names: [named]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {x: z}}}}
"""


def test_numbers_of_unchanged_objects_are_kept(
    command: Command, tmp_path: Path
) -> None:
    """The real program prints doubles with an exponent, and integers after a change."""
    (tmp_path / "p.yaml").write_text(LABELS)
    both = ODD.replace("NAME", "named"), ODD.replace("NAME", "other")
    (tmp_path / "r.yaml").write_text("---".join(both))
    out = command("apply", tmp_path / "p.yaml", "-r", tmp_path / "r.yaml").out
    named, other = out.split("applied to")[1:]
    for text in (
        "a: 2\n",
        "b: 2000000\n",
        "- 999999\n",
        "d: 12345678901\n",
        "e: 1.5\n",
    ):
        assert text in named
    for text in ("a: 2\n", "b: 2e+06\n", "- 999999\n", "d: 1.2345678901e+10\n"):
        assert text in other


STAYING = """
apiVersion: kyverno.io/v2
kind: ClusterCleanupPolicy
metadata: {name: old}
spec:
  schedule: "* * * * *"
  match: {any: [{resources: {kinds: [Pod]}}]}
  conditions: {all: [{key: "{{ target.metadata.name }}", operator: Equals, value: x}]}
"""


def test_object_that_is_not_deleted_is_a_failure(
    command: Command, tmp_path: Path
) -> None:
    """The results equal the real program's, with and without --audit-warn."""
    (tmp_path / "p.yaml").write_text(STAYING)
    (tmp_path / "r.yaml").write_text(pod("a"))
    given = ("apply", tmp_path / "p.yaml", "-r", tmp_path / "r.yaml")
    for more in ((), ("--audit-warn",)):
        done = command(*given, *more)
        assert done.code == 1
        assert "pass: 0, fail: 1, warn: 0, error: 0, skip: 0" in done.out


def test_skipped_image_rules_concern_only_objects_with_their_images(
    command: Command, tmp_path: Path, pods_file: Path
) -> None:
    """An image that the rule does not select needs no signature."""
    policy = tmp_path / "signed.yaml"
    policy.write_text(VERIFYING)
    references = "imageReferences: ["
    assert references in VERIFYING
    head, _, rest = VERIFYING.partition(references)
    selected = f'{head}{references}"*:latest"]{rest.partition("]")[2]}'
    policy.write_text(selected)
    done = command("apply", policy, "-r", pods_file)
    assert "error: 1" in done.out
    policy.write_text(selected.replace("*:latest", "ghcr.io/*"))
    done = command("apply", policy, "-r", pods_file)
    assert "error: 0" in done.out


BOTH = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: label}
spec:
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod, Namespace]}}]}
    mutate: {patchStrategicMerge: {metadata: {labels: {x: "1"}}}}
  - name: v
    match: {any: [{resources: {kinds: [Pod, Namespace]}}]}
    validate: {message: m, pattern: {metadata: {labels: {y: "?*"}}}}
  - name: g
    match: {any: [{resources: {kinds: [Pod]}}]}
    generate:
      {apiVersion: v1, kind: ConfigMap, name: m, namespace: apps, data: {data: {a: b}}}
"""


@pytest.mark.parametrize("form", ["yaml", "json"])
@pytest.mark.parametrize("space", [False, True])
def test_all_of_the_output_with_reports_is_documents(
    command: Command, tmp_path: Path, pods_file: Path, form: str, *, space: bool
) -> None:
    """``report`` reads it, and skips the objects that rules changed or generated."""
    (tmp_path / "p.yaml").write_text(BOTH)
    if space:
        pods_file.write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n")
    arguments = (tmp_path / "p.yaml", "-r", pods_file, "-p", "--output-format", form)
    done = command("apply", *arguments)
    if form == "yaml":
        documents = list(yaml.safe_load_all(done.out))
    else:
        documents = [json.loads(line) for line in done.out.splitlines()]
    kinds = [one["kind"] for one in documents]
    assert kinds[-1].endswith("Report")
    assert ("Namespace" if space else "Pod") in kinds
    assert ("ConfigMap" in kinds) is not space
    output = tmp_path / "output.txt"
    output.write_text(done.out)
    shown = command("report", output)
    assert shown.code == 0, shown.err
    assert "label" in shown.out


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        ("expires: '2999-01-01T00:00:00Z'", ""),
        ("expires: '2020-01-01T00:00:00Z'", "it has expired"),
        ("expires: soon", "metadata.annotations[kyverno-mp.io/expires]: expected a"),
    ],
)
def test_an_expired_exception_exempts_nothing(
    command: Command,
    policy_file: Path,
    pods_file: Path,
    tmp_path: Path,
    annotation: str,
    reason: str,
) -> None:
    exceptions = tmp_path / "exceptions.yaml"
    exceptions.write_text(
        "apiVersion: kyverno.io/v2\nkind: PolicyException\nmetadata:\n  name: e\n"
        f"  annotations:\n    kyverno-mp.io/{annotation}\n"
        "spec:\n  match: {any: [{resources: {kinds: [Pod]}}]}\n"
        "  exceptions: [{policyName: no-latest, ruleNames: [tagged]}]\n"
    )
    done = command("apply", policy_file, "-r", pods_file, "-e", exceptions)
    assert done.code == (1 if reason else 0)
    assert (f"exception e: {reason}" in done.err) is bool(reason)
