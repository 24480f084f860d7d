"""Announcements are printed later, in order; who announces never waits."""

import threading
import time

from verl_comprl.display.announcer import announce, settle, start_announcer


def test_who_announces_does_not_wait_for_what_prints() -> None:
    start_announcer()
    gate, told = threading.Event(), list[str]()

    def tell(text: str) -> None:
        assert gate.wait(60)
        told.append(text)

    for text in ("one", "two"):
        announce(tell, text)
    began = time.monotonic()
    settle(0.1)
    assert told == [] and time.monotonic() - began < 30
    gate.set()
    settle(60)
    assert told == ["one", "two"]


def test_what_cannot_be_printed_is_lost_and_the_next_is_not() -> None:
    start_announcer()
    told = list[str]()

    def tell(text: str) -> None:
        if text == "one":
            raise BrokenPipeError
        told.append(text)

    for text in ("one", "two"):
        announce(tell, text)
    settle(60)
    assert told == ["two"]


def test_there_is_one_announcer() -> None:
    start_announcer()
    start_announcer()
    assert sum(thread.name == "announcements" for thread in threading.enumerate()) == 1
