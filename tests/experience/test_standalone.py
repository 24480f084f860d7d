"""The bank without verl: the libraries it imports, and the example in its documentation."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

USE = """
import asyncio, sys
from fake_embedder import FakeEmbedder
from verl_comprl.experience import Add, BankConfig, ExperienceBank
async def main():
    bank = await ExperienceBank.open(BankConfig(path=sys.argv[1]), FakeEmbedder())
    call = dict(call_id="1", listed=[], task="t", environment="e", step=0, weight_version=0)
    await bank.apply([Add(title="a door", content="open it")], **call)
    print((await bank.retrieve("door")).status)
    await bank.close()
asyncio.run(main())
print([name for name in ("verl", "ray", "torch", "vllm", "openai", "qdrant_client", "pyarrow") if name in sys.modules])
"""


def run(*command: str, folder: Path) -> str:
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_neither_a_trainer_nor_a_model_library_is_loaded(tmp_path: Path) -> None:
    assert run("-c", USE, str(tmp_path / "bank"), folder=tmp_path) == "found\n[]\n"


@pytest.mark.slow
def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/experience_bank.md").read_text(), re.S)
    body = textwrap.indent(f"{example}\nprint(found.status, report.added)\n", "    ")
    (tmp_path / "example.py").write_text(f"import asyncio\nasync def main():\n{body}\nasyncio.run(main())\n")
    assert run("example.py", folder=tmp_path).endswith("found 1\n")
