"""`lint` names the field that an author has probably meant.

A failure means: somebody who misspells a field looks for the right name elsewhere, or
is led to a wrong one.
"""

from pathlib import Path

import pytest
import yaml

from tests.unit.cli.conftest import Command

_RULE = {
    "name": "named",
    "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
    "validate": {"message": "m", "pattern": {"metadata": {"name": "?*"}}},
}


def _policy(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "one"},
        "spec": {"rules": [_RULE], **spec},
    }


def _in_cel(**spec: object) -> dict[str, object]:
    group = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    rules = [{**group, "operations": ["CREATE"]}]
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ValidatingPolicy",
        "metadata": {"name": "one"},
        "spec": {"matchConstraints": {"resourceRules": rules}, **spec},
    }


@pytest.mark.parametrize(
    ("policy", "name", "meant"),
    [
        (_policy(backgroud=True), "backgroud", "background"),
        (_policy(failurepolicy="Fail"), "failurepolicy", "failurePolicy"),
        (_policy(rules=[{**_RULE, "exlude": {}}]), "exlude", "exclude"),
        (_policy(rules=[{**_RULE, "mach": {}}]), "mach", "match"),
        (_in_cel(validation=[]), "validation", "validations"),
        (_in_cel(validations=[{"expresion": "true"}]), "expresion", "expression"),
        (_policy(somethingElse=1), "somethingElse", ""),
        (_policy(**{"x" * 100_000: 1}), "x" * 100_000, ""),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else None,
)
def test_the_nearest_field_is_named(
    command: Command, tmp_path: Path, policy: dict[str, object], name: str, meant: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(policy))
    done = command("lint", file)
    [line] = [one for one in done.out.splitlines() if "unknown field" in one]
    assert f'unknown field "{name[:50]}' in line
    shown = f"did you mean {meant}?" if meant else "did you mean"
    assert (shown in line) == bool(meant)
