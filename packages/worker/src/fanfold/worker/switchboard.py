"""The thread that moves messages between a driver and the rank processes of one group, and notices who is gone."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanfold.worker.rank_link import RankLink
    from fanfold.worker.relay import Relay

LOOK_AROUND = 0.2  # seconds between looks at processes where the system cannot tell by itself when one ends
LAST_WORDS = 5.0  # seconds that a process may live on after it closed its connection
_AT_ONCE = 1 << 16  # bytes of output read at once


class Plugged:
    """A link on the board: what of it is watched."""

    def __init__(self, link: RankLink, selector: selectors.BaseSelector) -> None:
        self.link = link
        self.closed_at: float | None = None
        self._selector = selector
        self._watched: dict[int, int] = {}
        self._process = os.pidfd_open(link.process.pid) if hasattr(os, "pidfd_open") else None

    def plug(self) -> None:
        """Watch its connection, its output and its process."""
        output = self.output()
        os.set_blocking(output, False)
        self._watch(self.link.connection.fileno(), selectors.EVENT_READ, self._talk)
        self._watch(output, selectors.EVENT_READ, self._print)
        if self._process is not None:
            self._watch(self._process, selectors.EVENT_READ, lambda _: None)

    def output(self) -> int:
        """Descriptor of what the process prints."""
        assert self.link.process.stdout is not None  # started with a pipe
        return self.link.process.stdout.fileno()

    def want_to_send(self) -> None:
        """Ask to be told when the connection has room, while something is waiting for it."""
        descriptor = self.link.connection.fileno()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.link.outbox else 0)
        if self._watched.get(descriptor, events) != events:
            self._selector.modify(descriptor, events, self._talk)
            self._watched[descriptor] = events

    def is_over(self) -> bool:
        """Say whether the process has ended; one that has closed its connection and does not end is killed."""
        if self.closed_at is not None and time.monotonic() - self.closed_at > LAST_WORDS:
            self.link.process.kill()
        return self.link.process.poll() is not None

    def unplug(self) -> None:
        """Take in the last words and stop watching."""
        while self.closed_at is None and self._has_more():
            self._talk(selectors.EVENT_READ)
        self._print(0)
        for descriptor in list(self._watched):
            self._forget(descriptor)
        self.link.connection.close()
        if self.link.process.stdout is not None:
            self.link.process.stdout.close()
        if self._process is not None:
            os.close(self._process)

    def _has_more(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self.link.connection, selectors.EVENT_READ)
            return bool(selector.select(0))

    def _watch(self, descriptor: int, events: int, action: Callable[[int], None]) -> None:
        self._selector.register(descriptor, events, action)
        self._watched[descriptor] = events

    def _forget(self, descriptor: int) -> None:
        if self._watched.pop(descriptor, None) is not None:
            self._selector.unregister(descriptor)

    def _talk(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self.link.flush()
        if events & selectors.EVENT_READ and not self.link.receive():
            self.closed_at = time.monotonic()
            self._forget(self.link.connection.fileno())

    def _print(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.output(), _AT_ONCE):
                self.link.print(data)
            self._forget(self.output())


class Switchboard:
    """All links of one group, served by one thread that ends with the last of them."""

    def __init__(self, name: str, changed: threading.Condition) -> None:
        self._name = name
        self._changed = changed
        self.links: dict[int, RankLink] = {}
        self.relay: Relay | None = None
        self._new: list[RankLink] = []
        self._stopping: set[RankLink] = set()
        self._serving = False
        self._thread: threading.Thread | None = None
        self._wake_here, self._wake_there = socket.socketpair()

    def add(self, link: RankLink) -> None:
        """Serve this link from now on."""
        with self._changed:
            self._new.append(link)
            self.links[link.info.rank] = link  # a renewed rank takes the place of the old one
            link.wake = self.wake
            if not self._serving:
                self._serving = True
                self._thread = threading.Thread(target=self._serve, name=f"fanfold-{self._name}", daemon=True)
                self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Let the thread look at what is waiting to be sent."""
        with contextlib.suppress(BlockingIOError, OSError):  # full: it is awake anyway; closed: nobody is left to wake
            self._wake_there.send(b"!", socket.MSG_DONTWAIT)

    def expect_end(self, link: RankLink) -> None:
        """Know that this process is going to end because it was asked to."""
        with self._changed:
            self._stopping.add(link)

    def close(self, limit: float) -> None:
        """Wait for the thread, all of whose processes have ended, and let go of everything."""
        if self.relay is not None:
            self.relay.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(limit)
        self._wake_here.close()
        self._wake_there.close()

    def _serve(self) -> None:
        plugged: list[Plugged] = []
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_here, selectors.EVENT_READ, self._awake)
            while self._plug_in(plugged, selector):
                for key, events in selector.select(self._patience(plugged)):
                    with self._changed:
                        key.data(events)
                        self._changed.notify_all()
                ended = self._look_around(plugged)
                for one in [*plugged, *ended]:
                    one.link.show()

    def _plug_in(self, plugged: list[Plugged], selector: selectors.BaseSelector) -> bool:
        with self._changed:
            for link in self._new:
                plugged.append(Plugged(link, selector))
                plugged[-1].plug()
            self._new.clear()
            for one in plugged:
                one.want_to_send()
            self._serving = bool(plugged)
            return self._serving

    def _look_around(self, plugged: list[Plugged]) -> list[Plugged]:
        ended = [one for one in plugged if one.is_over()]
        for one in ended:
            with self._changed:
                one.unplug()
                one.link.end(expected=one.link in self._stopping)
                plugged.remove(one)
                self._stopping.discard(one.link)
                self._changed.notify_all()
        return ended

    def _patience(self, plugged: list[Plugged]) -> float | None:
        in_doubt = not hasattr(os, "pidfd_open") or any(one.closed_at is not None for one in plugged)
        return LOOK_AROUND if in_doubt else None

    def _awake(self, _: int) -> None:
        self._wake_here.recv(_AT_ONCE)
