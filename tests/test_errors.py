"""An exception gets the boundary at which it was raised."""

import asyncio

import pytest

from verl_comprl.errors import Boundary, LibraryPanic, RolloutError, failing_at, panics_as_errors


@pytest.mark.parametrize("boundary", Boundary)
def test_what_a_block_raises_gets_its_boundary(boundary: Boundary) -> None:
    with pytest.raises(RolloutError) as caught, failing_at(boundary):
        raise KeyError("door")
    assert caught.value.boundary == boundary
    assert isinstance(caught.value.__cause__, KeyError)
    assert str(caught.value) == f"{boundary.value}: KeyError('door')"


def test_the_innermost_boundary_counts() -> None:
    outer, inner = failing_at(Boundary.ENVIRONMENT), failing_at(Boundary.SERVER)
    with pytest.raises(RolloutError) as caught, outer, failing_at(Boundary.ROLLOUT), inner:
        raise ConnectionError
    assert caught.value.boundary == Boundary.SERVER
    assert isinstance(caught.value.__cause__, ConnectionError)


async def test_a_time_limit_around_a_boundary_is_no_failure_of_it() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            with failing_at(Boundary.SERVER):
                await asyncio.sleep(5)


class Panic(BaseException):
    """As pyo3's ``PanicException``, which cannot be made in Python."""


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit, KeyError])
def test_orders_to_stop_and_exceptions_pass_as_they_are(error: type[BaseException]) -> None:
    with pytest.raises(error), panics_as_errors():
        raise error


def test_an_order_to_stop_in_a_group_stops() -> None:
    group = BaseExceptionGroup("tasks", [KeyboardInterrupt(), ValueError()])
    with pytest.raises(BaseExceptionGroup) as caught, panics_as_errors():
        raise group
    assert caught.value is group


def test_a_panic_becomes_an_error_that_says_what_it_was() -> None:
    with pytest.raises(RolloutError) as caught, failing_at(Boundary.SERVER):
        raise Panic("Onig: retry-limit-in-match over")
    cause = caught.value.__cause__
    assert isinstance(cause, LibraryPanic) and str(cause) == "Panic: Onig: retry-limit-in-match over"
    assert isinstance(cause.__cause__, Panic)
