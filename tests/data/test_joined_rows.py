"""Joined rows: one stream of documents, every token a target once."""

import numpy as np
import pytest

from data.documents import ArrayDocuments, EndedDocuments
from data.rows import JoinedRows

EOS = 9999


def documents_of(lengths: list[int]) -> EndedDocuments:
    stops = np.cumsum(lengths)
    arrays = [np.arange(stop - n, stop) for n, stop in zip(lengths, stops, strict=True)]
    names = [f"doc{i}" for i in range(len(lengths))]
    return EndedDocuments(ArrayDocuments(arrays, names, "", 10**6), EOS)


def test_rows_by_hand() -> None:
    documents = ArrayDocuments([np.array([1, 2, 3]), np.array([4, 5, 6])], ["a", "b"], "", 10)
    rows = JoinedRows(EndedDocuments(documents, 9), seq_len=5)
    assert rows.num_rows == 2
    first, second = rows.row(0), rows.row(1)
    assert first["tokens"].tolist() == [1, 2, 3, 9, 4]
    assert first["targets"].tolist() == [2, 3, 9, 4, 5]
    assert first["weights"].tolist() == [1, 1, 1, 1, 1]
    assert first["segment_ids"].tolist() == [1, 1, 1, 1, 1]
    assert second["tokens"].tolist() == [5, 6, 0, 0, 0]
    assert second["targets"].tolist() == [6, 9, 0, 0, 0]
    assert second["weights"].tolist() == [1, 1, 0, 0, 0]
    assert second["segment_ids"].tolist() == [1, 1, 0, 0, 0]
    assert first["positions"].tolist() == second["positions"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seq_len", [1, 2, 7, 8, 64])
@pytest.mark.parametrize("lengths", [[1], [7], [8], [3, 1, 1, 20], [400]], ids=str)
def test_first_token_and_targets_spell_the_corpus(lengths: list[int], seq_len: int) -> None:
    rows = JoinedRows(documents_of(lengths), seq_len)
    corpus: list[int] = []
    for stop, length in zip(np.cumsum(lengths).tolist(), lengths, strict=True):
        corpus += [*range(stop - length, stop), EOS]
    made = [rows.row(i) for i in range(rows.num_rows)]
    inputs = np.concatenate([row["tokens"][row["segment_ids"] > 0] for row in made])
    targets = np.concatenate([row["targets"][row["weights"] > 0] for row in made])
    assert inputs.tolist() == corpus[:-1]
    assert targets.tolist() == corpus[1:]
    assert rows.num_rows == -(-(len(corpus) - 1) // seq_len)
