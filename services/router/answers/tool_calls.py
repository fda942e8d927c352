"""Finds function calls in the text of an answer, as it arrives.

The form is that of Hermes and Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them.
"""

from __future__ import annotations

import json
import re
import uuid

from services.router.answers.json_text import ObjectText
from services.router.answers.reader import Said
from services.router.prompts.tools import CLOSE, OPEN
from triptych.v1.router_pb2 import ToolCallDelta

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([\w.-]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


class ToolCallReader:
    """For answers in which functions may be called. What only looks like a call stays text.

    White space beside a call belongs to no text. With `single` the answer ends after its first call. How the text is
    cut into pieces changes nothing.
    """

    def __init__(self, single: bool) -> None:
        self._single = single
        self._held = ""
        # What stands before something that may be a call.
        self._space = ""
        self._arguments: ObjectText | None = None
        self._after_call = False
        self.calls = 0
        self.ended = False

    def push(self, text: str) -> Said:
        """See `Reader`."""
        self._held += text
        said = Said()
        while not self.ended and self._advance(said):
            pass
        return said

    def finish(self) -> Said:
        """See `Reader`. A call that was cut off keeps what there is of it."""
        rest, self._held, self._space = self._space + self._held, "", ""
        if self._arguments or self.ended:
            return Said()
        if self._after_call:
            return Said(rest.strip())
        return Said(rest.rstrip() if self.calls else rest)

    def _advance(self, said: Said) -> bool:
        """Take one step; False when more text is needed."""
        if self._arguments is not None:
            return self._read_arguments(self._arguments, said)
        if self._after_call:
            self._held = self._held.lstrip()
        if self._held.startswith(OPEN):
            return self._read_head(said)
        start = self._held.find(OPEN)
        end = start if start >= 0 else len(self._held) - _overlap(self._held, OPEN)
        certain = self._held[:end].rstrip()
        said.text += certain
        self._after_call = self._after_call and not certain
        if start >= 0:
            self._space = self._held[len(certain) : start]
        self._held = self._held[end if start >= 0 else len(certain) :]
        return start >= 0

    def _read_head(self, said: Said) -> bool:
        body = self._held[len(OPEN) :]
        if head := _HEAD.match(body):
            self._begin(head[1], said)
            self._arguments, self._held = ObjectText(), body[head.end() :]
            return True
        end = body.find(CLOSE)
        if end < 0:
            return False
        self._read_whole(body[:end], said)
        self._held = body[end + len(CLOSE) :]
        return True

    def _read_whole(self, body: str, said: Said) -> None:
        """A call with its fields in another order, or no call at all."""
        try:
            call = json.loads(body)
            name, arguments = str(call["name"]), _text(call.get("arguments") or {})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            said.text += f"{self._space}{OPEN}{body}{CLOSE}"
            self._after_call, self._space = False, ""
            return
        self._begin(name, said)
        said.calls[-1].arguments = arguments
        self.ended = self._single

    def _begin(self, name: str, said: Said) -> None:
        said.calls.append(ToolCallDelta(index=self.calls, id=f"call_{uuid.uuid4().hex[:24]}", name=name))
        self.calls += 1
        self._after_call, self._space = True, ""

    def _read_arguments(self, arguments: ObjectText, said: Said) -> bool:
        if piece := arguments.take(self._held):
            said.calls.append(ToolCallDelta(index=self.calls - 1, arguments=piece))
        self._held = self._held[len(piece) :]
        end = self._held.find(CLOSE) if arguments.complete else -1
        if end < 0:
            return False
        self._held, self._arguments = self._held[end + len(CLOSE) :], None
        self.ended = self._single
        return True


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _overlap(text: str, mark: str) -> int:
    """How many of the last characters of `text` may begin `mark`."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)
