"""What the README and docs/ show exists: sparkctl verbs and options, make targets, linked files."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from launcher.cli.app import app

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def code_lines(text: str) -> list[str]:
    """Lines of fenced code and of `inline code`, comments cut off."""
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).splitlines()
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", outside)
    return [re.split(r"\s#\s", line)[0].strip().removeprefix("$ ") for line in [*fenced, *inline]]


def commands(name: str) -> list[tuple[str, str]]:
    return [
        (path.name, line)
        for path in DOCUMENTS
        for line in code_lines(path.read_text())
        if line.split()[:1] == [name]
    ]


command_tree = functools.cache(functools.partial(typer.main.get_command, app))


def parse(words: list[str]) -> None:
    """Walks the real command tree; raises where a verb or an option is unknown. Nothing is run."""
    command = command_tree()
    while (
        words and not words[0].startswith("-") and (verbs := getattr(command, "commands", None)) is not None
    ):
        assert words[0] in verbs, f"no such verb: {words[0]}"
        command, words = verbs[words[0]], words[1:]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("-"):
            assert word.split("=")[0] in options | {"--help"}, f"no such option: {word}"


@pytest.mark.parametrize(("document", "line"), commands("sparkctl"))
def test_sparkctl_lines_parse(document: str, line: str) -> None:
    parse(shlex.split(re.split(r"\s[|;&<>]", line.rstrip("\\ "))[0])[1:])


@pytest.mark.parametrize("line", ["sparkctl nonsense", "sparkctl up --nonsense", "sparkctl recipe lst"])
def test_the_check_refuses_what_does_not_exist(line: str) -> None:
    with pytest.raises(AssertionError, match="no such"):
        parse(shlex.split(line)[1:])


def test_the_readme_shows_the_two_commands() -> None:
    shown = {line for _, line in commands("make")}
    assert {"make up", "make test"} <= shown


@pytest.mark.parametrize(("document", "line"), commands("make"))
def test_make_targets_exist(document: str, line: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = [word for word in shlex.split(line)[1:] if "=" not in word and not word.startswith("-")]
    for target in targets:
        assert re.search(rf"^{re.escape(target)}\b.*:", makefile, re.MULTILINE), f"no target {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(path: Path) -> None:
    text = path.read_text()
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert missing == []
    assert text.isascii()
