"""Errors of the benchmark.

BenchRefused    5   nothing was measured: the server, the suite or the feature under test does not fit
BenchInvalid    8   something was measured that is no valid result; the raw records are kept
BenchUnanswered 4   the endpoint cannot be reached or does not speak the OpenAI API
"""

from __future__ import annotations

from launcher.errors import SparkctlError


class BenchRefused(SparkctlError):
    exit_code = 5


class BenchInvalid(SparkctlError):
    exit_code = 8


class BenchUnanswered(SparkctlError):
    exit_code = 4
