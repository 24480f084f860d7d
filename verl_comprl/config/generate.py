"""``python -m verl_comprl.config.generate``: writes the shipped YAML and the reference page from the typed settings.

Run it after changing a setting; a test compares what it returns with the files.
"""

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.settings import Settings, allowed, yaml_default

_ROOT = Path(__file__).parents[2]
YAML_FILE = _ROOT / "verl_comprl/config/comprl/default.yaml"
PAGE_FILE = _ROOT / "docs/configuration.md"

_WIDTH = 120
_YAML_HEAD = "Generated from verl_comprl/config/tree.py by `python -m verl_comprl.config.generate`; change it there."
_PAGE_HEAD = """\
# Configuration

Every key of verl's `ppo_trainer` config keeps its meaning. verl-comprl adds two subtrees: `extractor`, the extractor's
model, optimizer and server in the schema of `actor_rollout_ref` (defaults that differ from verl's are in
[comprl_trainer.yaml](../verl_comprl/config/comprl_trainer.yaml); an update is one optimizer step on one batch without a
reference policy, so that `shuffle`, `ppo_mini_batch_size` and `calculate_entropy` of its `actor` change nothing, and
what would is refused), and `comprl`, which this page lists. Set a value like any Hydra key:
`comprl.bank.capacity=5000`. The arms of the paper are presets: `arm=<name>`
([verl_comprl/config/arm](../verl_comprl/config/arm)).

A value that is not allowed, and a name that does not exist, end the launcher with one line each before anything starts.
Defaults are the paper's where it gives a value, except `guide_per`, `exploration` and
`extractor.list_nearest`. This page is generated from the code (`python -m verl_comprl.config.generate`).
"""


def yaml_text() -> str:
    """Return the content of ``config/comprl/default.yaml``."""
    blocks = [_comment(_YAML_HEAD, ""), _comment(_summary(ComprlConfig), ""), *_yaml_blocks(ComprlConfig, "")]
    return "\n\n".join(blocks) + "\n"


def page_text() -> str:
    """Return the content of ``docs/configuration.md``."""
    return "\n".join([_PAGE_HEAD, *_sections(ComprlConfig, "comprl")]).rstrip() + "\n"


def _yaml_blocks(group: type[Settings], indent: str) -> Iterator[str]:
    for name, field in group.model_fields.items():
        if nested := _nested(field):
            yield f"{_comment(_summary(nested), indent)}\n{indent}{name}:"
            yield from _yaml_blocks(nested, indent + "  ")
        else:
            yield f"{_comment(_meaning(field), indent)}\n{indent}{name}: {_yaml_value(yaml_default(field))}"


def _sections(group: type[Settings], path: str) -> Iterator[str]:
    fields = group.model_fields.items()
    yield f"## `{path}`\n\n{_summary(group)}\n\n| key | default | allowed | meaning |\n|---|---|---|---|"
    for name, field in fields:
        if not _nested(field):
            default = _yaml_value(yaml_default(field))
            yield f"| `{name}` | `{default}` | {allowed(field)} | {_meaning(field)} |"
    yield ""
    for name, field in fields:
        if nested := _nested(field):
            yield from _sections(nested, f"{path}.{name}")


def _nested(field: FieldInfo) -> type[Settings] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _summary(group: type[Settings]) -> str:
    """Return a group's docstring without its own config path, which the reader sees."""
    text = inspect.cleandoc(group.__doc__ or "")
    return _one_line(
        re.sub(r" \(``comprl\.[\w.]+``(?:; ([^)]*))?\)", lambda found: f" ({found[1]})" if found[1] else "", text)
    )


def _meaning(field: FieldInfo) -> str:
    return _one_line(field.description or "")


def _one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _comment(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _yaml_value(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[\w./${}-]+", value):
        return value
    return json.dumps(value)


def main() -> None:
    """Write both files."""
    YAML_FILE.write_text(yaml_text(), encoding="utf-8")
    PAGE_FILE.write_text(page_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
