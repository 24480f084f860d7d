"""Nothing that is read is executed: neither a file nor a message, which could be somebody else's."""

import re
from pathlib import Path

import pytest

_PICKLING = "(?:(?:cloud)?pickle|dill|joblib|marshal|shelve)"
UNSAFE = re.compile(
    rf"^\s*(?:import|from) {_PICKLING}\b|\bimport [^#\n]*\b{_PICKLING}\b"
    r"|\bweights_only\s*=\s*False|\ballow_pickle\s*=\s*True"
    r"|\bread_pickle\(|\byaml\.(?:unsafe|full)_load|\byaml\.load(?:_all)?\((?!.*SafeLoader)"
    r"|(?<![.\w])(?<!def )(?:eval|exec)\(",
    re.MULTILINE,
)
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", ["verl_comprl", "env_adapters", "recipes", "benchmarks", "examples"])
def test_nothing_of_ours_unpickles_or_evaluates(folder: str) -> None:
    sources = {str(path): path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py")}
    assert sources
    assert [name for name, source in sources.items() if UNSAFE.search(source)] == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "    from cloudpickle import loads",
        "from ray import cloudpickle",
        "import io, pickle",
        "import dill as p",
        "from joblib import load",
        "torch.load(file, weights_only = False)",
        "np.load(file, allow_pickle=True)",
        "pandas.read_pickle(file)",
        "yaml.load(text, Loader)",
        "yaml.unsafe_load(text)",
        "x = eval(text)",
        "exec(code)",
    ],
)
def test_the_search_finds_what_it_is_for(line: str) -> None:
    assert UNSAFE.search(f"a = 1\n{line}\n")
