"""The laboratory on an endpoint that caches perfectly, or badly: trials, rows, figures, traces and the page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from triptych.cli.app import app
from triptych.digests import file_digest
from triptych.errors import InvalidArgumentError
from triptych.lab.endpoint import Reply
from triptych.lab.groups import GROUPS
from triptych.lab.material import load_material
from triptych.lab.openai_endpoint import OpenAIEndpoint
from triptych.lab.oracle import Oracle, Picture, Prompt
from triptych.lab.record import Measured, Prices, Row, read_rows, write_rows
from triptych.lab.report import LEFT, STAYED, verdict, write_report
from triptych.lab.run import LOST, SALT, Lab, Plan, trials
from triptych.lab.sessions import POLICIES
from triptych.lab.summary import by_turn, line, lines, second_calls
from triptych.lab.talks import Talk
from triptych.lab.trace import Shape, draw_trace, read_trace, write_trace
from triptych.messages import Image, assistant, system, user

BLOCK = 4
PLAN = Plan(GROUPS, list(POLICIES), [2], session_turns=8, repeats=1, breaks=(SALT, LOST))


class PerfectCache:
    """Reads `share` of what it could, in whole blocks; answers every question with its first word."""

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._oracles: dict[str, Oracle] = {}
        self.salts: list[str] = []

    def ask(self, talk: Talk, salt: str, session: str) -> Reply:
        self.salts.append(salt)
        prompt = to_prompt(talk)
        oracle = self._oracles.setdefault(salt, Oracle(BLOCK))
        read = int(oracle.reads(prompt) * self._share) // BLOCK * BLOCK
        oracle.computed(prompt, (1, 2, 3, 4, 5))
        left = len(prompt.token_ids) - read
        measured = Measured("yes", len(prompt.token_ids), 5, read, left // BLOCK * BLOCK, left % BLOCK, images=1)
        return Reply(measured, (1, 2, 3, 4, 5), prompt)

    def block_size(self) -> int | None:
        return BLOCK

    def close(self) -> None:
        pass

    def lose_answers(self) -> None:
        for oracle in self._oracles.values():
            oracle.lose_answers()


def to_prompt(talk: Talk) -> Prompt:
    """One token a text, the text's own; four placeholders a picture. An answer "yes" is five tokens."""
    tokens: list[int] = []
    pictures: list[Picture] = []
    for message in talk:
        for part in message.content:
            if isinstance(part, Image):
                pictures.append(Picture(len(tokens), 4, part.digest))
                tokens += [9] * 4
            else:
                tokens += [1, 2, 3, 4, 5] if part == "yes" else [int(file_digest(part.encode())[:8], 16)]
    return Prompt(tuple(tokens), tuple(pictures))


def measure(endpoint: PerfectCache, plan: Plan = PLAN) -> list[Row]:
    rows: list[Row] = []
    lab = Lab(endpoint, Prices(), rows.append, {LOST: endpoint.lose_answers})
    for trial in trials(plan, load_material()):
        lab.run(trial)
    return rows


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return measure(PerfectCache())


def test_a_cache_that_follows_the_rule_is_as_predicted(rows: list[Row]) -> None:
    assert {row.difference for row in rows} == {0}
    assert "exactly" in verdict(rows)


def test_a_cache_that_loses_blocks_is_found_out() -> None:
    found = measure(PerfectCache(share=0.5))
    assert any(row.difference for row in found) and verdict(found).startswith("Not as predicted: A, B")


def test_every_trial_begins_with_an_empty_cache(rows: list[Row]) -> None:
    assert {row.measured.read_tokens for row in rows if row.turn == 1} == {0}


def test_repeats_are_shuffled_and_equal_seeds_give_equal_orders() -> None:
    material, plan = load_material(), Plan(GROUPS, [], [2, 3], 4, repeats=2)
    order = [(trial.name, trial.repeat) for trial in trials(plan, material)]
    assert order == [(trial.name, trial.repeat) for trial in trials(plan, material)] and order != sorted(order)


def test_groups_are_ordered_as_the_experiment_expects(rows: list[Row]) -> None:
    ratio = {line.name: line.read_ratio or 0 for line in lines([row for row in second_calls(rows) if row.pictures])}
    assert ratio["A"] > ratio["E"] > ratio["D"] and ratio["C"] > ratio["G"]


def test_the_window_drops_when_it_slides_and_append_only_never_does(rows: list[Row]) -> None:
    window, append = by_turn(rows, "window"), by_turn(rows, "append")
    assert [slid for _, _, slid in window] == [False] * 4 + [True] * 4
    assert max(ratio for _, ratio, slid in window if slid) < min(ratio for turn, ratio, _ in append if turn > 2)


def test_another_salt_reads_nothing_and_a_lost_worker_costs_the_answers(rows: list[Row]) -> None:
    broken = {line.name: line for line in lines([row for row in rows if row.experiment == "break" and row.turn > 1])}
    whole = line("append", [row for row in rows if row.group == "append" and 1 < row.turn <= 3])
    assert broken[SALT].read_tokens == 0
    assert 0 < (broken[LOST].read_tokens or 0) < (whole.read_tokens or 0)


def test_rows_survive_a_file(rows: list[Row], tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", rows)
    assert read_rows(tmp_path / "rows.jsonl") == rows
    (tmp_path / "rows.jsonl").write_text('{"group": 1}\n')
    with pytest.raises(InvalidArgumentError, match="not a line of the lab"):
        read_rows(tmp_path / "rows.jsonl")


def test_ratios_are_weighted_by_tokens() -> None:
    calls = [Row("pair", "A", 0, 1, True, 2, Measured("", *counts)) for counts in ((1000, 1, 0), (10, 1, 10))]
    assert line("A", calls).read_ratio == pytest.approx(10 / 1010)


@pytest.fixture(scope="module")
def page(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of all rows."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    write_report(file, rows, "a <test>", Prices())
    return file.read_text()


def test_the_page_stands_alone(page: str) -> None:
    assert page.count("<svg") >= 10 and "a &lt;test&gt;" in page and "sliding window of images" in page
    assert not re.search(r"(src|href)=[\"']https?://(?!www\.w3\.org)", page)


def test_turns_with_and_without_eviction_stand_side_by_side(rows: list[Row], page: str) -> None:
    later = [row.slid for row in rows if row.experiment == "session" and row.turn > 1]
    for name, count in ((LEFT, sum(later)), (STAYED, len(later) - sum(later))):
        assert f"<td>{name}</td><td>{count}</td>" in page


# What the background text on image caching wants of every call.
WANTED = (
    ("prompt_tokens", "read_tokens", "creation_tokens", "uncached_tokens", "visual_tokens", "images", "unique_images"),
    ("divergence_position", "embedding_hits", "embedding_misses", "first_token_ms", "total_ms"),
)


def test_a_line_has_every_field_that_the_experiment_wants(rows: list[Row]) -> None:
    line = json.loads(rows[0].to_json())
    assert line["measured"].keys() >= {name for names in WANTED for name in names}
    assert line.keys() >= {"input_cost", "right", "turn", "group", "slid"}


def test_cost_is_by_kind_of_token() -> None:
    prices, told = Prices(1, 0.1, 1.25, 4), Measured("", 100, 10, read_tokens=60, creation_tokens=20)
    assert prices.input_cost(told) * 1e6 == pytest.approx(20 + 6 + 25)
    assert prices.cost(told) * 1e6 == pytest.approx(20 + 6 + 25 + 40)
    assert prices.input_cost(Measured("", 100, 10)) * 1e6 == 100, "what a server does not tell counts in full"


def test_an_answer_is_right_only_when_it_is_equal(rows: list[Row]) -> None:
    expected = {item.answer for item in load_material().items}
    judged = {row.right for row in rows if row.right is not None}
    assert judged == {"yes" in expected, False} and all(row.right is None for row in rows if row.group in "EG")


def test_the_command_remakes_a_report(rows: list[Row], tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [row for row in rows if row.group == SALT])
    done = CliRunner().invoke(app, ["lab", "report", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "r.html")])
    assert done.exit_code == 0 and "verdict" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    "flags", [["--groups", "AZ"], ["--policies", "best"], ["--histories", "0"], ["--prices", "1,2"]]
)
def test_bad_options_are_refused_before_anything_starts(flags: Sequence[str]) -> None:
    done = CliRunner().invoke(app, ["lab", "run", "--address", "127.0.0.1:1", *flags])
    assert isinstance(done.exception, InvalidArgumentError)


class OtherServer:
    """The part of `openai.OpenAI` that is used; streams `pieces`, and tells no figures unless `usage` is set."""

    def __init__(self, pieces: Sequence[str], usage: Any = None) -> None:
        self.chat = SimpleNamespace(completions=self)
        self.asked: dict[str, Any] = {}
        self._pieces, self._usage = pieces, usage

    def create(self, **asked: Any) -> list[Any]:
        self.asked = asked
        texts = [SimpleNamespace(delta=SimpleNamespace(content=piece)) for piece in self._pieces]
        chunks = [SimpleNamespace(usage=None, choices=[text]) for text in texts]
        return [*chunks, SimpleNamespace(usage=self._usage, choices=[])]


PICTURE = load_material().items[0].picture
ASKED: Talk = (system("Be brief."), user(PICTURE, "What?"), assistant("A star."), user(PICTURE, "And?"))


@pytest.mark.parametrize(("read", "uncached"), [(None, None), (6, 4)])
def test_another_servers_figures_are_its_own_and_pictures_are_counted_here(
    read: int | None, uncached: int | None
) -> None:
    details = None if read is None else SimpleNamespace(cached_tokens=read)
    usage = SimpleNamespace(prompt_tokens=10, completion_tokens=2, prompt_tokens_details=details)
    told = OpenAIEndpoint(OtherServer(["a ", "b"], usage), "m", salted=True).ask(ASKED, "salt", "").measured
    assert (told.text, told.prompt_tokens, told.read_tokens, told.uncached_tokens) == ("a b", 10, read, uncached)
    assert (told.images, told.unique_images) == (2, 1) and told.first_token_ms <= told.total_ms


@pytest.mark.parametrize(("salted", "opening"), [(True, "Be brief."), (False, "[salt] Be brief.")])
def test_caches_are_kept_apart_by_salt_or_by_the_first_words(salted: bool, opening: str) -> None:
    server = OtherServer(["x"])
    assert OpenAIEndpoint(server, "m", salted).ask(ASKED, "salt", "").measured.read_tokens is None
    assert server.asked["messages"][0]["content"] == opening
    assert server.asked["extra_body"] == ({"cache_salt": "salt"} if salted else {})


def test_traces_are_repeatable_and_survive_a_file(tmp_path: Path) -> None:
    material = load_material()
    arrivals = draw_trace(Shape(sessions=4, turns=5), material)
    assert arrivals == draw_trace(Shape(sessions=4, turns=5), material) and len(arrivals) == 20
    write_trace(tmp_path / "trace.jsonl", arrivals, material)
    found = read_trace(tmp_path / "trace.jsonl", material)
    assert [each.talk for each in found] == [each.talk for each in arrivals]
    assert [each.at_s for each in found] == pytest.approx([each.at_s for each in arrivals], abs=1e-3)


def test_a_bad_line_of_a_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"at_s": 0, "session": "s", "turn": 1, "messages": [{"role": "user"}]}\n')
    with pytest.raises(InvalidArgumentError, match="line 1 of the trace"):
        read_trace(tmp_path / "trace.jsonl", load_material())


@pytest.mark.parametrize("read", [read_rows, lambda path: read_trace(path, load_material())], ids=["rows", "trace"])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(InvalidArgumentError, match=r"a\.png is no text"):
        read(tmp_path / "a.png")


def test_zipf_prefers_the_first_pictures() -> None:
    material = load_material()
    talks = [arrival.talk for arrival in draw_trace(Shape(sessions=60, turns=1, zipf=1.5), material)]
    drawn = [part.digest for talk in talks for part in talk[-1].content if isinstance(part, Image)]
    assert drawn.count(material.items[0].picture.digest) > len(drawn) / 4


def test_material_of_another_folder_must_be_material(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["lab", "trace", str(tmp_path / "t"), "--material", str(tmp_path)])
    assert "no lab material" in str(done.exception)
