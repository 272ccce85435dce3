"""Every message of the failure table: one example each, and a section in docs/troubleshooting.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.failure_rule import Rule, Weight
from launcher.failure_table import RULES, find_rule
from launcher.root_cause import find_root_cause
from launcher.stall import QUIET_S
from tests.launcher.engine_log_files import label

DOCS = Path(__file__).parents[2] / "docs" / "troubleshooting.md"

# Rule -> the engine's text, and a word that explanation or hint must take from it.
EXAMPLES: dict[str, tuple[str, str]] = {
    "extension-refused": (
        "sgl_ext refuses to start (scheduler): sglang must be 0.5.23, got 0.5.22 (spark-b). Hint: install"
        " 0.5.23.",
        "pip list",
    ),
    "row-store-refused": (
        "engram.errors.TableMismatchError: rank must be 1, got 0 (/data/engram/layer1.rows).",
        "sparkctl plan",
    ),
    "container-refused": (
        "docker: Error response from daemon: No such image: sha256:0123.",
        "docker images",
    ),
    "shards-missing": (
        "RuntimeError: model.safetensors.index.json references 3 shard file(s) missing from /models/v41"
        " (incomplete download?): ['model-00001-of-00048.safetensors']",
        "/models/v41",
    ),
    "no-weights": ("RuntimeError: Cannot find any model weights with `/models/v41`", "/models/v41"),
    "shard-damaged": (
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file"
        " not fully covered",
        "spark-b",
    ),
    "no-config": (
        "ValueError: Unrecognized model in /models/v41. Should have a `model_type` key in its config.json.",
        "/models/v41",
    ),
    "model-path-missing": (
        "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'",
        "spark-b",
    ),
    "hub-unreachable": (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find"
        " them in the cached files.",
        "spark-b",
    ),
    "context-too-long": (
        "ValueError: Warning: User-specified context_length (10000000) is greater than the derived"
        " context_length (4096).",
        "4096",
    ),
    "unknown-flag": ("sglang serve: error: unrecognized arguments: --no-such-flag 1", "--no-such-flag 1"),
    "bad-argument": ("sglang serve: error: argument --tp: invalid int value: 'three'", "'three'"),
    "feature-refused": ("ValueError: DeepSeek-V4.1 does not support pipeline parallelism yet", "pipeline"),
    "tp-does-not-divide": ("ValueError: moe_intermediate_size 2048 % tp_size 3 != 0", "tp"),
    "http-port-busy": (
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 33000): address"
        " already in use",
        "33000",
    ),
    "dist-port-busy": (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network"
        " address. port: 33900, useIpv6: false, code: -98, name: EADDRINUSE",
        "33900",
    ),
    "interface-unknown": (
        "RuntimeError: [enforce fail at /gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find"
        " address for: enp1s0f1np1",
        "enp1s0f1np1",
    ),
    "nccl-interface-unknown": (
        "spark-b:83:83 [0] NCCL WARN Bootstrap : no socket interface found",
        "spark-b",
    ),
    "omp-bind-missing": (
        "AssertionError: SGLANG_CPU_OMP_THREADS_BIND is not set, in this case, the total number of ranks"
        " should be smaller than or equal to number of numa node",
        "SGLANG_CPU_OMP_THREADS_BIND",
    ),
    "rdma-setup": (
        "spark-b:83:99 [0] NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev"
        " rocep1s0f0:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:10.0.0.1",
        "rocep1s0f0",
    ),
    "rdma-memlock": (
        "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
        "ulimit -l",
    ),
    "cuda-oom": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
        " capacity of 121.69 GiB of which 1.00 GiB is free.",
        "2.00 GiB",
    ),
    "no-room-for-kv": (
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.9."
        " Raise --mem-fraction-static above 0.944 (minimum viable = 1 - available/pre = 0.9400).",
        "mem_fraction_static",
    ),
    "pool-too-small": ("ValueError: SWA pool (512 tokens) cannot hold even one request: ...", "512"),
    "memory-unbalanced": (
        "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
        "nvidia-smi",
    ),
    "graph-capture": (
        "Exception: Capture cuda graph failed: no kernel image is available",
        "no kernel image",
    ),
    "out-of-tokens": ("Prefill out of memory. Try to lower your batch size.", "max_running_requests"),
    "nvcc-too-old": ("nvcc fatal   : Unsupported gpu architecture 'compute_121a'", "12.9"),
    "compiler-killed": ("c++: fatal error: Killed signal terminated program cc1plus", "MAX_JOBS"),
    "no-nvcc": ("/bin/sh: 1: nvcc: not found", "CUDA_HOME"),
    "kernel-build": ("RuntimeError: Ninja build failed. Ninja output:", "spark-b"),
    "sm121-kernel": ("MLIRError: expects coord and shape of view are weakly congruent", "sm_121"),
    "illegal-access": ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "Xid"),
    "not-permitted": (
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
        "capturing",
    ),
    "module-missing": ("ModuleNotFoundError: No module named 'sgl_kernel'", "sgl_kernel"),
    "warmup-failed": (
        "Initialization failed. warmup error: Traceback (most recent call last):",
        "first request",
    ),
    "killed-while-starting": (
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9"
        " (SIGKILL), a common cause is the OS OOM killer.",
        "dmesg",
    ),
    "died-while-starting": (
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -11).",
        "-11",
    ),
    "killed-while-serving": ("Scheduler or DataParallelController 20581 terminated with -9", "dmesg"),
    "crashed-while-serving": (
        "Subprocess scheduler_0 (pid=20581) crashed with exit code -6. Triggering SIGQUIT for cleanup...",
        "-6",
    ),
    "watchdog-frozen-peer": (
        "Scheduler watchdog timeout (self.watchdog_timeout=15.0, self.soft=False)",
        "sparkctl status",
    ),
    "worker-never-came": (
        "torch.distributed.DistStoreError: Timed out after 21 seconds waiting for clients. 1/2 clients"
        " joined.",
        "1 of 2",
    ),
    "head-never-came": (
        "torch.distributed.DistNetworkError: The client socket has timed out after 20000ms while trying"
        " to connect to (10.0.0.1, 33900).",
        "10.0.0.1 33900",
    ),
    "mesh-failed": (
        "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error",
        "GLOO_SOCKET_IFNAME",
    ),
    "rendezvous-timeout": (
        "torch.distributed.DistStoreError: wait timeout after 20000ms, keys: /default_pg/0//cpu//0/1",
        "20000",
    ),
    "slow-or-failed-loader": (
        "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish"
        " loading. It is likely due to unexpected failures (e.g., OOM) or a slow node.",
        "Load weight end",
    ),
    "rdma-peer-gone": (
        "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<33900> with status=12 opcode=0 len=0 vendor"
        " err 129",
        "10.0.0.2<33900>",
    ),
    "collective-timeout": (
        "[rank0]:[E1129 10:00:00.123456789 ProcessGroupNCCL.cpp:632] Watchdog caught collective operation"
        " timeout: WorkNCCL(SeqNum=32, OpType=ALLREDUCE) ran for 600012 milliseconds before timing out.",
        "lowest",
    ),
    "nccl-error": (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled system"
        " error, NCCL version 2.30.7",
        "NCCL WARN",
    ),
    "peer-gone": (
        "RuntimeError: [/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:7559: Connection reset by"
        " peer.",
        "sparkctl status",
    ),
    "peer-refused": ("torch.distributed.DistNetworkError: Connection refused", "firewall"),
    "frozen-while-idle": (
        "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
        "sparkctl down",
    ),
    "wedged": (
        "Received output for rid='a' but the state was deleted in TokenizerManager.",
        "sparkctl down",
    ),
    "tensors-not-loaded": ("Parameter model.layers.3.x not found in params_dict.", "revision"),
    "rdma-not-used": ("spark-b:83:83 [0] NCCL INFO NET/IB : No device found.", "ibv_devinfo"),
    "memory-held-by-others": (
        "The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
        "free -g",
    ),
    "stopped": (
        "SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        "SIGTERM",
    ),
}
NAMED = [rule for rule in RULES if rule.weight is not Weight.NOISE]


def test_every_rule_has_an_example_and_a_name_of_its_own() -> None:
    assert [rule.id for rule in NAMED] == list(dict.fromkeys(rule.id for rule in NAMED))
    assert {rule.id for rule in NAMED} == set(EXAMPLES)


@pytest.mark.parametrize("rule", NAMED, ids=lambda rule: rule.id)
def test_a_message_is_recognised_and_explained(rule: Rule) -> None:
    text, word = EXAMPLES[rule.id]
    cause = find_root_cause({label(1): [f"[2026-11-29 10:00:00 TP1] {text}"]}, {})
    assert (cause.found, cause.case, cause.rank) == (True, rule.id, label(1))
    assert text.endswith(cause.line)
    assert word in cause.explanation + cause.hint
    assert not re.search(r"[{}]|\?\B", (cause.explanation + cause.hint).replace(text, ""))


@pytest.mark.parametrize("rule", NAMED, ids=lambda rule: rule.id)
def test_texts_are_whole_sentences(rule: Rule) -> None:
    assert rule.explanation[0].isupper() or rule.explanation.startswith("{")
    assert rule.explanation.rstrip().endswith((".", ".)", "}"))
    assert rule.hint.endswith(".")


@pytest.mark.parametrize(
    "text",
    [
        "Received sigquit from a child process. It usually means the child failed.",
        "SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        "Sleeping 5 seconds before crash diagnostics to let GPU activity settle.",
        "No live scheduler processes found; skipping py-spy and CUDA coredump.",
        "Waiting 60.0 seconds for CUDA coredumps before exiting.",
        "kill_process_tree called: parent_pid=7, include_parent=True, pid=7",
        "EOFError",
        "NET/IB : Got completion from peer 10.0.0.2<33900> with status=5 opcode=0",
    ],
)
def test_what_only_follows_is_never_a_cause(text: str) -> None:
    assert not find_root_cause({label(0): [text]}, {}).found


@pytest.mark.parametrize(
    "text",
    [
        "Ignore import error when loading sglang.srt.models.x: No module named 'torchcodec'",
        "Setup Custom allreduce failed with . To silence this warning, specify --disable-custom-all-reduce.",
        "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit",
        "Failed to get GPU memory capacity from nvidia-smi. Falling back to torch.cuda.mem_get_info().",
        "Breakable CUDA graph is incompatible with DeepSeek-V4 (x); disabling prefill CUDA graph.",
        "CustomAllreduce is disabled because this process group spans across nodes.",
        "Tokenizer for /models/v41 is still TokenizersBackend after retries with --trust-remote-code",
        "SGLANG_CPU_OMP_THREADS_BIND is set for explicit control of CPU cores. You need to set proper"
        " values.",
        "Disable DSpark draft cuda graph because only 1 GB",
        'INFO:     127.0.0.1:38276 - "GET /health HTTP/1.1" 503 Service Unavailable',
    ],
)
def test_harmless_lines_of_a_normal_start_are_no_failure(text: str) -> None:
    assert find_rule(text) is None


def section(rule_id: str) -> str:
    parts = re.split(r'^<a id="([a-z0-9-]+)"></a>$', DOCS.read_text(), flags=re.MULTILINE)
    return " ".join(dict(zip(parts[1::2], parts[2::2], strict=True))[rule_id].split())


@pytest.mark.parametrize("rule", NAMED, ids=lambda rule: rule.id)
def test_the_troubleshooting_page_says_the_same(rule: Rule) -> None:
    text = section(rule.id)
    heading = re.match(r"### (`+) ?(.+?) ?\1 ", text)
    assert heading
    found = find_rule(re.sub(r"^\[rank0\]:\[[^\]]*\] ", "", heading[2]))
    assert found
    assert found[0].id == rule.id
    for sentence in (rule.explanation, rule.hint):
        assert re.sub(r"\{(\w+)\}", lambda m: m[1].upper(), sentence) in text


def test_the_troubleshooting_page_has_every_phase_that_can_stall() -> None:
    text = DOCS.read_text()
    assert all(f"| {phase.label} |" in text for phase in QUIET_S)
