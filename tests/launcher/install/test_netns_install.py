"""Install with real pip on two nodes over SSH, offline, from wheels made here."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.connect import SshOptions, connect_all
from launcher.errors import SparkctlError
from launcher.install.caches import PushedCaches, push_caches
from launcher.install.extension import Extension
from launcher.install.install import Install, Installed, install, refuse_differences, rollback
from launcher.topology import Node
from launcher.weights.follow import Progress
from tests.hosts import NETNS_MARKS, HostSpec, NetnsHosts, NetnsNode
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


def run(
    nodes: tuple[Node, ...], lock: str, wheels: str | None = "wheels", extension: Extension | None = None
) -> dict[str, Installed]:
    job = Install(nodes=nodes, lock=lock, python=sys.executable, wheels=wheels, extension=extension)
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


def test_the_extension_is_one_wheel_for_all_nodes(hosts: NetnsHosts, nodes: tuple[Node, ...]) -> None:
    wheels = hosts["node1"].home / "wheels"
    wheels.mkdir()
    lock = make_wheel(wheels, "spark_a", "1.0", "x = 1\n")
    make_wheel(wheels, "sparkctl", "9.0", "z = 3\n")
    given = Extension(wheel="wheels/sparkctl-9.0-py3-none-any.whl")
    done = run(nodes, lock, extension=given)
    assert [item.packages["sparkctl"] for item in done.values()] == ["9.0", "9.0"]
    assert done["node1"].digest == done["node2"].digest
    found = [next(node.home.glob(".cache/sparkctl/wheels/sparkctl-*/*.whl")) for node in hosts.nodes]
    assert found[0].read_bytes() == found[1].read_bytes()
    for wrong, words in (
        ("wheels/none.whl", "No such file"),
        ("/etc/hostname", "must be a wheel, got another"),
    ):
        with pytest.raises(SparkctlError, match=words) as caught:
            run(nodes, lock, extension=Extension(wheel=wrong))
        assert (caught.value.node, bool(caught.value.hint)) == ("node1", True)
    other = Extension(wheel="wheels/spark_a-1.0-py3-none-any.whl")
    with pytest.raises(SparkctlError, match="must be the package sparkctl, got another"):
        run(nodes, lock, extension=other)


C_SOURCE = """#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "sparkctl_native", "", -1, methods};
PyMODINIT_FUNC PyInit_sparkctl_native(void) { return PyModule_Create(&module); }
"""
SETUP = """from setuptools import Extension, setup
setup(name="sparkctl", version="9.1", py_modules=[], ext_modules=[Extension("sparkctl_native", ["native.c"])])
"""


def sources(setup: str = SETUP) -> Extension:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in (("setup.py", setup), ("native.c", C_SOURCE)):
            archive.writestr(zipfile.ZipInfo(name), text)
    return Extension(source=buffer.getvalue())


def test_the_extension_is_compiled_once_and_the_same_bytes_are_pushed(
    hosts: NetnsHosts, nodes: tuple[Node, ...]
) -> None:
    """A small C extension with the real pip and compiler on node1; node2 compiles nothing."""
    wheels = hosts["node1"].home / "wheels"
    wheels.mkdir()
    lock = make_wheel(wheels, "spark_a", "1.0", "x = 1\n")
    done = run(nodes, lock, extension=sources())
    assert [item.packages["sparkctl"] for item in done.values()] == ["9.1", "9.1"]
    assert done["node1"].digest == done["node2"].digest
    found = [list(node.home.glob(".cache/sparkctl/wheels/sparkctl-*/*.whl")) for node in hosts.nodes]
    assert [len(item) for item in found] == [1, 1]
    assert found[0][0].name == found[1][0].name and found[0][0].read_bytes() == found[1][0].read_bytes()
    for node in hosts.nodes:
        python = f"{node.home_inside}/engine/bin/python"
        native = node.exec([python, "-c", "import sparkctl_native as n; print(n.answer(), n.__file__)"])
        answer, path = native.stdout.decode().split()
        assert (answer, path.startswith(node.home_inside)) == ("42", True)
    built = found[0][0].stat().st_mtime_ns
    assert [item.was_there for item in run(nodes, lock, extension=sources()).values()] == [True, True]
    assert found[0][0].stat().st_mtime_ns == built
    with pytest.raises(SparkctlError, match="must build the extension, got exit status 1") as caught:
        run(nodes, lock, extension=sources(SETUP.replace("native.c", "none.c")))
    assert (caught.value.node, "g++" in caught.value.hint) == ("node1", True)
    for node in hosts.nodes:  # the failed build touched no engine
        assert str((node.home / "engine").readlink()) == done[node.name].directory


def small_disk(node: NetnsNode, place: str, size: str) -> None:
    done = node.exec(
        ["sh", "-c", f"mkdir -p {place} && mount -t tmpfs -o size={size},mode=777 tmpfs {place}"]
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("where", "size", "words"),
    [
        ("venvs", "1m", "No space left on device"),
        ("venvs", "1m,ro", "Read-only file system"),
        (".cache", "1m,ro", "must be a directory that can be written, got: Read-only file system"),
    ],
)
def test_a_full_or_read_only_disk_leaves_the_engine_as_it_was(
    hosts: NetnsHosts, where: str, size: str, words: str
) -> None:
    """node2 cannot take the new environment; its old one stays, and nothing half-made is in its place."""
    nodes = netns_topology(hosts, engine="~/venvs/engine").nodes
    wheels, ill = hosts["node1"].home / "wheels", hosts["node2"]
    wheels.mkdir()
    lock = make_wheel(wheels, "spark_a", "1.0", f"x = '{'x' * 3_000_000}'\n")
    place = f"{ill.home_inside}/{where}"
    small_disk(ill, place, size)
    try:
        with pytest.raises(SparkctlError, match=words) as caught:
            run(nodes, lock)
        engine = ill.exec(["ls", f"{ill.home_inside}/venvs/engine"])
    finally:
        ill.exec(["umount", place])
        for node in hosts.nodes:
            for path in (node.home / "venvs", node.home / ".cache", node.home / "wheels"):
                shutil.rmtree(path, ignore_errors=True)
    assert (caught.value.node, bool(caught.value.hint)) == ("node2", True)
    assert engine.returncode != 0  # no link to an environment that is not whole


KERNELS = {
    "triton/AB12/kernel.cubin": b"triton" * 1000,
    "tilelang/0.1.12/kernels/1/executable.so": b"tilelang" * 1000,
    ".cache/flashinfer/0.7.2/121a/cached_ops/norm/norm.so": b"flashinfer" * 1000,
}


def write_kernels(node: NetnsNode) -> Path:
    root = node.home / ".cache/sparkctl/sglang"
    for name, data in KERNELS.items():
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        os.utime(path, (1_700_000_000, 1_700_000_000))
    (root / ".cache/flashinfer/0.7.2/121a/cached_ops/tmp").mkdir()
    (root / ".cache/flashinfer/0.7.2/121a/cached_ops/tmp/norm.lock").touch()
    return root


def push_kernels(nodes: tuple[Node, ...]) -> PushedCaches:
    with connect_all(nodes, SshOptions()) as remotes:
        return push_caches(nodes[0], nodes[1:], remotes, nobody)


def test_kernels_go_to_equal_nodes_and_no_others(hosts: NetnsHosts, nodes: tuple[Node, ...]) -> None:
    wheels = hosts["node1"].home / "wheels"
    wheels.mkdir()
    lock = make_wheel(wheels, "spark_a", "1.0", "x = 1\n")
    run(nodes, lock)
    write_kernels(hosts["node1"])
    mine = hosts["node2"].home / ".cache/sparkctl/sglang/triton/own/kernel.cubin"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"own")
    for path in [mine, *list(mine.parents)[:6]]:  # up to ~/.cache
        shutil.chown(path, hosts["node2"].home.stat().st_uid)
    done = push_kernels(nodes)
    assert done.skipped == {}
    assert (done.received["node2"].num_files, done.received["node2"].num_new) == (3, 3)
    root = hosts["node2"].home / ".cache/sparkctl/sglang"
    for name, data in KERNELS.items():
        assert (root / name).read_bytes() == data
        assert (root / name).stat().st_mtime == 1_700_000_000
    assert mine.read_bytes() == b"own"
    assert [path.name for path in root.rglob("*.lock")] == []
    assert all(not any((n.home / ".cache/sparkctl/kernels").iterdir()) for n in hosts.nodes)
    assert push_kernels(nodes).received["node2"].num_new == 0
    (hosts["node2"].home / "wheels").mkdir()
    other = make_wheel(hosts["node2"].home / "wheels", "spark_a", "1.1", "x = 2\n")
    run(nodes[1:], other)
    with pytest.raises(
        SparkctlError, match="must have a node that is equal to it, got none: node2: engine must"
    ):
        push_kernels(nodes)


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
