"""State how the artefacts were made, and sign the statement for a dry run.

Takes: the artefacts. Gives: a Sigstore bundle with an in-toto statement of SLSA's
provenance, in the form that the workflow's own attestation has. Next: trial.py,
verify.py. May touch: the folder of artefacts.
Source: https://slsa.dev/spec/v1.0/provenance; in-toto attestation framework 1.0.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from deploy.release.archives import sha256
from deploy.release.source import Release, git

BUNDLE: Final = "provenance.sigstore.json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
_BUILD_TYPE: Final = "https://actions.github.io/buildtypes/workflow/v1"


def statement(release: Release, paths: Sequence[Path]) -> dict[str, Any]:
    """Return the statement about these artefacts."""
    page, ref = release.page, f"refs/tags/v{release.version}"
    at = datetime.fromtimestamp(release.epoch, UTC).isoformat().replace("+00:00", "Z")
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": path.name, "digest": {"sha256": sha256(path)}}
            for path in sorted(paths)
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {
                    "workflow": {
                        "ref": ref,
                        "repository": page,
                        "path": ".github/workflows/release.yml",
                    }
                },
                "resolvedDependencies": [
                    {
                        "uri": f"git+{page}@{ref}",
                        "digest": {"gitCommit": git("rev-parse", "HEAD")},
                    }
                ],
            },
            "runDetails": {
                "builder": {"id": release.workflow},
                "metadata": {"startedOn": at},
            },
        },
    }
