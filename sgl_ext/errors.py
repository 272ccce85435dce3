"""Errors of the SGLang plugin.

SglExtError              root; message, hint, node, exit_code
  SettingError      3    an environment variable or model file has an unusable value
  CostTableError    3    a table of step costs is impossible, edited, or of another engine
  SpecOptionError   2    a request asks for speculation in a way that does not exist
  SpecRankError    70    ranks decided differently about a step of speculation
  CapabilityError   8    this GPU or its packages cannot serve the model
  ExpertBackendError 8   no way of running the MXFP4 experts passed on every rank, or ranks disagree
  DenseBackendError 8    the same of the linear layers in FP8
  EngramReadError   7    Engram rows of a step could not be read; its output is withheld
  HookError         8    base of everything that concerns hooks
    VersionError    8    the installed SGLang is not one the hooks were written for
    TargetError     8    a hook target is missing from the installed SGLang
    DriftError      8    a hook target's source is not the source the hook was written for
    EffectError     8    a hook is not in effect although it was installed
"""

from __future__ import annotations


class SglExtError(Exception):
    """A refusal with its cause and the next step.

    message: "X must be <expected>, got <seen> (<where>)."; hint: what to type or change; node: who says so.
    """

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "", node: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.node = node

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        tail = f" Hint: {self.hint}" if self.hint else ""
        return f"{where}{self.message}{tail}"


class SettingError(SglExtError):
    exit_code = 3


class CostTableError(SglExtError):
    exit_code = 3


class SpecOptionError(SglExtError):
    exit_code = 2


class SpecRankError(SglExtError):
    exit_code = 70


class CapabilityError(SglExtError):
    exit_code = 8


class ExpertBackendError(SglExtError):
    exit_code = 8


class DenseBackendError(SglExtError):
    exit_code = 8


class EngramReadError(SglExtError):
    exit_code = 7


class HookError(SglExtError):
    exit_code = 8


class VersionError(HookError):
    pass


class TargetError(HookError):
    pass


class DriftError(HookError):
    pass


class EffectError(HookError):
    pass
