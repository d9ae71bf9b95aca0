"""Files that are hashed while they are written: nothing is read again to know what it was."""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from torch.distributed.checkpoint.filesystem import FileSystem


class _Hashed(io.RawIOBase):
    """Passes what is written on to FILE, from its start to its end."""

    def __init__(self, file: io.IOBase) -> None:
        super().__init__()
        self._file, self.digest = cast("io.BufferedWriter", file), hashlib.sha256()

    def write(self, data: Any) -> int:
        """Write all of DATA, which holds bytes."""
        self.digest.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        """Bytes written."""
        return self._file.tell()

    def flush(self) -> None:
        """Give the system what is buffered."""
        if not self._file.closed:
            self._file.flush()

    def fileno(self) -> int:
        """Of the file."""
        return self._file.fileno()

    def writable(self) -> bool:
        """It is."""
        return True


class HashedFiles(FileSystem):
    """What DCP writes through; `digests` has the SHA-256 of each file that this process wrote whole."""

    def __init__(self) -> None:
        self.digests: dict[Path, str] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase]:
        """Open PATH, as `FileSystem` does."""
        with super().create_stream(path, mode) as file:
            if mode != "wb":
                yield file
                return
            stream = _Hashed(file)
            yield stream
            self.digests[Path(path)] = stream.digest.hexdigest()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename the file PATH."""
        super().rename(path, new_path)
        if Path(path) in self.digests:
            self.digests[Path(new_path)] = self.digests.pop(Path(path))

    def write(self, path: Path, content: bytes) -> None:
        """Write a file in one go."""
        with self.create_stream(path, "wb") as stream:
            cast("_Hashed", stream).write(content)

    def below(self, directory: Path) -> dict[str, str]:
        """The digests of files below DIRECTORY, by path from there."""
        return {str(path.relative_to(directory)): digest for path, digest in self.digests.items()}
