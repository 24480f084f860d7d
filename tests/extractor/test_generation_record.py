"""Records of the extractor's calls, in memory and on disk."""

import sys
from array import array
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from verl_comprl.extractor.generation_record import CallKind, GenerationRecord, read_records, write_records

_TOKENS = st.integers(0, 2**31 - 1)
_LOG_PROBS = st.floats(max_value=0, width=32, allow_nan=False)
_RECORDS = st.builds(
    lambda response, **fields: GenerationRecord(
        response_ids=[token for token, _ in response], response_log_probs=[value for _, value in response], **fields
    ),
    response=st.lists(st.tuples(_TOKENS, _LOG_PROBS), max_size=5),
    id=st.text(max_size=5),
    kind=st.sampled_from(CallKind),
    prompt_ids=st.lists(_TOKENS, max_size=5),
    weight_version=st.integers(0, 2**40),
    created_step=st.integers(0, 2**40),
    format_failure=st.booleans(),
    train_count=st.integers(0, 9),
    last_trained=st.none() | st.integers(0, 2**40),
)


@settings(max_examples=50)
@given(records=st.lists(_RECORDS, max_size=4), copies=st.sampled_from([1, 700]))
def test_records_round_trip_through_a_file(tmp_path_factory: pytest.TempPathFactory, records, copies: int) -> None:
    path = tmp_path_factory.mktemp("records") / "records.parquet"
    records = [replace(record, created_step=copy) for copy in range(copies) for record in records]
    write_records(path, records)
    found = list(read_records(path))
    assert found == records and all(type(record.kind) is CallKind for record in found)
    assert all(isinstance(record.response_log_probs, array) for record in found)


def test_tokens_take_four_bytes_each() -> None:
    record = GenerationRecord("a", CallKind.DISTILL, range(10_000), range(10_000), [-0.1] * 10_000, weight_version=0)
    sizes = [sys.getsizeof(values) for values in (record.prompt_ids, record.response_ids, record.response_log_probs)]
    assert sum(sizes) < 3 * 4 * 10_000 * 1.1
    assert list(record.prompt_ids) == list(range(10_000)) and record.response_log_probs[0] == np.float32(-0.1)
    assert replace(record, train_count=1).prompt_ids is record.prompt_ids


def test_a_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.parquet"
    pq.write_table(pa.table({"id": ["a"], "prompt_ids": [[1]]}), path)
    with pytest.raises(ValueError, match=r"records\.parquet does not hold generation records"):
        list(read_records(path))


def test_every_token_needs_its_log_prob() -> None:
    with pytest.raises(ValueError, match="extractor call a has 2 sampled tokens, but 1 log-probs"):
        GenerationRecord("a", CallKind.ANSWER, [1], [2, 3], [-0.5], weight_version=0)
