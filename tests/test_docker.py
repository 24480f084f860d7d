"""The GPU image: its constraints are verl's own pins and cover our extras. Nothing is built."""

import re
import subprocess
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "docker/constraints.txt").read_text().splitlines()
PINS = {
    canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in LINES if not line.startswith("#")
}


def asked(distribution: str, *extras: str) -> list[Requirement]:
    found = [Requirement(line) for line in requires(distribution) or []]
    environments = [{"extra": extra, "python_version": "3.12"} for extra in ("", *extras)]
    return [one for one in found if one.marker is None or any(one.marker.evaluate(each) for each in environments)]


def test_every_constraint_is_one_exact_version() -> None:
    assert len(PINS) == len([line for line in LINES if not line.startswith("#")]) > 200
    assert all(re.fullmatch(r"[0-9][0-9a-z.+]*", version) for version in PINS.values())


@pytest.mark.parametrize(
    ("distribution", "extras"),
    [("verl", ("verl-core", "vllm")), ("verl-comprl", ("gpu", "embed", "minihack", "webshop", "frozenlake"))],
)
def test_the_constraints_meet_what_is_asked_for(distribution: str, extras: tuple[str, ...]) -> None:
    wanted = [one for one in asked(distribution, *extras) if canonicalize_name(one.name) != "verl"]
    assert len(wanted) > 15
    for one in wanted:
        assert one.specifier.contains(PINS[canonicalize_name(one.name)], prereleases=True), one


def test_the_dockerfile_ends_with_the_doctor_and_uses_the_pins() -> None:
    text = (ROOT / "docker/Dockerfile").read_text()
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    steps = [line for line in lines if line and not line.startswith("#")]
    known = {"FROM", "SHELL", "ARG", "RUN", "ENV", "COPY", "WORKDIR"}
    assert {step.split()[0] for step in steps} <= known and steps[0].startswith("FROM nvidia/cuda:13.")
    assert steps[-1] == "RUN comprl doctor --without-device"
    assert f'verl[vllm]=={PINS[canonicalize_name("verl")]}"' in text
    (flash,) = (one for one in asked("verl-comprl", "flash-attn") if one.name == "flash-attn")
    assert str(flash).partition(";")[0].strip() in text
    for step in steps:
        if step.startswith("RUN "):
            subprocess.run(["bash", "-n", "-c", step[4:]], check=True)
