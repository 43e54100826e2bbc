"""File verbs for the host: what is asked for, in flight, and sent back.

The work itself is done by threads with the acting user's credentials (`filework`), one job of a
request at a time; nothing here blocks.
"""

from __future__ import annotations

from errno import EMFILE, EPROTO

from . import filework, wire
from .lean import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .connection import Connection
    from .loop import Loop
    from .wire import Value

FLAG_ROOT, FLAG_OPTION = 1, 2
"""The option: follow (stat), make parents (write, mkdir), recursive (remove), replace (move)."""


class Files:
    """The requests of the present connection, at most MAX_FILE_REQUESTS."""

    def __init__(self, loop: Loop, connection: Connection) -> None:
        self._connection = connection
        self._workers = filework.Workers(loop)
        self._requests: dict[int, Request] = {}

    def frame(self, kind: int, channel: int, offset: int, payload: bytes) -> None:
        """Handle a file frame from the host."""
        if kind == wire.FILE_OPEN:
            self._open(channel, payload)
            return
        request = self._requests.get(channel)
        if request is None:
            return  # it has ended meanwhile
        if kind == wire.FILE_CANCEL:
            self._requests.pop(channel).drop()
        elif kind == wire.FILE_ACK:
            request.acknowledge(offset)
        elif kind == wire.FILE_DATA:
            request.receive(offset, payload)
        elif kind == wire.FILE_END:
            request.end(offset)
        else:
            raise wire.ProtocolError("out of turn")

    def drop_all(self) -> None:
        """The connection is gone, and all its requests."""
        for request in self._requests.values():
            request.drop()
        self._requests.clear()

    def _open(self, channel: int, payload: bytes) -> None:
        values = wire.fields(payload, 7)
        verb, flags = wire.number(values[0]), wire.number(values[1], 0, 3)
        root, option = bool(flags & FLAG_ROOT), bool(flags & FLAG_OPTION)
        path = wire.text(values[2], 2 * wire.MAX_PATH)
        other = wire.text(values[3], wire.MAX_PATH)
        first, second = wire.number(values[4]), wire.number(values[5], -1)
        mode = wire.number(values[6], 0, 0o7777)
        if channel in self._requests:
            raise wire.ProtocolError("a request number was used twice")
        request: Request
        if verb == wire.READ:
            request = Reading(self, channel, root, path, first, second)
        elif verb == wire.WRITE:
            request = Writing(self, channel, root, filework.Replacement(path, mode, option, root))
        else:
            request = Request(self, channel, root)
        if len(self._requests) >= wire.MAX_FILE_REQUESTS:
            text = b"too many file requests at once"
            self.control(wire.control(wire.FILE_ERROR, channel, EMFILE, text))
            return
        self._requests[channel] = request
        if verb in (wire.READ, wire.WRITE):
            request.begin()
        else:
            request.run(filework.simple(verb, option, path, other, first, mode))

    def finish(self, channel: int, request: Request, frame: bytes) -> None:
        """Send a request's last frame, unless the connection that asked is gone."""
        if self._requests.get(channel) is request:
            del self._requests[channel]
            self._connection.control(frame)

    def submit(
        self, root: bool, work: Callable[[], object], done: Callable[[object], None]
    ) -> None:
        self._workers.submit(root, work, done)

    def control(self, frame: bytes) -> None:
        self._connection.control(frame)

    def offer(self, reading: Reading) -> None:
        self._connection.offer(reading)


class Request:
    """One verb. `drop` may come at any time, also while a job is being done."""

    queued = False

    def __init__(self, files: Files, channel: int, root: bool) -> None:
        self._files, self.channel, self._root = files, channel, root
        self.dropped = False
        self._busy = False

    def begin(self) -> None:
        """Start what takes several steps."""

    def run(self, work: Callable[[], list[Value]]) -> None:
        """Do a verb of one step."""
        self._job(work, self._answer)

    def _job(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self._busy = True

        def finished(result: object) -> None:
            self._busy = False
            if self.dropped:
                self._clean()
            elif isinstance(result, OSError):
                self.fail(result)
            else:
                done(result)

        self._files.submit(self._root, work, finished)

    def _answer(self, result: object) -> None:
        assert isinstance(result, list)
        self._files.finish(
            self.channel, self, wire.control(wire.FILE_RESULT, self.channel, *result)
        )

    def fail(self, problem: OSError) -> None:
        """Answer with an error and clean up."""
        message = (problem.strerror or str(problem)).encode()[:1024]
        number = problem.errno or EPROTO
        frame = wire.control(wire.FILE_ERROR, self.channel, number, message)
        self.dropped = True
        self._clean()
        self._files.finish(self.channel, self, frame)

    def drop(self) -> None:
        """Nobody wants the result."""
        self.dropped = True
        if not self._busy:
            self._clean()

    def _clean(self) -> None:
        """Release what is held; called with no job under way."""

    def acknowledge(self, offset: int) -> None:
        raise wire.ProtocolError("not a read")

    def receive(self, offset: int, data: bytes) -> None:
        raise wire.ProtocolError("not a write")

    def end(self, offset: int) -> None:
        raise wire.ProtocolError("not a write")


class Reading(Request):
    """A file's bytes, never more than WINDOW ahead of the host."""

    def __init__(
        self, files: Files, channel: int, root: bool, path: bytes, start: int, length: int
    ) -> None:
        super().__init__(files, channel, root)
        self._path, self._start = path, start
        self._length = length if length >= 0 else 2**62
        self._fd = -1
        self._read = self._taken = self._acknowledged = 0
        self._chunks: deque[bytes] = deque()
        self._info: list[Value] = []
        self._eof = False

    def begin(self) -> None:
        self._job(lambda: filework.open_regular(self._path), self._opened)

    def _opened(self, result: object) -> None:
        assert isinstance(result, tuple)
        self._fd, self._info = result
        self._more()

    def _more(self) -> None:
        left = min(self._length - self._read, wire.WINDOW - (self._read - self._acknowledged))
        if self._busy or self._eof or (left <= 0 and self._read < self._length):
            return
        size, at = min(left, wire.MAX_PAYLOAD), self._start + self._read
        self._job(lambda: filework.read_at(self._fd, size, at), self._have)

    def _have(self, data: object) -> None:
        assert isinstance(data, bytes)
        if data:
            self._read += len(data)
            self._chunks.append(data)
            self._files.offer(self)
            self._more()
        else:
            self._eof = True
            self._finish()

    def take(self, parts: list[bytes]) -> bool:
        if not self._chunks:
            return False
        chunk = self._chunks.popleft()
        parts.append(wire.header(wire.FILE_DATA, len(chunk), self.channel, 0, self._taken))
        parts.append(chunk)
        self._taken += len(chunk)
        if not self._chunks:
            self._finish()
        return bool(self._chunks)

    def _finish(self) -> None:
        if self._eof and not self._chunks and not self.dropped:
            self._answer(self._info)
            self.drop()

    def acknowledge(self, offset: int) -> None:
        if not self._acknowledged <= offset <= self._taken:
            raise wire.ProtocolError("acknowledged what was not sent")
        self._acknowledged = offset
        if self._fd >= 0:
            self._more()

    def _clean(self) -> None:
        self._chunks.clear()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._files.submit(False, lambda: filework.close(fd), lambda _result: None)


class Writing(Request):
    """A file's new content, put in place when the host says that it is whole."""

    def __init__(
        self, files: Files, channel: int, root: bool, replacement: filework.Replacement
    ) -> None:
        super().__init__(files, channel, root)
        self._replacement = replacement
        self._waiting: list[bytes] = []
        self._received = self._written = 0
        self._opened = self._ended = False

    def begin(self) -> None:
        self._job(self._replacement.open, self._ready)

    def receive(self, offset: int, data: bytes) -> None:
        if offset != self._received or self._ended:
            raise wire.ProtocolError("a gap in a file")
        self._received += len(data)
        if self._received - self._written > wire.WINDOW:
            raise wire.ProtocolError("file data beyond its window")
        self._waiting.append(data)
        self._next()

    def end(self, offset: int) -> None:
        if offset != self._received:
            raise wire.ProtocolError("a file ends elsewhere")
        self._ended = True
        self._next()

    def _ready(self, _result: object) -> None:
        self._opened = True
        self._next()

    def _next(self) -> None:
        if self._busy or not self._opened:
            return
        if self._waiting:
            data, self._waiting = self._waiting, []
            self._job(lambda: self._replacement.write(data), self._wrote)
        elif self._ended:
            self._job(self._replacement.commit, self._answer)

    def _wrote(self, count: object) -> None:
        assert isinstance(count, int)
        self._written += count
        self._files.control(wire.frame(wire.FILE_ACK, self.channel, offset=self._written))
        self._next()

    def _clean(self) -> None:
        self._files.submit(self._root, self._replacement.discard, lambda _result: None)
