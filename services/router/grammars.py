"""Checks the grammars of requests before any work is done, each text once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from common.grammar import Fault, Language, find_fault
from common.grammar.language import PARAM
from services.router.caller import Caller
from triptych.errors import InvalidArgumentError
from triptych.v1 import types_pb2

MAX_CACHED = 256


class Grammars:
    """What is known about the last grammars. Awaits its one thread for a new one, so that only grammars wait for it."""

    def __init__(self) -> None:
        self._known: OrderedDict[Language, Fault | None] = OrderedDict()
        # A thread of its own: hard ones must not take those that everybody needs, nor go on in several at once when
        # those who asked have left. The lock lets who asks for the same one wait for its result instead.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._turn = asyncio.Lock()
        # One of each tenant at most waits for the turn, so that tenants take turns whatever each of them sends.
        self._lanes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def check(self, grammar: types_pb2.Grammar, caller: Caller, param: str = "") -> None:
        """InvalidArgumentError naming the part at fault, below `param`, the name of the request's field.

        DeadlineExceededError when there are too many before it.
        """
        language = Language.of(grammar)
        param = param or f"{PARAM}.{language.kind}"
        known = language in self._known
        fault = self._known[language] if known else await self._learn(language, caller, param)
        if fault:
            path = f"{param}.{fault.path}" if fault.path else param
            raise InvalidArgumentError(f"{path}: {fault.message}", param=path)

    async def _learn(self, language: Language, caller: Caller, param: str) -> Fault | None:
        lane = self._lanes.setdefault(caller.tenant, asyncio.Lock())
        async with caller.in_time("the check of a grammar"), lane, self._turn:
            if language not in self._known:
                loop = asyncio.get_running_loop()
                self._keep(language, await loop.run_in_executor(self._thread, _find, language, param))
            return self._known[language]

    def _keep(self, language: Language, fault: Fault | None) -> None:
        self._known[language] = fault
        while len(self._known) > MAX_CACHED:
            self._known.popitem(last=False)


def _find(language: Language, param: str) -> Fault | None:
    try:
        return find_fault(language)
    except InvalidArgumentError as error:
        error.param = param
        raise
