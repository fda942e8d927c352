"""The laboratory and the caches' other windows on a real cluster: every call reads exactly what the rule predicts."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image as Pillow
from selenium import webdriver
from selenium.webdriver.common.by import By
from typer.testing import CliRunner

from triptych import Client, Image, assistant, user
from triptych.cli.app import app
from triptych.cli.cluster import LocalCluster
from triptych.cli.script import FOLDER
from triptych.lab.record import Row, read_rows
from triptych.lab.run import SALT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
PLAN = ["--repeats", "1", "--histories", "2", "--turns", "6", "--policies", "append,window"]
SHORT = ["--repeats", "1", "--histories", "1", "--turns", "2", "--policies", "append", "--groups", "AF"]
# Of what a plot measures: bars and curves, or the medians of a distribution.
INK = ((0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00))


def run(*arguments: str) -> str:
    """What a command that succeeds prints, in one line."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.fixture(scope="module")
def measured(served: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run."""
    out = tmp_path_factory.mktemp("lab")
    run("lab", "run", "--address", served.grpc_address, "--out", str(out), *PLAN)
    return out


def test_every_read_is_as_predicted(measured: Path) -> None:
    rows = read_rows(measured / "rows.jsonl")
    assert {row.group for row in rows} == {*"ABCDEFGH", "append", "window", SALT}
    assert [(row.group, row.turn, row.difference) for row in rows if row.difference != 0] == []
    # Not because nothing was read.
    assert sum(row.measured.read_tokens or 0 for row in rows) > 1000


def test_the_report_draws_all_its_plots_in_a_browser_without_a_network(
    measured: Path, browser: webdriver.Chrome
) -> None:
    browser.get((measured / "report.html").as_uri())
    figures = browser.find_elements(By.TAG_NAME, "figure")
    plots = {figure.find_element(By.TAG_NAME, "svg"): figure.text for figure in figures}
    assert len(plots) > 10 and all(plot.size["width"] > 300 and plot.size["height"] > 60 for plot in plots)
    # No answer may have been right, which leaves a plot with axes and no bars.
    assert min(ink(plot.screenshot_as_png) for plot, text in plots.items() if "right" not in text) > 20
    assert "exactly the tokens" in browser.find_element(By.ID, "verdict").text
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


def ink(screenshot: bytes) -> int:
    """How many pixels have the colour of what is measured."""
    colours = Counter(Pillow.open(io.BytesIO(screenshot)).convert("RGB").get_flattened_data())
    return sum(colours[each] for each in INK)


@pytest.mark.parametrize("salted", [[], ["--salted"]], ids=["marked", "salted"])
def test_another_server_is_measured_by_what_it_reports(served: LocalCluster, tmp_path: Path, salted: list[str]) -> None:
    server = ["--openai", f"{served.http_url}/v1", "--model", "triptych-demo", *salted]
    run("lab", "run", *server, "--out", str(tmp_path), *SHORT)
    rows = read_rows(tmp_path / "rows.jsonl")
    read = second_reads(rows, lambda row: row.pictures)
    assert read["A"] == read["F"] > 0 and {row.predicted_read for row in rows} == {None}
    assert {row.measured.read_tokens for row in rows if row.experiment == "pair" and row.turn == 1} <= {0, 16}
    assert {row.measured.images for row in rows if row.pictures} >= {1} and all(
        row.cost > row.input_cost > 0 for row in rows
    )


def second_reads(rows: list[Row], chosen: Callable[[Row], bool]) -> dict[str, int]:
    """What the second requests read, by group."""
    pairs = [row for row in rows if row.experiment == "pair" and row.turn == 2 and chosen(row)]
    return {row.group: row.measured.read_tokens or 0 for row in pairs}


def test_a_replayed_trace_answers_every_request(served: LocalCluster, tmp_path: Path) -> None:
    trace = str(tmp_path / "trace.jsonl")
    run("lab", "trace", trace, "--sessions", "4", "--turns", "2", "--rate", "20", "--think", "0.1")
    flags = ["--address", served.grpc_address, "--out", str(tmp_path), "--speed", "2"]
    assert "failed" not in run("lab", "replay", trace, *flags)
    assert len(read_rows(tmp_path / "rows.jsonl")) == 8


def test_explain_names_what_a_session_lost(served: LocalCluster, client: Client) -> None:
    picture, question = Image.from_file(FOLDER / "party.png"), "What shape is purple?"
    first = client.generate([user(picture, question)], session_id="explained", max_tokens=4).answer()
    later = [user(question), assistant(first.text), user("Who are you?")]
    client.generate(later, session_id="explained", max_tokens=4).answer()
    asked = ("explain", "--address", served.grpc_address, "--session", "explained")
    assert "image removed at token" in run(*asked, "--last", "1")
    told = json.loads(run(*asked, "--last", "5", "--json"))
    assert ["first_divergence" in each["usage"] for each in told] == [False, True]


def test_top_shows_every_role_of_a_running_cluster(served: LocalCluster, client: Client) -> None:
    client.generate("Who are you?").answer()
    drawn = run("top", "--once", "--every", "0.2", "--address", served.grpc_address)
    for words in ("encoder", "prefill", "decode", "ready", "KV prefix", "embeddings", "said a second"):
        assert words in drawn
