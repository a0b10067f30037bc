"""Write the DER that timestamps and lists of SCTs need."""


def tlv(tag: int, *parts: bytes) -> bytes:
    """Return a value with its tag and length."""
    body = b"".join(parts)
    if len(body) < 0x80:
        return bytes([tag, len(body)]) + body
    size = (len(body).bit_length() + 7) // 8
    return bytes([tag, 0x80 | size]) + len(body).to_bytes(size) + body


def sequence(*parts: bytes) -> bytes:
    return tlv(0x30, *parts)


def set_of(*parts: bytes) -> bytes:
    return tlv(0x31, *sorted(parts))


def integer(value: int) -> bytes:
    return tlv(0x02, value.to_bytes(value.bit_length() // 8 + 1))


def octets(data: bytes) -> bytes:
    return tlv(0x04, data)


def utf8(text: str) -> bytes:
    return tlv(0x0C, text.encode())


def oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    body = bytes([40 * first + second])
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        body += bytes(reversed(digits))
    return tlv(0x06, body)
