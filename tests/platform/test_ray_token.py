"""Permissions of Ray's token, in a home directory of its own."""

import os
import stat
from pathlib import Path

import pytest

from verl_comprl.platform.ray_token import protect_token, token_is_disabled


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Ray has its token."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".ray" / "auth_token"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_that_others_can_read_is_taken_from_them(token: Path) -> None:
    token.parent.mkdir(mode=0o755)
    token.touch()
    token.chmod(0o644)
    protect_token()
    assert (mode(token.parent), mode(token)) == (0o700, 0o600)


def test_the_folder_of_a_token_that_ray_will_make_is_closed_before(token: Path) -> None:
    before = os.umask(0)
    try:
        protect_token()
    finally:
        os.umask(before)
    assert mode(token.parent) == 0o700 and not token.exists()


def test_what_belongs_to_another_user_is_left_alone(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token.parent.mkdir()
    token.touch()
    token.chmod(0o444)
    monkeypatch.setattr("os.getuid", lambda: os.stat(token).st_uid + 1)
    protect_token()
    assert mode(token) == 0o444


def test_a_home_that_does_not_exist_is_no_error(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(token / "nowhere"))
    protect_token()
    assert not token.exists()


@pytest.mark.parametrize(
    ("value", "disabled"), [("disabled", True), ("DISABLED", True), ("token", False), (None, False)]
)
def test_ray_asks_for_the_token_unless_told_not_to(
    value: str | None, disabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", value) if value else monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert token_is_disabled() == disabled
