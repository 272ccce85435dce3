"""Install with real pip on two nodes over SSH, offline, from wheels made here."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.connect import SshOptions, connect_all
from launcher.errors import SparkctlError
from launcher.install.install import Install, Installed, install, refuse_differences, rollback
from launcher.topology import Node
from launcher.weights.follow import Progress
from tests.hosts import NETNS_MARKS, HostSpec, NetnsHosts
from tests.launcher.doctor.netns_cluster import netns_topology

pytestmark = [*NETNS_MARKS, pytest.mark.timeout(120)]


def nobody(seen: Progress) -> None:
    pass


def make_wheel(folder: Path, name: str, version: str, text: str) -> str:
    """A line of a lock for the wheel written to `folder`."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    (folder / f"{name}-{version}-py3-none-any.whl").write_bytes(buffer.getvalue())
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(buffer.getvalue()).hexdigest()}\n"


@pytest.fixture(scope="module")
def hosts() -> Iterator[NetnsHosts]:
    with NetnsHosts(specs=[HostSpec(name="node1"), HostSpec(name="node2", user="ann")]) as hosts:
        yield hosts


@pytest.fixture
def nodes(hosts: NetnsHosts) -> Iterator[tuple[Node, ...]]:
    yield netns_topology(hosts, engine="~/engine").nodes
    for node in hosts.nodes:
        for path in [node.home / ".cache", node.home / "wheels", *node.home.glob("engine*")]:
            path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)


def run(nodes: tuple[Node, ...], lock: str, wheels: str | None = "wheels") -> dict[str, Installed]:
    job = Install(nodes=nodes, lock=lock, python=sys.executable, wheels=wheels)
    with connect_all(nodes, SshOptions()) as remotes:
        return install(job, remotes, nobody)


def test_nodes_install_offline_alike_and_go_back(hosts: NetnsHosts, nodes: tuple[Node, ...]) -> None:
    wheels = hosts["node1"].home / "wheels"
    wheels.mkdir()
    lock = make_wheel(wheels, "spark_a", "1.0", "x = 1\n") + make_wheel(wheels, "spark_b", "2.0", "y = 1\n")
    done = run(nodes, lock)
    assert [item.packages for item in done.values()] == [{"spark-a": "1.0", "spark-b": "2.0"}] * 2
    assert done["node1"].digest == done["node2"].digest
    for node in hosts.nodes:
        python = f"{node.home_inside}/engine/bin/python"
        assert node.exec([python, "-c", "import spark_a; print(spark_a.x)"]).stdout == b"1\n"
    assert [item.was_there for item in run(nodes, lock).values()] == [True, True]
    newer = make_wheel(wheels, "spark_a", "1.1", "x = 2\n")
    run(nodes, newer)
    node = hosts["node2"]
    show = [f"{node.home_inside}/engine/bin/python", "-c", "import spark_a; print(spark_a.x)"]
    assert node.exec(show).stdout == b"2\n"
    with connect_all(nodes, SshOptions()) as remotes:
        rollback(nodes, remotes, nobody)
    assert node.exec(show).stdout == b"1\n"


def test_a_wheel_with_another_hash_is_not_installed(hosts: NetnsHosts, nodes: tuple[Node, ...]) -> None:
    wheels = hosts["node1"].home / "wheels"
    wheels.mkdir()
    lock = make_wheel(wheels, "spark_a", "1.0", "x = 1\n")
    make_wheel(wheels, "spark_a", "1.0", "x = 'other'\n")
    with pytest.raises(SparkctlError, match=r"got 1 without, first spark-a==1\.0") as caught:
        run(nodes, lock)
    assert caught.value.node == "node1"
    assert not (hosts["node1"].home / "engine").exists()


def test_a_directory_in_the_place_is_kept(hosts: NetnsHosts, nodes: tuple[Node, ...]) -> None:
    wheels = hosts["node1"].home / "wheels"
    wheels.mkdir()
    lock = make_wheel(wheels, "spark_a", "1.0", "x = 1\n")
    mine = hosts["node2"].home / "engine"
    mine.mkdir()
    (mine / "mine").write_text("precious")
    with pytest.raises(SparkctlError, match="must be a link that sparkctl made, or nothing") as caught:
        run(nodes, lock)
    assert caught.value.node == "node2"
    assert (mine / "mine").read_text() == "precious"


@pytest.mark.parametrize("lock", ["spark_a==1.0\n", "# nothing\n", "spark_a>=1 --hash=sha256:" + "0" * 64])
def test_a_lock_without_hashes_is_refused(nodes: tuple[Node, ...], lock: str) -> None:
    with pytest.raises(SparkctlError, match=r"[Ll]ock must"):
        run(nodes, lock)


def test_other_files_on_a_node_are_told() -> None:
    def item(digest: str) -> Installed:
        return Installed(directory="/e", was_there=True, packages={"a": "1"}, digest=digest)

    refuse_differences({"a": item("1"), "b": item("1")})
    with pytest.raises(SparkctlError, match="got others on b"):
        refuse_differences({"a": item("1"), "b": item("2")})
