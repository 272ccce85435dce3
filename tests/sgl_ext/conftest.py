"""Fixtures of the tests that start SGLang's engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sgl_ext.engine_forks import EngineForks


@pytest.fixture(scope="session")
def engine_forks() -> Iterator[EngineForks]:
    forks = EngineForks()
    yield forks
    forks.close()
