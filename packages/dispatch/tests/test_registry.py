from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from dispatch_fakes import Group
from fanfold.dispatch import (
    DISPATCH_MODE_FN_REGISTRY,
    Dispatch,
    Execute,
    RegistrationError,
    UnknownModeError,
    get_predefined_dispatch_fn,
    get_predefined_execute_fn,
    register,
    register_dispatch_mode,
    run_inline,
    update_dispatch_mode,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def reversed_lists(group: Any, *args: Any, **kwargs: Any) -> Any:
    return tuple(list(reversed(arg)) for arg in args), {name: list(reversed(arg)) for name, arg in kwargs.items()}


def total(group: Any, outputs: Any) -> Any:
    return sum(outputs)


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    before = dict(DISPATCH_MODE_FN_REGISTRY)
    yield
    DISPATCH_MODE_FN_REGISTRY.clear()
    DISPATCH_MODE_FN_REGISTRY.update(before)
    for name in Dispatch.names()[8:]:
        Dispatch.remove(name)


def test_every_built_in_mode_has_its_functions() -> None:
    assert list(DISPATCH_MODE_FN_REGISTRY) == list(Dispatch)
    for mode in Dispatch:
        functions = get_predefined_dispatch_fn(mode)
        assert set(functions) == {"dispatch_fn", "collect_fn"}
        assert all(callable(function) for function in functions.values())


def test_a_registered_mode_works_and_remembers_its_module() -> None:
    mode = register_dispatch_mode("reversed", reversed_lists, total)
    assert mode.module == __name__

    class Worker:
        @register(mode)
        def scaled(self, x: int, *, by: int = 1) -> int:
            return x * by

    assert run_inline("scaled", [Worker()] * 3, [1, 2, 3], by=[10, 100, 1000]) == 3 * 1000 + 2 * 100 + 1 * 10


def test_an_updated_mode_serves_methods_marked_before() -> None:
    mode = register_dispatch_mode("reversed", reversed_lists, total)

    class Worker:
        @register(mode)
        def same(self, x: int) -> int:
            return x

    update_dispatch_mode(mode, reversed_lists, lambda _, outputs: outputs)
    assert run_inline("same", [Worker()] * 2, [1, 2]) == [2, 1]


def test_a_built_in_mode_can_be_replaced() -> None:
    class Worker:
        @register(Dispatch.DP_COMPUTE)
        def same(self, x: int) -> int:
            return x

    update_dispatch_mode(Dispatch.DP_COMPUTE, reversed_lists, total)
    assert run_inline("same", [Worker()] * 2, [1, 2]) == 3


@pytest.mark.parametrize(
    ("dispatch_fn", "collect_fn", "named"), [(None, total, "dispatch_fn"), (total, "x", "collect_fn")]
)
def test_what_is_no_function_is_refused(dispatch_fn: Any, collect_fn: Any, named: str) -> None:
    with pytest.raises(
        RegistrationError, match=rf"register_dispatch_mode\('new'\): {named} is .*, expected a function"
    ):
        register_dispatch_mode("new", dispatch_fn, collect_fn)
    assert "NEW" not in Dispatch
    with pytest.raises(RegistrationError, match=rf"update_dispatch_mode\(Dispatch.DP_COMPUTE\): {named} is"):
        update_dispatch_mode(Dispatch.DP_COMPUTE, dispatch_fn, collect_fn)


def test_unknown_modes_are_named() -> None:
    mode = register_dispatch_mode("gone", reversed_lists, total)
    Dispatch.remove("gone")
    del DISPATCH_MODE_FN_REGISTRY[mode]
    message = r"got dispatch mode Dispatch\.GONE, expected one of RANK_ZERO, .*; add one with register_dispatch_mode$"
    with pytest.raises(UnknownModeError, match=message):
        get_predefined_dispatch_fn(mode)
    with pytest.raises(UnknownModeError, match=message):
        update_dispatch_mode(mode, reversed_lists, total)
    with pytest.raises(UnknownModeError, match=r"^@register on test_unknown.*method: " + message):

        @register(mode)
        def method(self: object) -> None: ...

    with pytest.raises(UnknownModeError, match="got dispatch mode 'ALL', expected one of"):
        get_predefined_dispatch_fn("ALL")  # type: ignore[arg-type]


def test_execute_modes_name_the_groups_methods() -> None:
    assert get_predefined_execute_fn(Execute.ALL) == {"execute_fn_name": "execute_all"}
    assert get_predefined_execute_fn(Execute.RANK_ZERO) == {"execute_fn_name": "execute_rank_zero"}
    with pytest.raises(UnknownModeError, match=r"got execute mode 'ALL', expected Execute\.ALL or Execute\.RANK_ZERO"):
        get_predefined_execute_fn("ALL")  # type: ignore[arg-type]


def test_functions_of_the_registry_can_be_called_by_anyone() -> None:
    functions = get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)
    assert functions["dispatch_fn"](Group(2), 5, x=6) == (([5, 5],), {"x": [6, 6]})
    assert functions["collect_fn"](Group(2), [1, 2]) == [1, 2]
