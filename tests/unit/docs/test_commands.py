"""Each command on a page for users is run, or stands in a list with the reason.

A failure means: a reader copies a command that does not exist any more, or a page has a
command that nothing checks. Commands run as written, in a folder with the files that
pages name. Exit code 1 is a verdict about these files; 2 and above is a wrong command.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

from tests.unit.docs.citing import ROOT
from tests.unit.docs.test_links import site_pages

_BLOCK: Final = re.compile(r"^ *```(?:ba)?sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
FOLLOWED: Final = {
    "install.md": "tests/e2e/pods/test_install_page.py",
    "operate.md": "tests/e2e/pods/test_install_page.py",
    "upgrade.md": "tests/e2e/pods/test_upgrade.py",
}
"""Pages whose commands another test runs, as written."""
ELSEWHERE: Final = {
    r"docker ": "needs an engine; tests/image builds and runs the image with buildah",
    r"helm ": "needs a cluster; tests/e2e/pods/test_helm.py",
    r"kubectl .*\| *kyverno-mp report": "needs a cluster; here, with a file",
    r"kubectl ": "needs a cluster; tests/e2e runs kubectl with our manifests",
    r"sed .*\| kubectl apply": "needs a cluster; tests/e2e/pods/test_install_page.py",
    r"gh |sha256sum ": "needs the files of a release on the forge",
    r"python -m deploy\.release\.verify": "as above; tests/packages/test_release.py",
    r"pipx |pip install dist": "needs a package index; tests/packages",
    r"python3 -m venv ": "needs a package index; tests/packages/test_distributions.py",
    r"\.venv/bin/tox": "runs for hours; the workflows run it",
    r"(\.venv/bin/)?kyverno-mp serve ": "does not end; tests/faults, test_readme.py",
    r"curl |printf .*\| curl ": "needs a service; tests/faults, tests/unit/dashboard",
    r"kyverno-mp report --cluster": "needs a cluster; tests/e2e/kube/test_cli.py",
    r"kyverno-mp rollout ": "needs a cluster; tests/unit/cli/commands/test_rollout.py",
    r"kyverno-mp replay ": "needs a recording; tests/unit/cli/replay",
    r"kyverno-mp facts ": "needs a cluster; tests/unit/cli/replay/test_facts.py",
    r"kyverno-mp images explain ": "needs an image; tests/unit/cli",
    r"kyverno-mp apply .*--distribute": "needs a cluster; test_distribute.py",
    r"mkdir -p my-policies": "prepares the folder of test_first_policy.py",
}
"""Commands that do not run here, and the reason."""
_OBJECTS: Final = "config/samples/resources/pods.yaml"
_POLICY: Final = "config/samples/policies/pod-privileged-containers.yaml"
_EXCEPTION: Final = """\
apiVersion: kyverno.io/v2
kind: PolicyException
metadata: {name: e, namespace: default}
spec:
  match: {any: [{resources: {kinds: [Pod]}}]}
  exceptions: [{policyName: pod-privileged-containers, ruleNames: ["*"]}]
"""
_REPORT: Final = """\
apiVersion: wgpolicyk8s.io/v1alpha2
kind: PolicyReport
metadata: {name: r, namespace: default}
scope: {apiVersion: v1, kind: Pod, name: p, namespace: default}
results: [{policy: p, rule: r, result: fail}]
"""
_REQUEST: Final = '{"attributes": {"method": "GET", "path": "/", "header": {}}}'


def commands(page: str) -> Iterator[str]:
    """Yield the commands of a page; one can have several lines."""
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    for block in _BLOCK.findall(path.read_text()):
        command = ""
        for line in dedent(block).replace("\\\n", " ").splitlines():
            command += f"\n{line}" if command else line
            if command.count("'") % 2 == 0:
                if command.strip() and not command.startswith("#"):
                    yield command
                command = ""
        assert not command, page


PAGES: Final = ["README.md", *(page for page in site_pages() if page not in FOLLOWED)]
COMMANDS: Final = [(page, text) for page in PAGES for text in commands(page)]


def reasons(command: str) -> list[str]:
    """Return the entries of the list that name a command."""
    return [pattern for pattern in ELSEWHERE if re.match(pattern, command)]


RUN: Final = [(page, text) for page, text in COMMANDS if not reasons(text)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that pages name, and the command."""
    made = tmp_path_factory.mktemp("reader")
    program = made / ".venv" / "bin" / "kyverno-mp"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kyverno_mp "$@"\n')
    program.chmod(0o700)
    (made / "config").symlink_to(ROOT / "config")
    for name in ("policies", "resources"):
        (made / name).mkdir()
    shutil.copy(ROOT / _POLICY, made / "policy.yaml")
    shutil.copy(ROOT / _POLICY, made / "policies")
    for name in ("object.yaml", "pods.yaml", "resources/pods.yaml"):
        shutil.copy(ROOT / _OBJECTS, made / name)
    shutil.copytree(ROOT / "config/samples/kinds-test", made / "path/to/tests")
    shutil.copytree(ROOT / "config/samples/kinds", made / "path/to/kinds")
    for name in ("main", "change"):
        shutil.copytree(made / "resources", made / name)
    for name in ("old", "new"):
        shutil.copytree(made / "policies", made / name)
    head = {"apiVersion": "kyverno-mp.io/v1alpha1", "kind": "ClusterFacts"}
    facts = {**head, "metadata": {"name": "facts"}, "spec": {"documents": 0}}
    (made / "facts.yaml").write_text(json.dumps(facts))
    (made / "exception.yaml").write_text(_EXCEPTION)
    (made / "reports.yaml").write_text(_REPORT)
    (made / "request.json").write_text(_REQUEST)
    return made


@pytest.mark.parametrize(("page", "text"), RUN, ids=[text[:60] for _, text in RUN])
def test_commands_of_pages_run(page: str, text: str, folder: Path) -> None:
    path = f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", text],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), f"{page}: {done.stdout[-500:]}{done.stderr}"


def test_each_reason_names_a_command() -> None:
    """An entry that is left over would hide the next command that it names."""
    named = [reasons(text) for _, text in COMMANDS]
    assert {pattern for found in named for pattern in found} == set(ELSEWHERE)
    for test in FOLLOWED.values():
        assert (ROOT / test).exists()
    assert len(RUN) > len(COMMANDS) / 4
