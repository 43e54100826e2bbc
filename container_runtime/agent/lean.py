"""The C modules behind `collections` and `signal`, without what those import on top."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from signal import SIG_DFL, SIG_IGN, SIGCHLD, set_wakeup_fd, signal
else:
    from _collections import deque
    from _signal import SIG_DFL, SIG_IGN, SIGCHLD, set_wakeup_fd, signal

__all__ = ["SIGCHLD", "SIG_DFL", "SIG_IGN", "deque", "set_wakeup_fd", "signal"]
