"""Engine, extension and NCCL: the same content on all nodes, and one of each."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.doctor.case import Case, by_value
from launcher.doctor.check import Check, check, in_docker, on_gpus
from launcher.doctor.finding import Problem, refuse, warn

EXTENSION = ("sgl_ext", "engram")


@check(
    "same-engine",
    part="software",
    covers="F10 S-software",
    means="SGLang's files are the same on all nodes, by content",
    why="ranks run different code: other answers, or a hang, after minutes of loading",
    fix="sparkctl install, or pip install --force-reinstall the same wheel on every node",
)
def same_engine(case: Case) -> Iterable[Problem]:
    yield from _same_content(case, "sglang")


@check(
    "same-extension",
    part="software",
    covers="F9",
    means="sparkctl's engine extension is the same on all nodes, by content",
    why="an edit took effect on some nodes only; their ranks disagree",
    fix="sparkctl install, or install the same sparkctl on every node",
)
def same_extension(case: Case) -> Iterable[Problem]:
    for name in EXTENSION:
        yield from _same_content(case, name)


def _same_content(case: Case, package: str) -> Iterable[Problem]:
    values = {}
    for node, facts in case.software():
        if facts.identity and not facts.identity.problem:
            content = facts.identity.content.get(package)
            values[node.name] = f"{content.sha256[:12]} ({content.num_files} files)" if content else "missing"
    if len(set(values.values())) > 1:
        yield refuse(list(values)[-1], f"{package} must be the same on all nodes, got {by_value(values)}")


@check(
    "engine-answers",
    part="software",
    means="the engine's Python runs and tells what it would import",
    why="the engine cannot start there",
    fix="sparkctl install; paths.engine of the node in the topology",
)
def engine_answers(case: Case) -> Iterable[Problem]:
    for node, facts in case.software():
        if facts.identity and facts.identity.problem:
            yield refuse(node.name, facts.identity.problem)


@check(
    "same-packages",
    part="software",
    covers="F10 F40 S-software",
    means="torch, kernels and the NCCL library are the same on all nodes",
    why="collectives between different NCCL builds hang or fail; kernels give different numbers",
    fix="sparkctl install on all nodes",
)
def same_packages(case: Case) -> Iterable[Problem]:
    identities = {
        node.name: facts.identity
        for node, facts in case.software()
        if facts.identity and not facts.identity.problem
    }
    for name in sorted({name for item in identities.values() for name in item.versions}):
        values = {node: item.versions.get(name) or "none" for node, item in identities.items()}
        if len(set(values.values())) > 1:
            yield refuse(list(values)[-1], f"{name} must be the same on all nodes, got {by_value(values)}")
    hashes = {node: item.nccl[0].sha256[:12] for node, item in identities.items() if item.nccl}
    if len(set(hashes.values())) > 1:
        yield refuse(
            list(hashes)[-1], f"libnccl.so must be the same file on all nodes, got {by_value(hashes)}"
        )


@check(
    "one-nccl",
    part="software",
    covers="F24",
    means="a process of the engine finds one NCCL library",
    why="'Duplicate NCCL runtime', or another NCCL than the engine was built with, without a word",
    fix="remove it from LD_LIBRARY_PATH or LD_PRELOAD of recipe and topology; keep "
    "the one in the engine's venv",
    applies=on_gpus,
)
def one_nccl(case: Case) -> Iterable[Problem]:
    for node, facts in case.software():
        own = facts.identity.nccl if facts.identity else ()
        if facts.preferred_nccl:
            yield refuse(
                node.name,
                "LD_LIBRARY_PATH or LD_PRELOAD of the plan put "
                f"{', '.join(facts.preferred_nccl)} before the engine's own",
            )
        elif len({item.sha256 for item in own}) > 1:
            yield refuse(
                node.name,
                f"the engine's venv holds {len(own)} NCCL libraries: {', '.join(i.path for i in own)}",
            )
        elif not own and facts.identity and not facts.identity.problem and not facts.system_nccl:
            yield warn(
                node.name, "neither the engine's venv nor the system has libnccl.so", why="NCCL cannot start"
            )


@check(
    "docker",
    part="software",
    covers="S-docker",
    means="this user may ask docker, and the image is there",
    why="the container cannot be started",
    fix="sudo usermod -aG docker USER, then log in again; docker pull IMAGE",
    applies=in_docker,
)
def docker(case: Case) -> Iterable[Problem]:
    for node, facts in case.software():
        if facts.docker and facts.docker.problem:
            yield refuse(node.name, f"docker image inspect: {facts.docker.problem}")


@check(
    "same-image",
    part="software",
    covers="F10",
    means="the docker image is the same on all nodes, by id",
    why="a tag that moved gives one rank another SGLang",
    fix="name the image by digest in the recipe; docker pull it everywhere",
    applies=in_docker,
)
def same_image(case: Case) -> Iterable[Problem]:
    values = {n.name: f.docker.image_id for n, f in case.software() if f.docker and f.docker.image_id}
    if len(set(values.values())) > 1:
        yield refuse(list(values)[-1], f"the image must be the same on all nodes, got {by_value(values)}")


CHECKS: tuple[Check, ...] = (
    engine_answers,
    same_engine,
    same_extension,
    same_packages,
    one_nccl,
    docker,
    same_image,
)
