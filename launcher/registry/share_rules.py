"""Pure: what a shared recipe may hold. The same rules before a push and after a pull.

A shared recipe stands alone (no `extends`), belongs to no machine (no addresses, no paths from the root),
holds no secret, and names nothing that would make the engine load code or talk to somebody.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping

from launcher.config_problem import KeyPath, dotted
from launcher.explain_problems import ProblemLine, nearest_origin
from launcher.redact import Masker
from launcher.registry.reference import shown
from launcher.yaml_tree import YamlTree

# Variables of the engine and its libraries. Any other may change how programs load code (LD_, PYTHON, PATH).
ENVIRONMENT_PREFIXES = (
    "CUDA_", "CUBLAS_", "CUDNN_", "FLASHINFER_", "GLOO_", "HF_HUB_", "KMP_", "MALLOC_", "MKL_", "NCCL_",
    "NVIDIA_", "OMP_", "PYTORCH_", "SGLANG_", "SGL_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_", "TRITON_",
    "UCX_",
)  # fmt: skip
_CODE_NAME = re.compile(
    r"PLUGIN|INJECTION|PRELOAD|MODULE|EXTERNAL|EXTENSION|HOOK|IMPORT|_PATH|_DIR$|_FILE|_HOME"
    r"|ENDPOINT|_URL|_HOST|TRUST_REMOTE|NET_LIB"
)
CODE_FLAGS = frozenset((
    "trust-remote-code", "trust-request-chat-template", "custom-weight-loader", "forward-hooks", "warmups",
    "enable-custom-logit-processor", "sidecar", "sidecar-args", "tool-server", "chat-template",
    "completion-template", "model-loader-extra-config", "model-impl", "model-config-parser", "load-format",
    "speculative-draft-load-format", "hicache-storage-backend", "hicache-storage-backend-extra-config",
    "kv-events-config", "lora-paths", "allowed-media-domains", "modelexpress-config", "trace-modules",
    "unified-cache-external-linker-backend", "unified-cache-external-linker-config", "fastapi-root-path",
    "use-ray", "enable-trace", "enable-flexkv", "enable-lmcache", "log-requests-target",
    "msprobe-dump-config",
))  # fmt: skip
_PLACE_FLAG = re.compile(
    r"-(path|paths|dir|folder|file|url|urls|endpoint|endpoints|socket|certs|certfile|keyfile|ip|ib-device)$"
    r"|^(remote-instance|ssl|encoder|decrypted|otlp|disaggregation|grpc|smg)-"
)

_SECRET_NAME = re.compile(
    r"(^|[_.-])(token|secret|password|passwd|credentials?|(api|access|private)[_-]?key)($|[_-])", re.I
)
_SECRET_TEXT = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16}"
    r"|AIza[\w-]{30,}|xox[abprs]-[\w-]{10,}|nvapi-[\w-]{16,}|hf_[A-Za-z0-9]{16,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.)|-----BEGIN "
)
_NOT_SECRET_KEYS = ("server.api_key",)  # auto or none
_ADDRESS = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
_ADDRESS_6 = re.compile(r"(?<![\w:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
_ROOTED = re.compile(
    r"(?<![\w.:/~])(?:~|/(?:home|Users|root|mnt|media|tmp|var|opt|etc|data|srv|usr|work|nfs|raid|dev|proc|run))"
    r"(?:/|\b(?=[\s,;:)\"']|$))"
)
# Free text may speak of a path such as /health; every other value may not begin with one.
_FREE_TEXT = ("description", "evidence.notes", "evidence.hardware")


def share_problems(tree: YamlTree) -> list[ProblemLine]:
    """Everything that stands against sharing, with its place in the file."""
    found = []
    for at, message, hint in _problems(tree.data):
        found.append(ProblemLine(message, str(nearest_origin(tree, at)), hint))
    return found


def _problems(data: Mapping[str, object]) -> Iterator[tuple[KeyPath, str, str]]:
    if "extends" in data:
        yield ("extends",), f"a shared recipe must stand alone, got extends {shown(str(data['extends']))}", ""
    for at, value in _leaves(data, ()):
        key = dotted(at)
        why = "" if key in _NOT_SECRET_KEYS else _secret_problem(at, value)
        if why:
            # The value is not repeated: a refusal must not print what it protects.
            yield at, f"{shown(key)} must hold no secret, got {why}", "a secret belongs to a machine"
            continue
        if isinstance(value, str):
            yield from _text_problems(at, key, value)
    yield from _environment_problems(data.get("environment"))
    server = data.get("server")
    yield from _flag_problems(server.get("flags") if isinstance(server, Mapping) else None)


def _leaves(value: object, at: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, (*at, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*at, index))
    else:
        yield at, value


def _secret_problem(at: KeyPath, value: object) -> str:
    if not isinstance(value, str) or not value:
        return ""
    if _SECRET_TEXT.search(value) or Masker(()).mask(value) != value:
        return "a value that looks like one"
    names = [str(part) for part in at if isinstance(part, str)]
    return "a value under a name that secrets have" if names and _SECRET_NAME.search(names[-1]) else ""


def _text_problems(at: KeyPath, key: str, value: str) -> Iterator[tuple[KeyPath, str, str]]:
    if not all(char.isprintable() or char == "\n" for char in value):
        yield at, f"{shown(key)} must be printable text, got {shown(value)}", ""
        return
    is_free = key in _FREE_TEXT
    rooted = _ROOTED.search(value) if is_free else re.search(r"(^|[=:,\s\"'])(/|~)(?=\S)", value)
    if rooted:
        hint = "a path below paths.models of each node: NAME/PART" if key == "model.path" else ""
        yield at, f"{shown(key)} must hold no path of a machine, got {shown(value)}", hint
    for text in [*_ADDRESS.findall(value), *_ADDRESS_6.findall(value)]:
        if _is_machine_address(text):
            hint = "addresses belong to the topology; server.host may be 127.0.0.1 or 0.0.0.0"
            yield at, f"{shown(key)} must hold no address of a machine, got {text}", hint
    if key == "server.host" and value not in ("127.0.0.1", "0.0.0.0", "::", "::1", "localhost"):
        yield at, f"server.host must be 127.0.0.1 or 0.0.0.0 in a shared recipe, got {shown(value)}", ""


def _is_machine_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def _environment_problems(environment: object) -> Iterator[tuple[KeyPath, str, str]]:
    for name in environment if isinstance(environment, Mapping) else ():
        at = ("environment", name)
        if not str(name).startswith(ENVIRONMENT_PREFIXES):
            message = f"environment must set variables of the engine and its libraries, got {shown(name)}"
            yield at, message, "set it in the topology's environment of your own nodes"
        elif _CODE_NAME.search(name):
            message = f"environment must name no code, file or host for the engine to load, got {shown(name)}"
            yield at, message, "set it in the topology's environment of your own nodes"


def _flag_problems(flags: object) -> Iterator[tuple[KeyPath, str, str]]:
    for name, value in flags.items() if isinstance(flags, Mapping) else ():
        at = ("server", "flags", name)
        if name in CODE_FLAGS or _PLACE_FLAG.search(name):
            message = (
                f"server.flags must name no code, file or host for the engine to load, got {shown(name)}"
            )
            yield at, message, "set it in a profile of your own that extends this recipe"
        elif "://" in str(value):
            yield at, f"server.flags must hold no address, got {shown(name)} {shown(str(value))}", ""
