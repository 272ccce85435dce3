"""A busy machine must not make a recorded node ill: its tools, which are scripts, may take their time."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patient_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.node.probe_root.TOOL_TIMEOUT_S", 60.0)
    monkeypatch.setattr("launcher.node.facts_software.IDENTITY_TIMEOUT_S", 60.0)
