"""Fixtures of the tests that start the real engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.sparkctl_process import COMMAND, Sparkctl
from tests.cluster.ssh_cluster import SshCluster, node_specs, temp_links
from tests.hosts import NetnsHosts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    if find_spec("sglang") is not None and COMMAND.exists():
        return
    missing = pytest.mark.skip(reason="needs the engine beside pytest: make up installs it")
    for item in items:
        if here in item.path.parents and item.get_closest_marker("sglang"):
            item.add_marker(missing)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the small models of the local recipes."""
    folder = tmp_path_factory.mktemp("models")
    for kind, name in (("qwen3", "tiny-qwen3"), ("v41", "tiny-v41")):
        argv = [sys.executable, "-m", "sgl_ext.tiny_model", kind, str(folder / name)]
        subprocess.run(argv, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Sparkctl]:
    """A user of the local recipes. Every run is ended afterwards, whatever the tests did."""
    home = tmp_path_factory.mktemp("user") / "home"
    place = home / ".local/share/sparkctl"
    place.mkdir(parents=True)
    (place / "models").symlink_to(models)
    sparkctl = Sparkctl(home)
    yield sparkctl
    sparkctl.run("down", "--all")
    sparkctl.close()


@pytest.fixture(scope="package")
def ssh_nodes(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[SshCluster]:
    with NetnsHosts(specs=node_specs(3)) as hosts:
        folder = tmp_path_factory.mktemp("ssh-cluster")
        # A suite that was SIGKILLed earlier leaves its links, and the slot's folder has the same name again.
        for link in temp_links(hosts.folder):
            link.unlink()
        cluster = SshCluster(hosts, Sparkctl(hosts.client_home), folder, models)
        cluster.write_topology()
        yield cluster
        cluster.reset()


@pytest.fixture
def cluster(ssh_nodes: SshCluster) -> Iterator[SshCluster]:
    """Three nodes with nothing on them, left so afterwards."""
    yield ssh_nodes
    ssh_nodes.reset()
