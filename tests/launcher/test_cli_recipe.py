"""sparkctl recipe list | show | validate, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from launcher.cli.recipe import app
from launcher.errors import ConfigError
from launcher.recipe import Recipe

RUNNER = CliRunner()


def test_list_names_every_recipe_with_its_evidence() -> None:
    result = RUNNER.invoke(app, ["list"])
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if " v41-flash-3x " in line)
    assert "not run" in line
    assert "DeepSeek-V4.1-Flash on three Sparks" in line


def test_list_as_json() -> None:
    entries = json.loads(RUNNER.invoke(app, ["list", "--json"]).stdout)
    entry = next(entry for entry in entries if entry["name"] == "v41-flash-4x")
    assert (entry["nodes"], entry["tp"], entry["runtime"]) == (4, 4, "venv")
    assert entry["evidence"]["status"] == "not_run"


def test_show_prints_yaml_that_is_again_a_recipe(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["show", "v41-flash-3x", "--profile", "batch"])
    assert result.exit_code == 0
    written = yaml.safe_load(result.stdout)
    assert list(written)[:2] == ["schema_version", "name"]
    assert "limits" in written
    assert "dtype" not in written["server"]  # only what the files say
    assert Recipe.model_validate(written).server.flags["prefill-decode-interval"] == 0


def test_show_resolved_gives_every_value_an_origin() -> None:
    lines = RUNNER.invoke(
        app, ["show", "v41-flash-3x", "--profile", "batch", "--resolved"]
    ).stdout.splitlines()
    found = {line.split()[0]: line.split()[-1] for line in lines}
    assert ":" in found["server.flags.prefill-decode-interval"]
    assert found["server.flags.prefill-decode-interval"].partition(":")[0].endswith("base/spark-base.yaml")
    assert found["parallelism.tp"].partition(":")[0].endswith("v41-flash-3x.yaml")
    assert found["server.kv_cache_dtype"].partition(":")[0].endswith("base/v41-flash-base.yaml")
    assert found["environment.NCCL_BUFFSIZE"].partition(":")[0].endswith("base/spark-base.yaml")
    assert found["limits.stop_timeout_s"] == "default"
    assert found["engine.image"] == "default"


def test_show_as_json_holds_the_whole_recipe() -> None:
    document = json.loads(RUNNER.invoke(app, ["show", "local", "--resolved", "--json"]).stdout)
    recipe = Recipe.model_validate_json(json.dumps(document["resolved"]))
    assert recipe.name == document["name"] == "local"
    assert document["origins"]["server.api_key"] == "default"
    assert document["origins"]["server.port"].endswith("local.yaml:20:3")


def test_show_of_nothing_names_the_shipped_ones() -> None:
    result = RUNNER.invoke(app, ["show", "locl"])
    assert isinstance(result.exception, ConfigError)
    assert "did you mean local?" in result.exception.hint


def test_validate_reports_each_file_and_fails_when_one_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("schema_version: 1\nname: bad\nextends: local\nserver: {prt: 1}\n")
    result = RUNNER.invoke(app, ["validate", "local", str(bad), str(tmp_path / "gone.yaml")])
    assert result.exit_code == 3
    assert result.stdout.splitlines() == [
        "ok: local (local)",
        f"wrong: server.prt must be a known key, got 'prt' ({bad}:4:10).",
        "  hint: did you mean port?",
        f"wrong: {tmp_path}/gone.yaml must be an existing YAML file, got none.",
        f"  hint: {tmp_path} holds bad.yaml",
    ]
    assert RUNNER.invoke(app, ["validate", "local"]).exit_code == 0


def test_validate_as_json(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("\t")
    result = RUNNER.invoke(app, ["validate", "--json", "local", str(bad)])
    assert result.exit_code == 3
    good, wrong = json.loads(result.stdout)
    assert good == {"file": "local", "ok": True, "recipe": "local"}
    assert wrong["ok"] is False
    assert wrong["error"]


@pytest.mark.parametrize("module", ["recipe", "topology"])
def test_importing_the_command_loads_nothing_heavy(module: str) -> None:
    code = (
        f"import sys, launcher.cli.{module}; "
        "heavy = ('pydantic', 'yaml', 'rich.table', 'paramiko', 'httpx'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == "[]"


def test_validate_always_says_what_to_do(tmp_path: Path) -> None:
    """Also where the problem has no hint of its own."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("schema_version: 1\nname: t\nextends: local\nserver: {port: 99999}\n")
    result = RUNNER.invoke(app, ["validate", str(bad)])
    assert result.exit_code == 3 and "65535 or less" in result.stdout and "  hint: " in result.stdout
