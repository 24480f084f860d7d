"""The end of a run: bank and metrics backends, also those that fail or hang."""

import io
import os
import re
import signal
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from verl_comprl import training
from verl_comprl.display import terminal_file
from verl_comprl.display.announcer import settle
from verl_comprl.display.terminal import Display
from verl_comprl.errors import WaitTimeout
from verl_comprl.platform.under_way import under_way


@pytest.mark.parametrize("broken", ["close", "finish"])
def test_bank_and_metrics_are_both_ended_though_one_of_them_fails(monkeypatch, broken):
    def end(name):
        events.append(name)
        if name == broken:
            raise OSError(name)

    @contextmanager
    def phase(*_):
        yield

    events, begun = [], []
    logger = SimpleNamespace(finish=lambda exit_code: end("finish"))
    trainer = SimpleNamespace(init=dict, fit=lambda _: None, close=lambda: end("close"), logger=logger)
    trainer.total_training_steps = 40
    run = object.__new__(training.Training)
    run._given = run.config = OmegaConf.create({"trainer": {"val_only": True}})
    run.trainer, run.agent_loops = trainer, object()
    with pytest.raises(OSError, match=broken):
        run.run(SimpleNamespace(phase=phase, announce=print), guided_fraction=None, on_start=begun.append)
    assert events == ["close", "finish"] and begun == [40]


def ending_run(finish):
    """A run that has ended in order, whose metrics backends end with ``finish``."""
    logger = SimpleNamespace(finish=finish)
    trainer = SimpleNamespace(init=dict, fit=lambda _: None, close=dict, logger=logger, total_training_steps=1)
    run = object.__new__(training.Training)
    run._given = run.config = OmegaConf.create({"trainer": {"val_only": True, "logger": ["console", "wandb"]}})
    run.trainer, run.agent_loops = trainer, object()
    said = []
    display = SimpleNamespace(phase=lambda *_: nullcontext(), announce=said.append)
    return partial(run.run, display, guided_fraction=None, on_start=lambda steps: None), said


@pytest.mark.timeout(60)
@pytest.mark.parametrize("catches", [False, True])
def test_metrics_backends_that_hang_do_not_keep_a_run_from_ending(monkeypatch, catches):
    """Also where a library catches what interrupts it."""
    waits, codes = [], []

    def finish(exit_code):
        codes.append(exit_code)
        with suppress(WaitTimeout) if catches else nullcontext():
            threading.Event().wait()
        waits.extend(under_way())
        threading.Event().wait()

    monkeypatch.setattr(training, "TRACKING_SECONDS", 0.1)
    monkeypatch.setattr("verl_comprl.platform.waiting._AGAIN", 0.1)
    run, said = ending_run(finish)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run()
    assert codes == [0] and len(said) == 1
    assert re.fullmatch(r"waited \S+ s for the metrics backends to finish; the run ends without .*wandb.*", said[0])
    if catches:
        assert [(wait.what, wait.stalled) for wait in waits] == [("waiting for the metrics backends to finish", None)]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_metrics_backends_at_once(number):
    def finish(exit_code):
        signal.raise_signal(number)
        threading.Event().wait()

    run, said = ending_run(finish)
    run()
    assert len(said) == 1 and "the run ends without them" in said[0]


class SlowTerminal(io.StringIO):
    """Takes a while for a text, in which a signal comes."""

    signals = 0

    def isatty(self):
        return True

    def write(self, text):
        if self.signals:
            self.signals -= 1
            time.sleep(1.2)  # the live view is shown again meanwhile, twice a second
            os.kill(os.getpid(), signal.SIGTERM)
        return super().write(text)


@pytest.mark.timeout(60)
def test_a_signal_that_comes_while_a_line_is_printed_stops_the_run(monkeypatch):
    """The main thread then has the lock that the live view waits for, which has the one that a line takes."""
    monkeypatch.setenv("TERM", "xterm")
    asked, terminal = [], SlowTerminal()
    display = Display(Console(file=terminal, force_terminal=True, width=120))
    display.activity("step 1")
    with training._stop_on_signal(SimpleNamespace(request_stop=lambda: asked.append(1)), display):
        terminal.signals = 1
        display.note("a line of a step")
    settle()
    display.close()
    assert asked == [1] and "stopping as soon as there is a checkpoint" in terminal.getvalue()


@pytest.mark.timeout(60)
def test_a_signal_stops_a_run_whose_terminal_takes_no_more(monkeypatch, full_pipe):
    monkeypatch.setattr(terminal_file, "PATIENCE", 0.2)
    asked = []
    with monkeypatch.context() as redirected:
        redirected.setattr("sys.stdout", full_pipe[1])
        display = Display()
    with training._stop_on_signal(SimpleNamespace(request_stop=lambda: asked.append(1)), display):
        signal.raise_signal(signal.SIGTERM)
        display.note("a line of a step")
    assert asked == [1]


def test_a_closed_terminal_stops_a_run_once_and_not_at_all_under_nohup():
    """Its shell and the kernel send a signal each; the second must not cost the checkpoint."""
    asked = []
    trainer = SimpleNamespace(request_stop=lambda: asked.append(1))
    display = SimpleNamespace(announce=lambda text: None)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with training._stop_on_signal(trainer, display):
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
        assert asked == [1] and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with training._stop_on_signal(trainer, display):
            signal.raise_signal(signal.SIGHUP)
        assert asked == [1]
    finally:
        signal.signal(signal.SIGHUP, before)
