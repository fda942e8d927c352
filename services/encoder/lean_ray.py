"""A Ray of one machine and one driver goes without what serves several. Ray has no options for that.

Its autoscaler and its dashboard, which starts also when it is switched off, take as long to start as all the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ray._private import services
from ray._private.node import Node

from services.encoder.starting import patient


@contextmanager
def lean_start(stopping: threading.Event, replica_logs: bool) -> Iterator[None]:
    """Inside, `ray.init` starts only what is needed here, and waits for its node as `patient` does.

    Ray's log monitor, which brings what replicas write to this process, is needed for `replica_logs`.
    """
    left_out = ["start_monitor", "start_api_server", *([] if replica_logs else ["start_log_monitor"])]
    with ExitStack() as stack:
        _replace(stack, services, "get_node", patient(services.get_node, stopping))
        for name in left_out:
            _replace(stack, Node, name, _nothing)
        yield


def _replace(stack: ExitStack, place: object, name: str, value: object) -> None:
    stack.callback(setattr, place, name, getattr(place, name))
    setattr(place, name, value)


def _nothing(*_: object, **__: object) -> None:
    """In the place of a method that would start a process."""
