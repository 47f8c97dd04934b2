"""This process's environment, lent to one rank after the other and given back as it was."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

Changes = dict[str, "str | None"]  # by name; None for a variable that is not set


class LentEnvironment:
    """Only what differs between one rank and the next is touched: a call costs a few microseconds of it.

    What a rank itself writes into `os.environ` is that rank's own, as it would be in a process of its own.
    """

    def __init__(self) -> None:
        self._home: Changes = {}
        self._lent: Changes = {}
        self._expected: Mapping[Any, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.lend({})

    def lend(self, variables: Changes) -> None:
        """Set a rank's variables; what the rank before had and this one has not is as it was at home."""
        lent = self._lent
        for name in lent.keys() - variables.keys():
            _put(name, self._home[name])
        for name, value in variables.items():
            if name not in lent:
                self._home.setdefault(name, os.environ.get(name))
                _put(name, value)
            elif lent[name] != value:
                _put(name, value)
        self._lent = variables
        self._expected = dict(_raw())

    def take_changes(self) -> Changes:
        """Return what the rank itself changed since its variables were lent."""
        now, expected = _raw(), self._expected
        if now == expected:
            return {}
        raw_names = [name for name in {**now, **expected} if now.get(name) != expected.get(name)]
        for raw in raw_names:
            before = expected.get(raw)
            self._home.setdefault(os.fsdecode(raw), None if before is None else os.fsdecode(before))
        changes: Changes = {os.fsdecode(raw): os.environ.get(os.fsdecode(raw)) for raw in raw_names}
        self._lent = {**self._lent, **changes}
        self._expected = dict(now)
        return changes


def _raw() -> Mapping[Any, Any]:
    # The dictionary inside os.environ: to compare it costs a fiftieth of reading every variable. Where a Python keeps
    # none, reading them is right too.
    inner = getattr(os.environ, "_data", None)
    return dict(os.environ) if inner is None else inner


def _put(name: str, value: str | None) -> None:
    if value is not None:
        os.environ[name] = value
    elif name in os.environ:
        del os.environ[name]
