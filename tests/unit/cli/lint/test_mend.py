"""``lint --fix`` changes what it finds, nothing else, and no meaning.

The expected texts are what a person would write by hand.
"""

from pathlib import Path

import pytest
import yaml

from kyverno_mp.cli.fix.edits import edits_of, mended
from kyverno_mp.cli.lint.mend import current
from tests.conformance.place import ABSENT, PRESENT, ROOT
from tests.unit.cli.conftest import Command

BEFORE = """\
# Owned by the platform team.
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}   # a flow mapping stays
spec:
  validationFailureAction: enforce
  background: true

  rules:
  - name: one            # the first rule
    match:
      # services only
      resources:
        kinds:
        - Service

        names: ["a*"]
      subjects:
      - {kind: User, name: ann}
    # between
    preconditions:
    - key: "{{ request.operation }}"
      operator: Equal      # old
      value: CREATE

    validate:
      message: |
        operator: Equal
        stays
      pattern:
        spec: {type: "?*", x: {key: a, operator: Equal}}
  - name: two
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - imageReferences: ["a/*"]
      required: true
"""
AFTER = """\
# Owned by the platform team.
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}   # a flow mapping stays
spec:
  background: true

  rules:
  - name: one            # the first rule
    match:
      # services only
      any:
      - resources:
          kinds:
          - Service

          names: ["a*"]
        subjects:
        - {kind: User, name: ann}
    # between
    preconditions:
      all:
      - key: "{{ request.operation }}"
        operator: Equals      # old
        value: CREATE

    validate:
      failureAction: Enforce
      message: |
        operator: Equal
        stays
      pattern:
        spec: {type: "?*", x: {key: a, operator: Equal}}
  - name: two
    match: {any: [{resources: {kinds: [Pod]}}]}
    verifyImages:
    - failureAction: Enforce
      imageReferences: ["a/*"]
      required: true
"""
RULE = """\
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  validationFailureAction: %s%s
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    validate:
      message: m%s
      pattern: {spec: {x: y}}
"""


def test_a_policy_is_mended_in_its_text() -> None:
    after = mended(BEFORE, edits_of(BEFORE))
    # A list may keep the column of its key; the block below "all" is indented.
    assert yaml.safe_load(after) == yaml.safe_load(AFTER)
    assert after.splitlines() == AFTER.splitlines()
    assert edits_of(after) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A rule's own action decides for the whole response, so nothing moves.
        (
            RULE % ("enforce", "", "\n      failureAction: Audit"),
            RULE % ("Enforce", "", "\n      failureAction: Audit"),
        ),
        # The rule's action would hide the overrides of the policy.
        (
            RULE
            % (
                "Enforce",
                "\n  validationFailureActionOverrides: [{action: Audit}]",
                "",
            ),
            None,
        ),
        # A shared mapping would change in two places.
        (RULE.replace("validate:", "validate: &v") % ("Enforce", "", ""), None),
        ("spec: [", None),
        ("apiVersion: v1\nkind: ConfigMap\ndata: {key: a, operator: Equal}\n", None),
    ],
)
def test_what_would_change_a_meaning_stays(text: str, expected: str | None) -> None:
    assert mended(text, edits_of(text)) == (expected or text)


def test_a_comment_on_the_removed_line_stays() -> None:
    text = RULE % ("Audit # see the wiki", "", "")
    after = mended(text, edits_of(text))
    assert "# see the wiki" in after
    assert "validationFailureAction" not in after
    assert current(yaml.safe_load(text)) == current(yaml.safe_load(after))


def test_diff_and_write(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(BEFORE)
    done = command("lint", file, "--fix")
    assert done.code == 1
    assert "\n-  validationFailureAction: enforce\n" in done.out
    assert "\n+      failureAction: Enforce\n" in done.out
    assert file.read_text() == BEFORE
    assert command("lint", file, "--fix", "--write").code == 0
    assert file.read_text() == AFTER
    again = command("lint", file, "--fix")
    assert (again.code, again.out) == (0, "")


def test_write_needs_fix(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(BEFORE)
    assert command("lint", file, "--write").code != 0
    assert file.read_text() == BEFORE


@pytest.mark.skipif(not PRESENT, reason=ABSENT)
def test_a_library_keeps_its_meaning() -> None:
    """Only findings change: both texts are the same policies, mended once."""
    count = 0
    for path in sorted((ROOT / "policies").glob("[a-o]*/*/*.yaml")):
        text = path.read_text()
        edits = edits_of(text)
        after = mended(text, edits)
        before, then = ([*yaml.safe_load_all(one)] for one in (text, after))
        assert [*map(current, before)] == [*map(current, then)], path
        assert edits_of(after) == [], path
        kept = {line.strip(" -") for line in after.splitlines()}
        removed = {line for line in text.splitlines() if line.strip(" -") not in kept}
        assert all("validationFailureAction" in line for line in removed), path
        count += bool(edits)
    assert count >= 100
