"""Owns a PostgreSQL of the tests' own: a cluster in a temporary folder, on a socket in it."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

_QUICK = "-c fsync=off -c full_page_writes=off -c max_connections=200 -c shared_buffers=32MB"


def _program(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    program = str(found[-1]) if found else shutil.which(name)
    assert program, f"{name} is missing: apt-get install postgresql"
    return program


@dataclass(frozen=True)
class Cluster:
    """A server that runs; each database in it is made when it is asked for."""

    directory: Path

    def database(self, name: str) -> str:
        """The URL of a new, empty database."""
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            connection.execute(f'CREATE DATABASE "{name}"')
        return f"postgresql://postgres@/{name}?host={self.directory}"

    def disconnect(self, name: str) -> None:
        """End every connection to a database, as a restart of the server does."""
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                (name,),
            )

    def _address(self, name: str) -> str:
        return f"host={self.directory} user=postgres dbname={name}"


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A server with a cluster of its own, as an unprivileged user; gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="wr-pg-"))
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    data = directory / "data"
    try:
        if os.geteuid() == 0:
            shutil.chown(directory, "postgres")
        _run(user, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8")
        options = f"-k {directory} -c listen_addresses='' {_QUICK}"
        _run(user, "pg_ctl", "-D", data, "-l", directory / "log", "-w", "-o", options, "start")
        try:
            yield Cluster(directory)
        finally:
            _run(user, "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(user: str, program: str, *arguments: object) -> None:
    command = [_program(program), *map(str, arguments)]
    subprocess.run(
        command,
        user=user if os.geteuid() == 0 else None,
        cwd="/",
        check=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )
