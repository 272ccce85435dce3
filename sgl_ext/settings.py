"""The plugin's settings: environment variables, read once per process; a bad value is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from sgl_ext.errors import SettingError

CPU_ENGINE_VARIABLE = "SGLANG_USE_CPU_ENGINE"  # SGLang's own switch; the plugin only reads it
FORK_CHILDREN_VARIABLE = "SPARKCTL_FORK_CHILDREN"
REPORT_DIR_VARIABLE = "SPARKCTL_REPORT_DIR"
ENGRAM_DIR_VARIABLE = "SPARKCTL_ENGRAM_DIR"
SPEC_VARIABLE = "SPARKCTL_SPEC"
SPEC_TABLE_VARIABLE = "SPARKCTL_SPEC_TABLE"
SPEC_PLAIN_GRAPHS_VARIABLE = "SPARKCTL_SPEC_PLAIN_GRAPHS"

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment asks of the plugin in this process."""

    cpu_engine: bool
    report_dir: Path | None  # each rank's report (and refusal) goes here; None writes none
    engram_dir: Path | None  # packed Engram files of this node; None keeps SGLang's own tables
    sequence_parallel: bool = False  # prefill rows split over the ranks; sequence_parallel.py reads how
    fork_children: bool = False  # CPU engine: children by fork, so a node imports SGLang once
    spec: bool = False  # DSpark's width for each request and step; False leaves all to SGLang
    spec_table: Path | None = None  # where `sparkctl tune spec` puts the cost table; may not exist yet
    spec_plain_graphs: bool = False  # compact verify: graphs of one row a request too; no GPU has run them

    def as_json(self) -> dict[str, object]:
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from an environment mapping; raises SettingError on a value that cannot be meant."""
    cpu_engine = _flag(environment, CPU_ENGINE_VARIABLE)
    fork_children = _flag(environment, FORK_CHILDREN_VARIABLE)
    if fork_children and not cpu_engine:
        raise SettingError(
            f"{CPU_ENGINE_VARIABLE} must be 1 when {FORK_CHILDREN_VARIABLE} is set, got a GPU engine "
            "(environment); a CUDA context does not survive a fork.",
            hint=f"unset {FORK_CHILDREN_VARIABLE}",
        )
    spec = _flag(environment, SPEC_VARIABLE)
    if environment.get(SPEC_TABLE_VARIABLE) and not spec:
        raise SettingError(
            f"{SPEC_VARIABLE} must be 1 when {SPEC_TABLE_VARIABLE} is set, "
            f"got {environment.get(SPEC_VARIABLE)!r} (environment).",
            hint=f"export {SPEC_VARIABLE}=1 or unset {SPEC_TABLE_VARIABLE}",
        )
    return Settings(
        cpu_engine=cpu_engine,
        report_dir=_directory(environment, REPORT_DIR_VARIABLE),
        engram_dir=_directory(environment, ENGRAM_DIR_VARIABLE),
        sequence_parallel=environment.get("SPARKCTL_SEQUENCE_PARALLEL", "off") != "off",
        fork_children=fork_children,
        spec=spec,
        spec_table=_absolute(environment, SPEC_TABLE_VARIABLE),
        spec_plain_graphs=_flag(environment, SPEC_PLAIN_GRAPHS_VARIABLE),
    )


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise SettingError(
        f"{name} must be one of 1, true, yes, on, 0, false, no, off, got {value!r} (environment).",
        hint=f"export {name}=1 or unset {name}",
    )


def _absolute(environment: Mapping[str, str], name: str) -> Path | None:
    value = environment.get(name, "")
    if not value:
        return None
    path = Path(value)
    if not path.is_absolute():
        raise SettingError(
            f"{name} must be an absolute path, got {value!r} (environment).",
            hint=f"export {name}=$PWD/{value}",
        )
    return path


def _directory(environment: Mapping[str, str], name: str) -> Path | None:
    path = _absolute(environment, name)
    if path is not None and not path.is_dir():
        raise SettingError(
            f"{name} must be an existing directory, got {str(path)!r} (environment).",
            hint=f"mkdir -p {path}",
        )
    return path
