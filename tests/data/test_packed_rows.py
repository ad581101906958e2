"""Packed rows: nothing lost, nothing doubled, nothing scored across a document's border."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from data.documents import ArrayDocuments, EndedDocuments
from data.packing import plan_packing
from data.rows import PackedRows

EOS = 9999


def documents_of(lengths: list[int]) -> EndedDocuments:
    """Documents whose token ids are all different, 0, 1, 2, ... through all of them, and EOS."""
    stops = np.cumsum(lengths)
    arrays = [np.arange(stop - n, stop) for n, stop in zip(lengths, stops, strict=True)]
    names = [f"doc{i}" for i in range(len(lengths))]
    return EndedDocuments(ArrayDocuments(arrays, names, "", 10**6), EOS)


def test_two_documents_in_one_row_by_hand() -> None:
    documents = ArrayDocuments([np.array([1, 2, 3]), np.array([4, 5, 6])], ["a", "b"], "", 10)
    rows = PackedRows(EndedDocuments(documents, 9), seq_len=10)
    assert rows.num_rows == 1
    row = rows.row(0)
    # Within the documents 2 + 2 targets, and each document's EOS: 4 + 2 scored tokens.
    assert row["tokens"].tolist() == [1, 2, 3, 9, 4, 5, 6, 9, 0, 0]
    assert row["targets"].tolist() == [2, 3, 9, 0, 5, 6, 9, 0, 0, 0]
    assert row["weights"].tolist() == [1, 1, 1, 0, 1, 1, 1, 0, 0, 0]
    assert row["positions"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 0]
    assert row["segment_ids"].tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 0, 0]
    assert row["weights"][row["targets"] != 9].sum() == 4


def test_long_document_is_cut_by_hand() -> None:
    documents = ArrayDocuments([np.array([1, 2, 3, 4, 5, 6])], ["a"], "", 10)
    rows = PackedRows(EndedDocuments(documents, 9), seq_len=4)
    first, second = rows.row(0), rows.row(1)
    assert rows.num_rows == 2
    assert first["tokens"].tolist() == [1, 2, 3, 4]
    assert first["targets"].tolist() == [2, 3, 4, 5]  # 5 is in the next row, and scored here
    assert first["weights"].tolist() == [1, 1, 1, 1]
    assert second["tokens"].tolist() == [5, 6, 9, 0]
    assert second["targets"].tolist() == [6, 9, 0, 0]
    assert second["weights"].tolist() == [1, 1, 0, 0]
    assert second["positions"].tolist() == [0, 1, 2, 0]
    assert second["segment_ids"].tolist() == [1, 1, 1, 0]


LENGTHS = [
    [3, 3],
    [1],
    [8],
    [7],
    [16, 15, 17],
    [400],
    [1] * 30,
    np.random.default_rng(0).integers(1, 40, 200).tolist(),
]


@pytest.mark.parametrize("seq_len", [1, 2, 8, 33])
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)}docs")
def test_every_token_stands_once_and_is_scored_once(lengths: list[int], seq_len: int) -> None:
    rows = PackedRows(documents_of(lengths), seq_len)
    inputs: Counter[int] = Counter()
    scored: Counter[int] = Counter()
    for i in range(rows.num_rows):
        row = rows.row(i)
        inputs.update(row["tokens"][row["segment_ids"] > 0].tolist())
        scored.update(row["targets"][row["weights"] > 0].tolist())
        assert set(row["weights"].tolist()) <= {0.0, 1.0}
    corpus = Counter(range(sum(lengths)))
    corpus[EOS] = len(lengths)
    assert inputs == corpus
    # All but the first token of each document have a token before them.
    for start in np.cumsum(lengths) - lengths:
        del corpus[int(start)]
    assert scored == corpus


@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda lengths: f"{len(lengths)}docs")
def test_segments_count_up_and_positions_restart(lengths: list[int]) -> None:
    rows = PackedRows(documents_of(lengths), seq_len=16)
    for i in range(rows.num_rows):
        row = rows.row(i)
        segments = row["segment_ids"]
        used = int((segments > 0).sum())
        assert (segments[used:] == 0).all(), "padding stands at the end only"
        starts = np.flatnonzero(np.diff(segments[:used], prepend=0))
        assert segments[starts].tolist() == list(range(1, len(starts) + 1))
        for start, stop in zip(starts, [*starts[1:], used], strict=True):
            assert row["positions"][start:stop].tolist() == list(range(stop - start))
        assert not row["positions"][used:].any()
        assert not row["weights"][used:].any()


def test_targets_follow_their_tokens_within_the_document() -> None:
    lengths = [5, 30, 2, 9]
    rows = PackedRows(documents_of(lengths), seq_len=8)
    last_tokens = set((np.cumsum(lengths) - 1).tolist())
    for i in range(rows.num_rows):
        row = rows.row(i)
        for token, target, weight in zip(
            row["tokens"].tolist(), row["targets"].tolist(), row["weights"].tolist(), strict=True
        ):
            if weight:
                assert target == (EOS if token in last_tokens else token + 1)


def test_documents_in_the_other_order_are_scored_alike() -> None:
    arrays = [np.array([1, 2, 3]), np.array([4, 5, 6])]
    totals = []
    for order in (arrays, arrays[::-1]):
        documents = EndedDocuments(ArrayDocuments(order, ["a", "b"], "", 10), 9)
        row = PackedRows(documents, 8).row(0)
        pairs = zip(row["tokens"].tolist(), row["targets"].tolist(), row["weights"], strict=True)
        totals.append(sorted((x, y) for x, y, w in pairs if w))
    assert totals[0] == totals[1] == [(1, 2), (2, 3), (3, 9), (4, 5), (5, 6), (6, 9)]


def test_best_fit_by_hand() -> None:
    # The docstring's case, remainders 3 2 2 1 in rows of 4: 3+1, 2+2.
    plan = plan_packing(np.array([6, 3, 2, 1]), seq_len=4)
    assert plan.first_piece.tolist() == [0, 1, 3, 5]
    assert plan.documents.tolist() == [0, 1, 3, 0, 2]
    assert plan.starts.tolist() == [0, 0, 0, 4, 0]
    assert plan.sizes.tolist() == [4, 3, 1, 2, 2]


def test_best_fit_takes_the_fullest_row_with_room() -> None:
    # 7 and 5 open rows with room 3 and 5 of 10; 3 fits both and goes to the fuller.
    plan = plan_packing(np.array([7, 5, 5, 3]), seq_len=10)
    by_row = [plan.documents[first:stop].tolist() for first, stop in pairwise(plan.first_piece)]
    assert by_row == [[0, 3], [1, 2]]


def test_packing_a_hundred_thousand_documents_leaves_little_padding() -> None:
    lengths = np.random.default_rng(1).integers(1, 600, 100_000)
    plan = plan_packing(lengths, seq_len=512)
    assert plan.sizes.sum() == lengths.sum()
    assert plan.num_rows <= 1.01 * lengths.sum() / 512
