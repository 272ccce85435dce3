"""Messages that say themselves what went wrong. docs/troubleshooting.md has one section for each."""

from __future__ import annotations

from launcher.failure_rule import Rule, Weight, make_rule

_CAUSE = Weight.CAUSE

_OWN = (
    make_rule(
        "extension-refused",
        _CAUSE,
        r"^sgl_ext refuses to start \(|^sgl_ext\.errors\.\w+: ",
        "The engine plugin of sparkctl refuses to run on {node}, rather than to serve with something"
        " missing.",
        "The line says what to change; `pip list` on {node} shows the versions of sglang and sparkctl.",
    ),
    make_rule(
        "row-store-refused",
        _CAUSE,
        r"^engram\.errors\.\w+: ",
        "The Engram row store on {node} cannot be read or does not fit this model and rank.",
        "The line says which file; `sparkctl plan` shows the store's directory on {node}.",
    ),
    make_rule(
        "container-refused",
        _CAUSE,
        r"^docker: ",
        "Docker on {node} did not start the engine's container.",
        "`docker images --digests` and `docker info` on {node}; the image must be the one that the recipe"
        " names.",
    ),
)

_FILES = (
    make_rule(
        "shards-missing",
        _CAUSE,
        r"references (?P<count>\d+) shard file\(s\) missing from (?P<path>.+?) \(incomplete download",
        "{count} weight file(s) named by the index are missing from {path} on {node}: the download or copy is"
        " incomplete.",
        "Copy the missing files to {path} on {node} from a node that has them (rsync -a --partial), then run"
        " `sparkctl up` again.",
    ),
    make_rule(
        "no-weights",
        _CAUSE,
        r"Cannot find any model weights with `(?P<path>[^`]*)`",
        "{path} on {node} holds no weight file at all.",
        "Check `ls {path}` on {node}; put the checkpoint there or correct `path` in the recipe or topology.",
    ),
    make_rule(
        "shard-damaged",
        _CAUSE,
        r"SafetensorError|incomplete metadata, file not fully covered|Error while deserializing header",
        "A weight file on {node} is cut short or damaged.",
        "Compare the file sizes on {node} with another node (ls -l) and copy the one that differs again.",
    ),
    make_rule(
        "no-config",
        _CAUSE,
        r"Unrecognized model in (?P<path>\S+?)\. Should have a `model_type` key",
        "{path} on {node} has no usable config.json.",
        "Copy config.json and the tokenizer files of the checkpoint to {path} on {node}.",
    ),
    make_rule(
        "model-path-missing",
        _CAUSE,
        r"HFValidationError|Repo id must (?:be in the form|use alphanumeric)|Incorrect path_or_model_id",
        "The model path does not exist on {node}. The engine then takes it for a Hugging Face name, which"
        " is why the message speaks of a repo id.",
        "Check on {node} that the disk is mounted and the path is the right one (ls), or set this node's"
        " model path in the topology.",
    ),
    make_rule(
        "hub-unreachable",
        _CAUSE,
        r"couldn't connect to 'https://huggingface\.co'|LocalEntryNotFoundError|OfflineModeIsEnabled",
        "{node} has no copy of the model and cannot reach Hugging Face.",
        "Download the model to {node} first and give its directory as the model path.",
    ),
    make_rule(
        "context-too-long",
        _CAUSE,
        r"User-specified context_length \((?P<asked>\d+)\) is greater than the derived context_length"
        r" \((?P<limit>\d+)\)",
        "The context length {asked} is more than the model's {limit}.",
        "Set the context length in the recipe to {limit} or less.",
    ),
    make_rule(
        "unknown-flag",
        _CAUSE,
        r"error: unrecognized arguments: (?P<flags>.+)",
        "This SGLang version does not know: {flags}",
        "Remove it from the recipe's passthrough settings, or compare `sparkctl plan` with"
        " `sglang serve --help` of the installed version.",
    ),
    make_rule(
        "bad-argument",
        _CAUSE,
        r"(?:sglang serve|launch_server\.py): error: (?P<reason>.+)",
        "SGLang refuses an argument: {reason}",
        "Correct the setting in the recipe; `sparkctl plan` prints the full command.",
    ),
    make_rule(
        "feature-refused",
        _CAUSE,
        r"^(?:ValueError|NotImplementedError|AssertionError|RuntimeError): .*?does not support"
        r" (?P<feature>.+?) yet",
        "The engine refuses this combination: {feature} is not supported for this model.",
        "Turn the feature off in the recipe.",
    ),
    make_rule(
        "tp-does-not-divide",
        _CAUSE,
        r"^(?:ValueError|AssertionError).*(?:moe_intermediate_size|is not divisible|must be divisible|% tp)",
        "The tensor-parallel size does not divide one of the model's dimensions.",
        "Choose a tp that the model allows; `sparkctl recipe validate` checks it before a start.",
    ),
)

_PORTS = (
    make_rule(
        "http-port-busy",
        _CAUSE,
        r"error while attempting to bind on address \('(?P<host>[^']*)', (?P<port>\d+)",
        "Port {port} of {node} is taken by another process. The engine loaded the model, could not open"
        " its API and would now stay alive without one.",
        "See who holds it: `ss -ltnp 'sport = :{port}'` on {node}; end it (`sparkctl down` for an earlier"
        " run) or set another port.",
    ),
    make_rule(
        "dist-port-busy",
        _CAUSE,
        r"server socket has failed to listen.*port: (?P<port>\d+).*EADDRINUSE",
        "The rendezvous port {port} of {node} is taken by another process, often an earlier head.",
        "`ss -ltnp 'sport = :{port}'` on {node}; end the owner or run `sparkctl up` again, which picks a"
        " new port.",
    ),
    make_rule(
        "interface-unknown",
        _CAUSE,
        r"Unable to find address for: (?P<interface>\S+)",
        "{node} has no address on the interface {interface} that GLOO_SOCKET_IFNAME names.",
        "`ip -br addr` on {node}; set this node's fabric interface in the topology.",
    ),
    make_rule(
        "nccl-interface-unknown",
        _CAUSE,
        r"(?:no socket interface found|No interface found in the same subnet|NCCL_SOCKET_IFNAME.* not found)",
        "NCCL found no usable interface on {node}.",
        "`ip -br addr` on {node}; set this node's fabric interface in the topology.",
    ),
    make_rule(
        "omp-bind-missing",
        _CAUSE,
        r"^(?:AssertionError|ValueError).*SGLANG_CPU_OMP_THREADS_BIND",
        "The CPU engine needs a core list per rank as soon as there are more ranks than NUMA nodes.",
        "Set SGLANG_CPU_OMP_THREADS_BIND in the recipe's environment.",
    ),
)

_FABRIC = (
    make_rule(
        "rdma-setup",
        _CAUSE,
        r"ibv_modify_qp failed with (?P<code>\d+) (?P<reason>[^,]+), on dev (?P<hca>[^ ,:]+)(?:.*local"
        r" GID index (?P<gid>\d+))?",
        "RDMA from {node} over {hca} could not reach the peer ({reason}): wrong GID index, wrong subnet or a"
        " crossed cable.",
        "On both nodes: `show_gids` (or /sys/class/infiniband/{hca}/ports/1/gids) and `ping` over the fabric"
        " address of {hca}; correct hcas and gid_index in the topology.",
    ),
    make_rule(
        "rdma-memlock",
        _CAUSE,
        r"ibv_reg_mr\w* failed with error Cannot allocate memory",
        "RDMA memory could not be registered on {node}: the locked-memory limit (or CMA), not a lack of RAM.",
        "`ulimit -l` must be unlimited in the engine's environment on {node} (docker: --ulimit memlock=-1).",
    ),
)

_MEMORY = (
    make_rule(
        "cuda-oom",
        _CAUSE,
        r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)",
        "{node} ran out of GPU memory while asking for {size}.",
        "Lower mem_fraction_static, max_running_requests or the context length; on {node} look for other"
        " users of the memory: `free -g`, `nvidia-smi`.",
    ),
    make_rule(
        "no-room-for-kv",
        _CAUSE,
        r"(?:Loaded weights leave no GPU memory|^\w+Error: Not enough memory).*?(?:above"
        r" (?P<fraction>[\d.]*\d)|$)",
        "After the weights no memory is left for the KV pool on {node}.",
        "Raise mem_fraction_static to the value that the message names, free memory on {node}, or use"
        " more nodes.",
    ),
    make_rule(
        "pool-too-small",
        _CAUSE,
        r"pool \((?P<tokens>\d+) tokens\) cannot hold even one request",
        "The KV pool of {tokens} tokens is too small for a single request.",
        "Raise max_total_tokens or mem_fraction_static, or lower the context length.",
    ),
    make_rule(
        "memory-unbalanced",
        _CAUSE,
        r"^(?:RuntimeError|ValueError): .*memory capacity is unbalanced",
        "Other processes hold memory on one of the nodes.",
        "`sparkctl status` and `nvidia-smi` on every node; end what is left of earlier runs (`sparkctl"
        " down`).",
    ),
    make_rule(
        "graph-capture",
        _CAUSE,
        r"Capture cuda graph failed: (?P<reason>.+)",
        "CUDA graph capture failed: {reason}",
        "Lower mem_fraction_static or cuda_graph_max_bs; --disable-cuda-graph tells whether capture alone"
        " fails.",
    ),
    make_rule(
        "out-of-tokens",
        _CAUSE,
        r"(?:Prefill|Decode) out of memory\.",
        "A batch did not fit into the KV pool.",
        "Lower max_running_requests or chunked_prefill_size, or raise mem_fraction_static.",
    ),
)

_KERNELS = (
    make_rule(
        "nvcc-too-old",
        _CAUSE,
        r"Unsupported gpu architecture '(?P<arch>[^']+)'|No supported CUDA architectures found",
        "The CUDA compiler or a kernel package on {node} does not know the GB10 (sm_121).",
        "`nvcc --version` on {node} must say 12.9 or newer; use the image or package versions of the recipe.",
    ),
    make_rule(
        "compiler-killed",
        _CAUSE,
        r"(?:c\+\+|nvcc|cicc|ptxas|cudafe)\S*.*(?:Killed|signal 9)|Killed signal terminated program",
        "A compiler was killed on {node} while building a kernel: the node ran out of memory.",
        "Set MAX_JOBS=2 in the recipe's environment and free memory on {node}, then run `sparkctl up` again.",
    ),
    make_rule(
        "no-nvcc",
        _CAUSE,
        r"nvcc: (?:command )?not found|Could not find nvcc",
        "A kernel has to be built on {node} and there is no CUDA compiler.",
        "Install the CUDA toolkit on {node} and set CUDA_HOME, or use the recipe's docker runtime.",
    ),
    make_rule(
        "kernel-build",
        _CAUSE,
        r"Ninja build failed|ninja: build stopped",
        "A kernel failed to build on {node}; the first line with `error:` above it says why.",
        "`sparkctl logs` for the compiler's message; a half-built cache is cleared by removing the kernel's"
        " directory under ~/.cache on {node}.",
    ),
    make_rule(
        "sm121-kernel",
        _CAUSE,
        r"MLIRError: expects coord and shape of view",
        "An FA4/CUTE kernel was chosen that does not run on sm_121.",
        "Set the attention and MoE backends as the shipped recipe does.",
    ),
    make_rule(
        "illegal-access",
        _CAUSE,
        r"an illegal memory access was encountered|CUBLAS_STATUS_INTERNAL_ERROR|"
        r"CUBLAS_STATUS_EXECUTION_FAILED",
        "A GPU kernel on {node} accessed memory that is not its own; the line is from the first call that"
        " noticed.",
        "Look in `dmesg` on {node} for Xid lines; run once with CUDA_LAUNCH_BLOCKING=1 to find the kernel.",
    ),
    make_rule(
        "not-permitted",
        _CAUSE,
        r"CUDA error: operation not permitted(?P<capture> when stream is capturing)?",
        "CUDA refused an operation on {node}: during capture a fault of the capturing code, otherwise of"
        " the driver.",
        "If it says `capturing`, try --disable-cuda-graph; if not, reboot {node} and check `nvidia-smi`.",
    ),
    make_rule(
        "module-missing",
        _CAUSE,
        r"^(?:ModuleNotFoundError|ImportError): (?P<reason>.+)",
        "The engine's installation on {node} is incomplete: {reason}",
        "Compare `pip list` (or the image digest) of {node} with a node that works and install the same.",
    ),
)

CAUSES: tuple[Rule, ...] = (*_OWN, *_FILES, *_PORTS, *_FABRIC, *_MEMORY, *_KERNELS)
