"""ClientHellos, real ones and ones put together by hand."""

import ssl
import struct


def real_hello(name: str | None = "a.example", protocols=("h2", "http/1.1")) -> bytes:
    """What OpenSSL sends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def extension(kind: int, content: bytes) -> bytes:
    return struct.pack("!HH", kind, len(content)) + content


def server_name(*names: bytes, kind: int = 0) -> bytes:
    listed = b"".join(struct.pack("!BH", kind, len(name)) + name for name in names)
    return extension(0, struct.pack("!H", len(listed)) + listed)


def hello(*extensions: bytes, version: int = 0x0303, pad: int = 0) -> bytes:
    """A hello message, without its record."""
    if pad:
        extensions = (*extensions, extension(21, b"a" * pad))
    body = struct.pack("!H", version) + bytes(32) + b"\0" + b"\0\2\x13\x01" + b"\1\0"
    listed = b"".join(extensions)
    body += struct.pack("!H", len(listed)) + listed
    return b"\1" + len(body).to_bytes(3) + body


def records(message: bytes, size: int = 16384) -> bytes:
    """A message in records of at most `size` bytes."""
    pieces = [message[place : place + size] for place in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2) + piece for piece in pieces)
