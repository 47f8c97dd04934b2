from __future__ import annotations

import pickle

import pytest
from fanfold import dispatch
from fanfold.dispatch import CollectError, FanfoldError, UnknownModeError

ERRORS = {
    "ArgumentError": TypeError,
    "BatchTypeError": TypeError,
    "CollectError": ValueError,
    "DirectCallError": NotImplementedError,
    "DivideError": ValueError,
    "DuplicateModeError": ValueError,
    "MeshError": ValueError,
    "NoCallError": LookupError,
    "RegistrationError": TypeError,
    "UnknownModeError": KeyError,
}


def test_every_error_is_fanfold_s_and_a_fitting_built_in() -> None:
    found = {
        name for name, value in vars(dispatch).items() if isinstance(value, type) and issubclass(value, FanfoldError)
    }
    assert found - {"FanfoldError"} == set(ERRORS)
    for name, built_in in ERRORS.items():
        assert issubclass(getattr(dispatch, name), (FanfoldError,))
        assert issubclass(getattr(dispatch, name), built_in)


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_errors_cross_process_borders_whole(name: str) -> None:
    error = getattr(dispatch, name)("what happened")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert str(copied) == "what happened"


def test_results_travel_with_a_collect_error() -> None:
    copied = pickle.loads(pickle.dumps(CollectError("lost", {3: "value"})))
    assert copied.results == {3: "value"}


def test_an_unknown_mode_is_not_shown_as_a_quoted_key() -> None:
    assert str(UnknownModeError("there is none")) == "there is none"
