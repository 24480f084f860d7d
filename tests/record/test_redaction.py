"""Secrets of the environment in texts and records."""

import json
import os
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import pytest

from verl_comprl.record import redaction
from verl_comprl.record.lines import encode
from verl_comprl.record.redaction import redact_also, redactor, text_redactor

KEY = '-----BEGIN KEY-----\n  "MIIEvQIBADAN"\n-----END KEY-----'


def redacted(environment: dict[str, str], record: Any) -> Any:
    return json.loads(redactor(environment)(encode(record)))


def test_secrets_do_not_reach_plain_text() -> None:
    environment = {
        "HF_TOKEN": 'sk-"0123456789',
        "OTHER_KEY": 'sk-"0123456789-more',
        "SSH_KEY": "short",
        "DB_PASS": "hunter2hunter2",
        "CLOUD_CREDENTIALS": "id:0123456789",
        "BYPASS_PROXY": "no_proxy_at_all",
        "HOME": "/home/me",
    }
    text = 'sk-"0123456789-more and sk-"0123456789, short, /home/me, hunter2hunter2 id:0123456789 no_proxy_at_all'
    assert text_redactor(environment)(text) == "*** and ***, short, /home/me, *** *** no_proxy_at_all"


def test_a_secret_that_is_set_or_changed_later_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    record = encode({"text": "first-0123 second-0123"})
    monkeypatch.delenv("LATER_KEY", raising=False)
    assert redactor()(record) == record and text_redactor()("first-0123") == "first-0123"
    monkeypatch.setenv("LATER_KEY", "first-0123")
    assert redactor()(record) == encode({"text": "*** second-0123"}) and text_redactor()("first-0123") == "***"
    monkeypatch.setenv("LATER_KEY", "second-0123")
    assert redactor()(record) == encode({"text": "*** ***"}) and text_redactor()("second-0123") == "***"
    monkeypatch.delenv("LATER_KEY")  # an episode that has seen it may be recorded later
    assert redactor()(record) == encode({"text": "*** ***"}) and text_redactor()("first-0123") == "***"


def test_no_more_secrets_are_remembered_than_some_and_those_of_now_always_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(redaction.MOST_SECRETS + 10):
        monkeypatch.setenv("SESSION_KEY", f"session-{number:05}")
        text_redactor()
    last = redaction.MOST_SECRETS + 9
    text = text_redactor()(" ".join(f"session-{number:05}" for number in range(last + 1)))
    assert text.endswith("***") and 1 < text.count("***") <= redaction.MOST_SECRETS
    now = [f"now-{number:05}" for number in range(redaction.MOST_SECRETS + 10)]
    for number, secret in enumerate(now):
        monkeypatch.setenv(f"KEY_{number}", secret)
    assert set(text_redactor()(" ".join(now)).split()) == {"***"}


def test_a_variable_that_is_removed_meanwhile_is_left_out() -> None:
    class Removing(UserDict[str, str]):
        """A thread removes the first variable while the names are read."""

        def __iter__(self) -> Iterator[str]:
            names = [*self.data]
            self.data.pop("FIRST_KEY", None)
            return iter(names)

    variables = {"FIRST_KEY": "firstsecret", "SECOND_KEY": "secondsecret"}
    assert text_redactor(Removing(variables))("firstsecret secondsecret") == "firstsecret ***"
    assert redactor(Removing(variables))(b'"secondsecret"') == b'"***"'


@pytest.mark.parametrize("name", ["BASIC_AUTH", "DB_PASS", "PROXY_AUTH", "TOKENS", "TOKENIZER_KEY", "PATH_TOKEN"])
def test_names_of_other_habits_are_secret_too(name: str) -> None:
    assert text_redactor({name: "sk-0123456789"})("sk-0123456789") == "***"


PLACES = ["TOKENIZER_PATH", "TOKENIZER", "HF_TOKENIZERS", "SSH_KEY_PATH", "AWS_WEB_IDENTITY_TOKEN_FILE", "secret_dir"]


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "PATH", "RAY_AUTH_MODE", "SSH_AUTH_SOCK", "DATABASE_URL", *PLACES])
def test_other_names_are_not(name: str) -> None:
    assert text_redactor({name: "/home/somebody"})("/home/somebody") == "/home/somebody"


def test_a_variable_can_name_others_as_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRL_REDACT", "DATABASE_URL,KEY_FILE")
    monkeypatch.setenv("KEY_FILE", "the key itself")
    assert text_redactor()("the key itself") == "***"
    redact_also("LLM_ACCESS")
    redact_also("OPENAI_API_KEY")
    redact_also("")
    assert os.environ["COMPRL_REDACT"] == "DATABASE_URL,KEY_FILE,LLM_ACCESS"
    monkeypatch.setenv("DATABASE_URL", "db://somewhere")
    monkeypatch.setenv("LLM_ACCESS", "sk-0123456789")
    text = "db://somewhere with sk-0123456789, named in DATABASE_URL,LLM_ACCESS"
    assert text_redactor()(text) == "*** with ***, named in DATABASE_URL,LLM_ACCESS"


def test_secrets_of_several_lines_are_found_line_by_line_and_in_json_and_repr() -> None:
    redact = text_redactor({"DEPLOY_KEY": KEY})
    printed = [*KEY.split("\n"), json.dumps({"error": KEY}), repr(KEY), f"{KEY!r}"[5:-5], "a line of the run"]
    cleaned = [redact(line) for line in printed]
    assert cleaned[-1] == "a line of the run"
    assert not [line for line in cleaned if "MIIEvQ" in line]


def test_a_secret_is_found_however_json_writes_it() -> None:
    environment = {"DB_PASSWORD": "pässwörd/größe", "OTHER_KEY": "abc/def+ghi==/jkl"}
    shown = [json.dumps(value, ensure_ascii=ascii) for value in environment.values() for ascii in (True, False)]
    shown += [text.replace("/", "\\/") for text in shown]
    assert {text_redactor(environment)(text) for text in shown} == {'"***"'}
    assert redacted(environment, shown) == ['"***"'] * 8


def test_secrets_of_the_environment_do_not_reach_a_line() -> None:
    quoted = 'pa"ss\nwörd\\'
    environment = {
        "OPENAI_API_KEY": "sk-0123456789",
        "HF_TOKEN": "sk-0123456789-and-more",
        "DB_PASSWORD": quoted,
        "SSH_KEY": "short",
        "HOME": "/home/somebody",
    }
    record = {"text": f"key sk-0123456789, sk-0123456789-and-more; {quoted}; short; /home/somebody"}
    assert redacted(environment, record) == {"text": "key ***, ***; ***; short; /home/somebody"}


@pytest.mark.parametrize("shown", ["sk-0123456789", "sk-0123456789\n", "export API_KEY=sk-0123456789; run"])
def test_a_secret_that_ends_in_a_line_break_is_found_without_it(shown: str) -> None:
    environment = {"API_KEY": "sk-0123456789\n"}
    assert "0123456789" not in text_redactor(environment)(shown) + redacted(environment, {"text": shown})["text"]


def test_a_line_of_a_secret_of_several_is_found_in_a_record() -> None:
    turns = [{"observation": line} for line in [*KEY.split("\n"), repr(KEY), json.dumps(KEY), "a line of the run"]]
    kept = redacted({"DEPLOY_KEY": KEY}, {"turns": turns})["turns"]
    assert "MIIEvQ" not in json.dumps(kept) and kept[-1] == turns[-1]


@pytest.mark.parametrize(
    ("secret", "text", "kept"),
    [
        ("response", "a response of 12345678", "a *** of 12345678"),  # also the name of a field
        ("12345678", "a response of 12345678", "a response of ***"),  # also the digits of a number
        ("nsecret01", "\nsecret01", "\nsecret01"),  # its first letter is a part of an escape in the line
        ("secret01\\", 'secret01"secret01\\', 'secret01"***'),
        ("pass\ud800word", "a pass\ud800word", "a ***"),
    ],
)
def test_a_secret_that_looks_like_a_part_of_a_line_leaves_it_a_record(secret: str, text: str, kept: str) -> None:
    record = {"response": [text, {"step": 1012345678, "score": 0.12345678}], "none": None}
    expected = {"response": [kept, {"step": 1012345678, "score": 0.12345678}], "none": None}
    assert redacted({"SOME_KEY": secret}, record) == expected
