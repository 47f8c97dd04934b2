"""A misspelt option is an error with the nearest name, and still one that static tools see."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from fanfold.worker.errors import UnknownOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
R = TypeVar("R")


def refuses_typos(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise `UnknownOptionError` for a keyword that it lacks; its signature stays what it is."""
    known = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    owner = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.keys() <= set(known):
            raise unknown_option(owner, kwargs.keys() - set(known), known)
        return function(*args, **kwargs)

    return checked


def nearest(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return, for each name that resembles a known one, the nearest."""
    from difflib import get_close_matches  # noqa: PLC0415  # only mistakes need it

    candidates = list(known)
    return [match for name in names for match in get_close_matches(name, candidates, n=1)]


def unknown_option(owner: str, unknown: Iterable[str], known: Iterable[str]) -> UnknownOptionError:
    """Make the error: what was got, what there is, which is nearest."""
    got, known = sorted(unknown), list(known)
    near = nearest(got, known)
    hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
    return UnknownOptionError(
        f"{owner} has no option {', '.join(map(repr, got))}{hint or ';'} it takes {', '.join(known)}"
    )
