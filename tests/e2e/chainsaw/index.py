"""List the chainsaw cases of the conformance data, and the missing capabilities.

The folder that place.py finds has Kyverno's own end-to-end suites; if the real program
ran a case on such a control plane, the data includes its verdict. ``stage`` copies a
case with all its files, so that its scripts can write. Next: run.py. May touch: that
folder, the folder to stage to.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.conformance.place import PRESENT, ROOT

FOREIGN_CRDS: Final = ROOT / "policies" / ".chainsaw" / "crds"
"""Definitions of other projects, which cases that need ``crds-installed`` use."""
SUITES: Final = ("chainsaw", "policies-chainsaw")

BUILT: Final = frozenset(
    {
        "policies in a cluster",
        "policy status",
        "exceptions",
        "webhook configuration",
        "events",
        "global context",
        "mutate",
        "CEL rules",
        "command line",
        "clean-up",
        "clean-up by time to live",
        "generate",
        "mutate existing",
        "reports",
        "admission policies",
        "verify images",
        "verify manifests",
        "validating policies",
        "admission policies generated",
        "deleting policies",
        "generating policies",
        "mutating policies",
        "image validating policies",
    }
)
"""Capabilities below that kyverno-mp has in a cluster; other cases are skipped."""

PROFILES: Final[Mapping[str, Mapping[str, str]]] = {
    "": {},
    "ttl": {},
    "ffpi": {"FORCE_FAILURE_POLICY_IGNORE": "true"},
    "ecdsa": {"TLS_KEY_ALGORITHM": "ECDSA"},
    "ed25519": {"TLS_KEY_ALGORITHM": "Ed25519"},
    "mapr": {"REPORTS_MUTATING_ADMISSION_POLICIES": "true"},
    "genmap": {"GENERATE_MUTATING_ADMISSION_POLICIES": "true"},
}
"""Kyverno's configuration for a verdict -> our settings on top of the usual ones."""

CLEANUP_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("list", "delete"),
    "ttl": ("list", "delete", "watch"),
}
"""Profile -> the cleanup account's permissions on Pods, if not the default."""

CAPABILITIES: Final = (
    ("kind:ClusterPolicy", "policies in a cluster"),
    ("kind:Policy", "policies in a cluster"),
    ("asserts:policy-status", "policy status"),
    ("asserts:kyverno-objects", "policy status"),
    ("kind:PolicyException", "exceptions"),
    ("kind:GlobalContextEntry", "global context"),
    ("asserts:webhookconfig", "webhook configuration"),
    ("asserts:events", "events"),
    ("rule:mutate.existing", "mutate existing"),
    ("rule:mutate", "mutate"),
    ("rule:generate", "generate"),
    ("rule:verifyImages", "verify images"),
    ("rule:validate.manifests", "verify manifests"),
    ("manifest-signature", "verify manifests"),
    ("rule:validate.cel", "CEL rules"),
    ("kind:ValidatingPolicy", "validating policies"),
    ("kind:NamespacedValidatingPolicy", "validating policies"),
    ("kind:MutatingPolicy", "mutating policies"),
    ("kind:NamespacedMutatingPolicy", "mutating policies"),
    ("kind:GeneratingPolicy", "generating policies"),
    ("kind:NamespacedGeneratingPolicy", "generating policies"),
    ("kind:DeletingPolicy", "deleting policies"),
    ("kind:NamespacedDeletingPolicy", "deleting policies"),
    ("kind:ImageValidatingPolicy", "image validating policies"),
    ("kind:NamespacedImageValidatingPolicy", "image validating policies"),
    ("asserts:generated-admission-policy", "admission policies generated"),
    ("kind:ValidatingAdmissionPolicy", "admission policies"),
    ("kind:MutatingAdmissionPolicy", "admission policies"),
    ("apiserver-config:", "admission policies"),
    ("asserts:reports", "reports"),
    ("asserts:ephemeralreports", "reports"),
    ("rule:cleanup", "clean-up"),
    ("kind:CleanupPolicy", "clean-up"),
    ("kind:ClusterCleanupPolicy", "clean-up"),
    ("kyverno-config:standard,ttl", "clean-up by time to live"),
    # Names several: any of them is sufficient.
    ("kyverno-config:standard|", "policies in a cluster"),
    ("kyverno-config:openreports", "reports"),
    ("kyverno-config:", "other configurations of Kyverno"),
    ("uses:kyverno-cli", "command line"),
)
"""Tag prefix -> capability; the first match counts for a tag."""

HARNESS: Final = frozenset({"kubeconfig-identity", "crds-installed"})
"""Needs that the control plane of the tests satisfies.

Needs are guessed from a case's files: if the real program passed without them, there
are none.
"""


@dataclass(frozen=True)
class Case:
    """One case; ``verdict`` is the real program's here, None = unknown."""

    id: str
    test: Path
    files: tuple[str, ...]
    tags: frozenset[str]
    needs: frozenset[str]
    missing: tuple[str, ...]
    """Missing capabilities, of ours and of this control plane; () = the case runs."""
    verdict: bool | None
    profile: str = ""
    """Kyverno's configuration when the verdict was recorded."""


def missing_of(
    tags: frozenset[str], needs: frozenset[str], profile: str = ""
) -> tuple[str, ...]:
    """Return the missing capabilities of a case with these tags and needs, sorted."""
    is_set_up = profile in PROFILES and profile
    wanted = {
        next((one for prefix, one in CAPABILITIES if tag.startswith(prefix)), "")
        for tag in tags
        if not (is_set_up and tag.startswith("kyverno-config:"))
    }
    lacking = {f"environment: {need}" for need in needs - HARNESS}
    return tuple(sorted((wanted - BUILT - {""}) | lacking))


@cache
def all_cases() -> tuple[Case, ...]:
    """Return the cases of both suites, in the order of the index."""
    if not PRESENT:
        return ()
    verdicts: Mapping[str, Mapping[str, object]] = {}
    if (ROOT / "oracle-chainsaw.json").exists():
        verdicts = json.loads((ROOT / "oracle-chainsaw.json").read_text())
    cases = []
    for raw in json.loads((ROOT / "index.json").read_text())["cases"]:
        if raw["suite"] not in SUITES:
            continue
        tags, needs = frozenset(raw["tags"]), frozenset(raw["needs"])
        recorded = verdicts.get(raw["id"], {})
        # Chainsaw passes cases that it skips, which proves nothing about the real
        # program.
        verdict = None if "upstream-skip" in tags else recorded.get("pass")
        profile = str(recorded.get("profile") or "")
        if profile:
            tags |= {f"kyverno-config:{profile}"}
        cases.append(
            Case(
                id=raw["id"],
                test=Path(raw["path"]) / raw["test"],
                files=tuple(raw["files"]),
                tags=tags,
                needs=needs,
                missing=missing_of(tags, frozenset() if verdict else needs, profile),
                verdict=None if verdict is None else bool(verdict),
                profile=profile,
            )
        )
    return tuple(cases)


def stage(case: Case, folder: Path) -> Path:
    """Copy a case into ``folder``; return the path of its test file there."""
    for name in case.files:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            continue
        is_script = name.endswith(".sh.txt")
        if is_script:
            target = target.with_suffix("")
        shutil.copyfile(source, target)
        if is_script:
            target.chmod(0o755)
    return folder / case.test
