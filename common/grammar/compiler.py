"""Makes grammars ready for the tokens of one model."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from common.grammar.deep import on_deep_stack
from common.grammar.language import LIMITS, PARAM, Language
from common.grammar.state import GrammarState
from triptych.errors import FailedPreconditionError, InvalidArgumentError

MAX_CACHED = 32


class GrammarCompiler:
    """Compiles each language once and keeps the last ones. Safe to share between threads; compiling blocks.

    The tokenizer is read when the first grammar comes: most workers never see one.
    """

    def __init__(self, model_dir: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._model_dir, self._vocab_size, self._eos = model_dir, vocab_size, list(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Language, LLMatcher] = OrderedDict()
        self._lock, self._turn = threading.Lock(), asyncio.Lock()
        # A thread cannot be cancelled: in this one hard grammars whose callers have left do not pile up.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    async def prepare(self, language: Language) -> None:
        """Compile in a thread, one at a time, so that `state` need not; raises what `state` raises."""
        async with self._turn:
            if self._find(language) is None:
                await asyncio.get_running_loop().run_in_executor(self._thread, self.state, language)

    def state(self, language: Language) -> GrammarState:
        """The start of an answer.

        InvalidArgumentError for a language that cannot be enforced, FailedPreconditionError when none can.
        """
        # Compiled without the lock: who asks for one that is ready never waits. Compiling one twice does no harm.
        matcher = self._find(language) or self._compile(language)
        self._keep(language, matcher)
        return GrammarState(matcher.deep_copy())

    def _find(self, language: Language) -> LLMatcher | None:
        with self._lock:
            return self._compiled.get(language)

    def _keep(self, language: Language, matcher: LLMatcher) -> None:
        with self._lock:
            self._compiled[language] = matcher
            self._compiled.move_to_end(language)
            while len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)

    def _compile(self, language: Language) -> LLMatcher:
        tokenizer, source = self._read_tokenizer(), language.source()
        matcher = on_deep_stack(lambda: LLMatcher(tokenizer, source, log_level=0, limits=LIMITS))
        if matcher.is_error():
            raise InvalidArgumentError("the grammar cannot be enforced: it is wrong or too complex", param=PARAM)
        return matcher

    def _read_tokenizer(self) -> LLTokenizer:
        if self._tokenizer is None:
            path = self._model_dir / "tokenizer.json"
            try:
                text = path.read_text(encoding="utf-8")
                self._tokenizer = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos)
            except (OSError, ValueError) as error:
                raise FailedPreconditionError("this model's tokenizer is not usable for grammars") from error
        return self._tokenizer
