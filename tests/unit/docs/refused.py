"""Render the list of what is refused, and why, from the tables of the program."""

from collections.abc import Iterator

from kyverno_mp.cli import serve_authz
from kyverno_mp.images.keys import SERVICES
from kyverno_mp.leader.servable import NO_BACKGROUND, UNSUPPORTED, UNSUPPORTED_KIND
from kyverno_mp.policy.capabilities import REFUSED

_HEAD = ("| what | where | why, or what to do instead |", "|---|---|---|")


def refused_table() -> str:
    """Return the list as a Markdown table."""
    return "\n".join((*_HEAD, *_rows()))


def _rows() -> Iterator[str]:
    for end, reason in REFUSED.items():
        where = f"`verifyImages`, `validate.manifests` (`{UNSUPPORTED}`)"
        yield f"| `…{end}` | {where} | {reason} |"
    pool = "`KYVERNO_MP_BACKGROUND_WORKERS`"
    yield (
        "| `generate`, `mutate.targets`, GeneratingPolicies, `mutateExisting` | without"
        f" a background pool (`{UNSUPPORTED}`, `{NO_BACKGROUND}`) | {pool} enables it |"
    )
    yield (
        "| evaluation modes other than Kubernetes, JSON, HTTP and Envoy | policies of"
        f" `policies.kyverno.io` (`{UNSUPPORTED_KIND}`) | unknown to Kyverno, too |"
    )
    for scheme, service in SERVICES.items():
        reason = f"not proved against {service}: give the key inline or in a Secret"
        if scheme == "awskms":
            reason = "unless `KYVERNO_MP_AWS_KMS` is on; never in a namespaced policy"
        yield f"| `{scheme}:` | references to keys | {reason} |"
    yield f"| `--grpc-network=unix` | `serve authz` | {serve_authz.NETWORK} |"
    for scheme, reason in serve_authz.SOURCES.items():
        if scheme:
            yield f"| `--external-policy-source={scheme}:` | `serve authz` | {reason} |"
