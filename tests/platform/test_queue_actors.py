"""Where TransferQueue keeps its processes."""

from transfer_queue import interface

from verl_comprl.platform.ray_session import _QUEUE_GLOBALS, queue_actors


def test_transfer_queue_still_keeps_its_processes_where_they_are_looked_for() -> None:
    assert all(hasattr(interface, name) for name in _QUEUE_GLOBALS)


def test_its_controller_and_its_storage_have_names(monkeypatch) -> None:
    assert queue_actors() == {}
    controller, unit = object(), object()
    for name, value in zip(_QUEUE_GLOBALS, (controller, {"SimpleStorage": {"a": unit}}), strict=True):
        monkeypatch.setattr(interface, name, value)
    assert queue_actors() == {"TransferQueue": controller, "storage unit 0 of TransferQueue": unit}
