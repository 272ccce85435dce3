"""Typed facts of what is installed on a node, and of its disks and checkpoint."""

from __future__ import annotations

from launcher.node_facts import Facts


class Content(Facts):
    sha256: str
    num_files: int


class NcclLibrary(Facts):
    path: str
    sha256: str


class Identity(Facts):
    """What the engine's Python would import. With `problem`, nothing else is known."""

    problem: str | None
    python: str | None = None
    versions: dict[str, str | None] = {}
    content: dict[str, Content] = {}
    nccl: tuple[NcclLibrary, ...] = ()


class Docker(Facts):
    problem: str | None
    image_id: str | None


class SoftwareFacts(Facts):
    identity: Identity | None
    system_nccl: tuple[str, ...]
    preferred_nccl: tuple[str, ...]
    docker: Docker | None
    containers: tuple[str, ...]


class Place(Facts):
    key: str
    path: str
    exists: bool
    problem: str | None
    mount: str | None = None
    file_system: str | None = None
    size_bytes: int | None = None
    free_bytes: int | None = None
    inodes: int | None = None
    free_inodes: int | None = None
    is_writable: bool | None = None


class CheckpointShape(Facts):
    """`tensor_bytes`: stored bytes by the tensors' names, with 0 for each layer's and expert's number."""

    problem: str | None
    config: dict[str, object]
    tensor_bytes: dict[str, int]


class Shard(Facts):
    """`size_bytes` is None where the shard was left out, `sha256` where nobody hashed the file as it is."""

    size_bytes: int | None
    sha256: str | None


class Checkpoint(Facts):
    """`left_out`: parts that `sparkctl weights push` did not bring here; `hashes` are of the whole."""

    path: str
    hashes: dict[str, str | None]
    shards: dict[str, Shard]
    left_out: tuple[str, ...] = ()
    lfs_pointers: tuple[str, ...]
    empty: tuple[str, ...]
    incomplete: tuple[str, ...]
    weight_bytes: int
    wrong_total: str | None
    shape: CheckpointShape | None = None


class StorageFacts(Facts):
    places: tuple[Place, ...]
    model: Checkpoint | None
    read_ahead_kb: dict[str, int | None]

    def place(self, key: str) -> Place | None:
        return next((item for item in self.places if item.key == key), None)
