from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from fanfold.dispatch import (
    Dispatch,
    Execute,
    FanfoldError,
    ModeFunctions,
    RegistrationError,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    spec_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


def halves(group: Any, *args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def test_the_same_function_comes_back() -> None:
    def step(self: object, batch: int, *, lr: float = 0.1) -> float:
        """Make a step."""
        return batch * lr

    marked = register(Dispatch.ONE_TO_ALL)(step)
    assert marked is step
    assert (marked.__name__, marked.__doc__) == ("step", "Make a step.")
    assert str(inspect.signature(marked)) == "(self: 'object', batch: 'int', *, lr: 'float' = 0.1) -> 'float'"
    assert marked(object(), 3, lr=2.0) == 6.0


def test_a_decorator_that_uses_wraps_keeps_the_mark() -> None:
    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @timed
    @register(Dispatch.RANK_ZERO)
    def outside(self: object) -> None: ...

    @register(Dispatch.RANK_ZERO)
    @timed
    def inside(self: object) -> None: ...

    assert spec_of(outside) == spec_of(inside)
    assert spec_of(outside) is not None


def test_everything_that_can_be_said() -> None:
    @register(
        Dispatch.DP_COMPUTE_PROTO,
        Execute.ALL,
        False,
        False,
        uneven="pad",
        balance="tokens",
        reads=["input_ids"],
        inputs="readonly",
        apart=["responses", "log_probs"],
        merge={"loss": "mean"},
        timeout=30,
    )
    def method(self: object) -> None: ...

    spec = spec_of(method)
    assert spec is not None
    assert vars(spec) == {
        "dispatch_mode": Dispatch.DP_COMPUTE_PROTO,
        "execute_mode": Execute.ALL,
        "blocking": False,
        "materialize_futures": False,
        "uneven": "pad",
        "balance": "tokens",
        "reads": ("input_ids",),
        "inputs": "readonly",
        "apart": ("responses", "log_probs"),
        "merge": {"loss": "mean"},
        "timeout": 30,
        "kind": "sync",
    }


def test_a_dict_mode_is_copied() -> None:
    mode: dict[str, Any] = {"dispatch_fn": halves, "collect_fn": len}

    @register(mode)
    def method(self: object) -> None: ...

    mode["collect_fn"] = None
    spec = spec_of(method)
    assert spec is not None
    assert spec.dispatch_mode == ModeFunctions(halves, len)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"dispatch_mode": "ONE_TO_ALL"},
            r"dispatch_mode is 'ONE_TO_ALL', expected a member of Dispatch, or a dict with",
        ),
        (
            {"dispatch_mode": {"dispatch_fn": halves}},
            "dispatch_mode has the keys dispatch_fn, expected dispatch_fn and collect_fn",
        ),
        ({"dispatch_mode": {"dispatch_fn": halves, "collect_fn": 3}}, "collect_fn is int 3, expected a function"),
        (
            {"dispatch_mode": {"dispatch_fn": halves, "collect_fn": len, "x": 1}},
            "has the keys dispatch_fn, collect_fn, x",
        ),
        ({"execute_mode": "ALL"}, r"execute_mode is 'ALL', expected Execute\.ALL or Execute\.RANK_ZERO"),
        ({"blocking": 1}, "blocking is 1, expected one of True, False"),
        ({"materialize_futures": None}, "materialize_futures is None, expected one of True, False"),
        ({"uneven": "chunk"}, "uneven is 'chunk', expected one of 'split', 'pad', 'error', 'skip'"),
        ({"uneven": ["pad"]}, r"uneven is \['pad'\], expected one of"),
        ({"inputs": "mapped"}, "inputs is 'mapped', expected one of 'writable', 'readonly'"),
        ({"balance": 3}, "balance is 3, expected a column name or a function of the batch"),
        ({"reads": "input_ids"}, r"reads is 'input_ids', expected a list of column names such as \['input_ids'\]"),
        ({"reads": [1]}, r"reads is \[1\], expected a list of column names"),
        ({"apart": "responses"}, r"apart is 'responses', expected a list of column names"),
        ({"merge": "average"}, "merge rule is 'average', expected one of same, first, last"),
        ({"timeout": 0}, "timeout is 0, expected seconds above 0, or None"),
        ({"timeout": True}, "timeout is True, expected seconds above 0"),
        ({"timeout": "1m"}, "timeout is '1m', expected seconds above 0"),
        ({"timeout": float("nan")}, "timeout is nan, expected seconds above 0"),
        ({"dispatch_mode": Dispatch.RANK_ZERO, "merge": "sum"}, "merge= is given, but only one rank runs"),
        ({"execute_mode": Execute.RANK_ZERO, "merge": "sum"}, "merge= is given, but only one rank runs"),
        (
            {"dispatch_mode": {"dispatch_fn": halves, "collect_fn": len}, "merge": "sum"},
            "merge= is given, but the mode has a collect function of its own",
        ),
        (
            {"dispatch_mode": {"dispatch_fn": halves, "collect_fn": len}, "balance": "x"},
            "balance= deals rows out in another order, and a custom collect function cannot put results back",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_method_s_name(arguments: Any, message: str) -> None:
    with pytest.raises(RegistrationError, match=rf"^@register on Trainer\.step: .*{message}") as caught:

        class Trainer:
            def step(self) -> None: ...

            step.__qualname__ = "Trainer.step"
            step = register(**arguments)(step)

    assert isinstance(caught.value, FanfoldError)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    ("wrapped", "kind"),
    [(classmethod(halves), "classmethod"), (staticmethod(halves), "staticmethod"), (property(halves), "property")],
)
def test_only_methods_that_take_self_can_be_marked(wrapped: Any, kind: str) -> None:
    with pytest.raises(
        RegistrationError, match=f"@register on halves: got a {kind}, expected a function; a rank runs a method on"
    ):
        register(Dispatch.ONE_TO_ALL)(wrapped)


def test_only_functions_can_be_marked() -> None:
    with pytest.raises(RegistrationError, match="@register on int: got a int, expected a function"):
        register(Dispatch.ONE_TO_ALL)(3)  # type: ignore[type-var]
    with pytest.raises(RegistrationError, match="@register on object: got a type, expected a function"):
        register(Dispatch.ONE_TO_ALL)(object)


def test_forgotten_parentheses_are_named() -> None:
    with pytest.raises(
        RegistrationError, match=r"@register on halves: got the method as dispatch_mode; write @register\(\)"
    ):
        register(halves)  # type: ignore[arg-type]


def test_generators_are_refused_where_batches_are_put_together() -> None:
    def generator(self: object) -> Iterator[int]:
        yield 1

    async def async_generator(self: object) -> AsyncIterator[int]:
        yield 1

    message = (
        r"generator: a generator gives many values, and this mode puts one batch per rank together; return the batch"
    )
    for mode in (Dispatch.DP_COMPUTE_PROTO, make_nd_compute_dataproto_dispatch_fn("train")):
        for function in (generator, async_generator):
            with pytest.raises(RegistrationError, match=message):
                register(mode)(function)


@pytest.mark.parametrize(
    "given",
    [
        (Dispatch.ONE_TO_ALL,),
        (Dispatch.DP_COMPUTE_METRIC,),
        (Dispatch.RANK_ZERO,),
        (Dispatch.DP_COMPUTE_PROTO, Execute.RANK_ZERO),
    ],
)
def test_generators_are_taken_where_one_rank_gives_one_value_after_another(given: tuple[Any, ...]) -> None:
    def generator(self: object) -> Iterator[int]:
        yield 1

    assert spec_of(register(*given)(generator)) is not None


class Marked:
    @register(Dispatch.ONE_TO_ALL)
    def save(self) -> None: ...


def test_a_mark_is_never_changed_behind_the_back_of_those_who_have_it() -> None:
    before = spec_of(Marked.save)
    with pytest.raises(RegistrationError, match=r"@register on Marked\.save: it has a mark already.*every class"):
        register(Dispatch.RANK_ZERO)(Marked.save)
    assert spec_of(Marked.save) is before
    with pytest.raises(RegistrationError, match="mark it once"):
        register()(register()(lambda self: None))

    class Other(Marked):
        @register(Dispatch.RANK_ZERO)
        @functools.wraps(Marked.save)
        def save(self) -> None:  # type: ignore[override]  # what wraps returns is typed as a callable
            super().save()

    own = spec_of(Other.save)
    assert own is not None
    assert own.dispatch_mode is Dispatch.RANK_ZERO
    assert spec_of(Marked.save) is before
