"""`results verify`: whatever one thing is changed, it is found; a hostile directory is refused by name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import ResultWrong, UsageError
from launcher.results.manifest import seal_of
from launcher.results.run_directory import hash_file
from launcher.results.verify_run import verify_run
from tests.launcher.results.make_run import make_run

_MANY = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a report of its own words: rendering is tested elsewhere."""

    def render(directory: Path, *_: object) -> None:
        (directory / "report.md").write_text("# A report\n")
        (directory / "plots").mkdir(exist_ok=True)
        (directory / "plots" / "a.svg").write_text("<svg/>\n")

    return make_run(tmp_path_factory.mktemp("sealed") / "run", render=render)


@pytest.fixture
def run(sealed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sealed, tmp_path / "run")


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    assert content != before
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def test_an_untouched_run_is_right(run: Path) -> None:
    found = verify_run(run)
    assert len(found.records.requests) == 18
    assert found.manifest.run_id == "bench-1"


@_MANY
@given(data=st.data())
def test_any_changed_byte_is_found(sealed: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files_of(sealed)))
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    with changed(path, bytes(content)), pytest.raises(ResultWrong):
        verify_run(sealed)
    verify_run(sealed)


@_MANY
@given(data=st.data())
def test_any_changed_number_is_found(sealed: Path, data: st.DataObject) -> None:
    """Of the same length too, so that no size tells."""
    path = data.draw(
        st.sampled_from([path for path in files_of(sealed) if path.suffix in (".json", ".jsonl")])
    )
    content = path.read_bytes()
    match = data.draw(st.sampled_from(list(_NUMBER.finditer(content))))
    digit = data.draw(st.sampled_from(b"0123456789"))
    index = data.draw(st.integers(match.start(), match.end() - 1).filter(lambda i: content[i] != digit))
    altered = content[:index] + bytes([digit]) + content[index + 1 :]
    with changed(path, altered), pytest.raises(ResultWrong):
        verify_run(sealed)


@_MANY
@given(data=st.data())
def test_any_record_that_is_missing_moved_or_twice_is_found(sealed: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(sealed.glob("*.jsonl"))))
    lines = path.read_bytes().splitlines(keepends=True)
    index = data.draw(st.integers(0, len(lines) - 1))
    how = data.draw(st.sampled_from(("remove", "twice", "move")))
    if how == "remove":
        altered = lines[:index] + lines[index + 1 :]
    elif how == "twice":
        altered = [*lines[: index + 1], lines[index], *lines[index + 1 :]]
    else:
        altered = [*lines[:index], *lines[index + 1 :]]
        altered.insert((index + 1) % len(lines), lines[index])
    with changed(path, b"".join(altered)), pytest.raises(ResultWrong):
        verify_run(sealed)


@_MANY
@given(data=st.data())
def test_a_figure_of_the_summary_that_the_records_do_not_give_is_found_under_new_hashes(
    sealed: Path, data: st.DataObject
) -> None:
    """Somebody who also mends hash and seal: the records still say otherwise."""
    path = sealed / "summary.json"
    summary = json.loads(path.read_bytes())
    cell = data.draw(st.sampled_from(summary["cells"]))
    name = data.draw(st.sampled_from(sorted(key for key, value in cell.items() if value is not None)))
    if isinstance(cell[name], dict):
        key = data.draw(st.sampled_from(sorted(cell[name])))
        cell[name][key] += 1
    else:
        cell[name] = cell[name] + 1 if isinstance(cell[name], int) else cell[name] + "x"
    manifest = sealed / "manifest.json"
    altered = (json.dumps(summary, indent=1, sort_keys=True) + "\n").encode()
    with (
        changed(path, altered),
        changed(manifest, resealed(sealed)),
        pytest.raises(ResultWrong, match=r"summary\.json"),
    ):
        verify_run(sealed)


def resealed(directory: Path, **changes: Any) -> bytes:
    """A manifest that fits what is there now."""
    content = json.loads((directory / "manifest.json").read_bytes())
    content.update(changes)
    for entry in content["files"]:
        if not entry["path"].startswith("/") and (directory / entry["path"]).is_file():
            entry.update(hash_file(directory, entry["path"]).model_dump())
    content["seal"] = seal_of(content)
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def alter_records(run: Path, name: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change raw records, and mend every hash."""
    records = [json.loads(line) for line in (run / name).read_bytes().splitlines()]
    change(records)
    (run / name).write_text("".join(json.dumps(item) + "\n" for item in records))
    (run / "manifest.json").write_bytes(resealed(run))


def set_field(name: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda records: records[1].update({name: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_field("completion_tokens", 12), "summary.json"),
        (set_field("first_token_s", 11.6), "summary.json"),
        (set_field("output_text", "better"), "output_sha256"),
        (set_field("end_s", 0.5), "must ascend"),
        (set_field("request_id", "prose-c1-r0-s0"), "once"),
        (set_field("prompt_sha256", "0" * 64), "prompt that the manifest lists"),
        (set_field("suite", "soak"), "suites decode"),
        (set_field("protocol", "lil"), "of protocol sparkctl"),
        (set_field("completion_tokens", None), "token counts"),
        (set_field("cached_tokens", 101), "at most prompt_tokens"),
        (set_field("surprise", 1), "surprise"),
    ],
)
def test_records_must_agree_with_themselves_and_the_manifest_under_new_hashes(
    run: Path, change: Callable[[list[dict[str, Any]]], None], said: str
) -> None:
    alter_records(run, "requests.jsonl", change)
    with pytest.raises(ResultWrong, match=re.escape(said)):
        verify_run(run)


def test_samples_must_belong_to_a_case_and_a_node(run: Path) -> None:
    alter_records(run, "node_samples.jsonl", lambda records: records[0].update(node="node-7"))
    with pytest.raises(ResultWrong, match="node-7"):
        verify_run(run)


@pytest.mark.parametrize("name", ["spark-1", "10.0.0.1", "node-0.lan"])
def test_a_node_has_no_name_of_its_own(run: Path, name: str) -> None:
    alter_records(run, "node_samples.jsonl", lambda records: records[0].update(node=name))
    with pytest.raises(ResultWrong, match=r"node_samples\.jsonl line 1"):
        verify_run(run)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, '{"a": 1, "a": 2}'])
def test_json_that_is_none_is_refused_by_file_and_line(run: Path, text: str) -> None:
    lines = (run / "engine_metrics.jsonl").read_text().splitlines()
    lines[1] = re.sub(r'"metrics":\{.*\}', f'"metrics":{{"a":{text}}}', lines[1])
    (run / "engine_metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "manifest.json").write_bytes(resealed(run))
    with pytest.raises(ResultWrong, match=r"engine_metrics\.jsonl line 2"):
        verify_run(run)


def test_endless_nesting_is_refused(run: Path) -> None:
    (run / "manifest.json").write_text("[" * 200_000)
    with pytest.raises(ResultWrong, match=r"manifest\.json"):
        verify_run(run)


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "/etc/passwd", "plots/../../x", "..", "a/b/c", ".hidden"]
)
def test_a_path_out_of_the_directory_is_refused(run: Path, path: str) -> None:
    files = json.loads((run / "manifest.json").read_bytes())["files"]
    files[0]["path"] = path
    (run / "manifest.json").write_bytes(resealed(run, files=files))
    with pytest.raises(ResultWrong, match=r"files\.0\.path"):
        verify_run(run)


def test_links_are_refused(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes((run / "report.md").read_bytes())
    (run / "report.md").unlink()
    (run / "report.md").symlink_to(secret)
    with pytest.raises(ResultWrong, match=r"report\.md must be a regular file, got a symbolic link"):
        verify_run(run)
    (run / "report.md").unlink()
    os.link(secret, run / "report.md")
    with pytest.raises(ResultWrong, match=r"report\.md must have one name"):
        verify_run(run)


def test_a_linked_directory_of_plots_is_refused(run: Path, tmp_path: Path) -> None:
    (run / "plots").rename(tmp_path / "elsewhere")
    (run / "plots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResultWrong, match="plots must be a regular file, got a symbolic link"):
        verify_run(run)


def test_a_pipe_does_not_block(run: Path) -> None:
    (run / "requests.jsonl").unlink()
    os.mkfifo(run / "requests.jsonl")
    with pytest.raises(ResultWrong, match=r"requests\.jsonl must be a regular file"):
        verify_run(run)


def test_a_huge_file_is_refused_before_it_is_read(run: Path) -> None:
    os.truncate(run / "requests.jsonl", 1 << 40)
    with pytest.raises(ResultWrong, match=r"requests\.jsonl must have at most"):
        verify_run(run)


def test_a_huge_manifest_is_refused(run: Path) -> None:
    os.truncate(run / "manifest.json", 1 << 30)
    with pytest.raises(ResultWrong, match=r"manifest\.json must have at most"):
        verify_run(run)


def test_more_files_than_any_run_has_are_refused(run: Path) -> None:
    for number in range(210):
        (run / f"f{number}").touch()
    with pytest.raises(ResultWrong, match="at most 200 files"):
        verify_run(run)


def test_a_file_that_is_not_listed_or_is_lost_is_found(run: Path) -> None:
    (run / "extra.txt").write_text("x")
    with pytest.raises(ResultWrong, match=r"does not list extra\.txt"):
        verify_run(run)
    (run / "extra.txt").unlink()
    (run / "plots" / "a.svg").unlink()
    with pytest.raises(ResultWrong, match="must hold plots"):
        verify_run(run)
    (run / "plots").rmdir()
    with pytest.raises(ResultWrong, match=r"lacks, plots/a\.svg"):
        verify_run(run)


def test_a_file_listed_twice_is_found(run: Path) -> None:
    files = json.loads((run / "manifest.json").read_bytes())["files"]
    (run / "manifest.json").write_bytes(resealed(run, files=[*files, files[0]]))
    with pytest.raises(ResultWrong, match="lists twice"):
        verify_run(run)


def test_raw_files_must_be_listed(run: Path) -> None:
    files = json.loads((run / "manifest.json").read_bytes())["files"]
    (run / "requests.jsonl").unlink()
    left = [entry for entry in files if entry["path"] != "requests.jsonl"]
    (run / "manifest.json").write_bytes(resealed(run, files=left))
    with pytest.raises(ResultWrong, match=r"must list, but does not, requests\.jsonl"):
        verify_run(run)


def test_a_recipe_that_is_not_the_hashed_one_is_found(run: Path) -> None:
    recipe = json.loads((run / "manifest.json").read_bytes())["recipe"]
    recipe["content"]["parallelism"]["tp"] = 4
    (run / "manifest.json").write_bytes(resealed(run, recipe=recipe))
    with pytest.raises(ResultWrong, match=r"recipe\.sha256"):
        verify_run(run)


@pytest.mark.parametrize("name", ["engram", "launch-cpu-3x-2026-11-29", "gpu-h200-2026-11-29"])
def test_a_measurement_of_a_component_is_no_bench_run(name: str) -> None:
    directory = Path(__file__).parents[3] / "results" / name
    with pytest.raises(ResultWrong, match="is not a bench run but a measurement") as raised:
        verify_run(directory)
    hint = raised.value.hint or ""
    subprocess.run(hint.removeprefix("check its files: "), shell=True, check=True, capture_output=True)  # noqa: S602


def test_another_directory_is_no_bench_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ResultWrong, match=r"is not a bench run: it has no manifest\.json") as raised:
        verify_run(tmp_path)
    assert raised.value.hint == "sparkctl results list"


def test_an_unfinished_run_says_how_to_go_on(run: Path) -> None:
    (run / "manifest.json").unlink()
    with pytest.raises(ResultWrong, match="finished run") as raised:
        verify_run(run)
    assert raised.value.hint == f"go on with it: sparkctl bench --resume {run}"


def test_no_directory_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be the directory of a run"):
        verify_run(tmp_path / "none")
