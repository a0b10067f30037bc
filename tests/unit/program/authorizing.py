"""Compile and run policies of the evaluation modes HTTP and Envoy, for tests."""

from datetime import UTC, datetime
from typing import Any

from kyverno_mp.compiler.cel_kinds.authorization import compile_authorization
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.cel.authz.http import http_request
from kyverno_mp.expr.cel.authz.library import mode_of
from kyverno_mp.expr.cel.authz.message_json import from_proto, message_data
from kyverno_mp.expr.cel.authz.messages import Message
from kyverno_mp.expr.cel.authz.tokens import KeySetPort
from kyverno_mp.expr.jose import KeySet, parse_key_set
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.authorization import AuthorizationPolicyIR
from kyverno_mp.policy.cel_kinds.validating_policy import (
    AuthorizationPolicy,
    CelPolicyException,
    decode_validating_policy,
)
from kyverno_mp.program.authorization import Authorizer, Check, Decision
from kyverno_mp.program.ports import CelPorts
from tests.waiting import still_ns

NOW = datetime(2025, 6, 1, 12, 0, 0, tzinfo=UTC)


class Issuer:
    """Key sets by URL."""

    def __init__(self, documents: dict[str, bytes]) -> None:
        self._documents = documents

    def fetch(self, url: str, deadline_ns: int) -> KeySet:
        del deadline_ns
        if url not in self._documents:
            raise ExpressionFailed("egress.dns", f"no host for {url}")
        return parse_key_set(self._documents[url])


def document(mode: str, name: str = "p", **spec: Any) -> dict[str, Any]:
    """Return a policy."""
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": "ValidatingPolicy",
        "metadata": {"name": name},
        "spec": {**spec, "evaluation": {"mode": mode}},
    }


def exception(mode: str, *conditions: str, **spec: Any) -> CelPolicyException:
    """Return an exception to the policy ``p``."""
    decoded = decode_validating_policy(
        {
            "apiVersion": "policies.kyverno.io/v1",
            "kind": "PolicyException",
            "metadata": {"name": "e", "namespace": "n"},
            "spec": {
                "policyRefs": [{"name": "p", "kind": "ValidatingPolicy"}],
                "evaluationMode": mode,
                "matchConditions": [
                    {"name": f"c{index}", "expression": text}
                    for index, text in enumerate(conditions)
                ],
                **spec,
            },
        }
    )
    assert isinstance(decoded, CelPolicyException)
    return decoded


def compiled(
    raw: dict[str, Any], *exceptions: CelPolicyException
) -> AuthorizationPolicyIR:
    """Compile a policy."""
    decoded = decode_validating_policy(raw)
    assert isinstance(decoded, AuthorizationPolicy)
    return compile_authorization(decoded, exceptions)


def request(mode: str, data: Any) -> Message:
    """Return a request from JSON data."""
    if mode == "HTTP":
        return http_request(data)
    described = mode_of(mode)
    return from_proto(described.schema[described.request], data)


def check(
    mode: str,
    data: Any,
    issuer: KeySetPort | None = None,
    ports: CelPorts | None = None,
) -> Check:
    """Return a request to decide, with its own budget."""
    runtime = Runtime(now=lambda: NOW, monotonic_ns=still_ns)
    return Check(request(mode, data), runtime, ports or CelPorts(), issuer)


def decide(
    mode: str,
    data: Any,
    *policies: AuthorizationPolicyIR,
    issuer: KeySetPort | None = None,
) -> Decision | None:
    """Return the decision of some policies."""
    return Authorizer(policies, mode).decide(check(mode, data, issuer))


def answered(mode: str, expression: str, data: Any = None, **more: Any) -> Any:
    """Return the answer of a policy with one validation, or its error's text."""
    issuer = more.pop("issuer", None)
    raw = document(mode, validations=[{"expression": expression}], **more)
    found = decide(mode, data or {}, compiled(raw), issuer=issuer)
    if found is None:
        return None
    if found.response is None:
        return str(found.error and found.error.message)
    return message_data(found.response)


def is_true(mode: str, expression: str, data: Any = None, **more: Any) -> bool:
    """Return the value of a bool expression."""
    deny = "envoy.Denied(1)" if mode == "Envoy" else 'http.Denied("")'
    found = answered(mode, f"({expression}) ? {deny}.Response() : null", data, **more)
    assert found is None or isinstance(found, dict), found
    return found is not None


def envoy(**http: Any) -> dict[str, Any]:
    """Return the data of an Envoy request."""
    return {"attributes": {"request": {"http": http}}}
