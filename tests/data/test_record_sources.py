"""JSON Lines, and what all sources of records refuse."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.schema import DataConfig
from data import DataError, Dataset, open_data

EOS = 256


def write_lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_json_lines_by_hand(
    open_records: Callable[..., Dataset], documents_in: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    lines = b'\xef\xbb\xbf{"text": "one", "x": 1}\r\n\n{"text": "t\\u00e9\\n"}\n  {"text": "3"}'
    (tmp_path / "a.jsonl").write_bytes(lines)
    dataset = open_records("jsonl", tmp_path / "a.jsonl")
    assert documents_in(dataset) == [b"one", "té\n".encode(), b"3"]
    assert dataset.stats.documents == 3


def test_folders_patterns_and_gzip(
    open_records: Callable[..., Dataset], documents_in: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    write_lines(tmp_path / "x" / "b.jsonl", {"body": "b"})
    write_lines(tmp_path / "x" / "deep" / "c.json", {"body": "c"})
    with gzip.open(tmp_path / "x" / "a.jsonl.gz", "wt") as file:
        file.write('{"body": "a"}\n')
    (tmp_path / "x" / "README.md").write_text("no JSON")
    for path, expected in [
        (tmp_path / "x", [b"a", b"b", b"c"]),
        (tmp_path / "x" / "*.jsonl", [b"b"]),
        (tmp_path / "**" / "*.json*", [b"a", b"b", b"c"]),
    ]:
        assert documents_in(open_records("jsonl", path, text_field="body")) == expected


def test_empty_texts_are_left_out_and_counted(
    open_records: Callable[..., Dataset], documents_in: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    texts = ["", "a", " \n", None, "\u3000", "b"]
    path = write_lines(tmp_path / "a.jsonl", *({"text": text} for text in texts))
    dataset = open_records("jsonl", path)
    assert documents_in(dataset) == [b"a", b"b"]
    assert dataset.stats.empty_documents == 4


def test_bytes_that_are_not_utf8_and_lone_surrogates_are_replaced(
    open_records: Callable[..., Dataset], documents_in: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "caf\xe9 \\ud800."}\n')
    dataset = open_records("jsonl", tmp_path / "a.jsonl")
    assert documents_in(dataset) == [b"fine", "caf\ufffd \ufffd.".encode()]
    assert (dataset.stats.invalid_bytes, dataset.stats.first_invalid) == (1, "a.jsonl:2")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "x"', r"a\.jsonl:2: not JSON: .*column"),
        (b'["x"]', r"a\.jsonl:2: a JSON object is needed on every line, this is a list"),
        (
            b'{"txt": "x", "y": 1}',
            r"a\.jsonl:2: there is no field 'text' .*; the fields are txt, y",
        ),
        (b"{}", r"a\.jsonl:2: there is no field 'text' .*; the fields are none"),
        (b'{"text": ["x"]}', r"a\.jsonl:2: the field 'text' .* holds a list, not text"),
        (b'{"text": 3}', r"a\.jsonl:2: the field 'text' .* holds a number, not text"),
        (b"[" * 100_000, r"a\.jsonl:2: (not JSON|JSON that is nested)"),
    ],
)
def test_malformed_lines_are_refused_with_their_number(
    open_records: Callable[..., Dataset], tmp_path: Path, line: bytes, reason: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x"}\n' + line + b"\n")
    with pytest.raises(DataError, match=rf"data\.path=.*a\.jsonl: {reason}"):
        open_records("jsonl", tmp_path / "a.jsonl")


def test_a_list_around_the_records_is_explained(
    open_records: Callable[..., Dataset], tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text('[\n {"text": "x"}\n]\n')
    with pytest.raises(DataError, match=r"a\.json:1: not JSON.*one whole object a line"):
        open_records("jsonl", tmp_path / "a.json")


def test_files_that_cannot_be_read_are_refused(
    open_records: Callable[..., Dataset], tmp_path: Path
) -> None:
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 999)[:-20])
    (tmp_path / "no.jsonl.gz").write_bytes(b"plain text")
    (tmp_path / "no.parquet").write_bytes(b"plain text")
    (tmp_path / "no.arrayrecord").write_bytes(b"plain text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.md").write_text("x")
    for source, name, reason in [
        ("jsonl", "cut.jsonl.gz", "cannot read .*cut"),
        ("jsonl", "no.jsonl.gz", "cannot read .*[Nn]ot a gzipped file"),
        ("jsonl", "nowhere.jsonl", "no such file or folder"),
        ("jsonl", "*.nothing", "the pattern matches no file"),
        ("jsonl", "empty", "the folder has no files"),
        (
            "jsonl",
            "other",
            r"none of the 1 files .* ends with \.jsonl .*; one of them is notes\.md",
        ),
        ("parquet", "no.parquet", "cannot read .*no.parquet"),
        ("arrayrecord", "no.arrayrecord", "cannot read .*no.arrayrecord"),
        ("huggingface", "nowhere", "no such folder; .*data.hub_name"),
        ("huggingface", "other", "is no folder that save_to_disk wrote"),
    ]:
        with pytest.raises(DataError, match=rf"(?s)data\.path=.*: .*{reason}"):
            open_records(source, tmp_path / name)


def test_records_without_any_text_are_refused(
    open_records: Callable[..., Dataset], tmp_path: Path
) -> None:
    (tmp_path / "none.jsonl").touch()
    blank = write_lines(tmp_path / "blank.jsonl", {"text": " "}, {"text": ""})
    for path in (tmp_path / "none.jsonl", blank):
        with pytest.raises(DataError, match=r"data\.path=.*: 0 tokens: every document is empty"):
            open_records("jsonl", path)


def test_a_line_added_moves_no_other_between_the_splits(
    data_config: Callable[..., DataConfig], tmp_path: Path
) -> None:
    held_out = []
    for count in (40, 41):
        records = ({"text": chr(0x21 + i)} for i in range(count))
        path = write_lines(tmp_path / "a.jsonl", *records)
        config = data_config(source="jsonl", path=str(path), eval_fraction=0.2, seq_len=64)
        batch = open_data(config, "eval", 257).batch(0)
        held_out.append(set(batch["tokens"][0].tolist()) - {0, EOS})
    assert len(held_out[0]) == 8
    assert held_out[1] - held_out[0] <= {0x21 + 40}
