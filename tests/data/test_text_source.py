"""Text files as they come: odd bytes, empty files, missing files, huge lines, every locale."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from configs.schema import DataConfig
from data import DataError, Dataset, open_data
from data.scan import scan_file

VOCAB_SIZE = 257
EOS = 256
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def open_text(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str]
) -> Callable[..., Dataset]:
    """Opens the given files as one data set, joined, in one row of 64 tokens."""

    def make(files: dict[str, bytes], **fields: object) -> Dataset:
        settings: dict[str, object] = {"seq_len": 64, "pack": False, "batch": 1} | fields
        config = data_config(path=text_folder(files), **settings)
        return open_data(config, "train", VOCAB_SIZE)

    return make


def all_tokens(dataset: Dataset) -> list[int]:
    """The stream of a joined data set of one row."""
    batch = dataset.batch(0)
    size = int(batch["weights"].sum())
    return [int(batch["tokens"][0, 0]), *batch["targets"][0, :size].tolist()]


def test_files_are_sorted_by_their_paths(open_text: Callable[..., Dataset]) -> None:
    files = {"b": b"2", "a/z": b"1", "é": b"4", "a.txt": b"0", "Z": b"+", "c/d/e": b"3"}
    # By bytes and part by part: "Z" < "a" < "a.txt" < "b" < "c" < "é".
    expected = [x for char in b"+10234" for x in (char, EOS)]
    assert all_tokens(open_text(files)) == expected


def test_one_file_is_one_document(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str]
) -> None:
    path = text_folder({"a.txt": b"one\n\ntwo\n", "b.txt": b"not this"}) + "/a.txt"
    dataset = open_data(data_config(path=path, pack=False, seq_len=64), "train", VOCAB_SIZE)
    assert all_tokens(dataset) == [*b"one\n\ntwo\n", EOS]


@pytest.mark.parametrize("pack", [True, False])
def test_one_eos_a_document(open_text: Callable[..., Dataset], pack: bool) -> None:
    files = {str(i): b"x" * i for i in range(1, 20)}
    dataset = open_text(files, pack=pack)
    tokens, targets = [], []
    for step in range(dataset.num_batches or 0):
        batch = dataset.batch(step)
        tokens += batch["tokens"][batch["segment_ids"] > 0].tolist()
        targets += batch["targets"][batch["weights"] > 0].tolist()
    assert targets.count(EOS) == 19
    assert tokens.count(EOS) == (19 if pack else 18)  # joined: the last one is a target only


def test_byte_order_mark_is_dropped_at_the_start_only(open_text: Callable[..., Dataset]) -> None:
    bom = b"\xef\xbb\xbf"
    assert all_tokens(open_text({"a": bom + b"x" + bom})) == [*b"x", *bom, EOS]


def test_carriage_returns_stay(open_text: Callable[..., Dataset]) -> None:
    assert all_tokens(open_text({"a": b"x\r\ny\n"})) == [*b"x\r\ny\n", EOS]


def test_bytes_that_are_not_utf8_are_kept_and_counted(open_text: Callable[..., Dataset]) -> None:
    text = b"ok \xff\xfe caf\xe9\n"
    dataset = open_text({"a.txt": b"fine", "b.txt": text})
    assert all_tokens(dataset) == [*b"fine", EOS, *text, EOS]
    assert dataset.stats.invalid_bytes == 3
    assert dataset.stats.first_invalid == "b.txt, byte 3"
    assert "3 bytes are not UTF-8, the first: b.txt, byte 3" in dataset.stats.summary()
    assert dataset.tokenizer.decode([*text, EOS]) == "ok \ufffd\ufffd caf\ufffd\n"


@pytest.mark.parametrize("chunk_bytes", [3, 4, 5, 7, 1 << 20])
def test_a_scan_does_not_see_where_its_chunks_end(tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "a"
    for text, invalid, first in [
        ("🙂🙂é🙂".encode(), 0, None),
        (b"\xef\xbb\xbf  \xc2\xa0 \n", 0, None),
        ("🙂é".encode() + b"\xff\xf0\x9f\x99", 4, 6),  # ends within a character
        (b"abc\xe9", 1, 3),
    ]:
        path.write_bytes(text)
        scan = scan_file(path, chunk_bytes)
        assert (scan.size, scan.invalid_bytes, scan.first_invalid) == (len(text), invalid, first)
        assert scan.blank == (not text.decode("utf-8-sig", "replace").strip())


def test_documents_without_text_are_left_out_and_counted(open_text: Callable[..., Dataset]) -> None:
    files = {
        "0": b"", "1": b"\n", "2": b"  ", "3": b"\xef\xbb\xbf", "4": b"\xc2\xa0\xe3\x80\x80\r\n",
        "5": b"text",
    }  # fmt: skip
    dataset = open_text(files)
    assert all_tokens(dataset) == [*b"text", EOS]
    assert (dataset.stats.documents, dataset.stats.empty_documents) == (1, 5)


@pytest.mark.parametrize(
    "files", [{"a": b""}, {"a": b"\n"}, {"a": b"  ", "b": b"\xef\xbb\xbf"}], ids=len
)
@pytest.mark.parametrize("pack", [True, False])
def test_only_empty_files_are_refused(
    open_text: Callable[..., Dataset], files: dict[str, bytes], pack: bool
) -> None:
    with pytest.raises(DataError, match=r"data\.path=.*text: 0 tokens: every file is empty"):
        open_text(files, pack=pack)


def test_a_folder_without_files_is_refused(open_text: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match=r"data\.path=.*text: the folder has no files"):
        open_text({})


def test_missing_and_odd_paths_are_refused(
    data_config: Callable[..., DataConfig], tmp_path: Path
) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for path, reason in [
        ("no/such/path", "no such file or folder"),
        (str(tmp_path / "pipe"), "neither a file nor a folder"),
        (str(tmp_path / "dangling"), "no such file or folder"),
        (str(tmp_path), "cannot read .*dangling: No such file"),
        ("a\0b", "cannot read"),
        ("x" * 5000, "cannot read .*: File name too long"),
        (None, "needs data.path"),
    ]:
        with pytest.raises(DataError, match=rf"(?s)data\.path=.*{reason}"):
            open_data(data_config(path=path), "train", VOCAB_SIZE)


def test_an_unreadable_file_is_refused(
    open_text: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: self.touch())
    with pytest.raises(DataError, match=r"data\.path=.*cannot read .*secret: Permission denied"):
        open_text({"secret": b"text"})


def test_a_file_that_shrinks_is_noticed(
    open_text: Callable[..., Dataset], text_folder: Callable[..., str]
) -> None:
    dataset = open_text({"a": b"a long text"})
    text_folder({"a": b"short"})
    with pytest.raises(DataError, match="a changed while it was in use: 11 bytes"):
        dataset.batch(0)


def test_folder_links_are_followed_once(
    open_text: Callable[..., Dataset], text_folder: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b").write_bytes(b"B")
    folder = Path(text_folder({"a": b"A"}))
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "loop").symlink_to(folder)
    assert all_tokens(open_text({})) == [*b"A", EOS, *b"B", EOS]


@pytest.mark.parametrize("vocab_size", [64, 256])
def test_a_vocabulary_that_is_too_small_is_refused(
    data_config: Callable[..., DataConfig], text_folder: Callable[..., str], vocab_size: int
) -> None:
    config = data_config(path=text_folder({"a": b"text"}))
    with pytest.raises(DataError) as error:
        open_data(config, "train", vocab_size)
    for part in ("text", "token id 256", f"model.vocab_size={vocab_size}", "257 or more"):
        assert part in str(error.value)


def test_a_long_line_is_chunked_without_loss(
    data_config: Callable[..., DataConfig], tmp_path: Path
) -> None:
    text = np.random.default_rng(0).integers(33, 127, 50 * 8 + 3).astype(np.uint8).tobytes()
    (tmp_path / "line").write_bytes(text)
    config = data_config(path=str(tmp_path / "line"), batch=51, seed=3)
    dataset = open_data(config, "train", VOCAB_SIZE)
    assert dataset.num_batches == 1
    batch = dataset.batch(0)
    rows = {}
    for tokens, targets, weights in zip(
        batch["tokens"], batch["targets"], batch["weights"], strict=True
    ):
        scored = targets[weights > 0].tolist()
        rows[text.find(bytes(tokens[: len(scored)].tolist()))] = scored
    assert [x for start in sorted(rows) for x in rows[start]] == [*text[1:], EOS]


LOCALE_SCRIPT = """
import json, sys
from configs.schema import DataConfig
from data import open_data
config = DataConfig(source="text", path=sys.argv[1], seq_len=64, batch=4, pack=True, seed=0,
                    epochs=1, eval_fraction=0.4, eval_rows=None, prefetch=0)
result = []
for split in ("train", "eval"):
    dataset = open_data(config, split, 257)
    tokens = [dataset.batch(i)["tokens"].tolist() for i in range(dataset.num_batches)]
    result.append([tokens, dataset.stats.summary(), dataset.fingerprint])
print(json.dumps(result))
"""


def test_every_locale_gives_the_same_tokens(text_folder: Callable[..., str]) -> None:
    folder = text_folder({
        "a.txt": b"ok \xff\xfe caf\xe9\n",
        "grüße/ñandú.txt": "🙂 schön\r\n".encode() * 9,
        "日本.txt": "日本語".encode(),
        "z": b"plain",
        "\udcff\udcfe": b"a name that is not UTF-8",
    })  # fmt: skip
    outputs = set()
    for variables in (
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "de_DE", "PYTHONUTF8": "0"},
        {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"},
    ):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))}
        done = subprocess.run(
            [sys.executable, "-c", LOCALE_SCRIPT, folder],
            env=environment | variables | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    (_, summary, _), _ = json.loads(outputs.pop())
    assert "3 bytes are not UTF-8, the first: a.txt, byte 3" in summary
