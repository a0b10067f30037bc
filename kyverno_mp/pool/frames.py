"""Send and receive messages of a bounded size over a stream socket.

Room: pool. Takes: a connected socket. Gives: write_frame, read_frame.
Next: pool/evaluators.py. May touch: that socket.

    0   length u32, little endian
    4   content
"""

import socket
import struct
from typing import Final

from kyverno_mp.errors import StateError
from kyverno_mp.limits import POOL_FRAME_BYTES_MAX

_LENGTH: Final = struct.Struct("<I")


def write_frame(link: socket.socket, content: bytes) -> None:
    """Send one message.

    Raises: StateError (``pool.frame``) when the message is too large; OSError.
    """
    if len(content) > POOL_FRAME_BYTES_MAX:
        raise StateError("pool.frame", f"a message has {len(content)} bytes")
    link.sendall(_LENGTH.pack(len(content)) + content)


def read_frame(link: socket.socket) -> bytes | None:
    """Return the next message, None when the other side has closed the connection.

    Raises: StateError (``pool.frame``) when the message is too large or ends early;
    OSError.
    """
    head = _read(link, _LENGTH.size)
    if not head:
        return None
    (length,) = _LENGTH.unpack(_whole(head, _LENGTH.size))
    if length > POOL_FRAME_BYTES_MAX:
        raise StateError("pool.frame", f"a message has {length} bytes")
    return _whole(_read(link, length), length)


def _whole(data: bytes, length: int) -> bytes:
    if len(data) < length:
        raise StateError("pool.frame", "a message ends early")
    return data


def _read(link: socket.socket, count: int) -> bytes:
    """Return ``count`` bytes, or fewer if the connection ends first."""
    parts: list[bytes] = []
    missing = count
    while missing and (part := link.recv(min(missing, 1 << 20))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
