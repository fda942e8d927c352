"""The end of a worker's process: its last step is waited for, and everything else goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import cast

from common.worker.parts import Parts
from common.worker.stage import Site


async def test_waiting_for_the_last_step_does_not_hold_up_the_event_loop() -> None:
    settings = SimpleNamespace(redis_url="redis://127.0.0.1:1", client_tls=None)
    site, go_on = Site(cast(Parts, SimpleNamespace(settings=settings))), threading.Event()
    step = asyncio.get_running_loop().run_in_executor(site.thread, go_on.wait, 10)
    closing = asyncio.create_task(site.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert await step, "the event was set while the site waited"
