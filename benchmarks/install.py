"""Measure `sparkctl install` of a whole engine: `python -m benchmarks.install --wheels DIR --out FILE`.

DIR holds the wheels of an engine for this Python, and those of setuptools and pybind11 for the extension. Two
nodes in network namespaces, without internet, real OpenSSH; node2 logs in as another user. Needs root.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import parse_wheel_filename

from tests.hosts import HostSpec, NetnsHosts
from tests.launcher.doctor.netns_cluster import netns_topology

BUILDERS = ("pybind11",)
ASK = (
    "import json, sys, importlib.metadata as m, torch, sglang, sgl_ext, engram, engram._core; "
    "print(json.dumps({'sglang': m.version('sglang'), 'sparkctl': m.version('sparkctl'),"
    " 'torch': torch.__version__, 'sum': float(torch.ones(3).sum())}))"
)


def lock_of(wheels: Path) -> str:
    lines = []
    for path in sorted(wheels.glob("*.whl")):
        name, version, _, _ = parse_wheel_filename(path.name)
        if name not in BUILDERS:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
    return "".join(lines)


def timed(words: list[str]) -> tuple[float, dict[str, Any]]:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *words, "--json"], capture_output=True, text=True
    )
    seconds = round(time.monotonic() - started, 2)
    if done.returncode:
        raise RuntimeError(f"{words[:2]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return seconds, json.loads(done.stdout)


def measure(hosts: NetnsHosts, wheels: Path, folder: Path) -> dict[str, Any]:
    topology = netns_topology(hosts, engine="~/engine").model_dump(mode="json", exclude_unset=True)
    (folder / "topology.yaml").write_text(yaml.safe_dump(topology))
    (folder / "engine.lock").write_text(lock_of(wheels))
    common = ["install", "--topology", str(folder / "topology.yaml")]
    build = [
        *common,
        "--lock",
        str(folder / "engine.lock"),
        "--wheels",
        str(wheels),
        "--python",
        sys.executable,
    ]
    first_s, first = timed(build)
    again_s, again = timed(build)
    bare_s, bare = timed([*build, "--extension", "none"])
    back_s, back = timed([*common, "--rollback"])
    imported = {}
    for node in hosts.nodes:
        done = node.exec([f"{node.home_inside}/engine/bin/python", "-I", "-c", ASK], timeout_s=240.0)
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        imported[node.name] = json.loads(done.stdout.splitlines()[-1])
    extension = {
        node.name: {
            path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(node.home.glob(".cache/sparkctl/wheels/sparkctl-*/*.whl"))
        }
        for node in hosts.nodes
    }
    digests = [{name: item["digest"] for name, item in run["nodes"].items()} for run in (first, again, bare)]
    is_equal = (
        all(len(set(item.values())) == 1 for item in digests) and extension["node1"] == extension["node2"]
    )
    return {
        "seconds": {"first": first_s, "again": again_s, "without_extension": bare_s, "rollback": back_s},
        "digests": digests,
        "extension_sha256": extension,
        "rollback": {
            node: {key: Path(path).name for key, path in item.items()} for node, item in back["nodes"].items()
        },
        "imported": imported,
        "packages": first["nodes"]["node1"]["packages"],
        "equal_on_all_nodes": is_equal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    wheels = options.wheels.resolve()
    specs = [HostSpec(name="node1"), HostSpec(name="node2", user="ann")]
    with NetnsHosts(specs=specs) as hosts, tempfile.TemporaryDirectory() as folder:
        found = measure(hosts, wheels, Path(folder))
    sizes = [path.stat().st_size for path in wheels.glob("*.whl")]
    machine = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    record = {"machine": machine, "num_wheels": len(sizes), "wheel_bytes": sum(sizes), **found}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(found["seconds"]), "equal:", found["equal_on_all_nodes"])


if __name__ == "__main__":
    main()
