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
        raise _unavailable(host, port, chosen_by, error) from error


def reserve(host: str, port: int, chosen_by: str = "") -> socket.socket:
    """Bind an address without listening; other sockets of this user share its port.

    For servers that open their own sockets, one in each process (SO_REUSEPORT).
    Raises: StateError (``process.listen``) if the address is not available.
    """
    is_dual = not host and socket.has_dualstack_ipv6()
    try:
        name = host or ("::" if is_dual else "0.0.0.0")  # noqa: S104 - a proxy of the cluster calls it
        family, _, _, _, address = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, socket.SOCK_STREAM)
        if is_dual:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind(address)
    except OSError as error:
        raise _unavailable(host, port, chosen_by, error) from error
    return opened


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


def _unavailable(host: str, port: int, chosen_by: str, error: OSError) -> StateError:
    shown = f"{host or '*'}:{port}" + (f" ({chosen_by})" if chosen_by else "")
    return StateError("process.listen", f"cannot listen on {shown}: {_reason(error)}")


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there"
    # Without the text that Python adds about its own attempts.
    return os.strerror(error.errno) if error.errno else str(error)
