"""Disks behind the node's paths, and the checkpoint's files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from launcher.doctor.case import Case, by_value, gib
from launcher.doctor.check import Check, check, on_gpus
from launcher.doctor.finding import Problem, refuse, warn
from launcher.doctor.software_facts import Checkpoint
from launcher.plan import NodePlan

NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "ceph", "glusterfs", "lustre")
# Run logs; compile caches of Triton, FlashInfer and TileLang; temporary files of a start.
NEEDED_BYTES = {"state": 1 << 30, "cache": 5 << 30, "tmp": 1 << 30}
# The CPU engine compiles nothing and serves tiny models.
CPU_NEEDED_BYTES = 64 << 20
FULL_FRACTION = 0.05
# Runs are kept in `state`; whether they can be is the check state-directory of a launch.
WRITTEN = ("cache", "home")


@check(
    "disk",
    part="storage",
    covers="F4 S-disk-full",
    means="the disks have room for logs, caches and temporary files",
    why="the start hangs or ends half-way; a download leaves *.incomplete files",
    fix="df -h on the node; remove old checkpoints, or give the node another path in the topology",
)
def disk(case: Case) -> Iterable[Problem]:
    for node, store in case.stores():
        told: set[str | None] = set()
        # Those that may refuse come first: one finding a mount is enough.
        for place in sorted(
            store.places, key=lambda place: place.key not in NEEDED_BYTES or place.key == "state"
        ):
            if place.free_bytes is None or not place.size_bytes or place.mount in told:
                continue
            needed = NEEDED_BYTES.get(place.key, 0)
            if not case.has_gpu:
                needed = min(needed, CPU_NEEDED_BYTES)
            free, where = gib(place.free_bytes), f"{place.key} {place.path} on {place.mount}"
            if place.free_bytes < min(needed, 1 << 30) and place.key != "state":
                yield refuse(
                    node.name, f"{gib(needed)} must be free, got {free} of {gib(place.size_bytes)} ({where})"
                )
            elif place.free_bytes < needed or place.free_bytes < place.size_bytes * FULL_FRACTION:
                yield warn(node.name, f"only {free} of {gib(place.size_bytes)} are free ({where})")
            elif place.inodes and place.free_inodes is not None and place.free_inodes < place.inodes * 0.01:
                yield warn(node.name, f"only {place.free_inodes} of {place.inodes} inodes are free ({where})")
            else:
                continue
            told.add(place.mount)


@check(
    "disk-answers",
    part="storage",
    covers="F12 F47",
    means="every disk behind the node's paths answers",
    why="a process that touches a dead network mount hangs and cannot even be killed",
    fix="mount on the node; sudo umount -l the dead one, or bring its server back",
)
def disk_answers(case: Case) -> Iterable[Problem]:
    for node, store in case.stores():
        silent = [place for place in store.places if place.problem]
        if silent:
            paths = ", ".join(dict.fromkeys(place.path for place in silent))
            yield refuse(node.name, f"{silent[0].problem} ({paths})")


@check(
    "writable",
    part="storage",
    covers="F1 S-nfs-cache",
    means="the places that a start writes to can be written",
    why="the run's directory or compiled kernels cannot be kept; a read-only cache "
    "makes a start hang in silence",
    fix="mount it read-write, correct its owner, or give the node another path in the topology",
)
def writable(case: Case) -> Iterable[Problem]:
    for node, store in case.stores():
        for key in WRITTEN:
            place = store.place(key)
            if place and place.is_writable is False:
                make = warn if key == "home" else refuse
                yield make(
                    node.name,
                    f"{key} must be writable, {place.path} is not (mount {place.mount}, {place.file_system})",
                )


@check(
    "network-disk",
    part="storage",
    covers="F12 F55 S-nfs-cache",
    means="checkpoint, caches and Engram rows are on a local disk",
    why="reads go over the LAN: loading takes minutes longer, and a row read waits about 11 ms per step",
    fix="copy to the local disk: sparkctl weights push; set paths of the node in the topology",
    applies=on_gpus,
)
def network_disk(case: Case) -> Iterable[Problem]:
    for node, store in case.stores():
        for key in ("models", "engram", "cache", "engine"):
            place = store.place(key)
            if place and place.file_system and place.file_system.startswith(NETWORK_FILE_SYSTEMS):
                yield warn(node.name, f"{key} {place.path} is on {place.file_system} (mount {place.mount})")


@check(
    "checkpoint",
    part="storage",
    covers="F3 F11 S-shard",
    means="the checkpoint's files hold weights",
    why="the engine ends after minutes with a message about its header, or loads garbage",
    fix="sparkctl weights verify, then sparkctl weights fetch or push; for LFS pointers: git lfs pull",
)
def checkpoint(case: Case) -> Iterable[Problem]:
    for node, store in case.stores():
        model = store.model
        if model is None:
            continue
        if model.lfs_pointers:
            names = ", ".join(model.lfs_pointers[:3])
            yield refuse(
                node.name,
                f"{len(model.lfs_pointers)} file(s) are git-lfs pointers, not weights: "
                f"{names} ({model.path})",
            )
        if model.empty:
            yield refuse(
                node.name,
                f"{len(model.empty)} weight file(s) are empty: {', '.join(model.empty[:3])} ({model.path})",
            )
        elif model.wrong_total and not model.lfs_pointers:
            yield refuse(node.name, f"{model.wrong_total} ({model.path})")
        for part in sorted(set(model.left_out) & _needed_parts(node)):
            yield refuse(
                node.name,
                f"the {part} shards must be there for this plan, they were left out ({model.path})",
                fix="sparkctl weights push --whole",
            )
        if model.incomplete:
            yield warn(node.name, f"a download did not end: {', '.join(model.incomplete)} ({model.path})")


def _needed_parts(node: NodePlan) -> set[str]:
    """Parts that a push may leave out, and that this node's engine reads all the same."""
    needed = {"draft"} if "--speculative-algorithm" in node.argv else set()
    return needed if "SPARKCTL_ENGRAM_DIR" in node.environment else needed | {"engram"}


@check(
    "same-model",
    part="storage",
    covers="F5 F10 S-shard",
    means="configuration, index, tokenizer and shards of the model are the same on all nodes, shards by "
    "sha256 where sparkctl weights took it, else by size",
    why="ranks compute with different models: garbage, or a hang at the first collective",
    fix="sparkctl weights push from the node that is right",
)
def same_model(case: Case) -> Iterable[Problem]:
    models = {node.name: store.model for node, store in case.stores() if store.model and store.model.hashes}
    for name in sorted({name for model in models.values() for name in model.hashes}):
        values = {node: (model.hashes.get(name) or "missing")[:12] for node, model in models.items()}
        if len(set(values.values())) > 1:
            yield refuse(list(values)[-1], f"{name} must be the same on all nodes, got {by_value(values)}")
    differ = [item for name in _shard_names(models) if (item := _shard_values(models, name))]
    if differ:
        name, values = differ[0]
        more = f" (and {len(differ) - 1} more)" if len(differ) > 1 else ""
        yield refuse(list(values)[-1], f"{name} must be the same on all nodes, got {by_value(values)}{more}")


def _shard_names(models: Mapping[str, Checkpoint]) -> list[str]:
    return sorted({name for model in models.values() for name in model.shards})


def _shard_values(models: Mapping[str, Checkpoint], name: str) -> tuple[str, dict[str, str]] | None:
    """(shard, node -> what it has) where nodes differ. Shards that the check `checkpoint` refuses are not
    compared, nor is one that is missing: its check is `model`."""
    shards = {
        node: model.shards[name]
        for node, model in models.items()
        if name in model.shards and name not in (*model.lfs_pointers, *model.empty)
    }
    hashes = {node: shard.sha256[:12] for node, shard in shards.items() if shard.sha256}
    sizes = {node: f"{shard.size_bytes} bytes" for node, shard in shards.items() if shard.size_bytes}
    return next(((name, values) for values in (sizes, hashes) if len(set(values.values())) > 1), None)


CHECKS: tuple[Check, ...] = (disk, disk_answers, writable, network_disk, checkpoint, same_model)
