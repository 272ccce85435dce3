"""Errors of the launcher. Every one tells what is wrong, where, and what to type or change next.

SparkctlError (exit 70: our own bug, when raised as such)
|-- UsageError            2   the command line asks for something that does not exist
|-- ConfigError           3   a recipe, topology or environment value is wrong
|-- NodeUnreachable       4   a node cannot be reached
|   |-- HostKeyUnknown        its host key is not in known_hosts
|   |-- HostKeyChanged        its host key differs from known_hosts
|   |-- AuthenticationRefused no key or agent identity was accepted
|   `-- ConnectionLost        it was reached, then went silent
|-- NodeFailed            4   a node was reached, but the request on it failed
|-- PreflightRefused      5   the plan cannot work on these nodes; nothing was started
|-- NotReady              6   the cluster did not become ready, or stopped being so
|   |-- RankDied              a rank ended or froze
|   |-- AuditFailed           a rank does not run as the plan says
|   `-- RunStopped            somebody stopped the run on purpose
|-- NoSuchRun             2   no run of that id, or none at all
|-- ResultWrong           8   a results directory is wrong, or a second run does not agree with it
`-- Interrupted         130   the user pressed Ctrl-C
"""

from __future__ import annotations


class SparkctlError(Exception):
    """Root of the tree. `message` says what is wrong, `hint` the next command or value, `node` where."""

    exit_code = 70
    usual_hint = ""  # said when the error has no hint of its own
    shown = False  # True once a person has been told: a failure is told before the clean-up that follows it

    def __init__(self, message: str, *, hint: str = "", node: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.node = node

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        return f"{where}{self.message}"


class UsageError(SparkctlError):
    exit_code = 2
    usual_hint = "sparkctl --help"


class ConfigError(SparkctlError):
    exit_code = 3
    usual_hint = "correct it and type the same again; docs/recipes.md and docs/topologies.md explain the keys"


class NodeUnreachable(SparkctlError):
    exit_code = 4


class HostKeyUnknown(NodeUnreachable):
    pass


class HostKeyChanged(NodeUnreachable):
    pass


class AuthenticationRefused(NodeUnreachable):
    pass


class ConnectionLost(NodeUnreachable):
    pass


class NodeFailed(SparkctlError):
    exit_code = 4


class PreflightRefused(SparkctlError):
    exit_code = 5
    detail: dict[str, object] = {}


class NotReady(SparkctlError):
    exit_code = 6


class RankDied(NotReady):
    pass


class AuditFailed(NotReady):
    pass


class RunStopped(NotReady):
    pass


class NoSuchRun(SparkctlError):
    exit_code = 2


class ResultWrong(SparkctlError):
    exit_code = 8
    usual_hint = "take no figure from it; docs/results.md says what each file must hold"


class Interrupted(SparkctlError):
    exit_code = 130
