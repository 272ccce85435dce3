"""`sparkctl engram`: what the commands print and how they end."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from engram.hash_layout import make_hash_layout
from engram.token_map import load_token_map
from launcher.cli.app import main
from tests.engram.hash_reference import reference_rows
from tests.engram.tiny_checkpoint import REVISION, build_checkpoint, scaled_config


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("checkpoint"), scaled_config(vocab_size=3000)).directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


class Sparkctl:
    """The command as the console script calls it, in this process: starting Python takes longer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["sparkctl", "engram", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        return Ended(returncode=int(ended.value.code or 0), stdout=out, stderr=err)

    def pack(self, checkpoint: Path, out: Path, *more: object) -> Ended:
        source = ("--checkpoint", checkpoint, "--out", out, "--revision", REVISION)
        return self("pack", *source, "--allow-buffered", *more)


@pytest.fixture
def sparkctl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sparkctl:
    return Sparkctl(monkeypatch, capsys)


def test_pack_one_rank_then_verify(sparkctl: Sparkctl, checkpoint: Path, tmp_path: Path) -> None:
    done = sparkctl.pack(checkpoint, tmp_path, "--tp", 3, "--rank", 2)
    assert done.returncode == 0, done.stderr
    names = ["layer-01.rank-2of3.engram", "layer-02.rank-2of3.engram"]
    assert [Path(line).name for line in done.stdout.splitlines()] == names
    done = sparkctl(
        "verify", "--tables", tmp_path, "--full", "--checkpoint", checkpoint, "--revision", REVISION,
        "--tp", 3, "--rank", 2, "--allow-buffered",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == names
    assert "rows equal to the checkpoint" in done.stdout


def test_all_ranks_from_one_call(sparkctl: Sparkctl, checkpoint: Path, tmp_path: Path) -> None:
    assert sparkctl.pack(checkpoint, tmp_path, "--tp", 2, "--ranks", "all", "--layers", "1").returncode == 0
    assert sorted(path.name for path in tmp_path.glob("*.engram")) == [
        "layer-01.rank-0of2.engram",
        "layer-01.rank-1of2.engram",
    ]


def test_pack_and_verify_answer_in_json(sparkctl: Sparkctl, checkpoint: Path, tmp_path: Path) -> None:
    done = sparkctl.pack(checkpoint, tmp_path, "--tp", 1, "--layers", 1, "--json")
    packed = json.loads(done.stdout)
    name = "layer-01.rank-0of1.engram"
    assert packed["files"] == [str(tmp_path / name)]
    assert packed["packed_bytes"] == (tmp_path / name).stat().st_size - 4096
    options = ("--tables", tmp_path, "--full", "--allow-buffered", "--json")
    (file,) = json.loads(sparkctl("verify", *options).stdout)["files"]
    assert (file["name"], file["checked_blocks"], file["compared_rows"]) == (name, file["num_blocks"], 0)
    (tmp_path / name).unlink()
    done = sparkctl("verify", *options)
    assert (done.returncode, name in json.loads(done.stdout)["error"]["message"]) == (7, True)


@pytest.mark.parametrize("damage", ["header", "rows", "cut", "manifest"])
def test_damaged_tables_end_with_7_and_one_error(
    sparkctl: Sparkctl, checkpoint: Path, tmp_path: Path, damage: str
) -> None:
    assert sparkctl.pack(checkpoint, tmp_path, "--tp", 1).returncode == 0
    path = tmp_path / ("manifest.json" if damage == "manifest" else "layer-01.rank-0of1.engram")
    raw = bytearray(path.read_bytes())
    if damage == "cut":
        del raw[-100:]
    else:
        raw[{"header": 60, "rows": 70_000, "manifest": 3}[damage]] ^= 4
    path.write_bytes(raw)
    done = sparkctl("verify", "--tables", tmp_path, "--full", "--allow-buffered")
    assert done.returncode == 7
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert str(path) in error
    assert "sparkctl engram pack" in hint
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", 3], "--rank must be given at --tp 3"),
        (["--tp", 3, "--rank", 0, "--ranks", "all"], "must not both be given"),
        (["--tp", 3, "--ranks", "0;1"], "--ranks must be numbers like 0,1,2"),
    ],
)
def test_wrong_options_end_with_2(
    sparkctl: Sparkctl, checkpoint: Path, tmp_path: Path, arguments: list, message: str
) -> None:
    done = sparkctl.pack(checkpoint, tmp_path, *arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_rank_beyond_tp_and_unknown_layer_end_with_7(
    sparkctl: Sparkctl, checkpoint: Path, tmp_path: Path
) -> None:
    for arguments, message in (
        (["--tp", 3, "--rank", 3], "the rank must be 0 to 2"),
        (["--tp", 1, "--layers", "5"], "layer must be one of 1, 2"),
    ):
        done = sparkctl.pack(checkpoint, tmp_path, *arguments)
        assert (done.returncode, message in done.stderr) == (7, True), done.stderr


def test_hash_prints_the_rows_of_every_token(sparkctl: Sparkctl, tmp_path: Path) -> None:
    tiny = build_checkpoint(tmp_path)
    done = sparkctl("hash", "--checkpoint", tmp_path, "--ids", "11,12,13,14", "--tp", 2, "--rank", 1)
    assert done.returncode == 0, done.stderr
    token_map = load_token_map(tmp_path, expected_classes=tiny.config.engram_compressed_vocab_size)
    wanted = reference_rows(make_hash_layout(tiny.config), token_map, [11, 12, 13, 14], pad_token_id=2)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["token"] for line in lines] == [11, 12, 13, 14]
    assert np.array_equal([[line["rows"]["1"], line["rows"]["2"]] for line in lines], wanted[:, :, 1::2])
    done = sparkctl("hash", "--checkpoint", tmp_path, "--ids", "99999")
    assert (done.returncode, "token ids must be 0 to" in done.stderr) == (7, True)


def test_bench_refuses_an_unknown_measurement(sparkctl: Sparkctl, tmp_path: Path) -> None:
    done = sparkctl("bench", "--directory", tmp_path, "--results", tmp_path, "--only", "warm")
    assert (done.returncode, "--only must be of cold-32" in done.stderr) == (7, True), done.stderr
