"""The lock for Sparks against a resolution that was made apart from it: names, versions, aarch64 wheels."""

from __future__ import annotations

from pathlib import Path

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from launcher.install.find_lock import read_lock_file
from launcher.node.install_wheels import read_lock

RESOLVED = Path(__file__).parent / "aarch64-cp312-wheels.txt"
# DGX OS 7 is Ubuntu 24.04.
GLIBC_MINOR = 39
PYTHON = (3, 12)


def resolved() -> dict[str, tuple[str, str]]:
    """Canonical name -> (version, file name of its wheel)."""
    found = {}
    for line in RESOLVED.read_text().splitlines():
        if not line.startswith("#"):
            package, wheel = line.split()
            name, version = package.split("==")
            found[str(canonicalize_name(name))] = (version, wheel)
    return found


def test_the_lock_has_the_resolved_names_and_versions() -> None:
    locked = read_lock(read_lock_file("sglang-0.5.23-aarch64-cp312"))
    expected = {name: version for name, (version, _) in resolved().items()}
    assert len(expected) == 209
    assert {name: version for name, (version, _) in locked.items()} == expected


def test_every_wheel_of_it_installs_on_a_spark() -> None:
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(GLIBC_MINOR, 16, -1)]
    platforms += ["manylinux2014_aarch64", "linux_aarch64"]
    usable = {*cpython_tags(PYTHON, platforms=platforms), *compatible_tags(PYTHON, "cp312", platforms)}
    for name, (version, wheel) in resolved().items():
        seen, release, _, tags = parse_wheel_filename(wheel)
        assert (seen, str(release)) == (name, version), wheel
        assert tags & usable, wheel
