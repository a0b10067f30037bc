"""``images explain``: show step by step how policies verify an image.

Room: cli. Takes: a reference, policy paths, perhaps an image layout folder. Gives:
text or JSON. Next: cli/images/trace.py, findings, text.
May touch: files named by the user, the network, standard output.
Source: docs/behaviour/images 2.2-2.5; docs/cli.md (verify images).

Each block of each rule runs separately on a Pod with the image, with the webhook's
code. The rule's match and exclude blocks are ignored.
"""

import json
from collections.abc import Iterator
from typing import Final

import click
import msgspec

from kyverno_mp.cli.apply.clocks import clock
from kyverno_mp.cli.cluster.data import load_cluster_data
from kyverno_mp.cli.cluster.image_access import clients, image_reviews, until
from kyverno_mp.cli.images.findings import findings
from kyverno_mp.cli.images.text import lines
from kyverno_mp.cli.images.trace import Trace
from kyverno_mp.cli.shell.errors import CommandFailed
from kyverno_mp.cli.sources.compiled import compile_all
from kyverno_mp.cli.sources.policies import load_policies
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.images.artifacts import Artifacts
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR, RuleIR, VerifyImagesIR
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.images.rule import ImageState, LinkedImageRule
from kyverno_mp.program.images.selection import is_among
from kyverno_mp.program.ports import RegistryAccess
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.image import parse_image

_BAD: Final = frozenset({"fail", "error"})
_NO_RULES: Final = "no policy has verifyImages rules"
_BY_APPLY: Final = (
    "; ImageValidatingPolicies cannot be explained, kyverno-mp apply evaluates them"
)


def called(
    image: str, policies: tuple[str, ...], layout: str, namespace: str, output: str
) -> int:
    """Explain the image; return 1 if a block fails. Raises: CommandFailed."""
    compiled = _compiled(policies)
    try:
        reference = parse_image(image).text()
    except ExpressionFailed as error:
        raise CommandFailed(error.message) from error
    access = clients(uses_docker=True, layout=layout)
    explained: dict[str, Json] = {
        "image": reference,
        "found": findings(Artifacts(access(RegistryAccess())), reference, until(0)),
        "blocks": list(_blocks(compiled, reference, namespace, layout)),
    }
    if output == "json":
        click.echo(json.dumps(explained, indent=2))
    else:
        click.echo("\n".join(lines(explained)))
    results = [result for block in explained["blocks"] for result in block["results"]]
    return int(any(result["status"] in _BAD for result in results))


def _compiled(paths: tuple[str, ...]) -> list[CompiledPolicy]:
    """Return the policies with verifyImages rules. Raises: CommandFailed."""
    policy_set = load_policies(list(paths))
    refused = [f"{path}: {reason}" for path, reason in policy_set.failed_paths]
    compiled = compile_all(policy_set.documents, (), verifies=True)
    refused += [f"policy {name}: {error.message}" for name, error in compiled.invalid]
    if refused:
        raise CommandFailed("\n".join(refused))
    verifying = [
        policy
        for policy in compiled.policies
        if any(rule.verify_images and not rule.unsupported for rule in policy.rules)
    ]
    if not verifying:
        raise CommandFailed(_NO_RULES + (_BY_APPLY if policy_set.images else ""))
    return verifying


def _blocks(
    compiled: list[CompiledPolicy], image: str, namespace: str, layout: str
) -> Iterator[dict[str, Json]]:
    begin = image_reviews(uses_docker=True, layout=layout)
    engine = Engine(load_cluster_data((), layout=layout), clock())
    for policy in compiled:
        for rule in policy.rules:
            body = rule.verify_images
            # Autogen rules verify images in the same way.
            is_copy = rule.name.startswith("autogen-")
            if body is None or rule.unsupported or is_copy:
                continue
            for number, block in enumerate(body.blocks, 1):
                alone = msgspec.structs.replace(
                    rule, verify_images=VerifyImagesIR((block,)), exceptions=()
                )
                trace = Trace(begin())
                state = ImageState(trace, _pod(image, namespace))
                matches = is_among(image, block.references)
                yield {
                    "policy": policy.policy.key,
                    "rule": rule.name,
                    "block": number,
                    "imageReferences": list(block.references),
                    "matches": matches,
                    "results": _run(policy.policy, alone, engine, state, namespace),
                    "steps": trace.steps,
                }


def _run(
    policy: PolicyIR, rule: RuleIR, engine: Engine, state: ImageState, namespace: str
) -> list[Json]:
    """Run one block on the Pod, regardless of the rule's match."""
    state.given = state.resource
    request = Request(
        version="v1",
        kind="Pod",
        name="explained",
        namespace=namespace,
        object=state.resource,
    )
    context: RequestContext = engine.open(request)
    context.runtime.begin_policy(policy, is_tenant=False)
    scope = context.rule_scope(rule.name, policy_namespace=policy.namespace)
    results = LinkedImageRule(policy, rule).run(request, scope, state)
    return [{"status": result.status, "message": result.message} for result in results]


def _pod(image: str, namespace: str) -> dict[str, Json]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "explained", "namespace": namespace},
        "spec": {"containers": [{"name": "explained", "image": image}]},
    }
