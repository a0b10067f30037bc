"""deploy/Dockerfile builds an image that serves over TLS as an unprivileged user.

A failure means: users of docs/install.md have no image, or one that does not serve.
Needs buildah, the registry with the base image and the package index: `tox -e image`.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kyverno_mp import __version__

ROOT = Path(__file__).resolve().parents[2]
TAG = "localhost/kyverno-mp:under-test"
SAMPLES = ROOT / "config" / "samples"
CHROOT = ("--isolation", "chroot")
MIB = 1024 * 1024
SERVE = """
import json, os, signal, ssl, subprocess, sys, time, urllib.request
ports = {"WEBHOOK_PORT": "29443", "HEALTH_PORT": "29080", "WEBHOOK_WORKERS": "1"}
env = {**os.environ, **{f"KYVERNO_MP_{name}": value for name, value in ports.items()}}
words = ["kyverno-mp", "serve", "--standalone", "--policies", "/samples/policies"]
served = subprocess.Popen(words, env=env, stderr=sys.stderr)
tls = ssl._create_unverified_context()
def ask(url, body=None):
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    context = tls if url.startswith("https") else None
    return urllib.request.urlopen(request, timeout=10, context=context).read()
def is_ready():
    try:
        return ask("http://127.0.0.1:29080/health/readiness") == b"OK\\n"
    except OSError:
        return False
while served.poll() is None and not is_ready():
    time.sleep(0.1)
allowed = {}
for name in ("pod-allowed", "pod-denied"):
    body = open(f"/samples/reviews/{name}.json", "rb").read()
    answer = json.loads(ask("https://127.0.0.1:29443/validate", body))
    allowed[name] = answer["response"]["allowed"]
metrics = ask("http://127.0.0.1:29080/metrics").decode()
served.send_signal(signal.SIGTERM)
told = {"user": os.getuid(), "allowed": allowed, "metrics": "kyverno_info" in metrics}
print(json.dumps({**told, "exit": served.wait(30)}))
"""

pytestmark = pytest.mark.timeout(600)


def buildah(*arguments: str) -> str:
    done = subprocess.run(
        ["buildah", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    file = str(ROOT / "deploy" / "Dockerfile")
    built = ("--network", "host", "-f", file, "-t", TAG, str(ROOT))
    buildah("build", *CHROOT, *built)
    made = buildah("from", "--pull-never", TAG)
    yield made
    buildah("rm", made)
    buildah("rmi", TAG)


def run(container: str, *arguments: str) -> str:
    volume = ("--volume", f"{SAMPLES}:/samples:ro")
    return buildah("run", *CHROOT, *volume, container, "--", *arguments)


def test_image_reports_its_version(container: str) -> None:
    found = json.loads(buildah("inspect", "--type", "image", TAG))["OCIv1"]["config"]
    assert found["User"] == "65534:65534"
    assert found["Entrypoint"] == ["kyverno-mp"]
    assert found["Labels"]["org.opencontainers.image.version"] == __version__
    assert f"Version: {__version__}" in run(container, "kyverno-mp", "version")


def test_image_contains_only_required_files(container: str) -> None:
    """It contains no installer and no client that our code does not import."""
    for module in ("pip", "setuptools", "ensurepip", "kubernetes", "aiohttp"):
        found = f"import importlib.util as u; print(u.find_spec({module!r}))"
        assert run(container, "python", "-c", found) == "None"
    size_k = int(run(container, "du", "-sk", "/opt/kyverno-mp").split()[0])
    assert size_k * 1024 < 120 * MIB


def test_image_evaluates_on_the_command_line(container: str) -> None:
    pods = "/samples/resources/pods.yaml"
    words = ("kyverno-mp", "apply", "/samples/policies", "-r", pods)
    told = run(container, "sh", "-c", f"{' '.join(words)} || test $? = 1")
    assert "error: 0" in told
    assert "fail: 0" not in told


def test_image_serves_and_stops(container: str) -> None:
    told = json.loads(run(container, "python", "-c", SERVE).splitlines()[-1])
    assert told == {
        "user": 65534,
        "allowed": {"pod-allowed": True, "pod-denied": False},
        "metrics": True,
        "exit": 0,
    }
