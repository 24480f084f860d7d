"""Nothing that is read is executed: neither a file nor a message, which could be somebody else's."""

import re
from pathlib import Path

import pytest

import env_adapters
import verl_comprl

UNSAFE = re.compile(
    r"^\s*(?:import|from) (?:cloud)?pickle\b|weights_only=False|(?<![.\w])(?<!def )(?:eval|exec)\(", re.MULTILINE
)


@pytest.mark.parametrize("package", [verl_comprl, env_adapters])
def test_nothing_of_ours_unpickles_or_evaluates(package: object) -> None:
    folder = Path(str(getattr(package, "__file__", ""))).parent
    sources = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    assert len(sources) > 50
    assert [name for name, source in sources.items() if UNSAFE.search(source)] == []


@pytest.mark.parametrize("line", ["import pickle", "    from cloudpickle import loads", "x = eval(text)", "exec(code)"])
def test_the_search_finds_what_it_is_for(line: str) -> None:
    assert UNSAFE.search(f"a = 1\n{line}\n")
