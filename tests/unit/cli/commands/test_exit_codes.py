"""Every command's exit codes equal the codes on its help page.

A failure means: a pipeline whose author followed the help treats a failure as a
success.
"""

from pathlib import Path

import pytest

from kyverno_mp.cli.shell.exit_codes import EXITS
from tests.unit.cli.conftest import LATEST_POLICY, Command, pod

TEST = """
apiVersion: cli.kyverno.io/v1alpha1
kind: Test
metadata: {name: t}
policies: [policy.yaml]
resources: [RESOURCE]
results:
- {policy: no-latest, rule: tagged, resources: [POD], kind: Pod, result: pass}
"""
REPORT = """
apiVersion: wgpolicyk8s.io/v1alpha2
kind: PolicyReport
metadata: {name: r, namespace: apps}
results: [{policy: p, rule: r, result: pass}]
"""
RECORDING = """{"kyvernoMpRecording": 1}
{"timeMs":1,"path":"/validate","kind":["","v1","Node"],"answer":{"allowed":true},"request":{"operation":"DELETE","kind":{"version":"v1","kind":"Node"}}}
"""
UNREACHABLE = """
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
"""
SHARD = """\
{"record":"shard","format":1,"version":"1","shard":1,"of":1,"run":"r","arguments":[],"output":{"warn_exit_code":7}}
"""
END = """\
{"record":"end","rows":0,"counts":{"COUNT":1},"objects":1,"total":1,"fingerprint":"1","rest":{}}
"""
# Each row has a command, its arguments, and the code; capitals stand for files below.
SCENES = """
apply | POLICY -r GOOD | 0
apply | POLICY -r BAD | 1
apply | AUDIT -r BAD --audit-warn --warn-exit-code 7 | --warn-exit-code
apply | POLICY -r GOOD --unknown | 1
apply | POLICY --cluster --kubeconfig GONE | 2
apply | POLICY --cluster --kubeconfig UNREACHABLE | 3
merge | SHARDGOOD | 0
merge | SHARDBAD | 1
merge | SHARDWARNS | --warn-exit-code
merge | LOST | 2
test | TESTS | 0
test | FAILING | 1
lint | POLICY | 0
lint | BROKEN | 1
bench | POLICY -r GOOD --seconds 0.01 | 0
bench | BROKEN -r GOOD --seconds 0.01 | 1
bench | --cluster --kubeconfig GONE | 2
bench | --cluster --kubeconfig UNREACHABLE | 3
explain | POLICY | 0
explain | BROKEN | 1
report | REPORTS | 0
report | REPORTS --fail-on pass | 1
report | BROKEN | 2
report | --cluster --kubeconfig GONE | 2
report | --cluster --kubeconfig UNREACHABLE | 3
replay | RECORDING POLICY | 0
replay | RECORDING POLICY --fail-on never | 1
replay | JSON POLICY | 2
facts | POLICY --kubeconfig GONE | 2
facts | --unknown | 1
facts | POLICY --kubeconfig UNREACHABLE | 3
jp | | 0
jp | nothing | 1
jp query | -i JSON a | 0
jp query | -i JSON a( | 1
jp query | -i BROKEN a | 2
jp parse | a | 0
jp parse | a( | 1
jp parse | -f LATIN | 2
jp function | length | 0
jp function | --unknown | 1
json | | 0
json | nothing | 1
json scan | --payload JSON | 0
json scan | --payload JSON --output xml | 1
json scan | --payload BROKEN | 2
fix | | 0
fix | nothing | 1
fix policy | POLICY | 0
fix policy | GONE | 1
fix test | TESTS | 0
fix test | | 1
create | | 0
create | nothing | 1
create exception | e --policy-rules p,r -o NEW | 0
create exception | e --policy-rules p | 1
create metrics-config | -o NEW | 0
create metrics-config | -o GONE | 1
create test | -o NEW | 0
create test | --pass a,b | 1
create user-info | -o NEW | 0
create user-info | -o GONE | 1
create values | -o NEW | 0
create values | -g a | 1
create cluster-role | n -g x --verbs get --resources y -o NEW | 0
create cluster-role | n | 1
docs | -o NEW | 0
docs | | 1
completion | bash | 0
completion | tcsh | 1
oci | | 0
oci | nothing | 1
oci push | POLICY | 1
oci push | POLICY -i UPPER/Case:: | 2
oci push | POLICY -i 127.0.0.1:1/p:1 | 3
oci pull | POLICY -i x/y:1 | 1
oci pull | NEW -i UPPER/Case:: | 2
oci pull | NEW -i 127.0.0.1:1/p:1 | 3
images | | 0
images | nothing | 1
images explain | x -p POLICY | 1
cleanup | --cluster GONE --kubeconfig GONE | 2
cleanup | --unknown | 1
cleanup | --cluster x --kubeconfig UNREACHABLE | 3
generate | --cluster GONE --kubeconfig GONE | 2
generate | --unknown | 1
generate | --cluster x --kubeconfig UNREACHABLE | 3
authors | --kubeconfig GONE | 2
authors | --unknown | 1
authors | --kubeconfig UNREACHABLE | 3
rollout | | 0
rollout | nothing | 1
rollout status | --unknown | 1
rollout status | --kubeconfig GONE | 2
rollout status | --kubeconfig UNREACHABLE | 3
rollout pause | | 1
rollout pause | ClusterPolicy/p --kubeconfig GONE | 2
rollout pause | ClusterPolicy/p --kubeconfig UNREACHABLE | 3
rollout resume | | 1
rollout resume | ClusterPolicy/p --kubeconfig GONE | 2
rollout resume | ClusterPolicy/p --kubeconfig UNREACHABLE | 3
rollout abort | | 1
rollout abort | ClusterPolicy/p --kubeconfig GONE | 2
rollout abort | ClusterPolicy/p --kubeconfig UNREACHABLE | 3
inventory | POLICY | 0
inventory | GONE | 1
inventory | --cluster --kubeconfig GONE | 2
inventory | --cluster --kubeconfig UNREACHABLE | 3
migrate | | 0
migrate | --unknown | 1
migrate | --resource x.y --kubeconfig GONE | 2
migrate | --resource x.y --kubeconfig UNREACHABLE | 3
snapshot | | 0
snapshot | nothing | 1
snapshot inspect | GONE | 1
snapshot inspect | JSON | 3
crds | --output NEW | 0
crds | --unknown | 1
serve | --unknown | 1
serve authz | --mode http --unknown | 1
serve authz | --mode http --kube-policy-source=false | 2
serve | --workers many | 2
help | nothing | 0
version | | 0
version | --unknown | 1
"""
ROWS = [[cell.strip() for cell in row.split("|")] for row in SCENES.split("\n") if row]
ELSEWHERE = {
    ("serve", 0): "tests/faults, a stop by SIGTERM",
    ("serve authz", 0): "tests/faults, a stop by SIGTERM",
    ("serve authz", 3): "tests/unit/process, runtime folders that cannot be used",
    ("serve", 3): "tests/unit/process, runtime folders that cannot be used",
    ("snapshot inspect", 0): "tests/unit/snapshot, which writes one",
    ("facts", 0): "tests/unit/cli/replay/test_facts.py, with a fake API server",
    ("authors", 0): "tests/unit/cli/commands/test_authors.py, with a fake API server",
    **{
        (f"rollout {name}", 0): "tests/unit/cli/commands/test_rollout.py"
        for name in ("status", "pause", "resume", "abort")
    },
    ("cleanup", 0): "tests/unit/cli/commands/test_cleanup.py, with a fake API server",
    ("generate", 0): "tests/unit/cli/commands/test_generate.py, with a fake API server",
    (
        "images explain",
        0,
    ): "tests/unit/cli/commands/test_images_explain.py, with a layout",
    ("images explain", 2): "tests/unit/cli/commands/test_images_explain.py",
    ("oci push", 0): "tests/registry, which runs a registry",
    ("oci pull", 0): "tests/registry, which runs a registry",
}


def _files(folder: Path) -> dict[str, str]:
    files = {
        "POLICY": ("policy.yaml", LATEST_POLICY),
        "AUDIT": ("audit.yaml", LATEST_POLICY.replace("Enforce", "Audit")),
        "GOOD": ("good.yaml", pod("good")),
        "BAD": ("bad.yaml", pod("bad", "nginx:latest")),
        "BROKEN": ("broken.yaml", "a: [\n"),
        "JSON": ("value.json", '{"a": 1}'),
        "REPORTS": ("reports.yaml", REPORT),
        "RECORDING": ("recording.jsonl", RECORDING),
        **{
            f"SHARD{word}": (f"{word}.jsonl", SHARD + END.replace("COUNT", count))
            for word, count in (
                ("GOOD", "passed"),
                ("BAD", "failed"),
                ("WARNS", "warned"),
            )
        },
        "LOST": ("lost.jsonl", SHARD),
        "UNREACHABLE": ("kubeconfig", UNREACHABLE),
        "TESTS": ("tests/kyverno-test.yaml", TEST.replace("POD", "good")),
        "FAILING": ("failing/kyverno-test.yaml", TEST.replace("POD", "bad")),
    }
    found = {"GONE": str(folder / "gone" / "x"), "NEW": str(folder / "new")}
    for word, (name, text) in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        is_test = name.endswith("kyverno-test.yaml")
        if is_test:
            resource = "../good.yaml" if word == "TESTS" else "../bad.yaml"
            text = text.replace("RESOURCE", resource)  # noqa: PLW2901 - one more step
            text = text.replace("policy.yaml", "../policy.yaml")  # noqa: PLW2901 - same
        file.write_text(text)
        found[word] = str(file.parent if is_test else file)
    (folder / "latin").write_bytes(b"\xe9")
    return found | {"LATIN": str(folder / "latin")}


@pytest.mark.parametrize(
    ("path", "words", "code"), ROWS, ids=[" ".join(r) for r in ROWS]
)
def test_code(
    command: Command, tmp_path: Path, path: str, words: str, code: str
) -> None:
    files = _files(tmp_path)
    given = [files.get(word, word) for word in words.split()]
    done = command(*path.split(), *given)
    wanted = 7 if code == "--warn-exit-code" else int(code)
    assert done.code == wanted, done.err
    assert (wanted == 0) or "Error: " in done.err or done.out
    assert "Traceback" not in done.err


def test_every_documented_code_is_reached() -> None:
    reached = {(path, int(code) if code.isdigit() else code) for path, _, code in ROWS}
    wanted = {
        (path, exit_code.code)
        for path, exits in EXITS.items()
        for exit_code in exits
        if path and exit_code.code not in (70, 130)
    }
    assert reached | set(ELSEWHERE) == wanted
    assert not reached & set(ELSEWHERE)


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt, 130), (ValueError, 70)]
)
def test_interrupts_and_defects(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    code: int,
) -> None:
    def fail(_text: str) -> None:
        raise error

    monkeypatch.setattr("kyverno_mp.cli.version.click.echo", fail)
    assert command("version").code == code
