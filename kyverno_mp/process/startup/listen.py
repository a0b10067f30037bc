"""Open sockets that outlive the processes that accept connections from them.

Room: process. Takes: host and port. Gives: a listening socket. Next: serve.
May touch: the network. The supervisor opens them before it forks, so a restarted child
accepts from the same queue and no connection is refused meanwhile.
"""

import errno
import os
import socket
from typing import Final

from kyverno_mp.errors import StateError

_ANY: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared only


def listen(host: str, port: int, backlog: int, chosen_by: str = "") -> socket.socket:
    """Listen on ``host``, "" for all addresses of both families.

    ``chosen_by``: the settings that define host and port, for the error message.

    Raises: StateError (``process.listen``) if the address is not available.
    """
    try:
        if host:
            found = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, address = found[0][0], found[0][4]
            return socket.create_server(
                (str(address[0]), port), family=family, backlog=backlog
            )
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("::", port),
                family=socket.AF_INET6,
                dualstack_ipv6=True,
                backlog=backlog,
            )
        return socket.create_server(("0.0.0.0", port), backlog=backlog)  # noqa: S104 - a webhook serves the cluster
    except OSError as error:
        shown = f"{host or '*'}:{port}" + (f" ({chosen_by})" if chosen_by else "")
        raise StateError(
            "process.listen", f"cannot listen on {shown}: {_reason(error)}"
        ) from error


def address_of(host: str, port: int) -> str:
    """Return host and port of a URL that can be opened on this machine."""
    if host in _ANY:
        host = "localhost"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_of(listener: socket.socket) -> int:
    """Return the port, including one that the kernel chose for port 0."""
    port: int = listener.getsockname()[1]
    return port


def refuse_waiting(listener: socket.socket, most: int) -> int:
    """Close at most ``most`` waiting connections, and return their number."""
    listener.setblocking(False)
    for number in range(most):
        try:
            accepted, _ = listener.accept()
        except OSError:
            return number
        accepted.close()
    return most


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there"
    # Without the text that Python adds about its own attempts.
    return os.strerror(error.errno) if error.errno else str(error)
