"""Keys and configuration files of the test hosts' SSH servers and of the client that drives them."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_key(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Write a key pair PATH, PATH.pub with ssh-keygen; replaces what is there."""
    for old in (path, path.with_name(path.name + ".pub")):
        old.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


def write_sshd_config(folder: Path, *, address: str, port: int) -> None:
    """One server: key logins only. StrictModes is off: the files live under a world-writable folder."""
    lines = [
        f"ListenAddress {address}:{port}",
        f"HostKey {folder}/host_key",
        f"AuthorizedKeysFile {folder}/authorized_keys",
        f"PidFile {folder}/sshd.pid",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "StrictModes no",
        "UseDNS no",
        "PrintMotd no",
        "MaxStartups 100",
        "LogLevel VERBOSE",
        "Subsystem sftp internal-sftp",
    ]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")


def known_hosts_name(address: str, port: int) -> str:
    return address if port == 22 else f"[{address}]:{port}"


def known_hosts_line(address: str, port: int, public_key: Path) -> str:
    kind, blob = public_key.read_text().split()[:2]
    return f"{known_hosts_name(address, port)} {kind} {blob}\n"
