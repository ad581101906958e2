"""What data.path points at: a file, the files below a folder, or those that a pattern matches."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data.documents import DataError
from data.files import list_files
from data.scan import printable, unreadable


@dataclass(frozen=True)
class FileSet:
    """Files by their names below a root; the names, not the root, are part of what data is."""

    root: Path
    names: list[str]

    def __iter__(self) -> Iterator[tuple[str, Path]]:
        """(printable name, path) of each file."""
        return ((printable(name), self.root / name) for name in self.names)

    def digest(self) -> str:
        """A short hash of the names and contents of all files."""
        digest = hashlib.blake2b(digest_size=16)
        for name in self.names:
            path = self.root / name
            try:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, hashlib.blake2b).digest()
            except OSError as error:
                raise unreadable(path, error) from error
            digest.update(os.fsencode(name) + b"\0" + content)
        return digest.hexdigest()


def find_files(path: str | None, source: str, suffixes: tuple[str, ...] = ()) -> FileSet:
    """The files that a source reads, sorted by their bytes in every locale.

    Below a folder only files with one of the suffixes count, if any are given; a file that is
    named itself, or matched by a pattern (`data/*.jsonl`, `**` for folders), always does. Raises
    DataError where there is no file.
    """
    if not path:
        raise DataError(f"data.source={source} needs data.path, a file or a folder")
    root = Path(path).expanduser()
    if glob.has_magic(path) and not _exists(root):
        return _matches(str(root))
    try:
        mode = root.stat().st_mode
    except FileNotFoundError as error:
        raise DataError(f"no such file or folder (in {printable(Path.cwd())})") from error
    except (OSError, ValueError) as error:
        raise unreadable(root, error) from error
    if stat.S_ISREG(mode):
        return FileSet(root.parent, [root.name])
    if not stat.S_ISDIR(mode):
        raise DataError("neither a file nor a folder")
    return FileSet(root, _below(root, suffixes))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _matches(pattern: str) -> FileSet:
    found = [file for file in glob.glob(pattern, recursive=True) if Path(file).is_file()]  # noqa: PTH207
    if not found:
        raise DataError(f"the pattern matches no file (in {printable(Path.cwd())})")
    root = os.path.commonpath([str(Path(file).parent) for file in found])
    names = (os.path.relpath(file, root) for file in found)
    return FileSet(Path(root), sorted(names, key=os.fsencode))


def _below(root: Path, suffixes: tuple[str, ...]) -> list[str]:
    names = list_files(root)
    if not names:
        raise DataError("the folder has no files, so 0 tokens")
    kept = [name for name in names if not suffixes or name.endswith(suffixes)]
    if not kept:
        raise DataError(
            f"none of the {len(names)} files in the folder ends with {' or '.join(suffixes)}; "
            f"one of them is {printable(names[0])}"
        )
    return kept
