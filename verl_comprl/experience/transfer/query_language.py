"""Parses the conditions by which users select entries, such as ``uses>=5``, ``tasks=minihack`` or ``title~door``.

Owns syntax and meaning of the conditions. What happens to the selected entries is up to the caller.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl_comprl.experience.schema import Experience
from verl_comprl.nearest import did_you_mean

_NUMBER, _FLAG = "number", "true or false"
_KINDS: Mapping[Any, str] = {int: _NUMBER, float: _NUMBER, int | None: _NUMBER, bool | None: _FLAG}
_COMPUTED = ("uses", "successes", "asked", "asked_successes", "success_rate", "posterior_success")
FIELDS: Mapping[str, str] = {
    name: _KINDS.get(field.annotation, "text") for name, field in Experience.model_fields.items() if name != "usage"
} | {**dict.fromkeys(_COMPUTED, _NUMBER), "text": "text"}
"""Fields that a condition can name, and the kind of value each is compared with."""

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(r"\s*(\w+)\s*([=!<>]=|[=<>~])(.*)", re.DOTALL)

Condition = Callable[[Experience], bool]


def parse_where(conditions: Sequence[str]) -> Condition:
    """Return a function that tells whether an entry meets all of ``conditions``.

    A condition is ``field operator value`` with one of ``= == != < <= > >=``, or ``~`` for a text that contains the
    value, ignoring case. Fields are those of ``Experience`` and its properties. Of a field with several values
    (``tasks``, ``environments``, ``parents``) one has to meet the condition, with ``!=`` all of them. A field without a
    value (``last_trained_step`` of an entry never trained) meets only ``!=``.

    Raises:
        ValueError: If a condition has another form, an unknown field, or a value its field cannot have.
    """
    parsed = [_parse(condition) for condition in conditions]
    return lambda entry: all(meets(entry) for meets in parsed)


def field_value(entry: Experience, field: str) -> Any:
    """Return the value of ``field``, one of ``FIELDS``, of an entry: a number, a text, a bool or None."""
    value = getattr(entry, field)
    return ", ".join(value) if isinstance(value, tuple) else value


def unknown_field(field: str) -> str:
    """Return the message about a field that does not exist, with the nearest one."""
    return f"no field {field!r}; {did_you_mean(field, FIELDS)}the fields are {', '.join(sorted(FIELDS))}"


def _values(entry: Experience, field: str) -> tuple[Any, ...]:
    value = getattr(entry, field)
    values = (value or ("",)) if isinstance(value, tuple) else (value,)
    return tuple(item for item in values if item is not None)


def _parse(condition: str) -> Condition:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise ValueError(
            f"condition {condition!r} is not FIELD OPERATOR VALUE, such as uses>=5; "
            f"the operators are {' '.join(_COMPARISONS)} ~"
        )
    field, symbol, value = match[1], match[2], match[3].strip()
    if field not in FIELDS:
        raise ValueError(f"condition {condition!r}: {unknown_field(field)}")
    kind = FIELDS[field]
    if symbol == "~":
        if kind != "text":
            raise ValueError(f"condition {condition!r}: ~ works on texts, {field} is a {kind}")
        return lambda entry: any(value.casefold() in actual.casefold() for actual in _values(entry, field))
    compare, wanted = _COMPARISONS[symbol], _value(condition, kind, value)
    combine = all if symbol == "!=" else any
    return lambda entry: combine(compare(actual, wanted) for actual in _values(entry, field))


def _value(condition: str, kind: str, value: str) -> Any:
    if kind == "text":
        return value
    if kind == _FLAG:
        if value.lower() not in ("true", "false"):
            raise ValueError(f"condition {condition!r} needs true or false, got {value!r}")
        return value.lower() == "true"
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise ValueError(f"condition {condition!r} needs a number, got {value!r}")
    return number
