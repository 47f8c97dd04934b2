"""What happens on a rank, whatever backend brought the call there: find the function, run it to its end."""

from __future__ import annotations

import importlib
import inspect
import os
import types
from functools import partial
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import specs_of

if TYPE_CHECKING:
    from collections.abc import Callable


def callable_of(worker: Any, method: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the worker's method of that name, or the function with the worker as its first argument."""
    return getattr(worker, method) if isinstance(method, str) else partial(method, worker)


def needs_loop(cls: type) -> bool:
    """Say whether a worker class has asynchronous methods, so that its calls may overlap on one rank."""
    classes = [cls, *(recipe.cls for recipe in getattr(cls, "raw_cls_dict", {}).values())]
    return any(spec.kind in ("async", "async_generator") for one in classes for spec in specs_of(one).values())


def finished(result: Any) -> Any:
    """Take the result of a method to its end: what a coroutine returns, all that a generator yields as a list."""
    kind = type(result)
    if kind is types.GeneratorType:
        return list(result)
    if kind is not types.AsyncGeneratorType and not hasattr(kind, "__await__"):
        return result
    # At first use: asyncio costs a fifth of this package's import budget.
    return importlib.import_module("asyncio").run(finished_in_loop(result))


async def finished_in_loop(result: Any) -> Any:
    """Do the same inside a running event loop, where other calls may run while this one waits."""
    if inspect.isasyncgen(result):
        return [item async for item in result]
    return await result if inspect.isawaitable(result) else finished(result)


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error as text, without the frames of this package that led to the user's method."""
    from traceback import format_exception  # noqa: PLC0415  # wanted only here, and loads the tokenizer

    trace = error.__traceback__
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == _HERE:  # noqa: PTH120  # a string is all it needs
        trace = trace.tb_next
    return "".join(format_exception(type(error), error, trace or error.__traceback__))


_HERE = os.path.dirname(__file__)  # noqa: PTH120  # as above: pathlib would cost a sixth of this package's import budget
