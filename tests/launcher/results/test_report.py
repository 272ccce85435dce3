"""The rendered report: figures of the summary, plots, and third-party rows of the same protocol only."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from launcher.errors import UsageError
from launcher.results import report
from launcher.results.finish_run import finish_run
from launcher.results.reference import SHIPPED, ReferenceRow, read_references
from launcher.results.verify_run import verify_run
from tests.launcher.results.make_run import make_facts, make_requests, make_run

pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra report")
pytest.importorskip("jinja2", reason="needs jinja2, of the extra report")


def reference(**changes: object) -> ReferenceRow:
    values = {
        "label": "third-party", "who": "Somebody <script>", "system": "four | Sparks", "num_nodes": 4,
        "protocol": "sparkctl", "protocol_note": "", "metric": "aggregate_tokens_per_s", "case": "prose",
        "concurrency": 1, "value": 61.1, "source": "https://example.org/post",
    }  # fmt: skip
    return ReferenceRow.model_validate({**values, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(
        tmp_path_factory.mktemp("report") / "run",
        render=report.render_report,
        references=(reference(), reference(who="Another", protocol="lil", value=4711.0)),
        notes=("a note with | and <b>",),
    )


def test_the_report_is_part_of_a_verified_run(run: Path) -> None:
    listed = {entry.path for entry in verify_run(run).manifest.files}
    assert {
        "report.md", "report.html", "reference.json",
        "plots/decode-throughput.svg", "plots/decode-latency.svg",
    } <= listed  # fmt: skip


def test_figures_are_those_of_the_summary(run: Path) -> None:
    markdown = (run / "report.md").read_text()
    row = next(line for line in markdown.splitlines() if line.startswith("| prose | 1 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:5] == ["2", "0", "1"], "requests, failed, discarded"
    assert cells[6] == "10.2 (10.1 - 10.2)" and cells[9] == "492.6 / 494.6 / 495.0"
    assert cells[11:] == ["1.00", "10.10", "-", "- / 0.750"]


def test_rows_of_other_protocols_are_not_shown(run: Path) -> None:
    for name in ("report.md", "report.html"):
        text = (run / name).read_text()
        assert "third-party" in text.lower() and "https://example.org/post" in text and "61.1" in text
        assert "4711" not in text
    plot = (run / "plots" / "decode-throughput.svg").read_text()
    assert "third-party: Somebody" in plot and "Another" not in plot


def test_words_of_others_are_no_markup(run: Path) -> None:
    assert "<script>" not in (run / "report.html").read_text()
    markdown = (run / "report.md").read_text()
    assert "four \\| Sparks" in markdown and "<b>" not in markdown and "<script>" not in markdown


def test_the_page_works_alone(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert page.count('src="data:image/svg+xml;base64,') == 2
    assert 'src="http' not in page and "<link" not in page and "<script" not in page


def test_plots_are_images_and_repeat_byte_by_byte(run: Path, tmp_path: Path) -> None:
    again = make_run(tmp_path / "run", render=report.render_report, references=(reference(),))
    for path in sorted((run / "plots").iterdir()):
        assert ElementTree.fromstring(path.read_text()).tag.endswith("svg")
        assert path.read_bytes() == (again / "plots" / path.name).read_bytes()


LENGTHS = {"prose": 1024, "code": 300}


@pytest.mark.parametrize("suite", ["prefill", "mixed"])
def test_lengths_are_in_order_and_drawn_as_their_suite_means_them(tmp_path: Path, suite: str) -> None:
    """300 tokens before 1024. In `mixed` no length explains a wait, and no case has a second concurrency."""
    requests = [
        record.model_copy(
            update={
                "suite": suite,
                "case": f"{LENGTHS[record.case]} tokens",
                "prompt_tokens": LENGTHS[record.case] + 30,
            }
        )
        for record in make_requests()
        if record.concurrency == (1 if record.case == "prose" else 2)
    ]
    run = make_run(tmp_path / "run", requests=requests, samples=[], render=report.render_report)
    lines = (run / "report.md").read_text().splitlines()
    cases = [line.split("|")[1].strip() for line in lines if re.match(r"\| \d+ tokens", line)]
    assert cases == ["300 tokens", "1024 tokens"]
    plots = {path.name: path.read_text() for path in (run / "plots").iterdir()}
    drawn = [f"{suite}-latency.svg", f"{suite}-ttft.svg"]
    if suite == "prefill":  # of one concurrency there is one length only
        assert sorted(plots) == drawn[:1]
    else:
        assert sorted(plots) == drawn and "300 tokens C2" in plots[drawn[1]]
        assert "prompt tokens" not in plots[drawn[1]]


def test_a_smaller_range_is_drawn_where_the_suite_chose_it(tmp_path: Path) -> None:
    requests = [
        record.model_copy(update={"suite": "prefill", "prompt_tokens": LENGTHS[record.case]})
        for record in make_requests()
    ]
    run = make_run(tmp_path / "run", requests=requests, samples=[], render=report.render_report)
    assert "prompt tokens" in (run / "plots" / "prefill-ttft.svg").read_text()


def test_a_plot_that_is_drawn_no_more_is_gone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", render=report.render_report)
    before = sorted((run / "plots").iterdir())
    (run / "plots" / "decode-old.svg").write_text(before[0].read_text())
    finish_run(run, make_facts(), render=report.render_report, references=())
    assert sorted((run / "plots").iterdir()) == before
    verify_run(run)


def test_ttft_over_context_is_drawn_where_prompts_differ_in_length(tmp_path: Path) -> None:
    requests = [
        record.model_copy(update={"prompt_tokens": 4096 if record.case == "code" else 100})
        for record in make_requests()
    ]
    run = make_run(tmp_path / "run", requests=requests, render=report.render_report)
    assert "prompt tokens" in (run / "plots" / "decode-ttft.svg").read_text()


def test_without_its_libraries_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs jinja2 and matplotlib") as raised:
        make_run(tmp_path / "run", render=report.render_report)
    assert raised.value.hint == "pip install 'sparkctl[report]'"


def test_shipped_reference_rows_are_labelled_and_have_a_source() -> None:
    rows = read_references(SHIPPED)
    assert len(rows) > 50
    assert {row.label for row in rows} == {"third-party"}
    assert all(row.source.startswith("https://") and row.protocol_note for row in rows)


def test_a_new_run_takes_the_shipped_rows_of_its_own_protocol(tmp_path: Path) -> None:
    requests = [record.model_copy(update={"protocol": "lil"}) for record in make_requests()]
    run = make_run(tmp_path / "run", requests=requests, protocol="lil", samples=(), references=None)
    assert {row.protocol for row in verify_run(run).references} == {"lil"}
