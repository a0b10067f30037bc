"""Resolve host names for policies; no other port reaches DNS.

Room: egress. Takes: a host name from an expression. Gives: its addresses.
Next: program/ports.ClusterData.resolve_host, wired by webhook and cli.
May touch: the machine's resolver. It blocks, so rules that may call it have the effect
EFFECT_CLUSTER and run outside the event loop. Source: docs/behaviour/engine 9.2
(is_external_url).
"""

from kyverno_mp.errors import KubeUnavailable


def resolve_host(host: str) -> list[str]:
    """Return the distinct addresses of ``host``.

    Raises: KubeUnavailable (``egress.dns``) when it does not resolve.
    """
    import socket  # PERF: a faster CLI start; see process/startup/preload.py

    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise KubeUnavailable("egress.dns", f"lookup {host}: no such host") from error
    return list(dict.fromkeys(str(item[4][0]) for item in infos))
