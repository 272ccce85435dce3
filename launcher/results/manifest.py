"""manifest.json: what ran, where, with what, and the hash of every other file of the directory.

RunFacts is what the benchmark says; Manifest adds the files and the seal, a hash over everything else in it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from launcher.frozen_model import FrozenModel, TextTuple
from launcher.results.records import Count, Label, NodeAlias, Sha256

MANIFEST_NAME = "manifest.json"

Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]
Share = Annotated[float, Field(gt=0, le=1)]


class Resolved(FrozenModel):
    """A recipe or topology with everything it inherits; sha256 is over the canonical JSON of `content`."""

    name: str
    sha256: Sha256
    content: dict[str, JsonValue]


class Versions(FrozenModel):
    """None: not there, or not told by an endpoint that is not ours."""

    sparkctl: str
    sglang: str | None = None
    torch: str | None = None
    flashinfer: str | None = None
    python: str | None = None
    nccl: str | None = None


class NodeDescription(FrozenModel):
    """A node without its name, addresses and users."""

    node: NodeAlias
    ranks: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    architecture: str | None = None
    kernel: str | None = None
    cpu: str | None = None
    num_cpus: Count | None = None
    memory_total_bytes: Count | None = None
    gpu: str | None = None
    num_gpus: Count | None = None
    driver: str | None = None


class PromptSet(FrozenModel):
    """The prompts of one case, in the order in which they were first sent."""

    suite: Label
    case: Label
    sha256: Annotated[tuple[Sha256, ...], Field(strict=False)]


class Tolerance(FrozenModel):
    """How far the median of a second run may lie from the first one's, as a share of the first."""

    throughput: Share = 0.10
    latency: Share = 0.25


# Ranks of the CPU engine share cores with one another and with whatever else runs on the machine.
CPU_TOLERANCE = Tolerance(throughput=0.30, latency=0.50)


class ScrubbedValue(FrozenModel):
    """What `results publish` replaced: never the value itself."""

    kind: str
    replaced_by: str
    count: Count


class RunFacts(FrozenModel):
    """`settings` is the complete request of the benchmark, as launcher.bench reads it back to run the same
    again. `command` holds no secret. `engine_args` are the values in effect that /server_info told, without
    keys. A run against an endpoint that sparkctl did not start has no recipe, topology, lock or nodes.
    """

    schema_version: Literal[1] = 1
    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    protocol: Label
    protocol_revision: str
    suites: TextTuple
    command: TextTuple
    settings: dict[str, JsonValue]
    started_at: Moment
    ended_at: Moment
    endpoint: Literal["cluster", "openai"]
    served_model: str
    recipe: Resolved | None = None
    topology: Resolved | None = None
    lock_sha256: Sha256 | None = None
    versions: Versions
    engine_args: dict[str, JsonValue] = {}
    prompts: Annotated[tuple[PromptSet, ...], Field(strict=False)]
    nodes: Annotated[tuple[NodeDescription, ...], Field(strict=False)] = ()
    tolerance: Tolerance = Tolerance()
    notes: TextTuple = ()


class FileEntry(FrozenModel):
    """A file of the directory; `path` is relative, with forward slashes."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$")]
    num_bytes: Count
    sha256: Sha256


class Manifest(RunFacts):
    """`published_from` is the seal of the manifest that `results publish` started from."""

    scrubbed: Annotated[tuple[ScrubbedValue, ...], Field(strict=False)] = ()
    published_from: Sha256 | None = None
    files: Annotated[tuple[FileEntry, ...], Field(strict=False)]
    seal: Sha256


def canonical_json(value: object) -> str:
    """One text for one value: sorted keys, no blanks, ASCII. Raises ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def json_sha256(value: object) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def resolve(name: str, content: dict[str, JsonValue]) -> Resolved:
    return Resolved(name=name, sha256=json_sha256(content), content=content)


def seal_of(content: dict[str, JsonValue]) -> str:
    """Hash over a manifest's content but for the seal itself."""
    return json_sha256({key: value for key, value in content.items() if key != "seal"})


def manifest_text(manifest: Manifest) -> str:
    """The only text that this manifest has on disk."""
    return json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False) + "\n"
