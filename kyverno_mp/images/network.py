"""Query transparency logs and read TUF mirrors through an Exchange for registries.

Room: images. Takes: an Exchange of registry/exchange.py, which decides which calls are
allowed; the name of this program. Gives: a Send, a Fetch. Next: cli/cluster/trust.py,
webhook/images.py. May touch: the network through the Exchange.
Source: docs/behaviour/images 3.8.
"""

from kyverno_mp.images.sigstore.log_search import Send
from kyverno_mp.images.sigstore.trust_root import Fetch
from kyverno_mp.limits import IMAGE_LOG_BYTES_MAX, IMAGE_TRUST_BYTES_MAX
from kyverno_mp.registry.exchange import Exchange, RegistryCall


def log_sender(exchange: Exchange, user_agent: str) -> Send:
    """Return a function that sends a query to a transparency log."""

    def send(url: str, query: bytes, deadline_ns: int) -> tuple[int, bytes]:
        headers = {
            "User-Agent": user_agent,
            "Content-Type": "application/json",
            "Accept": "application/json",
        }
        call = RegistryCall(
            method="POST",
            url=url,
            headers=headers,
            body=query,
            bytes_max=IMAGE_LOG_BYTES_MAX,
        )
        answer = exchange(call, deadline_ns)
        return answer.status, answer.body

    return send


def mirror_reader(exchange: Exchange, user_agent: str) -> Fetch:
    """Return a function that reads a file of a TUF repository."""

    def fetch(url: str, deadline_ns: int) -> tuple[int, bytes]:
        call = RegistryCall(
            method="GET",
            url=url,
            headers={"User-Agent": user_agent},
            bytes_max=IMAGE_TRUST_BYTES_MAX,
        )
        answer = exchange(call, deadline_ns)
        return answer.status, answer.body

    return fetch
