"""`weights fetch` with the real huggingface_hub against a server on this machine that speaks its protocol."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from launcher.errors import SparkctlError
from launcher.local_remote import LocalRemote
from launcher.node.answer import Refused
from launcher.node.weights_fetch import _check_space
from launcher.node.weights_manifest import MANIFEST_NAME
from launcher.weights.fetch import Fetch, fetch
from launcher.weights.file_list import Fetched
from launcher.weights.follow import Progress
from tests.launcher.weights.checkpoints import SHARDS, write_checkpoint, write_shard
from tests.launcher.weights.test_bad_checkpoints import local_node

needs_hub = pytest.mark.skipif(
    importlib.util.find_spec("huggingface_hub") is None,
    reason="needs sparkctl[fetch]",
)
COMMIT = "c" * 40
BIG = sorted(SHARDS)[1]


class Hub(ThreadingHTTPServer):
    """One repository. `cut_bytes`: BIG ends there, and is forbidden then; `lie`: BIG has other bytes."""

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.directory = directory
        self.cut_bytes = 0
        self.lie = False
        self.is_cut = False
        self.ranges: list[str] = []

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.directory)): path.read_bytes()
            for path in self.directory.rglob("*")
            if path.is_file()
        }


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/org/model"):
            self._say(json.dumps(self._info()).encode(), {"Content-Type": "application/json"})
            return
        self._file(with_body=True)

    def do_HEAD(self) -> None:
        self._file(with_body=False)

    def _info(self) -> dict[str, object]:
        siblings = []
        for name, data in self.server.files().items():
            sha1 = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            item: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": sha1}
            if name.endswith(".safetensors"):
                sha256 = hashlib.sha256(data).hexdigest()
                item["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 130}
            siblings.append(item)
        return {"id": "org/model", "modelId": "org/model", "sha": COMMIT, "siblings": siblings, "tags": [],
                "private": False, "downloads": 0, "likes": 0}  # fmt: skip

    def _file(self, *, with_body: bool) -> None:
        name = self.path.split(f"/resolve/{COMMIT}/", 1)[1]
        data = self.server.files()[name]
        if name == BIG and self.server.is_cut:
            self._say(b"", {}, status=403)
            return
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        if name == BIG and self.server.lie:
            data = bytes(len(data))
        start, status = 0, 200
        if wanted := self.headers.get("Range"):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            self.server.ranges.append(f"{name} {start}")
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            status = 206
        self._say(data[start:], headers, status=status, with_body=with_body, is_big=name == BIG)

    def _say(
        self,
        data: bytes,
        headers: dict[str, str],
        *,
        status: int = 200,
        with_body: bool = True,
        is_big: bool = False,
    ) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(key, value)
        self.end_headers()
        if with_body and is_big and self.server.cut_bytes:
            self.server.is_cut = True
            self.wfile.write(data[: self.server.cut_bytes])
            self.close_connection = True
        elif with_body:
            self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub(write_checkpoint(tmp_path / "hub"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    yield server
    server.shutdown()
    server.server_close()


def fetch_here(tmp_path: Path, python: str | None = None) -> Fetched:
    job = Fetch(node=local_node(tmp_path), model_path="m", repo="org/model", python=python)
    return fetch(job, LocalRemote("spark-1"), nobody)


def nobody(seen: Progress) -> None:
    pass


@needs_hub
def test_a_repository_arrives_with_the_hashes_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    done = fetch_here(tmp_path)
    assert done.origin == {"repo": "org/model", "revision": COMMIT}
    for name, data in hub.files().items():
        assert (tmp_path / "m" / name).read_bytes() == data
    manifest = json.loads((tmp_path / "m" / MANIFEST_NAME).read_bytes())
    assert manifest["complete"] is True
    assert set(manifest["files"]) == set(hub.files())


@needs_hub
def test_a_cut_download_goes_on_where_it_ended(hub: Hub, tmp_path: Path) -> None:
    # The library writes in pieces of 10 MiB.
    write_shard(hub.directory / BIG, {next(iter(SHARDS[BIG])): 30_000_000})
    hub.cut_bytes = 21_000_000
    with pytest.raises(SparkctlError, match="The download must succeed") as caught:
        fetch_here(tmp_path)
    assert "what is here is kept" in caught.value.hint
    assert not (tmp_path / "m" / BIG).exists()
    assert json.loads((tmp_path / "m" / MANIFEST_NAME).read_bytes())["complete"] is False
    hub.cut_bytes, hub.is_cut, hub.ranges = 0, False, []
    fetch_here(tmp_path)
    starts = [int(text.split()[1]) for text in hub.ranges if text.startswith(BIG)]
    assert starts and starts[0] >= 10 << 20
    assert (tmp_path / "m" / BIG).read_bytes() == hub.files()[BIG]


@needs_hub
def test_bytes_other_than_the_hub_promised_are_refused(hub: Hub, tmp_path: Path) -> None:
    hub.lie = True
    with pytest.raises(SparkctlError, match=f"{BIG} must have the hash of the hub, got sha256"):
        fetch_here(tmp_path)
    assert not (tmp_path / "m" / BIG).exists()
    assert json.loads((tmp_path / "m" / MANIFEST_NAME).read_bytes())["complete"] is False


def test_a_python_without_the_library_says_how_to_get_it(tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "v", with_pip=False)
    python = tmp_path / "v" / "bin" / "python"
    with pytest.raises(SparkctlError, match=f"huggingface_hub must be installed in {python}") as caught:
        fetch_here(tmp_path, str(python))
    assert f"{python} -m pip install 'sparkctl[fetch]'" in caught.value.hint
    with pytest.raises(SparkctlError, match="A Python with huggingface_hub must be on the node"):
        fetch_here(tmp_path, "/nonexistent/python")
    assert sys.version_info >= (3, 11)


def test_a_disk_without_room_for_the_download_is_told_with_both_numbers(tmp_path: Path) -> None:
    """Before the first byte; what is here already does not count."""
    name = "model.safetensors"
    (tmp_path / name).write_bytes(b"x" * 100)
    with pytest.raises(Refused, match=r"must have 1152921504606846876 bytes free .*, got \d+\."):
        _check_space(tmp_path, {name: {"size_bytes": 100}, "b": {"size_bytes": (1 << 60) - 100}})
    _check_space(tmp_path, {name: {"size_bytes": 100}, "b": {"size_bytes": 1}})
