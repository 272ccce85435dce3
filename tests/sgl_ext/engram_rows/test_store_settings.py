"""The row store's settings from the environment."""

import pytest

from sgl_ext.engram.store_settings import read_store_settings
from sgl_ext.errors import SettingError


def test_defaults() -> None:
    settings = read_store_settings({})
    assert (settings.cache_bytes, settings.lookahead_bytes) == (4 << 30, 1 << 30)
    assert settings.store_options()["backend"] == "io_uring"


def test_launchers_values_are_gib_and_may_have_a_fraction() -> None:
    settings = read_store_settings({"SPARKCTL_ENGRAM_CACHE_GIB": "0.5", "SPARKCTL_ENGRAM_LOOKAHEAD_GIB": "0"})
    assert (settings.cache_bytes, settings.lookahead_bytes) == (1 << 29, 0)


def test_rows_in_ram_need_no_cache() -> None:
    settings = read_store_settings({"SPARKCTL_ENGRAM_BACKEND": "ram", "SPARKCTL_ENGRAM_CACHE_GIB": "8"})
    assert (settings.cache_bytes, settings.lookahead_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARKCTL_ENGRAM_CACHE_GIB", "much"),
        ("SPARKCTL_ENGRAM_CACHE_GIB", "-1"),
        ("SPARKCTL_ENGRAM_CACHE_GIB", "nan"),
        ("SPARKCTL_ENGRAM_LOOKAHEAD_GIB", "1e9"),
        ("SPARKCTL_ENGRAM_BACKEND", "mmap"),
        ("SPARKCTL_ENGRAM_QUEUE_DEPTH", "0"),
        ("SPARKCTL_ENGRAM_QUEUE_DEPTH", "1.5"),
        ("SPARKCTL_ENGRAM_READ_THREADS", "-2"),
        ("SPARKCTL_ENGRAM_BUFFERED", "yes"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"{name} must be"):
        read_store_settings({name: value})
