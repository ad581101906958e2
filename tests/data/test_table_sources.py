"""Parquet, saved data sets and ArrayRecord: the text of a field is a document."""

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


def test_parquet_by_hand(
    open_records: Callable[..., Dataset], documents_in: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    table = pyarrow.table({"n": [1, 2, 3], "content": ["é", None, "two"]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    dataset = open_records("parquet", tmp_path / "a.parquet", text_field="content")
    assert documents_in(dataset) == ["é".encode(), b"two"]
    assert dataset.stats.empty_documents == 1
    with pytest.raises(DataError, match=r"no field 'text' .*the fields are n, content"):
        open_records("parquet", tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet:1: the field 'n' .* holds a number"):
        open_records("parquet", tmp_path / "a.parquet", text_field="n")


def test_saved_data_sets_by_hand(
    open_records: Callable[..., Dataset], documents_in: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    save_to_disk(tmp_path / "one", {"text": ["a", "b"], "n": [1, 2]}, {"text": ["c"], "n": [3]})
    assert documents_in(open_records("huggingface", tmp_path / "one")) == [b"a", b"b", b"c"]


def test_the_split_of_a_saved_data_set(
    open_records: Callable[..., Dataset], documents_in: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    for split in ("train", "test"):
        save_to_disk(tmp_path / "both" / split, {"text": [f"of {split}"]})
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for fields, expected in [({}, b"of train"), ({"hf_split": "test"}, b"of test")]:
        assert documents_in(open_records("huggingface", tmp_path / "both", **fields)) == [expected]
    with pytest.raises(DataError, match=r"no split data\.hf_split=dev; the splits are train, test"):
        open_records("huggingface", tmp_path / "both", hf_split="dev")


def test_array_records_of_text_json_and_examples(
    open_records: Callable[..., Dataset], documents_in: Callable[..., list[bytes]], tmp_path: Path
) -> None:
    plain = write_array_record(tmp_path / "plain.arrayrecord", [b"one", "zwé".encode()])
    assert documents_in(open_records("arrayrecord", plain, text_field=None)) == [
        b"one",
        "zwé".encode(),
    ]
    records = [b'{"text": "json"}', example(b"text", b"example")]
    mixed = write_array_record(tmp_path / "mixed.arrayrecord", records)
    assert documents_in(open_records("arrayrecord", mixed)) == [b"json", b"example"]
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
