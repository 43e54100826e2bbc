"""Owns the numbers that both ends of a connection must agree on, and the gRPC options they make."""

from dataclasses import dataclass
from datetime import timedelta

Option = tuple[str, str | int]

MESSAGE_BYTES = 4 * 1024 * 1024
"""The largest message that either side sends or takes unless told otherwise: 4 MiB.

Streams carry chunks of at most 1 MiB, and lists are paged, so that no message comes near.
"""

PENDING_CALLS = 10_000
"""How many calls may wait for their handler to begin.

The library begins them one after the other, and by itself it cancels calls at random where more
than 1,000 arrive at once.
"""


@dataclass(frozen=True)
class Keepalive:
    """How a dead peer is noticed.

    Both sides ping after `interval` without data, also while no call is open, and drop the
    connection when `timeout` passes without an answer. A server takes pings at half the interval,
    so that no client of ours is ever sent away for pinging too much.
    """

    interval: timedelta = timedelta(seconds=20)
    timeout: timedelta = timedelta(seconds=10)

    def client_options(self) -> list[Option]:
        """For a channel."""
        return [
            ("grpc.keepalive_time_ms", _ms(self.interval)),
            ("grpc.keepalive_timeout_ms", _ms(self.timeout)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]

    def server_options(self) -> list[Option]:
        """For a server."""
        return [
            *self.client_options(),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _ms(self.interval) // 2),
            ("grpc.http2.max_ping_strikes", 2),
        ]


KEEPALIVE = Keepalive()
"""What every server and channel of Workroom uses."""


def message_options(limit: int) -> list[Option]:
    """Bounds messages in both directions to `limit` bytes."""
    return [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)]


def pending_options(limit: int = PENDING_CALLS) -> list[Option]:
    """For a server: `limit` calls may wait; beyond it some are cancelled, beyond twice it all."""
    return [
        ("grpc.server.max_pending_requests", limit),
        ("grpc.server.max_pending_requests_hard_limit", 2 * limit),
    ]


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
