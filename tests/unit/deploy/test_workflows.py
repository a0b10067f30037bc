"""Workflows run what exists, pinned, and with few rights.

A failure means: a moved tag of a stranger's action would run with our rights, or a
workflow names an environment of tox, a module or a file that is gone.
"""

import configparser
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import suites

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SHARED = [*WORKFLOWS, ROOT / "action.yml"]


def loaded(path: Path) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(path.read_text())
    return document


def commands(path: Path) -> Iterator[str]:
    for job in loaded(path)["jobs"].values():
        yield from (step["run"] for step in job["steps"] if "run" in step)


@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    uses = re.findall(r"uses: (.*)", path.read_text())
    pinned = re.compile(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [one for one in uses if not pinned.fullmatch(one)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_few_rights_and_an_end(path: Path) -> None:
    """Rights to write are those of a job, not of all jobs."""
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 120, name
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_nothing_from_outside_becomes_a_script(path: Path) -> None:
    """An expression in a script would run what a branch or a title contains."""
    allowed = re.compile(r"\$\{\{ *(matrix|steps)\.[\w.-]+ *\}\}")
    for script in commands(path):
        assert "${{" not in allowed.sub("", script), script


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_exists(path: Path) -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    named = tox["testenv"]["commands"]
    known = {one.name for one in suites.SUITES} | {*suites.GROUPS, "image"}
    for script in commands(path):
        for name in re.findall(r"tox -e ([\w-]+)", script):
            assert re.search(rf"\b{name}\b.*:", named), name
            assert name in known or f"{name}:" in named, name
        for module in re.findall(r"python -m (deploy[\w.]*|tests[\w.]*)", script):
            assert importlib.util.find_spec(module), module
        for file in re.findall(r"\b(?:deploy|tests)/[\w/.-]+", script):
            assert (ROOT / file).exists(), file


def test_only_the_release_writes() -> None:
    """Others may report findings."""
    writing = {
        (path.stem, right)
        for path in WORKFLOWS
        for job in loaded(path)["jobs"].values()
        for right, access in job.get("permissions", {}).items()
        if access == "write"
    }
    assert {right for name, right in writing if name != "release"} <= {
        *("security-events", "id-token"),
    }
    jobs = loaded(ROOT / ".github/workflows/release.yml")["jobs"]
    assert jobs["publish"]["environment"] == "release"
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"


def test_updates_cover_what_we_depend_on() -> None:
    updates = loaded(ROOT / ".github/dependabot.yml")["updates"]
    kinds = {one["package-ecosystem"] for one in updates}
    assert kinds == {"pip", "github-actions", "docker", "gomod"}
    for one in updates:
        for folder in one.get("directories", [one.get("directory")]):
            assert (ROOT / folder.lstrip("/")).is_dir(), folder


def test_security_facts_agree_with_the_page() -> None:
    facts = loaded(ROOT / "SECURITY-INSIGHTS.yml")
    assert facts["header"]["schema-version"] == "2.0.0"
    assert len({facts["header"]["url"], facts["repository"]["url"]}) == 1
    page = facts["header"]["url"]
    for path in re.findall(rf"{re.escape(page)}/blob/main/(\S+)", yaml.dump(facts)):
        assert (ROOT / path).is_file(), path
