"""Owns the program in the kernel that steers a namespace's traffic to our sockets.

Knows bpf(2) and nothing of containers. It needs kernel 5.9 and CAP_NET_ADMIN with CAP_BPF.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

_BPF_CALL = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_UPDATE, _PROG_LOAD, _LINK_CREATE = 0, 2, 5, 28
_MAP_SOCKMAP = 15
_PROG_SK_LOOKUP = 30
_ATTACH_SK_LOOKUP = 36
_LOG_BYTES = 1 << 16

# Where the fields of `struct bpf_sk_lookup` are. Ports are in host order, addresses as sent.
_FAMILY, _PROTOCOL, _LOCAL_IP4, _LOCAL_IP6, _LOCAL_PORT = 8, 12, 40, 44, 60
_INET, _INET6, _TCP, _UDP, _DNS = 2, 10, 6, 17, 53
_SK_DROP, _SK_PASS = 0, 1
_LOOKUP, _RELEASE, _ASSIGN = 1, 86, 124

TCP4, TCP6, UDP4, UDP6 = range(4)
"""Where each of our sockets is in the map."""

Instruction = tuple[int, int, int, int, int] | str
"""Opcode, destination, source, offset, value; a label, or a jump to one after its opcode."""


def assemble(map_fd: int) -> bytes:
    """The program: TCP to our listeners, UDP port 53 to the stub, other UDP refused.

    What is sent to loopback is left alone, so that the container's own servers get it.
    """
    code: list[object] = [
        _move(6, 1),  # r6 = context
        _move_value(7, TCP4),  # r7 = which socket
        _load(2, 6, _FAMILY),
        _load(3, 6, _PROTOCOL),
        _jump_if(2, _INET, "v4"),
        _jump_unless(2, _INET6, "drop"),
        _move_value(7, TCP6),
        _load(4, 6, _LOCAL_IP6),
        _jump_unless(4, 0, "protocol"),
        _load(4, 6, _LOCAL_IP6 + 4),
        _jump_unless(4, 0, "protocol"),
        _load(4, 6, _LOCAL_IP6 + 8),
        _jump_unless(4, 0, "protocol"),
        _load(4, 6, _LOCAL_IP6 + 12),
        _jump_if(4, _as_sent(b"\0\0\0\1"), "pass"),
        _jump("protocol"),
        "v4",
        _load(4, 6, _LOCAL_IP4),
        _and(4, _as_sent(b"\xff\0\0\0")),
        _jump_if(4, _as_sent(b"\x7f\0\0\0"), "pass"),
        "protocol",
        _jump_if(3, _TCP, "assign"),
        _jump_unless(3, _UDP, "drop"),
        _load(4, 6, _LOCAL_PORT),
        _jump_unless(4, _DNS, "drop"),
        _add(7, UDP4 - TCP4),
        "assign",
        _store(10, 7, -4),
        *_load_map(1, map_fd),
        _move(2, 10),
        _add(2, -4),
        _call(_LOOKUP),
        _jump_if_null(0, "drop"),
        _move(8, 0),
        _move(1, 6),
        _move(2, 8),
        _move_value(3, 0),
        _call(_ASSIGN),
        _move(7, 0),
        _move(1, 8),
        _call(_RELEASE),
        _jump_unless(7, 0, "drop"),
        "pass",
        _move_value(0, _SK_PASS),
        _exit(),
        "drop",
        _move_value(0, _SK_DROP),
        _exit(),
    ]
    return _resolve(code)


def attach(namespace: int, sockets: tuple[int, int, int, int]) -> int:
    """Steers the namespace's traffic to the sockets (in the order above); returns the link.

    It is in force for as long as somebody holds the link. Raises OSError.
    """
    map_fd = _bpf(_MAP_CREATE, struct.pack("IIII", _MAP_SOCKMAP, 4, 8, len(sockets)))
    try:
        for key, fd in enumerate(sockets):
            _put(map_fd, key, fd)
        program = _load_program(assemble(map_fd))
    finally:
        os.close(map_fd)
    try:
        return _bpf(_LINK_CREATE, struct.pack("IIII", program, namespace, _ATTACH_SK_LOOKUP, 0))
    finally:
        os.close(program)


def _put(map_fd: int, key: int, fd: int) -> None:
    key_buffer = ctypes.create_string_buffer(struct.pack("I", key), 4)
    value_buffer = ctypes.create_string_buffer(struct.pack("Q", fd), 8)
    attributes = struct.pack(
        "IxxxxQQQ", map_fd, ctypes.addressof(key_buffer), ctypes.addressof(value_buffer), 0
    )
    _bpf(_MAP_UPDATE, attributes)


def _load_program(code: bytes) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    log = ctypes.create_string_buffer(_LOG_BYTES)

    def attributes(log_level: int) -> bytes:
        return struct.pack(
            "IIQQIIQII16sII",
            _PROG_SK_LOOKUP,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(licence),
            log_level,
            _LOG_BYTES if log_level else 0,
            ctypes.addressof(log) if log_level else 0,
            0,
            0,
            b"workroom",
            0,
            _ATTACH_SK_LOOKUP,
        )

    try:
        return _bpf(_PROG_LOAD, attributes(0))
    except OSError as refused:
        if refused.errno == errno.EPERM:
            raise
        try:
            return _bpf(_PROG_LOAD, attributes(1))
        except OSError as error:
            raise OSError(error.errno, f"program refused: {log.value.decode()}") from None


def _bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    number = _BPF_CALL[platform.machine()]
    result = libc.syscall(number, command, ctypes.byref(buffer), len(attributes))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf({command}): {os.strerror(code)}")
    return int(result)


def _as_sent(raw: bytes) -> int:
    """Four bytes as the kernel's native 32-bit word has them, as a signed immediate."""
    return int.from_bytes(raw, sys.byteorder, signed=True)


_Jump = tuple[str, int, int, int]


def _resolve(code: list[object]) -> bytes:
    places: dict[str, int] = {}
    count = 0
    for each in code:
        if isinstance(each, str):
            places[each] = count
        else:
            count += 1
    out = bytearray()
    for each in code:
        if isinstance(each, bytes):
            out += each
        elif isinstance(each, tuple):
            label, opcode, register, value = each
            offset = places[label] - len(out) // 8 - 1
            out += _instruction(opcode, register, 0, offset, value)
    return bytes(out)


def _instruction(opcode: int, target: int, source: int, offset: int, value: int) -> bytes:
    registers = target | source << 4 if sys.byteorder == "little" else target << 4 | source
    return struct.pack("=BBhi", opcode, registers, offset, value)


def _move(target: int, source: int) -> bytes:
    return _instruction(0xBF, target, source, 0, 0)


def _move_value(target: int, value: int) -> bytes:
    return _instruction(0xB7, target, 0, 0, value)


def _add(target: int, value: int) -> bytes:
    return _instruction(0x07, target, 0, 0, value)


def _and(target: int, value: int) -> bytes:
    return _instruction(0x54, target, 0, 0, value)  # 32 bits


def _load(target: int, source: int, offset: int) -> bytes:
    return _instruction(0x61, target, source, offset, 0)


def _store(target: int, source: int, offset: int) -> bytes:
    return _instruction(0x63, target, source, offset, 0)


def _load_map(target: int, map_fd: int) -> tuple[bytes, bytes]:
    return _instruction(0x18, target, 1, 0, map_fd), _instruction(0, 0, 0, 0, 0)


def _call(helper: int) -> bytes:
    return _instruction(0x85, 0, 0, 0, helper)


def _exit() -> bytes:
    return _instruction(0x95, 0, 0, 0, 0)


def _jump(label: str) -> _Jump:
    return label, 0x05, 0, 0


def _jump_if(register: int, value: int, label: str) -> _Jump:
    return label, 0x16, register, value  # compares 32 bits


def _jump_if_null(register: int, label: str) -> _Jump:
    return label, 0x15, register, 0


def _jump_unless(register: int, value: int, label: str) -> _Jump:
    return label, 0x56, register, value
