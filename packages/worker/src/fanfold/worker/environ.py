"""This process's environment, lent to one rank after the other and given back as it was."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

Changes = dict[str, "str | None"]  # by name; None for a variable that is not set
RawChanges = dict[Any, Any]  # the same as the system keeps it, so that lending it converts nothing


class LentEnvironment:
    """Only what differs between one rank and the next is touched: a call costs a few microseconds of it.

    What a rank itself writes into `os.environ` is that rank's own, as it would be in a process of its own.
    """

    def __init__(self) -> None:
        self._home: RawChanges = {}
        self._lent: RawChanges = {}
        self._expected: RawChanges = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._set({})

    def lend(self, variables: RawChanges) -> None:
        """Set a rank's variables; what the rank before had and this one has not is as it was at home."""
        if not self._expected:
            self._expected = dict(_now())
        self._set(variables)

    def _set(self, variables: RawChanges) -> None:
        lent, home, expected = self._lent, self._home, self._expected
        for name in lent.keys() - variables.keys():
            _put(name, home[name], expected)
        for name, value in variables.items():
            if name not in lent:
                home.setdefault(name, expected.get(name))
                _put(name, value, expected)
            elif lent[name] != value:
                _put(name, value, expected)
        self._lent = variables

    def take_changes(self) -> RawChanges:
        """Return what the rank itself changed since its variables were lent."""
        now, expected = _now(), self._expected
        if now == expected:
            return {}
        changes = {name: now.get(name) for name in {**now, **expected} if now.get(name) != expected.get(name)}
        for name in changes:
            self._home.setdefault(name, expected.get(name))
        self._lent, self._expected = {**self._lent, **changes}, dict(now)
        return changes


# The environment as the system keeps it: on POSIX in bytes, so that nothing is encoded at each call.
_ENVIRON: Any = os.environb if os.supports_bytes_environ else os.environ


def raw(variables: Mapping[str, str | None]) -> RawChanges:
    """Return variables in the form in which they are lent."""
    if not os.supports_bytes_environ:
        return dict(variables)
    return {os.fsencode(name): None if value is None else os.fsencode(value) for name, value in variables.items()}


def _now() -> Mapping[Any, Any]:
    # The dictionary inside: to look into it costs a fiftieth of asking for variables one by one. Where a Python keeps
    # none, asking is right too.
    inner = getattr(_ENVIRON, "_data", None)
    return dict(_ENVIRON) if inner is None or not os.supports_bytes_environ else inner


def _put(name: Any, value: Any, expected: RawChanges) -> None:
    if value is not None:
        _ENVIRON[name] = expected[name] = value
    elif name in expected:
        del _ENVIRON[name], expected[name]
