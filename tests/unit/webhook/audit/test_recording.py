"""The content, exclusions and size of the recording.

A failure means: a Secret's value is on a disk, or the recording grows without limit.
"""

import gzip
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.leader.cluster_data import NAMES
from kyverno_mp.limits import (
    RECORDING_FILE_SHARE,
    RECORDING_QUEUE_REVIEWS_MAX,
    RECORDING_REVIEW_BYTES_MAX,
)
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.configured import SETTINGS
from kyverno_mp.snapshot.policies import POLICIES
from kyverno_mp.telemetry.collect import views
from kyverno_mp.telemetry.families import RECORDED, RECORDED_REVIEWS
from kyverno_mp.webhook.recording.files import RecordingFiles
from kyverno_mp.webhook.recording.recorder import ReviewRecorder, recorder_of
from kyverno_mp.webhook.recording.redact import COPIES, LAST_APPLIED, Redaction
from kyverno_mp.webhook.start import make_start
from tests.unit.webhook.attach.test_start import Pod, _policies
from tests.unit.webhook.review.test_service import FAIL, Bench
from tests.unit.webhook.stub import StubPlan, response
from tests.waiting import wait_on_loop

SECRET = "cGFzc3dvcmQtMTIz"  # not a real account
MIB = 1024 * 1024


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return all lines except headers, by file."""
    found: list[dict[str, Any]] = []
    for file in sorted(folder.iterdir()):
        header, *lines = gzip.decompress(file.read_bytes()).splitlines()
        assert json.loads(header)["kyvernoMpRecording"] == 1
        found += map(json.loads, lines)
    return found


def recorder(
    folder: Path, redact: str = "", one_of: int = 1, bytes_max: int = MIB
) -> ReviewRecorder:
    made = recorder_of(
        Settings(
            record_dir=str(folder),
            record_redact=redact,
            record_one_of=one_of,
            record_bytes_max=bytes_max,
            webhook_workers=1,
        )
    )
    assert made is not None
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "recording"


def _review(kind: str, resource: dict[str, Any], **more: Any) -> bytes:
    group, _, version = resource.get("apiVersion", "v1").rpartition("/")
    request = {
        "uid": "u",
        "kind": {"group": group, "version": version, "kind": kind},
        "resource": {"group": group, "version": version, "resource": "x"},
        "operation": "CREATE",
        "namespace": "apps",
        "userInfo": {"username": "ann", "groups": ["dev"]},
        "object": {"kind": kind, "metadata": {"name": "n"}, **resource},
        **more,
    }
    return json.dumps({"request": request}).encode()


def _recorded(
    folder: Path, body: bytes, redact: str = "", patch: Any = ()
) -> dict[str, Any]:
    made = recorder(folder, redact)
    made.start()
    request = decode(body)
    made.record(request, "/validate/fail", [], patch, allowed=True, failed=False)
    made.stop(5)
    (line,) = lines_of(folder)
    for file in folder.iterdir():
        assert SECRET.encode() not in gzip.decompress(file.read_bytes())
    return line


def test_recording_is_off_by_default(tmp_path: Path) -> None:
    assert recorder_of(Settings()) is None
    assert list(tmp_path.iterdir()) == []


def _annotated(name: str = LAST_APPLIED) -> dict[str, Any]:
    return {"name": "n", "annotations": {name: SECRET, "team": "a"}}


LEAKS: dict[str, tuple[bytes, str]] = {
    "data": (_review("Secret", {"data": {"key": SECRET}}), ""),
    "stringData": (_review("Secret", {"stringData": {"key": SECRET}}), ""),
    "old object": (
        _review(
            "Secret",
            {"data": {}},
            operation="UPDATE",
            oldObject={"kind": "Secret", "data": {"key": SECRET}},
        ),
        "",
    ),
    "deleted": (
        _review(
            "Secret",
            {},
            operation="DELETE",
            object=None,
            oldObject={"kind": "Secret", "data": {"key": SECRET}},
        ),
        "",
    ),
    **{
        f"copy in {name}": (_review("Secret", {"metadata": _annotated(name)}), "")
        for name in COPIES
    },
    "another group's": (
        _review("Secret", {"apiVersion": "vault.io/v1", "data": {"a": [SECRET]}}),
        "",
    ),
    "command": (_review("PodExecOptions", {"command": ["sh", f"-p{SECRET}"]}), ""),
    "token": (_review("TokenReview", {"spec": {"token": SECRET}}), ""),
    "token of an account": (
        _review("TokenRequest", {"status": {"token": SECRET}}),
        "",
    ),
    "extra of the user": (
        _review("Pod", {}, userInfo={"extra": {"acme.io/session": [SECRET]}}),
        "",
    ),
    "configured": (
        _review("ConfigMap", {"data": {"a": {"b": SECRET}}}),
        "ConfigMap:data",
    ),
    "configured, each": (
        _review(
            "Pod",
            {"spec": {"containers": [{"env": [{"name": "A", "value": SECRET}]}]}},
        ),
        "Po*:spec.containers[].env[].value",
    ),
    "environment": (
        _review(
            "Pod",
            {"spec": {"initContainers": [{"env": [{"name": "A", "value": SECRET}]}]}},
        ),
        "",
    ),
    "environment of a custom resource, as a map": (
        _review("Workflow", {"spec": {"steps": [{"run": {"env": {"A": SECRET}}}]}}),
        "",
    ),
    "environment as texts": (_review("Job", {"spec": {"env": [f"A={SECRET}"]}}), ""),
    "arguments": (_review("Pod", {"spec": {"containers": [{"args": [SECRET]}]}}), ""),
    "argument, one text": (_review("Task", {"spec": {"args": f"-p {SECRET}"}}), ""),
    "command of a template": (
        _review("CronJob", {"spec": {"x": [{"command": ["sh", "-c", SECRET]}]}}),
        "",
    ),
    "command of a probe": (
        _review(
            "Pod",
            {"spec": {"c": [{"livenessProbe": {"exec": {"command": [SECRET]}}}]}},
        ),
        "",
    ),
    "unknown annotation": (
        _review("Pod", {"metadata": {"annotations": {"example.com/a": SECRET}}}),
        "",
    ),
    "annotation without a domain": (
        _review("Ingress", {"metadata": {"annotations": {"auth": SECRET}}}),
        "",
    ),
    "annotation of a template": (
        _review(
            "Deployment",
            {"spec": {"template": {"metadata": {"annotations": {"b": SECRET}}}}},
        ),
        "",
    ),
    "look-alike domain": (
        _review("Pod", {"metadata": {"annotations": {"notkubernetes.io/a": SECRET}}}),
        "",
    ),
    "configured, copy": (
        _review("ConfigMap", {"metadata": _annotated(), "data": {"a": SECRET}}),
        "ConfigMap:data",
    ),
}


@pytest.mark.parametrize("name", LEAKS)
def test_file_contains_no_secret(folder: Path, name: str) -> None:
    body, redact = LEAKS[name]
    assert SECRET.encode() in body
    line = _recorded(folder, body, redact)
    assert line["redacted"], "a replay must know what it cannot see"
    assert "***" in json.dumps(line["request"])


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "/data/key", "value": SECRET},
        {"op": "add", "path": "/data", "value": {"key": SECRET}},
        {"op": "replace", "path": "", "value": {"data": {"key": SECRET}}},
        {"op": "add", "path": "/stringData", "value": {"a/b": SECRET}},
        {
            "op": "add",
            "path": f"/metadata/annotations/{LAST_APPLIED.replace('/', '~1')}",
            "value": SECRET,
        },
        {"op": "add", "path": "/metadata", "value": _annotated()},
    ],
)
def test_patch_contains_no_secret(folder: Path, operation: Any) -> None:
    line = _recorded(folder, _review("Secret", {"data": {}}), patch=[operation])
    (stored,) = line["answer"]["patch"]
    assert stored["path"] == operation["path"]
    assert "***" in json.dumps(stored)


@pytest.mark.parametrize(
    "operation",
    [
        {
            "op": "add",
            "path": "/spec/containers/0/env/-",
            "value": {"name": "A", "value": SECRET},
        },
        {"op": "replace", "path": "/spec/containers/0/env/1/value", "value": SECRET},
        {"op": "add", "path": "/spec/containers/0/args", "value": [SECRET]},
        {"op": "add", "path": "/spec/containers/1/command/2", "value": SECRET},
        {"op": "add", "path": "/metadata/annotations", "value": {"a": SECRET}},
        {"op": "add", "path": "/metadata/annotations/e.com~1a", "value": SECRET},
    ],
)
def test_patch_contains_no_hidden_value(folder: Path, operation: Any) -> None:
    line = _recorded(folder, _review("Pod", {"spec": {}}), patch=[operation])
    (stored,) = line["answer"]["patch"]
    assert stored["path"] == operation["path"]
    assert "***" in json.dumps(stored)


def test_names_and_known_annotations_are_kept(folder: Path) -> None:
    reference = {"secretKeyRef": {"name": "s", "key": "k"}}
    annotations = {
        "kubernetes.io/change-cause": "x",
        "pod-security.kubernetes.io/audit": "y",
        "policies.kyverno.io/title": "z",
    }
    pod = {
        "metadata": {"annotations": annotations, "labels": {"env": "prod"}},
        "spec": {
            "containers": [
                {"name": "c", "env": [{"name": "A", "valueFrom": reference}]}
            ]
        },
    }
    line = _recorded(folder, _review("Pod", pod))
    assert "redacted" not in line
    assert "***" not in json.dumps(line["request"])


@pytest.mark.parametrize("plain", ["env", "args", "annotations"])
def test_operator_keeps_values_plain(plain: str) -> None:
    pod = {
        "metadata": {"annotations": {"a": "annotations"}},
        "spec": {"containers": [{"args": ["args"], "env": [{"value": "env"}]}]},
    }
    raw = json.loads(_review("Pod", pod))["request"]
    stored, missing = Redaction(plain=plain).review(raw, "Pod")
    text = json.dumps(stored["object"])
    assert [one for one in ("env", "args", "annotations") if f': "{one}"' in text] == (
        [plain] if plain != "args" else []
    )
    assert ('["args"]' in text) == (plain == "args")
    assert len(missing) == 2


@pytest.mark.parametrize("plain", ["annotations", "annotations,env"])
def test_copy_of_an_object_does_not_keep_what_the_object_hides(plain: str) -> None:
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": SECRET, "a": "b"}
    raw = json.loads(_review("Pod", {"metadata": {"annotations": annotations}}))
    stored, _ = Redaction(plain=plain).review(raw["request"], "Pod")
    kept = stored["object"]["metadata"]["annotations"]
    assert list(kept.values()) == ["***", "b"]


def test_recorded_review_is_complete_except_for_redacted_values(folder: Path) -> None:
    extra = {"authentication.kubernetes.io/pod-name": ["p"]}
    user = {"username": "ann", "groups": ["dev"], "extra": extra}
    body = _review("Secret", {"type": "Opaque", "data": {"a": SECRET}}, userInfo=user)
    sent = json.loads(body)["request"]
    line = _recorded(folder, body)
    assert line["redacted"] == ["/object/data"]
    sent["object"]["data"] = {"a": "***"}
    assert line["request"] == sent
    assert line["kind"] == ["", "v1", "Secret"]


def test_request_is_not_changed() -> None:
    raw = json.loads(_review("Secret", {"data": {"a": SECRET}}))["request"]
    before = json.dumps(raw)
    Redaction().review(raw, "Secret")
    assert json.dumps(raw) == before


def _bench(folder: Path, plan: StubPlan | Exception | None, **parts: Any) -> Any:
    made = recorder(folder)
    made.start()
    return Bench(plan, recording=made, **parts), made


def test_answers(folder: Path) -> None:
    allowing = StubPlan()
    denying = StubPlan(enforce=[response()])
    for plan in (allowing, denying, RuntimeError("x")):
        bench, made = _bench(folder, plan)
        bench.ask(namespace="apps")
        made.stop(5)
    answers = [one["answer"] for one in lines_of(folder)]
    assert sorted(answers, key=json.dumps) == [
        {"allowed": False, "failed": True},
        {"allowed": False, "policies": ["p"]},
        {"allowed": True},
    ]


def test_filtered_requests_are_not_recorded(folder: Path) -> None:
    class Everything:
        def excludes(self, _request: object) -> bool:
            return True

    bench, made = _bench(folder, StubPlan(), filters=Everything())
    assert bench.ask()["allowed"]
    made.stop(5)
    assert list(folder.iterdir()) == []


def test_failing_recorder_changes_no_answer() -> None:
    class Broken:
        def record(self, *_given: object, **_flags: object) -> None:
            raise OSError

    for plan, allowed in ((StubPlan(), True), (StubPlan(enforce=[response()]), False)):
        bench = Bench(plan, recording=Broken())
        assert bench.ask()["allowed"] is allowed
        assert bench.records.errors == ["webhook.defect"]


def test_sampling(folder: Path) -> None:
    made = recorder(folder, one_of=10)
    made.start()
    for _ in range(100):
        made.record(_request(), FAIL.path, [], (), allowed=True, failed=False)
    made.stop(5)
    assert made.drain() == {("written",): 10}
    assert len(lines_of(folder)) == 10


def _request(kind: str = "Pod", text: str = "") -> Any:
    return decode(_review(kind, {"spec": {"text": text}}))


def test_full_queue_counts_drops(folder: Path) -> None:
    made = recorder(folder)
    for _ in range(RECORDING_QUEUE_REVIEWS_MAX + 3):
        made.record(_request(), FAIL.path, [], (), allowed=True, failed=False)
    assert made.drain() == {("dropped",): 3}


def test_large_review_is_skipped_and_counted(folder: Path) -> None:
    made = recorder(folder)
    made.start()
    for text in ("x" * RECORDING_REVIEW_BYTES_MAX, os.urandom(200_000).hex()):
        request = _request(text=text)
        made.record(request, FAIL.path, [], (), allowed=True, failed=False)
    made.stop(5)
    assert made.drain() == {("too_large",): 2}, "the second is larger than a file"


def test_full_disk_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made = recorder(tmp_path / "file" / "folder")
    made.start()
    for _ in range(3):
        made.record(_request(), FAIL.path, [], (), allowed=True, failed=False)
    made.stop(5)
    assert made.drain() == {("failed",): 3}


def test_files_are_private(folder: Path) -> None:
    _recorded(folder, _review("Pod", {}))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [one.stat().st_mode & 0o777 for one in folder.iterdir()] == [0o600]


def _bytes(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.iterdir())


def test_recording_is_bounded_and_keeps_the_newest(folder: Path) -> None:
    deleted: list[int] = []
    writers = [
        RecordingFiles(folder, MIB, 2, on_delete=lambda: deleted.append(1))
        for _ in "ab"
    ]
    share = MIB // (RECORDING_FILE_SHARE * 2)
    assert writers[0].file_bytes == share
    for number in range(400):
        line = json.dumps({"n": number, "noise": os.urandom(5000).hex()}).encode()
        assert writers[number % 2].write(line)
        assert _bytes(folder) <= MIB
    assert deleted
    for one in writers:
        one.close()
    assert _bytes(folder) > MIB // 2
    numbers = [one["n"] for one in lines_of(folder)]
    assert max(numbers) == 399
    assert min(numbers) > 100, "the oldest are deleted first"


def test_killed_worker_keeps_every_line(folder: Path) -> None:
    child = os.fork()
    if not child:
        files = RecordingFiles(folder, MIB, 1)
        for number in range(50):
            files.write(b'{"n": %d}' % number)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    (left,) = folder.iterdir()
    assert left.name.endswith(".part")
    text = b"".join(_members(left))
    assert text.count(b'"n"') == 50
    # The next writer counts it as closed.
    files = RecordingFiles(folder, MIB, 1)
    files.write(b"{}")
    assert sorted(one.suffix for one in folder.iterdir()) == [".gz", ".part"]
    files.close()


def test_one_namespace_does_not_delete_the_reviews_of_others(folder: Path) -> None:
    """It gets half of a file in a minute, however fast it is."""
    now_s = [1e9]
    deleted: list[int] = []
    files = RecordingFiles(
        folder, MIB, 1, on_delete=lambda: deleted.append(1), now_s=lambda: now_s[0]
    )

    def write(namespace: str) -> bool:
        noise = os.urandom(5000).hex()
        line = json.dumps({"of": namespace, "noise": noise}).encode()
        return files.admits(namespace) and files.write(line, namespace)

    assert all(write(f"other-{number}") for number in range(30))
    flood = sum(write("flood") for _ in range(2000))
    assert 5000 * (flood - 1) <= files.file_bytes // 2
    assert not deleted
    assert write("other-0")
    now_s[0] += 60
    assert write("flood")
    now_s[0] -= 3600
    assert write("flood"), "a clock that was set back stops nothing"
    files.close()
    kept = {one["of"] for one in lines_of(folder)}
    assert kept == {"flood", *(f"other-{number}" for number in range(30))}


def _members(file: Path) -> Iterator[bytes]:
    with gzip.open(file) as stream:
        while True:
            try:
                found = stream.readline()
            except EOFError:
                return
            yield found


def test_foreign_files_are_kept(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.jsonl.gz").write_bytes(b"x" * MIB)
    files = RecordingFiles(folder, MIB, 1)
    assert files.write(b"{}")
    files.close()
    assert (folder / "notes.jsonl.gz").exists()


def test_worker_records_and_counts(tmp_path: Path, folder: Path) -> None:
    """From the settings to the file and the metrics page."""
    pod = Pod(tmp_path)
    pod.publish(SETTINGS, *NAMES)
    pod.publisher.publish(POLICIES, partial(_policies))
    settings = Settings(
        standalone=True, record_dir=str(folder), record_one_of=2, webhook_workers=1
    )
    pod.served = make_start(settings, pod.places)(pod.loop)
    for number in range(6):
        assert pod.ask(uid=str(number), namespace="apps")
    counted = pod.loop.run_until_complete(
        wait_on_loop(lambda: _counted(pod.places.pages))
    )
    pod.close()
    assert counted == {"written": 3.0}
    assert [one["request"]["uid"] for one in lines_of(folder)] == ["0", "2", "4"]


def _counted(pages: Path) -> dict[str, float]:
    """Return the counts by outcome of all pages."""
    number = RECORDED.index(RECORDED_REVIEWS)
    return {
        json.loads(labels)[0]: values[0]
        for view in views(pages)
        for family, labels, values, _ in view.series()
        if family == number
    }
