"""The commands of `sparkctl results`, and their JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from launcher.cli.app import app
from launcher.errors import ResultWrong, UsageError
from tests.launcher.results.make_run import make_run


def run(*words: str | Path, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["results", *map(str, words)], input=answer)


def as_json(*words: str | Path) -> Any:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_list_tells_runs_from_the_rest(home: Path) -> None:
    make_run(home / "results" / "bench-a")
    make_run(home / "results" / "bench-b")
    (home / "results" / "bench-b" / "manifest.json").unlink()
    make_run(home / "results" / "bench-c")
    (home / "results" / "bench-c" / "manifest.json").write_text("{}")
    (home / "results" / "engram").mkdir()
    (home / "results" / "link").symlink_to(home / "results" / "bench-a")
    found = {item["name"]: item for item in as_json("list", home / "results")}
    assert {name: item["kind"] for name, item in found.items()} == {
        "bench-a": "run", "bench-b": "unfinished", "bench-c": "wrong", "engram": "component",
    }  # fmt: skip
    assert found["bench-a"]["recipe"] == "local-cpu"
    assert "bench-a" in run("list", home / "results").stdout


def test_verify_gives_the_seal(home: Path) -> None:
    directory = make_run(home / "run")
    found = as_json("verify", directory)
    assert found["requests"] == 18 and found["cells"] == 4
    assert found["seal"] in run("verify", directory).stdout
    (directory / "summary.json").write_text("{}")
    done = run("verify", directory)
    assert isinstance(done.exception, ResultWrong) and done.exception.exit_code == 8


def test_compare_prints_differences_first(home: Path) -> None:
    first = make_run(home / "a", run_id="a")
    second = make_run(home / "b", run_id="b", speed=2.0, lock_sha256=None)
    text = run("compare", first, second).stdout
    assert 0 < text.index("lock_sha256") < text.index("aggregate_tokens_per_s")
    assert {item["faster"] for item in as_json("compare", first, second)["figures"]} == {"b"}


def test_reproduce_judges_a_run_that_exists_and_keeps_the_verdict(home: Path) -> None:
    first = make_run(home / "a", run_id="a")
    second = make_run(home / "b", run_id="b", speed=1.05)
    found = as_json("reproduce", first, "--against", second)
    assert found["verdict"] == "reproduced"
    assert json.loads(Path(found["file"]).read_text())["second_seal"] == found["second_seal"]
    slow = make_run(home / "c", run_id="c", speed=0.5)
    done = run("reproduce", first, "--against", slow)
    assert done.exit_code == ResultWrong.exit_code and "not reproduced" in done.stdout


def test_publish_asks_and_shows_first(home: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra report")
    directory = make_run(home / "run", notes=("by anna on 10.1.2.3",))
    target = home / "run.tar.gz"
    refused = run("publish", directory, "-o", target, "--private", "anna", answer="n\n")
    assert refused.exit_code == 1 and "nothing was written" in refused.stdout and not target.exists()
    assert "10.1.2.3" in refused.stdout and "anna" in refused.stdout
    silent = run("publish", directory, "-o", target, answer="")
    assert isinstance(silent.exception, UsageError) and "--yes" in str(silent.exception.hint)
    found = as_json("publish", directory, "-o", target, "--private", "anna", "--yes")
    assert target.is_file() and {item["kind"] for item in found["scrubbed"]} >= {"address", "name"}
    assert "10.1.2.3" not in json.dumps(found)


def test_publish_with_json_needs_yes_and_a_known_ending(home: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra report")
    directory = make_run(home / "run")
    for words, said in ((("--json",), "--yes"), (("--yes", "-o", home / "x.rar"), ".tar.gz or .zip")):
        done = run("publish", directory, *words)
        assert isinstance(done.exception, UsageError) and said in str(done.exception)


def test_report_writes_again_and_stays_verified(home: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra report")
    directory = make_run(home / "run")
    before = as_json("verify", directory)["seal"]
    found = as_json("report", directory)
    assert "report.html" in found["files"] and found["seal"] != before
    assert as_json("verify", directory)["seal"] == found["seal"]
