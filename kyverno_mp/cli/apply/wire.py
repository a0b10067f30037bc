"""Serialize Responses, to send them from a worker process to its parent.

Room: cli. Takes: Responses of one object. Gives: bytes, and the decoded Responses.
Next: apply.
"""

from collections.abc import Sequence
from typing import Any, Final, get_type_hints

import msgspec

from kyverno_mp.cli.apply.evaluate import Response
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.values.jsonvalue import Json

_HINTS: Final = get_type_hints(Response)
_SENT: Final = [
    name for name in Response.__struct_fields__ if name not in ("policy", "resource")
]
"""Fields that are always sent; policy and object are sent only if the parent does not
have them."""
_Sent: Any = msgspec.defstruct(
    "_Sent",
    [
        ("position", int),
        ("policy", PolicyIR | None),
        ("changed", dict[str, Any] | None),
        *((name, _HINTS[name]) for name in _SENT),
    ],
    array_like=True,
)


class Wire:
    """Encoder and decoder, created before the fork so that policies are shared."""

    def __init__(self, policies: Sequence[PolicyIR]) -> None:
        self._policies = policies
        self._positions = {id(policy): n for n, policy in enumerate(policies)}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[_Sent] | None)

    def encode(self, responses: Sequence[Response] | None, resource: Json) -> bytes:
        """Return the bytes of all responses for one object; None stays None."""
        if responses is None:
            return self._encoder.encode(None)
        return self._encoder.encode(
            [
                _Sent(
                    (position := self._positions.get(id(response.policy), -1)),
                    response.policy if position < 0 else None,
                    None if response.resource is resource else response.resource,
                    *(getattr(response, name) for name in _SENT),
                )
                for response in responses
            ]
        )

    def decode(self, data: bytes, resource: dict[str, Json]) -> list[Response] | None:
        """Return the decoded responses."""
        sent_responses = self._decoder.decode(data)
        if sent_responses is None:
            return None
        responses = []
        for sent in sent_responses:
            changed = sent.changed
            responses.append(
                Response(
                    policy=sent.policy or self._policies[sent.position],
                    resource=resource if changed is None else changed,
                    **{name: getattr(sent, name) for name in _SENT},
                )
            )
        return responses
