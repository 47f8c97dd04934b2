"""What a user reads who got something wrong: one sentence with the method, what was got, what was expected, the fix.

All of it comes before anything is sent, most of it before anything is called.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from dispatch_fakes import Group, plan
from fanfold.dispatch import (
    DISPATCH_MODE_FN_REGISTRY,
    ArgumentError,
    BatchTypeError,
    Dispatch,
    DivideError,
    DuplicateModeError,
    FanfoldError,
    Mesh,
    MeshError,
    PerRank,
    RegistrationError,
    Rows,
    Shard,
    UnknownModeError,
    get_predefined_dispatch_fn,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    register_batch_type,
    register_dispatch_mode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = ", ".join(Dispatch.names())


class NoConcat:
    """A batch but for one thing."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, rows: slice) -> NoConcat:
        return self

    def chunk(self, chunks: int) -> list[NoConcat]:
        return [self] * chunks


class Functor:
    def __call__(self, batch: Any) -> Any: ...


class Trainer:
    @register(Dispatch.ALL_TO_ALL)
    def any(self, a: Any, b: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE)
    def lists(self, a: Any, b: Any = None) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO)
    def rows(self, batch: Any, other: Any = None) -> Any: ...

    @register(make_nd_compute_dataproto_dispatch_fn("train"))
    def nd(self, batch: Any) -> Any: ...

    @register(Dispatch.ONE_TO_ALL)
    def seeded(self, seed: Annotated[list[int], PerRank]) -> Any: ...


def step(self: object, batch: Any) -> Any: ...


def many(self: object, batch: Any) -> Any:
    yield batch


async def later(self: object, batch: Any) -> Any:
    yield batch


def spread(group: Any, *args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def gone() -> Dispatch:
    mode = register_dispatch_mode("GONE", spread, len)
    Dispatch.remove("GONE")
    del DISPATCH_MODE_FN_REGISTRY[mode]
    return mode


def call(method: Callable[..., Any], *args: Any, group: Any = None, **kwargs: Any) -> Callable[[], object]:
    return lambda: plan(method, group or Group(3), *args, **kwargs)


def mesh(size: int) -> Mesh:
    return Mesh.from_sizes("train", {"dp": size})


ABOVE_THE_DEF = (
    "a rank runs a method on its own worker: put @register directly above the def of a method that takes self"
)
RETURN_THE_BATCH = (
    "a generator gives many values, and this mode puts one batch per rank together; return the batch, or use a mode "
    "that collects a list, such as Dispatch.ONE_TO_ALL"
)

BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a mode of the wrong type": (
        lambda: register("DP_COMPUTE")(step),  # type: ignore[arg-type]
        RegistrationError,
        (
            "@register on step: dispatch_mode is 'DP_COMPUTE', expected a member of Dispatch, or a dict with "
            "dispatch_fn and collect_fn"
        ),
    ),
    "no parentheses": (
        lambda: register(step),  # type: ignore[arg-type]
        RegistrationError,
        "@register on step: got the method as dispatch_mode; write @register(), with parentheses",
    ),
    "no collect function": (
        lambda: register({"dispatch_fn": spread})(step),
        RegistrationError,
        "@register on step: dispatch_mode has the keys dispatch_fn, expected dispatch_fn and collect_fn",
    ),
    "a collect function that is none": (
        lambda: register({"dispatch_fn": spread, "collect_fn": 3})(step),  # type: ignore[dict-item]
        RegistrationError,
        "@register on step: collect_fn is int 3, expected a function",
    ),
    "the same in a named mode": (
        lambda: register_dispatch_mode("MINE", spread, "sum"),  # type: ignore[arg-type]
        RegistrationError,
        "register_dispatch_mode('MINE'): collect_fn is str 'sum', expected a function",
    ),
    "a class method": (
        lambda: register()(classmethod(step)),  # type: ignore[type-var]
        RegistrationError,
        f"@register on step: got a classmethod, expected a function; {ABOVE_THE_DEF}",
    ),
    "a class": (
        lambda: register()(NoConcat),
        RegistrationError,
        f"@register on NoConcat: got a type, expected a function; {ABOVE_THE_DEF}",
    ),
    "a partial, which has no self": (
        lambda: register()(functools.partial(step)),
        RegistrationError,
        (
            "@register on partial: got a partial, which is called without the worker it stands in, expected a "
            "function; write a def that takes self and calls it"
        ),
    ),
    "an object that can be called": (
        lambda: register()(Functor()),
        RegistrationError,
        (
            "@register on Functor: got a Functor, which is called without the worker it stands in, expected a "
            "function; write a def that takes self and calls it"
        ),
    ),
    "a name that is taken": (
        lambda: register_dispatch_mode("one_to_all", spread, len),
        DuplicateModeError,
        (
            "dispatch mode 'ONE_TO_ALL' exists already; choose another name, or change what it does with "
            "update_dispatch_mode"
        ),
    ),
    "an unknown mode on a method": (
        lambda: register(gone())(step),
        UnknownModeError,
        (
            f"@register on step: got dispatch mode Dispatch.GONE, expected one of {MODES}; add one with "
            "register_dispatch_mode"
        ),
    ),
    "an unknown mode": (
        lambda: get_predefined_dispatch_fn("NONE"),  # type: ignore[arg-type]
        UnknownModeError,
        f"got dispatch mode 'NONE', expected one of {MODES}; add one with register_dispatch_mode",
    ),
    "an unknown name of a mode": (
        lambda: Dispatch["NONE"],
        UnknownModeError,
        f"there is no dispatch mode 'NONE' in this process; there are {MODES}; add one with register_dispatch_mode",
    ),
    "too many positional arguments": (
        call(Trainer.any, 1, 2, 3),
        ArgumentError,
        (
            "Trainer.any(): too many positional arguments; got 3 by position, expected (a: 'Any', b: 'Any') -> 'Any'. "
            "Nothing was sent"
        ),
    ),
    "too few": (
        call(Trainer.any, b=2),
        ArgumentError,
        (
            "Trainer.any(): missing a required argument: 'a'; got 0 by position and b by keyword, expected (a: 'Any', "
            "b: 'Any') -> 'Any'. Nothing was sent"
        ),
    ),
    "an unknown keyword": (
        call(Trainer.any, 1, 2, c=3),
        ArgumentError,
        (
            "Trainer.any(): got an unexpected keyword argument 'c'; got 2 by position and c by keyword, expected (a: "
            "'Any', b: 'Any') -> 'Any'. Nothing was sent"
        ),
    ),
    "a list of another length than the world": (
        call(Trainer.lists, [1, 2]),
        DivideError,
        (
            "Trainer.lists(): argument 'a' has one item per rank; got a list of 2, expected a list of 3 (the ranks of "
            "this call); send it whole with Replicate(x)"
        ),
    ),
    "the same where a parameter is marked": (
        call(Trainer.seeded, (1,)),
        DivideError,
        (
            "Trainer.seeded(): argument 'seed' has one item per rank; got a tuple of 1, expected a list of 3 (the "
            "ranks of this call); send it whole with Replicate(x)"
        ),
    ),
    "the same in ALL_TO_ALL": (
        call(Trainer.any, [1, 2, 3], b=[1, 2]),
        DivideError,
        (
            "Trainer.any(): argument 'b' has one item per rank; got a list of 2, expected a list of 3 (the ranks of "
            "this call); send it whole with Replicate(x)"
        ),
    ),
    "no list at all": (
        call(Trainer.lists, 5),
        DivideError,
        (
            "Trainer.lists(): argument 'a' has one item per rank; got int, expected a list of 3 (the ranks of this "
            "call); send it whole with Replicate(x)"
        ),
    ),
    "lists and scalars in ALL_TO_ALL": (
        call(Trainer.any, [1, 2, 3], 0.5),
        ArgumentError,
        (
            "Trainer.any(): got lists (a) and other values (b) in one call, expected all lists or none; say PerRank(x) "
            "for one item per rank, or Replicate(x) for the whole list to every rank"
        ),
    ),
    "batches of different length": (
        call(Trainer.rows, Rows("abc"), other=Rows("ab")),
        DivideError,
        (
            "Trainer.rows(): got batches of different length (batch has 3, other has 2 rows), expected one length for "
            "all that are divided together; send one that belongs to no row whole, with Replicate(x)"
        ),
    ),
    "a mesh without some of the ranks": (
        call(Trainer.nd, Rows("abc"), group=Group(3, mesh(2))),
        MeshError,
        (
            "Trainer.nd(): mesh 'train' does not cover the group of 3 ranks: ranks 2 have no place in it. Let every "
            "rank register its place"
        ),
    ),
    "a mesh with ranks that are not there": (
        call(Trainer.nd, Rows("abc"), group=Group(2, mesh(4))),
        MeshError,
        (
            "Trainer.nd(): mesh 'train' does not cover the group of 2 ranks: it names ranks 2, 3, which the group does "
            "not have. Let every rank register its place"
        ),
    ),
    "an axis that the mesh does not have": (
        call(Trainer.nd, Shard(Rows("abc"), "ep"), group=Group(2, mesh(2))),
        MeshError,
        (
            "Trainer.nd(): argument 'batch' is to be divided along axis 'ep', which mesh 'train' does not have; its "
            "axes are dp"
        ),
    ),
    "a batch without concat in a call": (
        call(Trainer.rows, NoConcat()),
        BatchTypeError,
        (
            "Trainer.rows(): argument 'batch' is to be divided; got NoConcat, which has rows and chunk but no concat; "
            "add it, use register_batch_type, or send it whole with Replicate(x)"
        ),
    ),
    "a batch type without concat": (
        lambda: register_batch_type(NoConcat),
        BatchTypeError,
        "register_batch_type: NoConcat has no concat of its own; give concat=lambda batches: ...",
    ),
    "a generator whose values nobody can put together": (
        lambda: register(Dispatch.DP_COMPUTE_PROTO)(many),
        RegistrationError,
        f"@register on many: {RETURN_THE_BATCH}",
    ),
    "an asynchronous one": (
        lambda: register(make_nd_compute_dataproto_dispatch_fn("train"))(later),
        RegistrationError,
        f"@register on later: {RETURN_THE_BATCH}",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_it_is_refused_with_one_sentence(what: str) -> None:
    do, error, text = BAD[what]
    with pytest.raises(error) as caught:
        do()
    assert str(caught.value) == text
    assert isinstance(caught.value, FanfoldError)


def test_nothing_stays_behind() -> None:
    assert ", ".join(Dispatch.names()) == MODES
    assert not hasattr(step, "__fanfold_spec__")
