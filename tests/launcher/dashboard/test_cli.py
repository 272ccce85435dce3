"""`sparkctl dashboard` at its edges: what it refuses, and where its key goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cli.dashboard import _access
from launcher.errors import UsageError

KEY = "0123456789abcdef0123456789abcdef"


def key_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_loopback_needs_no_key_and_any_other_address_gets_one() -> None:
    for address in ("127.0.0.1", "::1", "127.8.8.8"):
        assert _access(address, None, ()).key is None
    made = [_access(address, None, ()).key for address in ("0.0.0.0", "::", "10.0.0.7")]
    assert all(key is not None and len(key) >= 32 for key in made) and len(set(made)) == 3


def test_a_key_file_is_used_on_loopback_too(tmp_path: Path) -> None:
    assert _access("127.0.0.1", key_file(tmp_path, KEY + "\n"), ()).key == KEY


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        (KEY, 0o644, "must be readable by its user only, got mode 0644"),
        ("short", 0o600, "at least 16 characters, got 5"),
        ("two words of a long key", 0o600, "must hold one word"),
        ("", 0o600, "got 0"),
    ],
)
def test_a_weak_key_file_is_refused(tmp_path: Path, text: str, mode: int, message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        _access("10.0.0.7", key_file(tmp_path, text, mode), ())
    assert refused.value.hint and (not text or text not in str(refused.value))


def test_a_missing_key_file_or_a_name_for_an_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a readable ASCII file"):
        _access("10.0.0.7", str(tmp_path / "none"), ())
    with pytest.raises(UsageError, match="--listen must be an IP address, got 'head'"):
        _access("head", None, ())
