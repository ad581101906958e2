"""JSON Lines, Parquet, ArrayRecord and saved data sets: the text of a field is a document."""

import gzip
import json
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from configs.schema import DataConfig
from data import DataError, Dataset, open_data
from data.tf_example import parse_example

EOS = 256


@pytest.fixture
def open_records(data_config: Callable[..., DataConfig]) -> Callable[..., Dataset]:
    """Opens a source over bytes, joined, in one row of 64 tokens."""

    def make(source: str, path: Path, **fields: Any) -> Dataset:
        settings = {"seq_len": 64, "pack": False, "batch": 1} | fields
        return open_data(data_config(source=source, path=str(path), **settings), "train", 257)

    return make


def documents(dataset: Dataset) -> list[bytes]:
    """The documents of a data set of one row."""
    batch = dataset.batch(0)
    size = int(batch["weights"].sum())
    stream = [int(batch["tokens"][0, 0]), *batch["targets"][0, :size].tolist()]
    assert stream.pop() == EOS
    return bytes(255 if token == EOS else token for token in stream).split(b"\xff")


def write_lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_json_lines_by_hand(open_records: Callable[..., Dataset], tmp_path: Path) -> None:
    lines = b'\xef\xbb\xbf{"text": "one", "x": 1}\r\n\n{"text": "t\\u00e9\\n"}\n  {"text": "3"}'
    (tmp_path / "a.jsonl").write_bytes(lines)
    dataset = open_records("jsonl", tmp_path / "a.jsonl")
    assert documents(dataset) == [b"one", "té\n".encode(), b"3"]
    assert dataset.stats.documents == 3


def test_folders_patterns_and_gzip(open_records: Callable[..., Dataset], tmp_path: Path) -> None:
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
        assert documents(open_records("jsonl", path, text_field="body")) == expected


def test_empty_texts_are_left_out_and_counted(
    open_records: Callable[..., Dataset], tmp_path: Path
) -> None:
    texts = ["", "a", " \n", None, "\u3000", "b"]
    path = write_lines(tmp_path / "a.jsonl", *({"text": text} for text in texts))
    dataset = open_records("jsonl", path)
    assert documents(dataset) == [b"a", b"b"]
    assert dataset.stats.empty_documents == 4


def test_bytes_that_are_not_utf8_and_lone_surrogates_are_replaced(
    open_records: Callable[..., Dataset], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "caf\xe9 \\ud800."}\n')
    dataset = open_records("jsonl", tmp_path / "a.jsonl")
    assert documents(dataset) == [b"fine", "caf\ufffd \ufffd.".encode()]
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


def test_parquet_by_hand(open_records: Callable[..., Dataset], tmp_path: Path) -> None:
    table = pyarrow.table({"n": [1, 2, 3], "content": ["é", None, "two"]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    dataset = open_records("parquet", tmp_path / "a.parquet", text_field="content")
    assert documents(dataset) == ["é".encode(), b"two"]
    assert dataset.stats.empty_documents == 1
    with pytest.raises(DataError, match=r"no field 'text' .*the fields are n, content"):
        open_records("parquet", tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet:1: the field 'n' .* holds a number"):
        open_records("parquet", tmp_path / "a.parquet", text_field="n")


def save_to_disk(folder: Path, *shards: Mapping[str, Sequence[Any]]) -> None:
    """The layout that `datasets` 5.2.0 writes: state.json, and shards in Arrow's stream format."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{len(shards):05}.arrow" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        table = pyarrow.table(dict(shard))
        with pyarrow.ipc.new_stream(str(folder / name), table.schema) as stream:
            stream.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "3b0d"}
    (folder / "state.json").write_text(json.dumps(state))


def test_saved_data_sets_by_hand(open_records: Callable[..., Dataset], tmp_path: Path) -> None:
    save_to_disk(tmp_path / "one", {"text": ["a", "b"], "n": [1, 2]}, {"text": ["c"], "n": [3]})
    assert documents(open_records("huggingface", tmp_path / "one")) == [b"a", b"b", b"c"]


def test_the_split_of_a_saved_data_set(
    open_records: Callable[..., Dataset], tmp_path: Path
) -> None:
    for split in ("train", "test"):
        save_to_disk(tmp_path / "both" / split, {"text": [f"of {split}"]})
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for fields, expected in [({}, b"of train"), ({"hf_split": "test"}, b"of test")]:
        assert documents(open_records("huggingface", tmp_path / "both", **fields)) == [expected]
    with pytest.raises(DataError, match=r"no split data\.hf_split=dev; the splits are train, test"):
        open_records("huggingface", tmp_path / "both", hf_split="dev")


def write_array_record(path: Path, records: Sequence[bytes]) -> Path:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def example(name: bytes, value: bytes) -> bytes:
    """A tf.train.Example of one bytes feature, written field by field."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    feature = field(1, field(1, value))
    return field(1, field(1, field(1, name) + field(2, feature)))


def test_array_records_of_text_json_and_examples(
    open_records: Callable[..., Dataset], tmp_path: Path
) -> None:
    plain = write_array_record(tmp_path / "plain.arrayrecord", [b"one", "zwé".encode()])
    assert documents(open_records("arrayrecord", plain, text_field=None)) == [
        b"one",
        "zwé".encode(),
    ]
    records = [b'{"text": "json"}', example(b"text", b"example")]
    mixed = write_array_record(tmp_path / "mixed.arrayrecord", records)
    assert documents(open_records("arrayrecord", mixed)) == [b"json", b"example"]
    with pytest.raises(DataError, match=r"mixed\.arrayrecord:1: there is no field 'x'"):
        open_records("arrayrecord", mixed, text_field="x")
    with pytest.raises(DataError, match=r"plain\.arrayrecord:1: neither JSON nor.*text_field=null"):
        open_records("arrayrecord", plain)


def test_a_tf_example_of_every_kind() -> None:
    # Written by TensorFlow's rules: {"b": [b"x", b"y"], "f": [1.5], "i": [3, 300, -1]}.
    negative = b"\xff" * 9 + b"\x01"
    features = [
        b"\x0a\x01b\x12\x08\x0a\x06\x0a\x01x\x0a\x01y",
        b"\x0a\x01f\x12\x08\x12\x06\x0a\x04" + struct.pack("<f", 1.5),
        b"\x0a\x01i\x12\x11\x1a\x0f\x0a\x0d\x03\xac\x02" + negative,
    ]
    entries = b"".join(b"\x0a" + bytes([len(feature)]) + feature for feature in features)
    content = b"\x0a" + bytes([len(entries)]) + entries
    assert parse_example(content) == {"b": [b"x", b"y"], "f": [1.5], "i": [3, 300, -1]}
    for broken in (content[:-1], b"", b"text", b"\x0a\x05ab"):
        with pytest.raises(ValueError, match=r"early|features|unexpected"):
            parse_example(broken)


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("parquet", "pyarrow.parquet"),
        ("huggingface", "pyarrow"),
        ("arrayrecord", "array_record.python.array_record_module"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    open_records: Callable[..., Dataset],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    module: str,
) -> None:
    save_to_disk(tmp_path / "saved", {"text": ["a"]})
    (tmp_path / "a.arrayrecord").touch()
    path = tmp_path / ("saved" if source == "huggingface" else "a.arrayrecord")
    extra = "arrayrecord" if source == "arrayrecord" else "parquet"
    monkeypatch.setitem(sys.modules, module, None)
    package = module.partition(".")[0]
    with pytest.raises(DataError, match=rf"needs the package {package}.*\[{extra}\]"):
        open_records(source, path)


def test_the_hub_needs_the_package_datasets(
    data_config: Callable[..., DataConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    config = data_config(source="huggingface", hub_name="who/what")
    with pytest.raises(DataError, match=r"data\.hub_name=who/what.*package datasets.*huggingface"):
        open_data(config, "train", 257)


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
