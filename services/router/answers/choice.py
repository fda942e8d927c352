"""One of the answers to a request: its tokens, its text and its function calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from services.router.answers.answer import AnswerText
from services.router.answers.reader import Reader, Said
from services.router.figures.account import Account
from services.router.job import Job
from services.router.running.pipeline import Run
from triptych.v1.router_pb2 import GenerateDelta, GenerateFinished
from triptych.v1.types_pb2 import FinishReason, GeneratedToken, Usage

Event = GenerateDelta | GenerateFinished
_STOP, _CALLS = FinishReason.FINISH_REASON_STOP, FinishReason.FINISH_REASON_TOOL_CALLS


class Choice:
    """One answer in the making. `start`, then `events` to the end; `close` always."""

    def __init__(self, index: int, job: Job, run: Run, text: AnswerText, reader: Reader, account: Account) -> None:
        self.index, self.job, self.account = index, job, account
        self._run, self._text, self._reader = run, text, reader
        self._reason = _STOP

    async def start(self) -> None:
        """Return once decode has reserved room."""
        await self._run.start()

    async def events(self) -> AsyncGenerator[Event]:
        """Deltas until the model, a stop string or a last call ends the answer, then the finish, without an account."""
        while not self._ended:
            event = await self._run.read()
            if event.HasField("finished"):
                self._reason = event.finished.reason
                break
            tokens = event.tokens.tokens
            text, used = self._text.push([token.token_id for token in tokens])
            self.account.received(used)
            yield self._delta(self._reader.push(text), tokens[:used])
        for said in (self._reader.push(self._text.finish()), self._reader.finish()):
            if said.text or said.calls:
                yield self._delta(said)
        finish = await self._finish()
        # Before the last event: a slow reader must not keep workers busy behind a stop string.
        await self.close()
        yield finish

    def usage(self) -> Usage:
        """The account of this answer, closed now."""
        return self.account.usage(self.job.prompt)

    async def close(self) -> None:
        """End all work for it; twice is harmless."""
        await self._run.close()

    @property
    def _ended(self) -> bool:
        return self._text.matched_stop is not None or self._reader.ended

    def _delta(self, said: Said, tokens: list[GeneratedToken] | None = None) -> GenerateDelta:
        return GenerateDelta(index=self.index, text=said.text, tokens=tokens, tool_calls=said.calls)

    async def _finish(self) -> GenerateFinished:
        await self._run.settle()
        stop = self._text.matched_stop
        reason = _STOP if self._ended else self._reason
        if reason == _STOP and self._reader.calls:
            reason = _CALLS
        return GenerateFinished(index=self.index, reason=reason, matched_stop=stop or "")
