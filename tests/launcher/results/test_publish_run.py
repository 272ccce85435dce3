"""`results publish`: what is private is replaced, figures stay, and the archive is the same each time."""

from __future__ import annotations

import hashlib
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.results.finish_run import finish_run
from launcher.results.private_values import Scrubber
from launcher.results.publish_run import Format, scrubbed_copy, write_archive
from launcher.results.run_directory import read_manifest
from launcher.results.verify_run import verify_run
from tests.launcher.results.make_run import make_request, make_requests, make_run

PRIVATE = {
    "10.1.2.3": "address-0",
    "fd00:12::7": "address-0",
    "::ffff:10.1.2.3": "::ffff:address-0",
    "aa:bb:cc:00:11:22": "mac-0",
    "/home/anna/models/v41": "~/models/v41",
    "/root/x": "~/x",
    "file:///home/anna/x": "file://~/x",
    "file:///root/x": "file://~/x",
    "anna@example.org": "mail-0",
    "GPU-12345678-1234-1234-1234-123456789abc": "device-0",
    "sk-abcdefghijklmnopqrstuvwx": "***",
    "hf_abcdefghijklmnopqrstuv": "***",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA": "***",
    "on tower7 now": "on name-0 now",
}


@pytest.mark.parametrize("text", PRIVATE)
def test_private_values_are_replaced(text: str) -> None:
    assert Scrubber(("tower7",)).scrub(f"a {text}.") == f"a {PRIVATE[text]}."


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "0.0.0.0", "::1", "12:34:56", "0.5.23", "2.13.0+cu130", "16:9", "mode=decode", "node-0",
        "a" * 64, "2026-11-29T20:00:00Z", "sglang:generation_tokens_total", "512.25.1", "std::vector<int>",
        "/homely/x", "/usr/root/x", "towers7 tower70",
    ],
)  # fmt: skip
def test_what_is_not_private_stays(text: str) -> None:
    scrubber = Scrubber(("tower7",))
    assert scrubber.scrub(text) == text
    assert scrubber.found == ()


def test_one_value_has_one_stand_in() -> None:
    scrubber = Scrubber()
    assert scrubber.scrub("10.0.0.1 10.0.0.2 10.0.0.1") == "address-0 address-1 address-0"
    assert [(item.replaced_by, item.count) for item in scrubber.found] == [("address-0", 2), ("address-1", 1)]


@pytest.fixture
def private_run(tmp_path: Path) -> Path:
    lost = make_request(
        "lost", case="prose", round=1, error="connect to tower7 (10.1.2.3:30000) failed",
        completion_tokens=None, output_text="see /home/anna/log",
    )  # fmt: skip
    return make_run(
        tmp_path / "run",
        requests=[*make_requests(), lost],
        engine_args={"model_path": "/home/anna/models/tiny", "host": "10.1.2.3", "tp_size": 3},
        command=("sparkctl", "bench", "--output", "/home/anna/out"),
        notes=("measured by anna@example.org",),
    )


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_the_archive_is_right_private_and_the_same_each_time(
    private_run: Path, tmp_path: Path, kind: Format
) -> None:
    (private_run / "sparkdash.json").write_text('{"host": "tower7", "note": "at /home/anna/x"}\n')
    finish_run(private_run, read_manifest(private_run)[0], references=())
    run = verify_run(private_run)
    digests = []
    for number in range(2):
        with scrubbed_copy(run, Scrubber(("tower7", "anna")), render=None) as publication:
            target = tmp_path / f"{number}.{kind}"
            digests.append(write_archive(publication, target, kind))
            assert {item.kind for item in publication.scrubbed} == {"address", "home", "mail", "name"}
    assert digests[0] == digests[1] == hashlib.sha256(target.read_bytes()).hexdigest()
    unpacked = tmp_path / "unpacked"
    if kind == "zip":
        with zipfile.ZipFile(target) as archive:
            archive.extractall(unpacked)
    else:
        with tarfile.open(target) as archive:
            archive.extractall(unpacked, filter="data")
    for line in (unpacked / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        content = (unpacked / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
        for word in (b"anna", b"tower7", b"10.1.2.3"):
            assert word not in content, name
    kept = json.loads((unpacked / "bench-1" / "sparkdash.json").read_text())
    assert kept == {"host": "name-0", "note": "at ~/x"}
    found = verify_run(unpacked / "bench-1")
    assert found.summary == run.summary
    assert found.manifest.published_from == run.manifest.seal
    assert found.manifest.engine_args["model_path"] == "~/models/tiny"


def test_an_archive_is_never_overwritten(private_run: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.zip"
    target.write_text("mine")
    with (
        scrubbed_copy(verify_run(private_run), Scrubber(), render=None) as publication,
        pytest.raises(UsageError, match="must not exist yet"),
    ):
        write_archive(publication, target, "zip")
    assert target.read_text() == "mine"
