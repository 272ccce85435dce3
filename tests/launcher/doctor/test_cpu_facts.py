"""The processors of a node, as its /proc/cpuinfo tells them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from launcher.node.facts_cpu import cpu_facts
from launcher.node.probe_root import ProbeRoot


def recorded(root: Path, text: str) -> dict[str, object]:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text(text)
    return cpu_facts(ProbeRoot(str(root)))


def arm(number: int, part: str, maker: str = "0x41") -> str:
    return (
        f"processor\t: {number}\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve2\n"
        f"CPU implementer\t: {maker}\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\n\n"
    )


def test_the_two_kinds_of_core_of_a_spark_are_named_with_their_numbers(tmp_path: Path) -> None:
    text = "".join(arm(number, "0xd85" if number % 10 >= 5 else "0xd87") for number in range(20))
    told = recorded(tmp_path, text)
    assert told["model"] == "10 x Arm Cortex-A725 + 10 x Arm Cortex-X925"
    assert told["count"] == 20


def test_an_unknown_core_keeps_its_numbers(tmp_path: Path) -> None:
    assert recorded(tmp_path, arm(0, "0xfff"))["model"] == "Arm part 0xfff"
    assert recorded(tmp_path, arm(0, "0x001", "0x61"))["model"] == "implementer 0x61 part 0x001"


def test_a_name_is_taken_as_the_kernel_has_it(tmp_path: Path) -> None:
    text = "".join(
        f"processor\t: {number}\nmodel\t\t: 2\nmodel name\t: A  CPU @ 2.00GHz\n\n" for number in range(4)
    )
    assert recorded(tmp_path, text) == {"architecture": None, "model": "A CPU @ 2.00GHz", "count": 4}


def test_what_cannot_be_read_is_not_guessed(tmp_path: Path) -> None:
    nothing = {"architecture": None, "model": None, "count": None}
    assert cpu_facts(ProbeRoot(str(tmp_path))) == nothing
    assert recorded(tmp_path, "garbage\n\nHardware\t: x\n") == nothing


def test_this_machine() -> None:
    told = cpu_facts(ProbeRoot())
    assert told["architecture"] == platform.machine()
    assert told["model"] and told["count"] == os.sysconf("SC_NPROCESSORS_ONLN")
