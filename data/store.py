"""Tokens on disk: written once from front to back, then read at any place through a memory map."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from data.documents import DataError, Documents
from data.files import ScanTotals
from data.records import Place
from data.scan import printable

_FORMAT = 1


class StoreWriter:
    """Writes documents one after the other into a folder."""

    def __init__(self, folder: Path, vocab_size: int, weighted: bool) -> None:
        self._folder = folder
        self._dtype = np.min_scalar_type(vocab_size - 1)
        self._tokens = (folder / "tokens.bin").open("wb")
        self._scored: IO[bytes] | None = (folder / "scored.bin").open("wb") if weighted else None
        self._files: dict[str, int] = {}
        self._places = array("q")
        self._lengths = array("q")
        self.document_length = 0
        """Tokens, so far, of the document that is being written."""

    def append(self, ids: np.ndarray, scored: np.ndarray | None = None) -> None:
        """Tokens of the document that is being written; `scored` says which are targets."""
        self._tokens.write(ids.astype(self._dtype).tobytes())
        if self._scored is not None:
            is_scored = np.ones(len(ids), np.uint8) if scored is None else scored.astype(np.uint8)
            self._scored.write(is_scored.tobytes())
        self.document_length += len(ids)

    def end_document(self, place: Place) -> bool:
        """Ends the document, unless it has no token yet; says whether there is one."""
        if self.document_length == 0:
            return False
        self._places.extend((self._files.setdefault(place.file, len(self._files)), place.number))
        self._lengths.append(self.document_length)
        self.document_length = 0
        return True

    def close(self) -> None:
        self._tokens.close()
        if self._scored is not None:
            self._scored.close()

    def finish(self, totals: ScanTotals) -> None:
        """Closes the files and writes what stands beside the tokens."""
        self.close()
        np.save(self._folder / "places.npy", np.array(self._places, np.int64).reshape(-1, 2))
        np.save(self._folder / "lengths.npy", np.array(self._lengths, np.int64))
        about = {
            "dtype": self._dtype.name,
            "files": list(self._files),
            "totals": asdict(totals),
            "weighted": self._scored is not None,
        }
        (self._folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


class StoredDocuments(Documents):
    """What a StoreWriter wrote. Raises DataError for a folder that holds anything else."""

    def __init__(self, folder: Path, digest: str) -> None:
        try:
            about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
            self.lengths = np.load(folder / "lengths.npy")
            self._places = np.load(folder / "places.npy")
            self._tokens = _mapped(folder / "tokens.bin", np.dtype(about["dtype"]))
            self._scored = _mapped(folder / "scored.bin", np.dtype(np.uint8), about["weighted"])
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"cannot read tokens in {printable(folder)}: {error}") from error
        self._files = about["files"]
        self._digest = digest
        self._starts = np.cumsum(self.lengths) - self.lengths
        self.totals = ScanTotals(**about["totals"])
        num_tokens = int(self.lengths.sum())
        if len(self._tokens) != num_tokens or len(self._scored) not in (0, num_tokens):
            raise DataError(f"{printable(folder)} is damaged; delete it to have it made again")

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        first = int(self._starts[document])
        return self._tokens[first + start : first + stop]

    def weights(self, document: int, start: int, stop: int) -> np.ndarray:
        if not len(self._scored):
            return super().weights(document, start, stop)
        first = int(self._starts[document])
        return self._scored[first + start : first + stop].astype(np.float32)

    def name(self, document: int) -> str:
        file, number = self._places[document].tolist()
        return str(Place(self._files[file], number))

    def digest(self) -> str:
        return self._digest


def _mapped(path: Path, dtype: np.dtype, present: bool = True) -> np.ndarray:
    if not present or path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r")


@dataclass(frozen=True)
class Recipe:
    """All that the tokens of some data depend on, and how they are made from it."""

    identity: Mapping[str, str]
    """Contents of the data, tokenizer, settings."""
    versions: str
    """Of the libraries that make the tokens."""
    vocab_size: int
    """All ids are below."""
    weighted: bool
    """Whether some tokens are no targets."""
    build: Callable[[StoreWriter], ScanTotals]
    """Writes the documents and says what it met."""

    @property
    def digest(self) -> str:
        return _hash(json.dumps(self.identity, sort_keys=True))


def stored(recipe: Recipe, cache: str | None) -> StoredDocuments:
    """The tokens of a recipe: made now, or found in the cache, a folder for tokens of any data.

    Without a cache they are in files without a name, that are gone when the process is. One
    process of a machine makes an entry while the others wait for it; an entry appears whole.
    """
    try:
        if cache is None:
            with tempfile.TemporaryDirectory(prefix="foldtext-tokens-") as folder:
                return _made(Path(folder), recipe)  # what is mapped outlives its name
        entry = Path(cache).expanduser() / _hash(f"{_FORMAT} {recipe.digest} {recipe.versions}")
        entry.parent.mkdir(parents=True, exist_ok=True)
        with _locked(entry.with_suffix(".lock")):
            if not entry.exists():
                _make_entry(entry, recipe)
        return StoredDocuments(entry, recipe.digest)
    except OSError as error:
        where = tempfile.gettempdir() if cache is None else cache
        raise DataError(
            f"cannot keep tokens in {where} (data.token_cache={cache or 'null'}): {error}"
        ) from error


def _make_entry(entry: Path, recipe: Recipe) -> None:
    folder = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", dir=entry.parent))
    try:
        _made(folder, recipe)
        folder.chmod(0o755)  # mkdtemp lets nobody else in
        with contextlib.suppress(OSError):  # a process of another machine has been faster
            folder.rename(entry)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _made(folder: Path, recipe: Recipe) -> StoredDocuments:
    writer = StoreWriter(folder, recipe.vocab_size, recipe.weighted)
    try:
        writer.finish(recipe.build(writer))
    finally:
        writer.close()
    return StoredDocuments(folder, recipe.digest)


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits for other processes of this machine; where files cannot be locked, does not."""
    with path.open("w") as file:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        yield
