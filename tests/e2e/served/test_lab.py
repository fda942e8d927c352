"""The laboratory against a real cluster: every call reads exactly what the block rule predicts."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from triptych.cli.app import app
from triptych.cli.cluster import LocalCluster
from triptych.lab.record import read_rows
from triptych.lab.run import SALT

PLAN = ["--repeats", "1", "--histories", "2", "--turns", "6", "--policies", "append,window"]


def test_every_read_is_as_predicted(served: LocalCluster, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["lab", "run", "--address", served.grpc_address, "--out", str(tmp_path), *PLAN])
    assert done.exit_code == 0, done.output
    rows = read_rows(tmp_path / "rows.jsonl")
    assert {row.group for row in rows} == {*"ABCDEFGH", "append", "window", SALT}
    assert [(row.group, row.turn, row.difference) for row in rows if row.difference != 0] == []
    # Not because nothing was read.
    assert sum(row.measured.read_tokens or 0 for row in rows) > 1000


def test_a_replayed_trace_answers_every_request(served: LocalCluster, tmp_path: Path) -> None:
    trace, runner = str(tmp_path / "trace.jsonl"), CliRunner()
    shape = ["--sessions", "4", "--turns", "2", "--rate", "20", "--think", "0.1"]
    assert runner.invoke(app, ["lab", "trace", trace, *shape]).exit_code == 0
    flags = ["--address", served.grpc_address, "--out", str(tmp_path), "--speed", "2"]
    done = runner.invoke(app, ["lab", "replay", trace, *flags])
    assert done.exit_code == 0 and "failed" not in done.output
    assert len(read_rows(tmp_path / "rows.jsonl")) == 8


def test_explain_names_what_a_session_lost(served: LocalCluster) -> None:
    done = CliRunner().invoke(app, ["explain", "--address", served.grpc_address, "--last", "5"])
    assert done.exit_code == 0 and "prompt" in done.output
