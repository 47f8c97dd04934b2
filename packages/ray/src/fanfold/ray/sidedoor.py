"""A way to ask a rank something while it is in the middle of a method: a socket of its own, answered by a thread.

Ray answers an actor's calls one after the other on one thread, and a second concurrency group would take the user's
methods off the main thread. Whoever asks has to know the group's secret; what can be asked is where the rank is, and
that a call is not wanted any more. One line of JSON each way.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LONGEST_LINE = 1 << 20  # bytes; a question is shorter
_SLOW_CALLER = 5.0  # seconds for a question to arrive
_TOGETHER = 32  # ranks asked at the same time


@dataclass(frozen=True)
class Doorbell:
    """Where a rank answers, the secret that it wants to hear, and Ray's id of its actor."""

    host: str
    port: int
    secret: str
    actor_id: str


class SideDoor:
    """Answers questions from a thread until the process ends.

    Args:
        host: The node's address.
        secret: What every question has to bring along.
        actor_id: Ray's id of this process's actor.
        answers: By question, the function that answers it from the question's argument.
    """

    def __init__(self, host: str, secret: str, actor_id: str, answers: Mapping[str, Callable[[Any], Any]]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self._secret, self._answers = secret, answers
        self.bell = Doorbell(host, int(self._socket.getsockname()[1]), secret, actor_id)
        threading.Thread(target=self._serve, name="fanfold-side-door", daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_SLOW_CALLER)
        try:
            with connection.makefile("rwb") as lines:
                asked = json.loads(lines.readline(_LONGEST_LINE))
                if hmac.compare_digest(str(asked["secret"]).encode(), self._secret.encode()):
                    lines.write(json.dumps(self._answers[asked["question"]](asked["argument"])).encode() + b"\n")
        except (OSError, ValueError, KeyError, TypeError):
            return  # a caller that went away, or that speaks another language: it gets no answer


def ring(bells: Sequence[Doorbell | None], question: str, arguments: Sequence[Any], limit: float) -> list[Any]:
    """Ask ranks the same question, all at once, each with its own argument; None where no answer came in time."""
    with ThreadPoolExecutor(min(_TOGETHER, max(1, len(bells)))) as pool:
        return list(pool.map(lambda bell, argument: _ring(bell, question, argument, limit), bells, arguments))


def _ring(bell: Doorbell | None, question: str, argument: Any, limit: float) -> Any:
    if bell is None:
        return None
    try:
        connection = socket.create_connection((bell.host, bell.port), timeout=limit)
        with connection, connection.makefile("rwb") as lines:
            asked = {"secret": bell.secret, "question": question, "argument": argument}
            lines.write(json.dumps(asked).encode() + b"\n")
            lines.flush()
            return json.loads(lines.readline(_LONGEST_LINE) or b"null")
    except (OSError, ValueError):
        return None
