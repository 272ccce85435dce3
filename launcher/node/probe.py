"""Read-only facts of a node. Changes nothing;
every item that cannot be read is null or listed in `problems`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import pwd
import re
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

from launcher.node.facts_packed import packed_facts
from launcher.node.list_runs import live_runs
from launcher.node.processes import boot_id, memory_available_bytes

INDEX_NAME = "model.safetensors.index.json"
MAX_LISTED = 5
SIOCGIFADDR = 0x8915


def probe(
    *,
    paths: dict[str, Any],
    model_path: str | None,
    ports: list[Any],
    engine_runtime: str,
    engine_python: str | None,
    packed: dict[str, Any] | None = None,
    router: bool = False,
) -> dict[str, Any]:
    """`ports`: [[host, port], ...] that must be free. `paths` as in the topology, `~` of this node's user.
    `packed`: the Engram files to look for, {"path" (absolute, or below paths.engram), "ranks", "tp"}.
    `router`: tell sglang-router's version too."""
    expanded = {key: str(Path(value).expanduser()) for key, value in paths.items() if value}
    python = engine_python or f"{paths['engine']}/bin/python"
    model = _model(model_path, expanded.get("models")) if model_path else None
    if packed is not None:
        packed = packed | {"path": str(Path(expanded["engram"]) / Path(packed["path"]).expanduser())}
    return {
        "hostname": socket.gethostname(),
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "home": str(Path.home()),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "boot_id": boot_id(),
        "python": platform.python_version(),
        "memory_total_bytes": _memory_total_bytes(),
        "memory_available_bytes": memory_available_bytes(),
        "paths": expanded,
        "state_problem": _writable_problem(expanded["state"]),
        "interfaces": _interfaces(),
        "hcas": _hcas(),
        "busy_ports": [[host, port, reason] for host, port in ports if (reason := _port_problem(host, port))],
        "live_runs": [
            {key: run[key] for key in ("run_id", "status", "started")} for run in live_runs(expanded["state"])
        ],
        "model": model,
        "packed": packed_facts(**packed, model=model) if packed is not None else None,
        "engine": _engine(engine_runtime, str(Path(python).expanduser()), router=router),
    }  # fmt: skip


def _memory_total_bytes() -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def _writable_problem(path: str) -> str | None:
    """Why runs cannot be kept there; looks at the nearest directory that exists."""
    directory = Path(path)
    while not directory.exists():
        directory = directory.parent
    if not directory.is_dir():
        return f"{directory} is not a directory"
    if not os.access(directory, os.W_OK | os.X_OK) or os.statvfs(directory).f_flag & os.ST_RDONLY:
        return f"{directory} is not writable"
    free = shutil.disk_usage(directory).free
    return f"only {free >> 20} MiB are free at {directory}" if free < 64 << 20 else None


def _interfaces() -> list[dict[str, Any]]:
    """Name, IPv4 addresses, MTU and link state of each interface."""
    addresses = _ipv4_addresses()
    found = []
    for directory in sorted(Path("/sys/class/net").iterdir()):
        mtu = _read(directory / "mtu")
        if mtu is None:  # bonding_masters and the like are no interfaces
            continue
        found.append({
            "name": directory.name,
            "addresses": addresses.get(directory.name) or _first_address(directory.name),
            "mtu": int(mtu),
            "state": _read(directory / "operstate"),
            "speed_mbps": _positive(_read(directory / "speed")),
        })  # fmt: skip
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # sysfs answers EINVAL for a link that is down
        return None


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _ipv4_addresses() -> dict[str, list[str]]:
    """All IPv4 addresses by interface, as the `ip` tool tells; empty without the tool."""
    tool = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if not tool:
        return {}
    done = subprocess.run([tool, "-j", "-4", "addr", "show"], capture_output=True, text=True, timeout=5)
    links = json.loads(done.stdout or "[]") if done.returncode == 0 else []
    return {
        link["ifname"]: [item["local"] for item in link.get("addr_info", []) if "local" in item]
        for link in links
        if "ifname" in link
    }


def _first_address(interface: str) -> list[str]:
    """The interface's first address, asked from the kernel: the only one that SIOCGIFADDR tells."""
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            reply = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, request)
        except OSError:
            return []
    return [socket.inet_ntoa(reply[20:24])]


def _hcas() -> list[dict[str, Any]]:
    """RDMA devices: netdev, port state, and the index of each RoCE v2 GID with its IPv4 address."""
    found = []
    root = Path("/sys/class/infiniband")
    for device in sorted(root.iterdir()) if root.is_dir() else []:
        port = device / "ports/1"
        netdevs = (
            sorted(path.name for path in (device / "device/net").iterdir())
            if (device / "device/net").is_dir()
            else []
        )
        found.append({
            "name": device.name,
            "netdev": netdevs[0] if netdevs else None,
            "state": _read(port / "state"),
            "rocev2_gids": _rocev2_gids(port),
        })  # fmt: skip
    return found


def _rocev2_gids(port: Path) -> list[dict[str, Any]]:
    gids = []
    types = port / "gid_attrs/types"
    for entry in sorted(types.iterdir(), key=lambda path: int(path.name)) if types.is_dir() else []:
        if _read(entry) == "RoCE v2":
            gid = _read(port / "gids" / entry.name) or ""
            match = re.fullmatch(r"(?:0000:){5}ffff:([0-9a-f]{4}):([0-9a-f]{4})", gid)
            if match:
                raw = bytes.fromhex(match.group(1) + match.group(2))
                gids.append({"index": int(entry.name), "address": socket.inet_ntoa(raw)})
    return gids


def _port_problem(host: str, port: int) -> str | None:
    """Why a server could not listen there now; None when it could."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "in use"
            return os.strerror(error.errno) if error.errno else str(error)
    return None


def _model(model_path: str, models: str | None) -> dict[str, Any]:
    """Whether the checkpoint is there and whole by its own index; hashes are the work of `weights verify`."""
    path = Path(model_path).expanduser()
    if not path.is_absolute():
        path = Path(models or "~").expanduser() / path
    facts: dict[str, Any] = {"path": str(path), "problem": None}
    if not path.is_dir():
        facts["problem"] = "no such directory"
        return facts
    if not (path / "config.json").is_file():
        facts["problem"] = "it has no config.json"
        return facts
    index = path / INDEX_NAME
    try:
        if index.is_file():
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        else:
            names = sorted(file.name for file in path.glob("*.safetensors"))
    except (ValueError, KeyError, AttributeError, OSError) as error:
        facts["problem"] = f"{INDEX_NAME} cannot be read: {error}"
        return facts
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        listed = ", ".join(missing[:MAX_LISTED])
        facts["problem"] = f"{len(missing)} of {len(names)} weight files are missing: {listed}"
    elif not names:
        facts["problem"] = "it has no *.safetensors file"
    else:
        facts["weight_bytes"] = sum((path / name).stat().st_size for name in names)
    return facts


def _engine(runtime: str, python: str, *, router: bool = False) -> dict[str, Any]:
    """Versions from the metadata on disk: importing the engine would take seconds."""
    if runtime == "docker":
        docker = shutil.which("docker")
        return {"docker": docker, "problem": None if docker else "docker is not in PATH"}
    facts: dict[str, Any] = {"python": python, "problem": None, "sglang": None, "sparkctl": None}
    if not os.access(python, os.X_OK):
        facts["problem"] = f"there is no {python}"
        return facts
    facts.update(_versions_on_disk(Path(python)) or _versions_from_interpreter(python, PACKAGES))
    if router and facts["problem"] is None:
        found = _versions_from_interpreter(python, (ROUTER,))
        facts.update(sglang_router=found.get(ROUTER), problem=found.get("problem"))
    if facts["problem"] is None and facts["sglang"] is None:
        facts["problem"] = f"{python} has no sglang"
    return facts


PACKAGES = ("sglang", "sparkctl", "torch")
ROUTER = "sglang-router"


def _versions_on_disk(python: Path) -> dict[str, str] | None:
    """Versions in the venv's own site-packages; None when one of the packages is not there under that name:
    it may lie elsewhere on the interpreter's path, and only the interpreter knows."""
    found: dict[str, str] = {}
    for name in PACKAGES:
        infos = list(python.parent.parent.glob(f"lib/python3*/site-packages/{name}-*.dist-info"))
        if len(infos) != 1:
            return None
        found[name] = infos[0].name[len(name) + 1 : -len(".dist-info")]
    return found


def _versions_from_interpreter(python: str, packages: tuple[str, ...]) -> dict[str, str | None]:
    code = (
        "import importlib.metadata as m, json\n"
        "def v(n):\n"
        " try: return m.version(n)\n"
        " except m.PackageNotFoundError: return None\n"
        f"print(json.dumps({{n: v(n) for n in {packages!r}}}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return {"problem": f"{python} does not run: {last[0]}"}
    versions: dict[str, str | None] = json.loads(done.stdout)
    return versions
