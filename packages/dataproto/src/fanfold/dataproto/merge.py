"""How several batches become one: equal values pass, rules decide the rest, and what is left is a conflict.

Nothing here changes what it is given. Letters: `B` rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import metrics
from fanfold.dataproto.equality import deep_equal
from fanfold.dataproto.errors import MergeError
from fanfold.dataproto.meta import Meta
from fanfold.dataproto.objects import Array
from fanfold.dataproto.table import Table
from fanfold.dataproto.text import short

Rule: TypeAlias = str | Callable[[list[Any]], Any]
Rules: TypeAlias = Mapping[str, Rule]
METRICS = "metrics"
_TIMING_PREFIXES = ("timing/", "timing_", "timings/", "timings_")


def united_tables(one: Table | None, other: Table | None) -> Table | None:
    """Return the columns of both; columns that both have must be equal."""
    if one is None or other is None:
        return one if other is None else other
    for name in one.columns.keys() & other.columns.keys():
        if not column_rules.equal(one.columns[name], other.columns[name]):
            raise MergeError(_column_conflict(name, one.columns[name], other.columns[name]))
    added = {name: column for name, column in other.columns.items() if name not in one.columns}
    mapped = one.mapped | (other.mapped & added.keys())
    return Table({**one.columns, **added}, one.rows, one.device, mapped)


def _column_conflict(name: str, one: Any, other: Any) -> str:
    return (
        f"column {name!r} is in both batches with different values: {short(one)} and {short(other)}; expected equal "
        "values (NaN equals NaN). Rename or pop one of them."
    )


def united_arrays(one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, Array]:
    """Return the non-tensor columns of both; columns that both have must be equal."""
    for name in one.keys() & other.keys():
        if not deep_equal(one[name], other[name]):
            raise MergeError(_column_conflict(name, one[name], other[name]))
    return {**one, **{name: array for name, array in other.items() if name not in one}}


def refuse_two_kinds(tensors: Table | None, arrays: Mapping[str, Array]) -> None:
    """Refuse a name that would be a tensor column and a non-tensor column."""
    both = set() if tensors is None else tensors.columns.keys() & arrays.keys()
    for name in both:
        raise MergeError(f"column {name!r} would be a tensor column and a non-tensor column; expected one. Rename it.")


def united_rules(*given: Rules) -> dict[str, Rule]:
    """Return all rules; two different rules for one key are a conflict."""
    made: dict[str, Rule] = {}
    for rules in given:
        for key, rule in rules.items():
            metrics.check_rule(key, rule)
            if made.setdefault(key, rule) != rule:
                raise MergeError(f"meta_info[{key!r}] has the merge rules {made[key]!r} and {rule!r}; expected one")
    return made


def united_meta(one: Meta, other: Meta, rules: Rules) -> Meta:
    """Return the metadata of two batches with the same rows."""
    made = dict(one)
    for key, value in other.items():
        made[key] = _united_value(key, one[key], value, rules) if key in one else value
    return made


def _united_value(key: str, one: Any, other: Any, rules: Rules) -> Any:
    if deep_equal(one, other):
        return one
    if key == METRICS and isinstance(one, dict) and isinstance(other, dict):
        return united_meta(one, other, {})
    return _by_rule(key, [one, other], [0, 1], rules)


def merged_meta(parts: Sequence[Meta], rules: Rules) -> Meta:
    """Return the metadata of batches whose rows are put below each other.

    Keys of all parts stay. `metrics` becomes one list for each name. Equal values stay as they are; values that differ
    follow the rule for their key, or the timing rule.

    Raises:
        MergeError: values differ and no rule says what to do; names the key, the positions and the values.
    """
    keys = dict.fromkeys(key for meta in parts for key in meta)
    return {key: _merged_value(key, parts, rules) for key in keys}


def _merged_value(key: str, parts: Sequence[Meta], rules: Rules) -> Any:
    having = [position for position, meta in enumerate(parts) if key in meta]
    values = [parts[position][key] for position in having]
    if key == METRICS and key not in rules:
        return metrics.listed(values)
    if rules.get(key) in (None, "same", "first", "last", "mean", "max", "min") and _all_equal(values):
        return values[0]
    return _by_rule(key, values, having, rules)


def _all_equal(values: Sequence[Any]) -> bool:
    return all(deep_equal(values[0], value) for value in values[1:])


def _by_rule(key: str, values: list[Any], positions: list[int], rules: Rules) -> Any:
    rule = rules.get(key, "timing" if _is_timing(key) else None)
    if rule is None or rule == "same":
        shown = ", ".join(f"part {at}: {short(value)}" for at, value in zip(positions, values, strict=True))
        raise MergeError(
            f"meta_info[{key!r}] differs between batches ({shown}); expected equal values, or a rule for this key: "
            f'merge={{{key!r}: "first"}} (first, last, mean, sum, min, max, list, or a function of the list of values)'
        )
    return metrics.apply(key, rule, values)


def _is_timing(key: str) -> bool:
    return key in {"timing", "timings"} or key.startswith(_TIMING_PREFIXES)
