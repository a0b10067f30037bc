"""The shards of a run give together what one run gives, and none is lost unnoticed.

A failure means: an audit of a fleet misses objects, counts some twice, or passes
although a part of it never ran.
"""

import hashlib
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli.conftest import LATEST_POLICY, Command, pod
from tests.unit.docs.citing import ROOT

MORE_POLICIES = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: labelled}
spec:
  rules:
  - name: team
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate:
      patchStrategicMerge:
        metadata: {labels: {team: "{{request.object.metadata.name}}"}}
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: generated}
spec:
  rules:
  - name: quota
    match: {any: [{resources: {kinds: [Namespace]}}]}
    generate:
      apiVersion: v1
      kind: ConfigMap
      name: made
      namespace: "{{request.object.metadata.name}}"
      data: {data: {size: "1"}}
---
apiVersion: policies.kyverno.io/v1
kind: ValidatingPolicy
metadata: {name: named}
spec:
  matchConstraints:
    resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods, secrets]
  validations: [{expression: "object.metadata.name != 'p3'", message: not p3}]
---
apiVersion: policies.kyverno.io/v1
kind: DeletingPolicy
metadata: {name: deleted}
spec:
  schedule: "* * * * *"
  conditions: [{name: old, expression: "object.metadata.name == 'p1'"}]
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: ["*"], resources: [pods]}
---
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: broken}
spec:
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate: {message: m, pattern: {"^(spec)": 1}}
"""
EXCEPTION = {
    "apiVersion": "kyverno.io/v2",
    "kind": "PolicyException",
    "metadata": {"name": "e", "namespace": "apps"},
    "spec": {
        "match": {"any": [{"resources": {"kinds": ["Pod"], "names": ["p2"]}}]},
        "exceptions": [{"policyName": "no-latest", "ruleNames": ["tagged"]}],
    },
}
OBJECTS: list[Any] = [
    *(
        yaml.safe_load(
            pod(f"p{n}", "nginx:latest" if n % 2 else "nginx:1", f"n{n % 3}")
        )
        for n in range(12)
    ),
    *(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"n{n}"}}
        for n in range(3)
    ),
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "namespace": "n1"},
        "data": None,
    },
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "c-"}},
    EXCEPTION,
]


def _lines(objects: Sequence[Any]) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in objects)


INPUTS = {
    "dump.jsonl": _lines(OBJECTS),
    "objects.yaml": yaml.safe_dump_all(OBJECTS),
    "list.json": json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": [*OBJECTS, None]}, indent=1
    ),
    "lists.jsonl": _lines(
        [
            {"apiVersion": "v1", "kind": "PodList", "items": OBJECTS[:12]},
            {"apiVersion": "v1", "kind": "List", "items": OBJECTS[12:]},
        ]
    ),
}
OUTPUTS = (
    "",
    "--table --detailed-results",
    "--stdin",
    "--output-format json --generate-exceptions",
    "--output-format sarif",
    "--output-format junit",
    "--output-format tap",
    "--output-format markdown --audit-warn",
    "--exceptions-with-resources --table",
    "--warn-no-pass --warn-exit-code 5",
    "--require-valid",
    "--continue-on-fail --set a=b",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "policies.yaml").write_text(LATEST_POLICY + "---" + MORE_POLICIES)
    for name, text in INPUTS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shards(command: Command, of: int, *arguments: object) -> list[str]:
    """Run the shards, and return the names of their files, last shard first."""
    names = []
    for number in range(of, 0, -1):
        done = command("apply", *arguments, "--shard", f"{number}/{of}")
        assert done.code == 0, done.err
        names.append(f"shard-{number}.jsonl")
        Path(names[-1]).write_text(done.out)
    return names


def records(name: str) -> list[dict[str, Any]]:
    """Return the records of a file."""
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


@pytest.mark.parametrize("flags", OUTPUTS)
def test_shards_print_what_one_run_prints(
    command: Command, folder: Path, flags: str
) -> None:
    arguments = ("p", "-r", "dump.jsonl", *flags.split())
    one = command("apply", *arguments)
    merged = command("merge", *shards(command, 3, *arguments))
    assert (merged.code, merged.out) == (one.code, one.out)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("of", [1, 2, 7])
def test_shards_of_every_input(
    command: Command, folder: Path, name: str, of: int
) -> None:
    one = command("apply", "p", "-r", name, "-t")
    merged = command("merge", *shards(command, of, "p", "-r", name, "-t"))
    assert (merged.code, merged.out) == (one.code, one.out)
    # Six tags, one name, and eleven Pods that the DeletingPolicy keeps.
    assert one.out.count(" Fail ") == 6 + 1 + 11


def test_reports_are_those_of_one_run(command: Command, folder: Path) -> None:
    arguments = ("p", "-r", "dump.jsonl", "-p", "--output-format", "json")
    both = [
        command("apply", *arguments),
        command("merge", *shards(command, 4, *arguments)),
    ]
    seconds = re.compile(r'"seconds":\d+')
    one, merged = (seconds.sub("", done.out) for done in both)
    assert merged == one
    assert one.count('"result":') > len(OBJECTS)


def part_of(raw: dict[str, Any], of: int) -> int:
    """Return the number of the part, as docs/fleets.md states it."""
    group = raw["apiVersion"].rpartition("/")[0]
    metadata = raw["metadata"]
    namespace = metadata.get("namespace") or "default"
    key = "\0".join((group, raw["kind"], namespace, metadata.get("name", "")))
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % of + 1


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("source", ["file", "-"])
def test_the_identity_alone_decides(
    command: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: int,
    source: str,
) -> None:
    text = _lines(OBJECTS[::order])
    (folder / "file").write_text(text)
    for number in (1, 2, 3):
        piped = io.TextIOWrapper(io.BytesIO(text.encode()))
        monkeypatch.setattr(sys, "stdin", piped)
        done = command("apply", "p", "-r", source, "-t", "--shard", f"{number}/3")
        rows = [json.loads(line) for line in done.out.splitlines()]
        named = {row["name"] for row in rows if row.get("policy") == "no-latest"}
        assert named == {
            raw["metadata"]["name"]
            for raw in OBJECTS
            if raw["kind"] == "Pod" and part_of(raw, 3) == number
        }
        mine = [raw for raw in OBJECTS if part_of(raw, 3) == number]
        assert (rows[-1]["objects"], rows[-1]["total"]) == (len(mine), len(OBJECTS))


def test_objects_of_other_shards_are_not_parsed(command: Command, folder: Path) -> None:
    calls = 0

    def count(frame: Any, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_name == "normalised"

    mine = [raw for raw in OBJECTS if part_of(raw, 5) == 2 or raw is EXCEPTION]
    sys.setprofile(count)
    try:
        command("apply", "p", "-r", "dump.jsonl", "--shard", "2/5")
    finally:
        sys.setprofile(None)
    assert calls == len(mine) < len(OBJECTS) / 2


def _cut(name: str) -> None:
    path = Path(name)
    path.write_text(path.read_text()[:-40])


def _without_end(name: str) -> None:
    path = Path(name)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    "lose", [Path.unlink, _cut, _without_end], ids=["gone", "cut", "ended early"]
)
def test_lost_shard_is_named_and_run_again(
    command: Command, folder: Path, lose: Any
) -> None:
    arguments = ("p", "-r", "dump.jsonl", "--table", "--set", "a=b c")
    one = command("apply", *arguments)
    names = shards(command, 3, *arguments)
    lose(Path("shard-2.jsonl"))
    left = [name for name in names if Path(name).exists()]
    done = command("merge", *left)
    assert (done.code, done.out) == (2, "")
    assert "shard 2 of 3 lost or incomplete" in done.err
    again = shlex.split(done.err.splitlines()[-1])
    assert again[:4] == ["kyverno-mp", "apply", "--shard", "2/3"]
    Path("again.jsonl").write_text(command(*again[1:]).out)
    merged = command("merge", *left, "again.jsonl")
    assert (merged.code, merged.out) == (one.code, one.out)


def _changed(name: str, old: str, new: str) -> None:
    path = Path(name)
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        (("p/policies.yaml", "A tag is required", "Tag!"), (), "policies, values or"),
        ((), ("--audit-warn",), "policies, values or flags"),
        ((), ("--set", "x=y"), "policies, values or flags"),
        (("dump.jsonl", '"p4"', '"p44"'), (), "the objects changed"),
        (("p/policies.yaml", "nothing", ""), (), ""),
    ],
)
def test_shards_of_different_runs_do_not_merge(
    command: Command,
    folder: Path,
    change: tuple[str, ...],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    shards(command, 2, "p", "-r", "dump.jsonl")
    if change:
        _changed(*change)
    other = command("apply", "p", "-r", "dump.jsonl", *arguments, "--shard", "2/2")
    Path("other.jsonl").write_text(other.out)
    done = command("merge", "shard-1.jsonl", "other.jsonl")
    assert said in done.err
    assert done.code == (2 if said else 1)


def test_other_number_of_shards_and_other_files(command: Command, folder: Path) -> None:
    names = shards(command, 2, "p", "-r", "dump.jsonl")
    more = command("apply", "p", "-r", "dump.jsonl", "--shard", "2/3")
    Path("more.jsonl").write_text(more.out)
    done = command("merge", names[0], "more.jsonl")
    assert done.code == 2
    assert "other number of shards" in done.err
    done = command("merge", *names, "dump.jsonl")
    assert (done.code, "merge.record" in done.err) == (2, True)
    assert command("merge", *names, *names).code == 1
    Path("empty").write_text("")
    assert command("merge", "empty").code == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--shard 0/3", "expected I/N"),
        ("--shard 4/3", "expected I/N"),
        ("--shard 1", "expected I/N"),
        ("--shard -1/3", "expected I/N"),
        ("--shard 1/2 --cluster", "a cluster changes meanwhile"),
        ("--shard 1/2 --output x", "do not write"),
        ("--shard 1/2 --watch", "is one run"),
    ],
)
def test_what_has_no_parts_is_refused(
    command: Command, folder: Path, flags: str, said: str
) -> None:
    done = command("apply", "p", "-r", "dump.jsonl", *flags.split())
    assert done.code == 1
    assert said in done.err


def test_objects_that_need_all_others_are_refused(
    command: Command, folder: Path
) -> None:
    entry = {
        "apiVersion": "kyverno.io/v2alpha1",
        "kind": "GlobalContextEntry",
        "metadata": {"name": "g"},
    }
    (folder / "dump.jsonl").write_text(_lines([*OBJECTS, entry]))
    done = command("apply", "p", "-r", "dump.jsonl", "--shard", "1/2")
    assert done.code == 1
    assert "reads all objects" in done.err


def test_passwords_are_in_no_record(command: Command, folder: Path) -> None:
    (name,) = shards(
        command, 1, "p", "-r", "dump.jsonl", "--username=u7", "--password=s7cret"
    )
    text = Path(name).read_text()
    assert "s7cret" not in text
    assert "u7" not in text


def test_rows_have_the_documented_fields(command: Command, folder: Path) -> None:
    """Programs of others read these records."""
    page = (ROOT / "docs/fleets.md").read_text()
    (name,) = shards(command, 1, "p", "-r", "dump.jsonl", "--table")
    rows = records(name)
    assert {row["record"] for row in rows} == {"shard", "row", "end"}
    for row in rows:
        missing = [key for key in row if f"`{key}`" not in page and key != "record"]
        assert not missing
    failed = [row for row in rows if row.get("result") == "fail"]
    bad = {(row["policy"], row.get("rule", ""), row["name"]) for row in failed}
    tagged = {("no-latest", "tagged", f"p{n}") for n in range(1, 12, 2)}
    kept = {("deleted", "deleted", f"p{n}") for n in range(12) if n != 1}
    assert bad == {*tagged, *kept, ("named", "", "p3")}


def test_example_of_a_job_runs(folder: Path) -> None:
    page = (ROOT / "docs/fleets.md").read_text()
    job = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    container = job["spec"]["template"]["spec"]["containers"][0]
    (folder / "policies").symlink_to("p")
    program = folder / "kyverno-mp"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kyverno_mp "$@"\n')
    program.chmod(0o700)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}

    def run(*words: str, index: int = 0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=folder,
            env={**env, "JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            text=True,
            check=False,
        )

    for index in range(job["spec"]["completions"]):
        done = run(*container["command"], *container["args"], index=index)
        assert done.returncode == 0, done.stderr
    one = run("kyverno-mp", "apply", "policies/", "-r", "dump.jsonl")
    merged = run("kyverno-mp", "merge", *(p.name for p in folder.glob("shard-*.jsonl")))
    assert (merged.returncode, merged.stdout) == (one.returncode, one.stdout)


@pytest.mark.parametrize("shard", [(), ("--shard", "1/1")], ids=["a run", "a shard"])
@pytest.mark.parametrize(
    ("after", "said"),
    [
        (b'{"kind": "Pod", "padding": "' + 5000 * b"x" + b'"}\n', "larger than"),
        (5000 * b"\n", "larger than"),
        (b'{"apiVersion": "v1", "kind": "Po', "line 3"),
    ],
    ids=["a long line", "blank lines", "cut in the middle"],
)
def test_a_dump_that_breaks_off_is_not_half_a_run(
    command: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    shard: Sequence[str],
    after: bytes,
    said: str,
) -> None:
    """The objects before it were read: without an error, the others would be lost."""
    monkeypatch.setattr("kyverno_mp.cli.sources.resources.POLICY_FILE_BYTES_MAX", 4096)
    fine = json.dumps(yaml.safe_load(pod("fine", "nginx:1"))).encode() + b"\n"
    (folder / "one.yaml").write_text(LATEST_POLICY)
    dump = folder / "broken.jsonl"
    dump.write_bytes(fine + fine)
    assert command("apply", "one.yaml", "-r", dump, *shard).code == 0
    dump.write_bytes(fine + fine + after)
    done = command("apply", "one.yaml", "-r", dump, *shard)
    assert done.code == 1
    assert dump.name in done.err
    assert said in done.err
    assert '"record":"end"' not in done.out


@pytest.mark.parametrize(
    ("of", "said"), [(10**15, "and 999999999999979 more"), (0, "or none")]
)
def test_a_forged_number_of_shards_is_no_work(
    command: Command, folder: Path, of: int, said: str
) -> None:
    (name,) = shards(command, 1, "p", "-r", "dump.jsonl")
    _changed(name, '"of":1', f'"of":{of}')
    done = command("merge", name)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_shard_without_objects_is_a_shard(command: Command, folder: Path) -> None:
    """The dump has objects, so nothing is said about it."""
    (folder / "one.yaml").write_text(pod("alone", "nginx:1"))
    (folder / "policy.yaml").write_text(LATEST_POLICY)
    runs = [
        command("apply", "policy.yaml", "-r", "one.yaml", "--shard", f"{number}/9")
        for number in range(1, 10)
    ]
    assert [(run.code, run.err) for run in runs] == 9 * [(0, "")]
