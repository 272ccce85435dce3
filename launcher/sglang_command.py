"""Pure: the engine's options, environment and, for docker, the container's command line."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from launcher.flag_rules import TYPED_FLAGS
from launcher.recipe import FlagValue, Recipe
from launcher.topology import Node

# SGLang has no option for these; the plugin's boot check decides whether they run on this machine.
_PLUGIN_BACKENDS = ("b12x", "reference")
# The nodes of a CPU engine share one machine's cores, and each idle scheduler would keep one of them busy.
_CPU_FLAGS: dict[str, FlagValue] = {"sleep-on-idle": True}
# A clean environment: what the launcher's user or the node's shell exports must not reach the engine.
BASE_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def server_options(
    recipe: Recipe, *, node_rank: int, rendezvous: str, model_path: str, port: int
) -> tuple[str, ...]:
    """`sglang.launch_server` options of one node.
    Workers serve only a health port, so they stay on loopback.
    """
    parallel, server, dspark = recipe.parallelism, recipe.server, recipe.extensions.dspark
    words = ["--model-path", model_path, "--served-model-name", recipe.served_name]
    words += ["--host", server.host if node_rank == 0 else "127.0.0.1", "--port", str(port)]
    words += ["--tp-size", str(parallel.tp)]
    if parallel.ep != 1:
        words += ["--ep-size", str(parallel.ep)]
    if parallel.pp != 1:
        words += ["--pp-size", str(parallel.pp)]
    words += ["--nnodes", str(parallel.nodes), "--node-rank", str(node_rank), "--dist-init-addr", rendezvous]
    for key, option in TYPED_FLAGS.items():
        words += option_words(option, getattr(server, key))
    if dspark.enabled:
        words += [
            "--speculative-algorithm",
            "DSPARK",
            "--speculative-dspark-block-size",
            str(dspark.block_size),
        ]
    backend = recipe.extensions.experts.backend
    if backend not in ("auto", *_PLUGIN_BACKENDS) and server.moe_runner_backend is None:
        words += ["--moe-runner-backend", backend]
    flags = _CPU_FLAGS | server.flags if recipe.engine.runtime == "cpu" else server.flags
    for option, value in sorted(flags.items()):
        words += option_words(option, value)
    return tuple(words)


def option_words(option: str, value: FlagValue | None) -> list[str]:
    """argv words of one option: a switch for true, --no-OPTION is written out by the recipe's author."""
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{option}"]
    if isinstance(value, tuple):
        return [f"--{option}", *map(_word, value)]
    return [f"--{option}", _word(value)]


def _word(value: bool | int | float | str) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def engine_environment(recipe: Recipe, node: Node, *, run_id: str, home: str, user: str, engine_path: str,
                       host_ip: str, gid_index: int | None, cache_path: str,
                       state_path: str, engram_path: str) -> dict[str, str]:  # fmt: skip
    """The engine's whole environment on this node, but for TMPDIR, which lies in the run's directory."""
    interface = node.fabric.bootstrap_interface
    values = {
        "HOME": home,
        "USER": user,
        "LC_ALL": "C.UTF-8",
        "PATH": f"{posixpath.join(engine_path, 'bin')}:{BASE_PATH}",
        "PYTHONUNBUFFERED": "1",
        # Where the topology says: SGLang puts caches of Triton, FlashInfer and TileLang below its own.
        "XDG_CACHE_HOME": cache_path,
        "SGLANG_CACHE_DIR": posixpath.join(cache_path, "sglang"),
        # The engine may probe `cargo` otherwise, which hung a head node.
        "SGLANG_RUST_BUILD_MODE": "never",
    }
    values |= recipe.environment | node.environment
    values |= {
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "SGLANG_HOST_IP": host_ip,
        "SPARKCTL_RUN_ID": run_id,
        "SPARKCTL_NODE": node.name,
        "SPARKCTL_REPORT_DIR": posixpath.join(state_path, "runs", run_id, "reports"),
    }
    if node.fabric.hcas:
        values["NCCL_IB_HCA"] = ",".join(node.fabric.hcas)
    if gid_index is not None:
        values["NCCL_IB_GID_INDEX"] = str(gid_index)
    values.update(_extension_environment(recipe, engram_path, state_path))
    return dict(sorted(values.items()))


def _extension_environment(recipe: Recipe, engram_path: str, state_path: str) -> Iterator[tuple[str, str]]:
    extensions = recipe.extensions
    if recipe.engine.runtime == "cpu":
        # Each node imports the engine once, not three times; on few cores that is most of the start.
        yield "SPARKCTL_FORK_CHILDREN", "1"
    if extensions.experts.backend in _PLUGIN_BACKENDS:
        yield "SPARKCTL_EXPERT_BACKEND", extensions.experts.backend
    if recipe.parallelism.sequence_parallel != "off":
        yield "SPARKCTL_SEQUENCE_PARALLEL", recipe.parallelism.sequence_parallel
        yield "SPARKCTL_SEQUENCE_PARALLEL_FROM", str(recipe.parallelism.sequence_parallel_from)
    if extensions.kv_layout != "v4":
        yield "SPARKCTL_KV_LAYOUT", extensions.kv_layout
    if extensions.wo_a != "auto":
        yield "SPARKCTL_WO_A", extensions.wo_a
    if extensions.dspark.enabled:
        yield "SGLANG_RAGGED_VERIFY_MODE", extensions.dspark.verify
    if extensions.dspark.width == "auto":
        yield "SPARKCTL_SPEC", "1"
        yield "SPARKCTL_SPEC_TABLE", posixpath.join(state_path, "cost-tables", f"{recipe.name}.json")
    if extensions.engram.residence == "host":
        # SGLang's own: each rank keeps its rows in its node's memory.
        yield "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE", "1"
        yield "SGLANG_DSV41_ENGRAM_HOST_TABLE_LAYOUT", "per_rank"
    if extensions.engram.residence == "nvme":
        yield "SPARKCTL_ENGRAM_DIR", posixpath.join(engram_path, extensions.engram.packed_path or "")
        yield "SPARKCTL_ENGRAM_CACHE_GIB", f"{extensions.engram.cache_gib:g}"
        yield "SPARKCTL_ENGRAM_LOOKAHEAD_GIB", f"{extensions.engram.lookahead_gib:g}"
        if recipe.engine.runtime == "cpu":
            # io_uring is switched off in many containers, and a CPU engine gains nothing from it.
            yield "SPARKCTL_ENGRAM_BACKEND", "threads"
            # Homes in containers are often on file systems without O_DIRECT; speed on a CPU proves nothing.
            yield "SPARKCTL_ENGRAM_BUFFERED", "1"


def not_supported_yet(recipe: Recipe) -> tuple[str, ...]:
    """What the recipe asks for and this version of sparkctl cannot carry out: `up` refuses it by name."""
    extensions, found = recipe.extensions, []
    if extensions.dspark.width == "auto" and recipe.engine.runtime == "docker":
        found.append("extensions.dspark.width: auto in a container (its cost table does not get there)")
    return tuple(found)


def venv_command(engine_path: str, options: tuple[str, ...]) -> tuple[str, ...]:
    return (posixpath.join(engine_path, "bin/python"), "-m", "sglang.launch_server", *options)


def docker_command(image: str, container: str, environment: dict[str, str], *, model_path: str,
                   cache_path: str,
                   run_dir: str, options: tuple[str, ...]) -> tuple[str, ...]:  # fmt: skip
    """Least privilege that RDMA and CUDA allow. Values of variables are taken from docker's own environment,
    so none stands in argv. The run's directory is mounted for the secret options and the rank's report."""
    words = ["docker", "run", "--rm", "--init", "--name", container, "--network", "host", "--ipc", "host"]
    words += [
        "--gpus",
        "all",
        "--ulimit",
        "memlock=-1",
        "--cap-add",
        "IPC_LOCK",
        "--device",
        "/dev/infiniband",
    ]
    words += ["--mount", f"type=bind,src={model_path},dst={model_path},readonly"]
    words += ["--mount", f"type=bind,src={cache_path},dst={cache_path}"]
    words += ["--mount", f"type=bind,src={run_dir},dst={run_dir}"]
    for name in environment:
        if name not in ("HOME", "PATH", "USER"):
            words += ["--env", name]
    return (*words, image, "python3", "-m", "sglang.launch_server", *options)
