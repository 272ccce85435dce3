"""paramiko's transport with two things put right: exit signals, and messages after a channel's close."""

from __future__ import annotations

import signal
import threading
from typing import Any

from launcher.ssh_paramiko import paramiko

UNNAMED_SIGNAL_STATUS = 255
# Message types (RFC 4254) that a server answers with a disconnect when their channel is already closed.
CHANNEL_MESSAGES = range(paramiko.common.MSG_CHANNEL_DATA, paramiko.common.MSG_CHANNEL_REQUEST + 1)


def _handle_request(channel: Any, message: paramiko.Message) -> None:
    """exit-signal requests, which paramiko drops: status 128 + signal, as a shell gives."""
    start = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        number = signal.Signals.__members__.get(f"SIG{message.get_text()}")
        channel.exit_status = 128 + number if number is not None else UNNAMED_SIGNAL_STATUS
        channel.status_event.set()
        return
    message.packet.seek(start)
    paramiko.Channel._handle_request(channel, message)  # type: ignore[attr-defined]


class Transport(paramiko.Transport):
    """paramiko builds a channel's messages under a lock but sends them after it, so one thread's data or
    end-of-file can follow another's close (its own answer to the server's close included). OpenSSH then ends
    the whole connection: "packet referred to nonexistent channel". Here such stragglers are dropped.
    """

    _channel_handler_table = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        paramiko.common.MSG_CHANNEL_REQUEST: _handle_request,
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._order_lock = threading.Lock()
        self._closed_channel_ids: set[int] = set()

    def open_channel(self, *args: Any, **kwargs: Any) -> paramiko.Channel:
        channel = super().open_channel(*args, **kwargs)
        with self._order_lock:  # the server gives numbers of closed channels to new ones
            self._closed_channel_ids.discard(channel.remote_chanid)
        return channel

    def _send_user_message(self, data: paramiko.Message) -> None:
        start = data.asbytes()[:5]
        if start[0] not in CHANNEL_MESSAGES:
            super()._send_user_message(data)  # type: ignore[misc]
            return
        channel_id = int.from_bytes(start[1:], "big")
        with self._order_lock:
            if channel_id in self._closed_channel_ids:
                return
            if start[0] == paramiko.common.MSG_CHANNEL_CLOSE:
                self._closed_channel_ids.add(channel_id)
            super()._send_user_message(data)  # type: ignore[misc]
