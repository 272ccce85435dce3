"""Errors of registries.

ConfigError
`-- RegistryRefused       3   a registry holds what no registry may hold; nothing of it was kept
SparkctlError
`-- RegistryUnreachable   4   git could not fetch from, or push to, a registry
"""

from __future__ import annotations

from launcher.errors import ConfigError, SparkctlError


class RegistryRefused(ConfigError):
    usual_hint = "tell the owner of the registry; nothing of it was kept"


class RegistryUnreachable(SparkctlError):
    exit_code = 4
