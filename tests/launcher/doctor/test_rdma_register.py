"""F19: a kernel that breaks RDMA registration, seen by registering: with a libibverbs made here."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.doctor.examine import examine
from launcher.doctor.finding import Finding
from tests.launcher.doctor.clusters import case_of, report_of, tree_of

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
PLACE = "usr/lib/x86_64-linux-gnu/libibverbs.so.1"
SOURCE = """
#include <errno.h>
#include <stddef.h>
#include <unistd.h>
static const char *names[] = {"rocep1s0f0", "roceP2p1s0f0", NULL};
static const char **list[] = {&names[0], &names[1], NULL};
void *ibv_get_device_list(int *count) { *count = 2; return list; }
const char *ibv_get_device_name(const char **device) { return *device; }
void *ibv_open_device(void *device) { return device; }
void *ibv_alloc_pd(void *context) { return context; }
void *ibv_reg_mr(void *domain, void *place, size_t size, int access) { BODY; return domain; }
int ibv_dereg_mr(void *region) { return 0; }
int ibv_dealloc_pd(void *domain) { return 0; }
int ibv_close_device(void *context) { return 0; }
"""


@functools.cache
def library(body: str, folder: Path) -> Path:
    source, made = folder / f"{abs(hash(body))}.c", folder / f"{abs(hash(body))}.so"
    source.write_text(SOURCE.replace("BODY", body))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(source)], check=True, timeout=60)
    return made


def found_with(body: str | None, tmp_path: Path) -> list[Finding]:
    """What the check says when spark-b has this library and spark-a a good one; None: neither has one."""
    reports = {}
    for name in ("spark-a", "spark-b"):
        tree = tree_of("pair", name, tmp_path / name)
        if body is not None:
            target = tree.root / PLACE
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library(body if name == "spark-b" else "(void)0", tmp_path), target)
        reports[name] = report_of(tree)
    case = case_of("pair", spark_a=reports["spark-a"], spark_b=reports["spark-b"])
    return [item for item in examine(case) if item.check == "rdma-registration"]


def test_memory_that_is_registered_and_given_back_is_ok(tmp_path: Path) -> None:
    assert [item.level for item in found_with("(void)0", tmp_path)] == ["ok"]


def test_a_kernel_that_breaks_registration_is_refused(tmp_path: Path) -> None:
    found = found_with("if (size > 1048576) { errno = ENOMEM; return NULL; }", tmp_path)
    assert [(item.level, item.node) for item in found] == [("refuse", "spark-b")] * 2
    assert {item.evidence for item in found} == {
        f"{name} must register memory, got: ibv_reg_mr of 67108864 bytes: Cannot allocate memory"
        for name in ("rocep1s0f0", "roceP2p1s0f0")
    }
    assert "kho=off" in found[0].fix


@pytest.mark.parametrize("body", [None, "_exit(3)"], ids=["no library", "it dies"])
def test_what_could_not_be_tried_is_not_called_ok(tmp_path: Path, body: str | None) -> None:
    (found,) = found_with(body, tmp_path)
    assert found.level == "not checked"
    assert "spark-b" in found.node
