"""Runs inside a container, by its own Python: one attempt each, its outcome as one JSON line.

`python3 - NAME ARGUMENTS…`; the arguments are JSON. Needs nothing but the standard library.
"""

import json
import socket
import sys


def talk(host, port, *said, wait=True):
    """Sends pieces, and reads to the end. What came, or the error's name."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(8)
        try:
            client.connect((host, port))
            for piece in said:
                client.sendall(piece.encode("latin-1"))
            found = b""
            while wait:
                data = client.recv(65536)
                if not data:
                    break
                found += data
            return found.decode("latin-1")
        except OSError as error:
            return type(error).__name__


def tunnel(host, port, target, said):
    """CONNECT to a target, then says something within."""
    with socket.socket() as client:
        client.settimeout(8)
        client.connect((host, port))
        client.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1"))
        first = client.recv(4096).decode("latin-1")
        if " 200 " not in first:
            return [first, ""]
        client.sendall(said.encode("latin-1"))
        try:
            return [first, client.recv(4096).decode("latin-1")]
        except OSError as error:
            return [first, type(error).__name__]


def resolve(name, port):
    """Looks a name up as programs do."""
    try:
        return sorted({each[4][0] for each in socket.getaddrinfo(name, port)})
    except OSError as error:
        return type(error).__name__


def fetch(url):
    """An HTTP request by the standard library."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=8) as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
    except OSError as error:
        return [0, str(error)]


def datagram(host, port, said="x"):
    """A UDP packet, and what comes back."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.settimeout(3)
        try:
            client.connect((host, port))
            client.send(said.encode())
            return client.recv(4096).hex()
        except OSError as error:
            return type(error).__name__


def make_socket(family, kind, protocol=0):
    """Whether a socket of a kind can be made at all."""
    try:
        socket.socket(family, kind, protocol).close()
        return "made"
    except OSError as error:
        return type(error).__name__


def serve(host, port):
    """A server of the container's own: reached on loopback, and not as somebody else."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen()
        server.settimeout(5)
        with socket.create_connection(("127.0.0.1", port), 5):
            server.accept()[0].close()
        elsewhere = talk("1.2.3.4", port, "x")
        server.settimeout(0)
        try:
            server.accept()
            return [elsewhere, "answered for somebody else"]
        except OSError:
            return [elsewhere, "alone"]


def take(host, port, kind):
    """Tries to bind where our sockets are."""
    with socket.socket(socket.AF_INET, kind) as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            thief.bind((host, port))
            return "taken"
        except OSError as error:
            return type(error).__name__


def links():
    """The container's network interfaces."""
    return [name for _, name in socket.if_nameindex()]


def sockets():
    """Unix sockets that somebody outside could listen on."""
    with open("/proc/self/mountinfo") as mounts:
        places = {line.split()[4] for line in mounts}
    import os
    import stat

    found = []
    for place in ("/run", "/var/run", "/tmp", *places):
        for folder, _, names in os.walk(place):
            if folder.startswith(("/proc", "/sys")):
                break
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if stat.S_ISSOCK(os.lstat(path).st_mode):
                        found.append(path)
                except OSError:
                    pass
    return sorted(set(found))


if __name__ == "__main__":
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    sys.stdout.write(json.dumps(globals()[name](*arguments)))
