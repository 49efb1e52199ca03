"""Files and folders that are whole or absent, and the digests that name them.

Everything the product writes goes through `publish_file` or `publish_folder`: temporary sibling, fsync, rename,
fsync of the parent. A process killed at any moment leaves either the old content or the new one; a disk that fills
leaves the old one. A published folder carries `manifest.json`, written last, with the SHA-256 of each of its files.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from captionbert.artifacts.errors import InputError

MANIFEST, MANIFEST_KIND = "manifest.json", "folder-manifest"
EXPORT_RECORD, EXPORT_KIND = "captionbert.json", "captionbert-export"
# Of an export, about the model: rewritten when figures arrive, so no part of its identity.
ABOUT_EXPORT = frozenset({EXPORT_RECORD, MANIFEST, "README.md", "parity.json"})
_CHUNK = 1 << 22
# The "kind" of each JSON file that a command writes for its user alone: nothing reads it again; it may be replaced.
REPORT_KINDS = (
    "asymmetric-probe",
    "binding-probe",
    "captionbert-evaluation",
    "captionbert-parity",
    "corpus-coverage",
    "documents-probe",
    "geometry-probe",
    "interventions",
    "lookup-probe",
)


def sha256_bytes(data: bytes) -> str:
    """SHA-256 of `data`, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, 64 hex digits, read in 4 MiB pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def digest_json(value: Any) -> str:
    """SHA-256 of `value` as canonical JSON (sorted keys, no spaces): equal values have equal digests."""
    return sha256_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# Read once, on import: os.umask can only be read by setting it, which is not safe once threads run.
_FILE_MODE = 0o666 & ~_umask()
_FOLDER_MODE = 0o777 & ~_umask()


def _fsync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _temporary_prefix(path: Path) -> str:
    return f".tmp-{path.name}-"


@contextmanager
def publish_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; what the caller writes there replaces `path` whole.

    On an exception (a full disk included) the temporary file is removed and `path` stays as it was. A link stays a
    link: the file that it leads to is replaced.
    """
    path = Path(path)
    path = path.resolve() if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=_temporary_prefix(path), dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        _fsync_path(temporary)
        os.chmod(temporary, _FILE_MODE)
        os.replace(temporary, path)
        _fsync_path(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _make_folder(path: Path) -> list[Path]:
    """Make a folder with its parents; returns those that were missing, the deepest first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, the deepest first, as long as they are empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def probe_writable(folder: str | Path) -> None:
    """Create, rename and remove a small file in `folder`; a missing folder is made for that and removed again.

    Raises:
        InputError: that fails (read-only, a file in the way, no space): found before any long work.
    """
    with _probed(Path(folder)):
        pass


@contextmanager
def _probed(folder: Path) -> Iterator[None]:
    """`probe_writable`; folders that were missing are removed again after the block."""
    made: list[Path] = []
    try:
        made = _make_folder(folder)
        # Both names are new ones: nothing that lies in the folder may be replaced.
        handle, name = tempfile.mkstemp(prefix=".tmp-probe-", dir=folder)
        with os.fdopen(handle, "wb") as stream:
            stream.write(b"probe")
        os.replace(name, f"{name}.renamed")
        os.unlink(f"{name}.renamed")
    except OSError as error:
        _remove_empty(made)
        raise InputError(f"{folder}: cannot be written ({error}); choose another output folder") from None
    try:
        yield
    finally:
        _remove_empty(made)


def check_output(path: str | Path) -> None:
    """Refuse a file that could not be written, before any work is done. Nothing is left behind, no folder either.

    Raises:
        InputError: it is a folder or a device, is in a folder that lists its files (a published one, an export), or its
            folder cannot be made or written.
    """
    path = Path(path)
    if os.path.isdir(path):
        raise InputError(f"{path}: is a folder; give a file name")
    if os.path.exists(path) and not path.is_file():
        raise InputError(f"{path}: is no ordinary file and would be replaced; give a file name")
    for folder in path.resolve().parents:
        if name := _list_of_files(folder):
            raise InputError(f"{path}: {folder} has a {name} that lists its files; write it elsewhere")
    with _probed(path.parent):
        try:  # as publish_file will: a name may be too long
            handle, name = tempfile.mkstemp(prefix=_temporary_prefix(path), dir=path.parent)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error}); give a shorter name") from None
        os.close(handle)
        os.unlink(name)


def _list_of_files(folder: Path) -> str | None:
    """Name of the file that lists what belongs to a folder, which another file would spoil; None where none does."""
    for name, kind in ((MANIFEST, MANIFEST_KIND), (EXPORT_RECORD, EXPORT_KIND)):
        try:
            if (folder / name).is_file() and read_json(folder / name).get("kind") == kind:
                return name
        except (InputError, OSError):  # another program's
            continue
    return None


def is_report(path: str | Path) -> bool:
    """Whether a file is a report of this tool, which nothing reads again."""
    try:
        return read_json(path).get("kind") in REPORT_KINDS
    except (InputError, OSError):
        return False


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all.

    Raises:
        ValueError: a number in it is NaN or infinite, which JSON cannot say.
    """
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    with publish_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | Path, *, kind: str | None = None) -> dict[str, Any]:
    """The object in a JSON file; with `kind`, its "kind" field must equal it.

    Raises:
        InputError: the file is missing, is not a JSON object, or is of another kind.
    """
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file" + (f"; expected a {kind} file there" if kind else "")
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f"{path}: not valid JSON ({error}); it is damaged or was not written by this tool"
        ) from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}")
    if kind is not None and value.get("kind") != kind:
        raise InputError(f"{path}: expected kind {kind!r}, found {value.get('kind')!r}")
    return value


def _folder_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)


def _write_manifest(folder: Path, extra: dict[str, Any]) -> None:
    files = {}
    for file in _folder_files(folder):
        os.chmod(file, _FILE_MODE)  # some writers (safetensors) create files that only their owner can read
        _fsync_path(file)
        files[file.relative_to(folder).as_posix()] = {
            "size": file.stat().st_size,
            "sha256": sha256_file(file),
        }
    write_json(folder / MANIFEST, {"kind": MANIFEST_KIND, "files": files, **extra})
    for directory in [p for p in folder.rglob("*") if p.is_dir()] + [folder]:
        os.chmod(directory, _FOLDER_MODE)
        _fsync_path(directory)


@contextmanager
def publish_folder(path: str | Path, *, extra: dict[str, Any] | None = None) -> Iterator[Path]:
    """Yield a temporary sibling folder; when the block ends well it becomes `path`, whole, with its manifest.

    `extra` is merged into the manifest. An existing `path` is replaced by two renames: a kill between them leaves
    the old folder under `.old-<name>`, which `recover_folder` puts back. Temporary siblings of the same name that a
    killed process left are removed.
    """
    path = Path(os.path.realpath(path))  # through a link: its target is replaced, and the link stays
    path.parent.mkdir(parents=True, exist_ok=True)
    recover_folder(path)
    # Exactly this name and mkdtemp's eight characters: `x` must not remove what is being written for `x-fp16`.
    own = re.compile(re.escape(f".tmp-{path.name}-") + "[a-z0-9_]{8}")
    for leftover in [p for p in path.parent.iterdir() if own.fullmatch(p.name)]:
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".tmp-{path.name}-", dir=path.parent))
    try:
        yield temporary
        _write_manifest(temporary, extra or {})
        old = path.with_name(f".old-{path.name}")
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(path, old)
        os.rename(temporary, path)
        _fsync_path(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def recover_folder(path: str | Path) -> None:
    """Undo the first half of a folder replacement that was killed before its second rename."""
    path = Path(os.path.realpath(path))
    old = path.with_name(f".old-{path.name}")
    if old.exists() and not path.exists():
        os.rename(old, path)


def verify_folder(path: str | Path) -> dict[str, Any]:
    """The manifest of a published folder, after every file's size and SHA-256 were compared with it.

    Raises:
        InputError: the manifest is missing or torn, or a file is missing, short, changed or not listed.
    """
    path = Path(path)
    manifest = read_json(path / MANIFEST, kind="folder-manifest")
    if not isinstance(manifest.get("files"), dict):
        raise InputError(f"{path / MANIFEST}: lists no files; it is damaged")
    for name, record in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise InputError(f"{file}: missing, but listed in {path / MANIFEST}")
        if file.stat().st_size != record["size"]:
            raise InputError(
                f"{file}: expected {record['size']} bytes, found {file.stat().st_size}; it was cut or changed"
            )
        found = sha256_file(file)
        if found != record["sha256"]:
            raise InputError(
                f"{file}: expected SHA-256 {record['sha256']}, found {found}; its content was changed"
            )
    # A desktop leaves dot-files (.DS_Store) wherever it looks; they are no part of what was written.
    present = [p for p in _folder_files(path) if not p.name.startswith(".")]
    unlisted = [str(p) for p in present if p.relative_to(path).as_posix() not in manifest["files"]]
    if unlisted:
        raise InputError(
            f"{unlisted[0]}: not listed in {path / MANIFEST}; remove it or write the folder again"
        )
    return manifest


@contextmanager
def folder_lock(path: str | Path) -> Iterator[None]:
    """Hold `path` for one process, made when missing. The lock is the kernel's (flock): a killed holder frees it.

    Where the block fails before it has written anything, the folder is left as it was found, or gone.

    Raises:
        InputError: another process holds it; the message names that process and its machine.
    """
    path = Path(path)
    made = _make_folder(path)
    lock = path / ".lock"
    found = lock.exists()
    with _held(lock, path) as stream:
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {socket.gethostname()}")
        stream.flush()
        try:
            yield
        except BaseException:
            if not found and path.is_dir() and os.listdir(path) == [lock.name]:
                lock.unlink()
                _remove_empty(made)
            raise


@contextmanager
def _held(lock: Path, path: Path) -> Iterator[Any]:
    """The open file `lock` under flock; made again where a failing holder removed it in the meantime."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        with open(lock, "a+", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.seek(0)
                holder = stream.read().strip() or "another process"
                raise InputError(
                    f"{path}: in use by {holder}; wait for it, stop it, or choose another folder"
                ) from None
            if not lock.exists() or not os.path.samestat(os.fstat(stream.fileno()), os.stat(lock)):
                continue
            yield stream
            return
