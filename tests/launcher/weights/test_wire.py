"""The fabric's side of a push: strangers and garbage on the source's port, and a source that is none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from launcher.call_node import NodeStream
from launcher.errors import SparkctlError
from launcher.local_remote import LocalRemote
from launcher.node.weights_manifest import MANIFEST_NAME
from launcher.node.weights_wire import answer_greeting, receive_exactly, receive_message, send_message
from launcher.weights.fetch import adopt
from launcher.weights.file_list import Received
from launcher.weights.follow import Progress, follow
from tests.launcher.weights.checkpoints import SHARDS, write_checkpoint
from tests.launcher.weights.test_bad_checkpoints import local_node

TOKEN = "a" * 64
FIRST = min(SHARDS)


def nobody(seen: Progress) -> None:
    pass


@contextmanager
def serving(models: Path, **changes: Any) -> Iterator[tuple[str, int]]:
    values = {
        "models": str(models),
        "model_path": "m",
        "leave_out": [],
        "address": "127.0.0.1",
        "tokens": [TOKEN],
    }
    with NodeStream(LocalRemote("spark-1"), "weights_serve", **(values | changes)) as stream:
        said = stream.read(20)
        assert said is not None
        yield "127.0.0.1", said["listening"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    write_checkpoint(models / "m")
    adopt(local_node(models), "m", "m", LocalRemote("spark-1"), nobody)
    return models


def ask(connection: socket.socket, name: str, offset: int) -> dict[str, Any] | None:
    send_message(connection, {"name": name, "offset": offset})
    return receive_message(connection)


def test_strangers_get_nothing_and_disturb_nobody(models: Path) -> None:
    with serving(models) as where:
        for said in (b"GET / HTTP/1.1\r\n\r\n" + bytes(100), bytes(32), b"x"):
            with socket.create_connection(where, timeout=10) as stranger:
                receive_exactly(stranger, 32)
                stranger.sendall(said)
                with suppress(OSError):  # closed with bytes unread
                    stranger.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
        with socket.create_connection(where, timeout=10) as friend:
            answer_greeting(friend, TOKEN)
            size = (models / "m" / FIRST).stat().st_size
            assert ask(friend, FIRST, size - 3) == {"num_bytes": 3}
            assert receive_exactly(friend, 4) == (models / "m" / FIRST).read_bytes()[-3:] + b"="


@pytest.mark.parametrize(
    ("name", "offset", "message"),
    [
        ("../../etc/passwd", 0, "is not on the list"),
        (MANIFEST_NAME, 0, "is not on the list"),
        (FIRST, 1 << 60, "got offset"),
        (FIRST, -1, "got offset"),
    ],
)
def test_only_listed_files_are_served(models: Path, name: str, offset: int, message: str) -> None:
    with serving(models) as where, socket.create_connection(where, timeout=10) as friend:
        answer_greeting(friend, TOKEN)
        said = ask(friend, name, offset)
        assert said is not None and message in said["error"]


def test_a_source_that_cannot_listen_is_refused(models: Path) -> None:
    with (
        pytest.raises(
            SparkctlError, match=r"must listen on its fabric address 198\.18\.0\.1, got: Cannot assign"
        ),
        serving(models, address="198.18.0.1"),
    ):
        pass


def receive_from(where: tuple[str, int], models: Path, files: dict[str, Any]) -> Received:
    return follow(
        LocalRemote("spark-2"), "weights_receive", Received, nobody, models=str(models), model_path="m",
        files=files, origin={}, left_out=[], whole={}, source="spark-1", address=where[0], port=where[1],
        token=TOKEN, num_streams=1,
    )  # fmt: skip


@contextmanager
def false_source(*answers: bytes) -> Iterator[tuple[str, int]]:
    """Greets, takes any proof, and says these bytes to the first request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(bytes(32))
                receive_exactly(connection, 32)
                receive_message(connection)
                for answer in answers:
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[:2]


FILES = {"x.bin": {"size_bytes": 5, "sha256": "0" * 64}}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([b"HTTP/1.1 400\r\n"], "got what is no message"),
        ([b'{"num_bytes": 7}\n'], "must send 5 bytes of x.bin, got"),
        ([b'{"num_bytes": 5}\n', b"abc"], "got the end of the connection"),
        (
            [b'{"num_bytes": 5}\n', b"abcde!"],
            "must stay as it is while it is copied, got a change on spark-1",
        ),
        (
            [b'{"num_bytes": 5}\n', b"abcde="],
            "must arrive with sha256 00000000.*, got 36bbe50ed96841d1",
        ),
        ([b'{"error": "no"}\n'], "must send x.bin, got a refusal: no"),
    ],
)
def test_what_a_false_source_sends_never_gets_a_name(
    tmp_path: Path, answers: list[bytes], message: str
) -> None:
    with false_source(*answers) as where, pytest.raises(SparkctlError, match=message) as caught:
        receive_from(where, tmp_path, FILES)
    assert caught.value.node == "spark-2"
    assert not (tmp_path / "m" / "x.bin").exists()
    manifest = tmp_path / "m" / MANIFEST_NAME
    assert not manifest.exists() or json.loads(manifest.read_bytes())["complete"] is False


def test_names_that_lead_outside_are_refused(tmp_path: Path) -> None:
    for name in ("../x", "/x", ".hidden", "a//b"):
        with pytest.raises(SparkctlError, match="must have plain names"):
            receive_from(("127.0.0.1", 1), tmp_path, {name: FILES["x.bin"]})


def test_a_closed_port_is_told_with_address_and_hint(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = listener.getsockname()[:2]
    with pytest.raises(SparkctlError, match=f"got Connection refused .spark-1 at 127.0.0.1:{where[1]}"):
        receive_from(where, tmp_path, FILES)
