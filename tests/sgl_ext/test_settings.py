from pathlib import Path

import pytest

from sgl_ext.errors import SettingError
from sgl_ext.settings import read_settings


def test_nothing_set_asks_for_nothing() -> None:
    settings = read_settings({})
    assert not settings.cpu_engine
    assert settings.report_dir is None
    assert settings.engram_dir is None


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("ON", True), ("0", False), ("", False)])
def test_cpu_engine_flag(value: str, expected: bool) -> None:
    assert read_settings({"SGLANG_USE_CPU_ENGINE": value}).cpu_engine is expected


def test_unclear_flag_is_refused_with_the_value() -> None:
    with pytest.raises(SettingError, match=r"SGLANG_USE_CPU_ENGINE must be one of .*, got 'maybe'") as caught:
        read_settings({"SGLANG_USE_CPU_ENGINE": "maybe"})
    assert "export SGLANG_USE_CPU_ENGINE=1" in caught.value.hint


def test_directories_must_be_absolute_and_exist(tmp_path: Path) -> None:
    assert read_settings({"SPARKCTL_REPORT_DIR": str(tmp_path)}).report_dir == tmp_path
    with pytest.raises(SettingError, match="must be an absolute path, got 'reports'"):
        read_settings({"SPARKCTL_REPORT_DIR": "reports"})
    with pytest.raises(SettingError, match="must be an existing directory"):
        read_settings({"SPARKCTL_ENGRAM_DIR": str(tmp_path / "missing")})
