"""Base class of all typed settings, and the words for what a setting may be.

A setting is declared once: type, bounds and default in the field, unit and meaning in the string under it. The shipped
YAML, the reference page and the error messages are made from that.
"""

import os
import re
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from verl_comprl.nearest import did_you_mean

_LOGIN = re.compile(r"(?<=//)[^/?#]*@")
_IN_ADDRESS = re.compile(r"[^/'\"]+@|(?<=[?#]).*(?=['\"])")
"""Of what should be an address, between quotes: a user, and all from the query on."""

Share = Annotated[float, Field(ge=0, le=1)]
FilePath = Annotated[str, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)]


def checked_url(url: str) -> str:
    """Return the address of a service, "" included.

    Raises:
        ValueError: If it is none, or holds a user, a query or a fragment, which may be a key: a run's config is written
            into its folder.
    """
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("must start with http:// or https://")
    if _LOGIN.search(url):
        raise ValueError("must not hold a user or a password; keys are read from environment variables")
    if {"?", "#"} & set(url):  # nor would a client send it: paths are put behind it
        raise ValueError("must not hold a query ('?') or a fragment ('#'); keys are read from environment variables")
    return url


class Settings(BaseModel):
    """A group of settings: immutable, strict about types, closed to unknown names."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    def __init__(self, **values: Any) -> None:
        """Make the group.

        Raises:
            ValueError: With one line per mistake, as a run prints them. ``model_validate`` raises pydantic's exception.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError("\n".join(mistakes(error, type(self), type(self).__name__))) from None

    # Groups inside of others are made as if there were no __init__, so that the outer one knows where a mistake is.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]


def interpolated(default: Any, expression: str, **constraints: Any) -> Any:
    """Return a field whose value in a run is an OmegaConf expression.

    Args:
        default: The value where there is no run.
        expression: What the shipped YAML says, such as ``${trainer.default_local_dir}/bank``.
        **constraints: As pydantic's ``Field`` takes them.
    """
    return Field(default, json_schema_extra={"yaml": expression}, **constraints)


def yaml_default(field: FieldInfo) -> Any:
    """Return the default as the shipped YAML has it."""
    extra = field.json_schema_extra
    return extra["yaml"] if isinstance(extra, dict) else field.get_default(call_default_factory=True)


def allowed(field: FieldInfo) -> str:
    """Return in words what a field takes: ``a whole number greater than 0``, ``one of all, task``, ``null or text``."""
    kind: Any = field.annotation
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = ["null"] if NoneType in choices else []
    for choice in choices:
        metadata = list(field.metadata)
        if hasattr(choice, "__metadata__"):  # Annotated, inside a union
            metadata += [item for part in choice.__metadata__ for item in getattr(part, "metadata", [part])]
            choice = choice.__origin__
        if choice is not NoneType:
            words.append(_kind(choice) + _bounds(metadata))
    return " or ".join(words)


def mistakes(error: ValidationError, root: type[Settings], name: str) -> list[str]:
    """Return one line for each mistake, with the value and what is allowed.

    Args:
        error: What making ``root`` raised.
        root: The group that was made.
        name: Its dotted name, which the lines begin with.
    """
    return [_mistake(details, root, name) for details in error.errors()]


def unknown(name: str, group: type[Settings]) -> str:
    """Return the line for a setting that does not exist, with the nearest name."""
    hint = did_you_mean(name.rpartition(".")[2], group.model_fields)
    return f"{name} is unknown; {hint}allowed: {', '.join(group.model_fields)}"


def group_at(root: type[Settings], path: Sequence[Any]) -> type[Settings] | None:
    """Return the group at ``path`` below ``root``; ``None`` if there is a value or nothing."""
    group: Any = root
    for name in path:
        field = group.model_fields.get(name)
        group = field.annotation if field is not None else None
        if not (isinstance(group, type) and issubclass(group, Settings)):
            return None
    return group


def _mistake(details: Any, root: type[Settings], name: str) -> str:
    path, kind = details["loc"], details["type"]
    full = ".".join(map(str, (name, *path)))
    group = group_at(root, path[:-1])
    if kind == "extra_forbidden" and group is not None:
        return unknown(full, group)
    if kind == "value_error":
        reason = details["msg"].removeprefix("Value error, ")
        pattern = _IN_ADDRESS if path[-1:] == ("url",) else _LOGIN
        given = pattern.sub(lambda found: "***@" if found[0].endswith("@") else "***", repr(details["input"]))
        return f"{full}={given} {reason}" if group_at(root, path) is None else f"{full}: {reason}"
    if group is None or group_at(root, path) is not None:
        words = "a group of settings"
    else:
        words = allowed(group.model_fields[str(path[-1])])
    if kind == "missing":
        return f"{full} is missing; it must be {words}"
    return f"{full}={details['input']!r} is not allowed; it must be {words}"


def _kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]


def _bounds(metadata: list[Any]) -> str:
    lower = [f"greater than {item.gt:g}" for item in metadata if isinstance(item, Gt)]
    lower += [f"of at least {item.ge:g}" for item in metadata if isinstance(item, Ge)]
    upper = [f"{'' if lower else 'of '}at most {item.le:g}" for item in metadata if isinstance(item, Le)]
    lower += ["that is not empty" for item in metadata if isinstance(item, MinLen)]
    bounds = " and ".join(lower + upper)
    return f" {bounds}" if bounds else ""
