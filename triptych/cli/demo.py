"""`triptych demo`: a cluster, a few conversations about pictures, and what each of them cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from triptych.answers import Answer
from triptych.cli.cluster import LocalCluster
from triptych.cli.output import Reporter
from triptych.cli.plan import ClusterOptions
from triptych.cli.script import Conversation, Turn, load_script
from triptych.cli.up import running
from triptych.client import Client
from triptych.errors import FailedPreconditionError
from triptych.messages import Message, assistant, user

MAX_TOKENS = 48
TABLE_WIDTH = 160


@dataclass(frozen=True)
class Outcome:
    """One question and what came back."""

    title: str
    turn: Turn
    answer: Answer

    @property
    def right(self) -> bool:
        """Only an equal string is right."""
        return self.answer.text.strip() == self.turn.answer


def run_demo(model: Path, quiet: bool) -> None:
    """Print every answer and its account; FailedPreconditionError when one is wrong."""
    script, console = load_script(), _wide_console()
    with closing(Reporter(console, quiet)) as reporter:
        cluster = LocalCluster(ClusterOptions(model), reporter.on_line, reporter.on_ready)
        with running(cluster, reporter) as ready:
            outcomes = _ask_all(cluster, script, reporter) if ready else []
    console.print(to_table(outcomes))
    check(outcomes, sum(len(conversation.turns) for conversation in script))


def ask(client: Client, conversation: Conversation) -> Iterator[Outcome]:
    """Ask one turn after the other, each with the whole conversation before it; greedy."""
    messages: list[Message] = []
    for turn in conversation.turns:
        messages.append(user(*turn.parts))
        answer = client.generate(messages, max_tokens=MAX_TOKENS, temperature=0.0).answer()
        messages.append(assistant(answer.text))
        yield Outcome(conversation.title, turn, answer)


def check(outcomes: list[Outcome], expected: int) -> None:
    """FailedPreconditionError unless all `expected` questions were answered, each rightly."""
    right = sum(outcome.right for outcome in outcomes)
    if right < expected:
        raise FailedPreconditionError(f"{right} of {expected} answers are right")


def to_table(outcomes: list[Outcome]) -> Table:
    """One row a question: answer, what was encoded, what was reused, and how long the first token took."""
    table = Table(box=box.SIMPLE)
    for heading in ("what", "pictures", "question", "answer"):
        table.add_column(heading)
    for heading in ("tokens", "visual", "encoded", "reused", "first token", "total"):
        table.add_column(heading, justify="right", no_wrap=True)
    for outcome in outcomes:
        table.add_row(*_cells(outcome))
    return table


def _cells(outcome: Outcome) -> list[str]:
    usage, times = outcome.answer.usage, outcome.answer.usage.times
    mark = "[green]✓[/green]" if outcome.right else f"[red]✗ {outcome.turn.answer}[/red]"
    counts = (usage.prompt_tokens, usage.visual_tokens, usage.embedding_misses, usage.embedding_hits)
    return [
        outcome.title,
        " ".join(outcome.turn.pictures),
        outcome.turn.text,
        f"{escape(outcome.answer.text.strip())} {mark}",
        *map(str, counts),
        f"{times.first_token_ns / 1e6:.0f} ms",
        f"{times.total_ns / 1e6:.0f} ms",
    ]


def _wide_console() -> Console:
    """Where no terminal sets the width, as in CI, the table gets the room it needs."""
    console = Console()
    return console if console.is_terminal else Console(width=TABLE_WIDTH)


def _ask_all(cluster: LocalCluster, script: list[Conversation], reporter: Reporter) -> list[Outcome]:
    outcomes = []
    with Client(cluster.grpc_address) as client:
        for conversation in script:
            for outcome in ask(client, conversation):
                reporter.say(f"{outcome.turn.text} -> {outcome.answer.text.strip()}")
                outcomes.append(outcome)
    return outcomes
