"""Verify signed manifests on the command line, with this machine's trust root.

Room: cli. Takes: the environment. Gives: the port of rules with ``validate.manifests``.
Next: cli/apply/evaluate. May touch: see cli/cluster/trust.py.
Source: docs/behaviour/images 7.
"""

from kyverno_mp.cli.cluster.registry_access import soon_ns
from kyverno_mp.cli.cluster.trust import LocalTrustRoot
from kyverno_mp.images.key_secrets import key_providers
from kyverno_mp.images.manifests.verifier import ManifestVerifier
from kyverno_mp.program.ports import ReadNamedSecret


def _until(deadline_ns: int) -> int:
    return min(deadline_ns, soon_ns()) if deadline_ns else soon_ns()


def manifest_verifier(key_secrets: ReadNamedSecret | None = None) -> ManifestVerifier:
    """Return the port; the trust root is read for the first keyless attestor.

    ``key_secrets`` reads Secrets with public keys; None: without a cluster.
    """
    return ManifestVerifier(LocalTrustRoot(), _until, key_providers(key_secrets))
