"""What this package raises: each class derives from FanfoldError and from the built-in that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class FanfoldError(Exception):
    """The root of every error that fanfold's packages for groups of ranks raise."""


class RegistrationError(FanfoldError, TypeError):
    """A mark on a method that cannot work, refused where the method is defined."""


class UnknownModeError(FanfoldError, KeyError):
    """A dispatch mode that is not registered in this process."""

    __str__ = Exception.__str__  # KeyError would show the message as a quoted repr


class DuplicateModeError(FanfoldError, ValueError):
    """A dispatch mode registered twice under one name."""


class DirectCallError(FanfoldError, NotImplementedError):
    """A method that is called on a worker's handle, never through the group."""


class ArgumentError(FanfoldError, TypeError):
    """A call that does not fit the method's signature, or an argument of the wrong kind; nothing was sent."""


class DivideError(FanfoldError, ValueError):
    """Arguments that cannot be divided over the ranks as asked; nothing was sent."""


class MeshError(FanfoldError, ValueError):
    """Rank tables that contradict themselves, or a mesh that does not fit the group."""


class BatchTypeError(FanfoldError, TypeError):
    """A type that lacks what a batch needs."""


class NoCallError(FanfoldError, LookupError):
    """`current_call()` where no call is being served."""


class CollectError(FanfoldError, ValueError):
    """Results that cannot be collected without losing or inventing rows.

    Attributes:
        results: what each collected rank returned, by rank, so that nothing is lost.
    """

    def __init__(self, message: str, results: Mapping[int, object] | None = None) -> None:
        super().__init__(message)
        self.results = dict(results or {})
