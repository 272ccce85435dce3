"""known_hosts: lookup compared with `ssh-keygen -F`, verdicts, appending."""

from __future__ import annotations

import base64
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.ssh_host_keys import HostKey, append_host_key, find_known_keys, judge_host_key, known_key_types

B64_A = "AAAAC3NzaC1lZDI1NTE5AAAAIPq4mA0e2dAQWvrKzPPlzZRbfGAbpDCKdlpkL3crBpuG"
B64_B = "AAAAC3NzaC1lZDI1NTE5AAAAIJ7d0Ls0z5d8y7b1hBqXk2l3wQy0nq6B8iVhR4t9aZ3d"
KEY_A = HostKey(key_type="ssh-ed25519", blob=base64.b64decode(B64_A))
KEY_B = HostKey(key_type="ssh-ed25519", blob=base64.b64decode(B64_B))


def write(file: Path, *lines: str) -> Path:
    file.write_text("".join(line.replace("A!", f"ssh-ed25519 {B64_A}") + "\n" for line in lines))
    return file


@pytest.mark.parametrize(
    ("line", "name", "found"),
    [
        ("spark1 A!", "spark1", True),
        ("spark1,10.0.0.1 A! a comment", "10.0.0.1", True),
        ("Spark1 A!", "spark1", True),
        ("spark? A!", "spark1", True),
        ("spark*,!spark1 A!", "spark1", False),
        ("spark*,!spark1 A!", "spark2", True),
        ("[spark1]:2222 A!", "[spark1]:2222", True),
        ("[spark1]:2222 A!", "spark1", False),
        ("[spark*]:2222 A!", "[spark1]:2222", True),
        ("spark1 A!", "[spark1]:2222", True),
        ("s[p]ark1 A!", "spark1", False),
        ("# spark1 A!", "spark1", False),
        ("spark1 ssh-ed25519", "spark1", False),
        ("spark1 ssh-ed25519 not*base64", "spark1", False),
        ("@cert-authority spark1 A!", "spark1", False),
        ("|1|broken A!", "spark1", False),
    ],
)
def test_lookup(tmp_path: Path, line: str, name: str, found: bool) -> None:
    file = write(tmp_path / "known_hosts", "", line)
    keys = find_known_keys(name, [tmp_path / "missing", file])
    assert [k.key for k in keys] == ([KEY_A] if found else [])
    assert all(k.where == f"{file}:2" for k in keys)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen to compare with")
@pytest.mark.parametrize("name", ["spark1", "[spark1]:2222"])
def test_hashed_entries(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "known_hosts", f"{name} A!", "other A!")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert "spark1" not in file.read_text()
    assert [k.line_number for k in find_known_keys(name, [file])] == [1]
    assert find_known_keys("spark2", [file]) == []


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen to compare with")
def test_fingerprint_is_openssh_s(tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text(f"ssh-ed25519 {B64_A}\n")
    argv = ["ssh-keygen", "-lf", str(tmp_path / "key.pub")]
    listing = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert listing.split()[1] == KEY_A.fingerprint


@pytest.mark.parametrize(
    ("lines", "name", "offered", "verdict"),
    [
        ([], "h", KEY_A, "unknown"),
        (["h A!"], "h", KEY_A, "known"),
        (["h A!"], "h", KEY_B, "changed"),
        (["h A!"], "h", HostKey(key_type="ssh-rsa", blob=b"x"), "changed"),
        (["@revoked * A!"], "h", KEY_A, "revoked"),
        (["@revoked * A!", "h A!"], "h", KEY_A, "revoked"),
        (["@revoked * A!"], "h", KEY_B, "unknown"),
        (["h A!"], "[h]:2222", KEY_A, "known"),
        (["h A!"], "[h]:2222", KEY_B, "unknown"),
    ],
)
def test_verdict(tmp_path: Path, lines: list[str], name: str, offered: HostKey, verdict: str) -> None:
    known = find_known_keys(name, [write(tmp_path / "known_hosts", *lines)])
    assert judge_host_key(offered, known) == verdict


def test_types_to_ask_for(tmp_path: Path) -> None:
    file = write(tmp_path / "k", "h ssh-rsa AAAA", "h A!", "@revoked h ecdsa-sha2-nistp256 AAAA", "h A!")
    assert known_key_types(find_known_keys("h", [file])) == ["ssh-rsa", "ssh-ed25519"]


def test_append_makes_folder_and_private_file_and_is_found(tmp_path: Path) -> None:
    file = tmp_path / "new" / "known_hosts"
    append_host_key(file, "[h]:2222", KEY_A)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [k.key for k in find_known_keys("[h]:2222", [file])] == [KEY_A]


def test_append_after_a_line_without_newline(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"h ssh-ed25519 {B64_A}")
    append_host_key(file, "g", KEY_B)
    assert [k.key for k in find_known_keys("h", [file])] == [KEY_A]
    assert [k.key for k in find_known_keys("g", [file])] == [KEY_B]


def test_appending_from_many_threads_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    names = [f"h{n}" for n in range(30)]
    threads = [threading.Thread(target=append_host_key, args=(file, name, KEY_A)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line.split()[0] for line in file.read_text().splitlines()) == sorted(names)


@given(st.binary(max_size=400))
def test_any_file_can_be_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_bytes(data)
    find_known_keys("[spark1]:2222", [file])
