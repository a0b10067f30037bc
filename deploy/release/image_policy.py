"""Write the policy that lets a cluster run only our own, signed image.

Takes: the release. Gives: verify-image.yaml. Next: source.py, which has the identity.
May touch: the folder of artefacts.

It names the workflow and its issuer, not a key. It applies to our own namespace; with
failurePolicy Ignore, because it must not prevent the pods that would verify it.
"""

import re
from pathlib import Path
from typing import Final

from deploy.release.provenance import PREDICATE
from deploy.release.source import Release
from deploy.release.trial import ISSUER

_TEXT: Final = """\
# Only images of kyverno-mp that its release workflow has signed. Needs kyverno-mp or
# Kyverno 1.18; change the namespace if yours is another.
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata:
  name: verify-kyverno-mp-image
  annotations:
    policies.kyverno.io/title: Verify the image of kyverno-mp
    policies.kyverno.io/category: Software Supply Chain Security
    policies.kyverno.io/description: >-
      The image of kyverno-mp is signed by its release workflow, and has a provenance
      of the same workflow.
spec:
  background: false
  webhookConfiguration:
    failurePolicy: Ignore
    timeoutSeconds: 30
  rules:
    - name: signed-by-the-release-workflow
      match:
        any:
          - resources:
              kinds: [Pod]
              namespaces: [kyverno]
      verifyImages:
        - imageReferences: ["{image}:*", "{image}@*"]
          failureAction: Enforce
          type: SigstoreBundle
          attestations:
            - type: {predicate}
              attestors:
                - entries:
                    - keyless:
                        issuer: {issuer}
                        subjectRegExp: {subject}
                        rekor:
                          url: https://rekor.sigstore.dev
              conditions:
                - all:
                    - key: {key}
                      operator: Equals
                      value: {page}
"""


def image_policy(release: Release, folder: Path) -> Path:
    """Write the policy. Tags of later versions pass, branches do not."""
    path = folder / "verify-image.yaml"
    workflow = release.workflow.removesuffix(release.version)
    text = _TEXT.format(
        image=release.image,
        predicate=PREDICATE,
        issuer=ISSUER,
        subject=rf"^{re.escape(workflow)}[0-9]+\.[0-9]+\.[0-9]+$",
        page=release.page,
        key='"{{ buildDefinition.externalParameters.workflow.repository }}"',
    )
    path.write_text(text)
    return path
