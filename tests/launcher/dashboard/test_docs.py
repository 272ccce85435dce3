"""docs/dashboard.md names commands, options, metrics and a picture: all of them must exist."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from launcher.cli.app import app
from launcher.dashboard import engine_metrics

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "dashboard.md").read_text()
MAX_PICTURE_BYTES = 300_000


def help_of(verb: str) -> str:
    done = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert done.exit_code == 0, done.output
    return done.output


def test_every_command_and_option_exists() -> None:
    verbs = set(re.findall(r"sparkctl ([a-z-]+)", PAGE))
    assert {"dashboard", "status"} <= verbs
    for verb in verbs - {"s"}:
        help_of(verb)
    known = help_of("dashboard")
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)):
        assert option in known, option


def test_every_metric_is_the_one_that_is_read() -> None:
    source = Path(engine_metrics.__file__).read_text()
    for name in re.findall(r"(?:sglang:|sparkctl_engram_|sparkctl_spec_)\w+", PAGE):
        assert name in source, name


def test_the_picture_is_there_and_small() -> None:
    (name,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE)
    picture = (DOCS / name).read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < MAX_PICTURE_BYTES
