"""Publishing files and folders: whole or absent, verified by digest, locked for one process."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import (
    check_output,
    digest_json,
    folder_lock,
    is_report,
    probe_writable,
    publish_file,
    publish_folder,
    read_json,
    sha256_bytes,
    sha256_file,
    verify_folder,
    write_json,
)


def test_digests_agree_and_depend_on_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_file(tmp_path / "a") == sha256_bytes(b"abc")
    assert sha256_bytes(b"abc").startswith("ba7816bf")  # FIPS 180-2 example
    assert (
        digest_json({"a": 1, "b": [2]}) == digest_json({"b": [2], "a": 1}) != digest_json({"a": 1, "b": [3]})
    )


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    probe_writable(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []  # nothing is made for work that may never begin
    (tmp_path / "new" / "folder").mkdir(parents=True)
    (tmp_path / "new" / "folder" / ".probe").write_text("a user's")
    probe_writable(tmp_path / "new" / "folder")
    assert [p.name for p in (tmp_path / "new" / "folder").iterdir()] == [".probe"]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"file/sub: cannot be written .* choose another output folder"):
        probe_writable(tmp_path / "file" / "sub")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"v": 1})

    def die_half_way() -> None:
        with publish_file(tmp_path / "x.json") as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        die_half_way()
    assert read_json(tmp_path / "x.json") == {"v": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"v": 1})
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_json(tmp_path / "x.json", {"v": "2" * 100_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert read_json(tmp_path / "x.json") == {"v": 1}
    assert os.listdir(tmp_path) == ["x.json"]


def test_an_output_that_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    check_output(tmp_path / "new" / "deep" / "a.json")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="is a folder; give a file name"):
        check_output(tmp_path)
    for long in (250, 300):
        with pytest.raises(InputError, match="give a shorter name"):
            check_output(tmp_path / ("x" * long))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is no ordinary file"):
        check_output(tmp_path / "pipe")


def test_no_file_is_put_into_a_published_folder(tmp_path: Path) -> None:
    _publish(tmp_path / "made", "old")
    for path in (tmp_path / "made" / "r.json", tmp_path / "made" / "sub" / "deep" / "r.json"):
        with pytest.raises(InputError, match=r"has a manifest\.json that lists its files"):
            check_output(path)
    verify_folder(tmp_path / "made")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "manifest.json").write_text('{"kind": "another program\'s"}')
    check_output(tmp_path / "site" / "r.json")


def test_no_file_is_put_into_an_export(tmp_path: Path) -> None:
    write_json(tmp_path / "model" / "captionbert.json", {"kind": "captionbert-export"})
    with pytest.raises(InputError, match=r"has a captionbert\.json that lists its files"):
        check_output(tmp_path / "model" / "r.json")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with publish_file(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "new"


def test_a_report_is_told_from_what_a_folder_is_made_of(tmp_path: Path) -> None:
    for name, text, expected in (
        ("r.json", '{"kind": "lookup-probe"}', True),
        ("config.json", '{"model_type": "captionbert"}', False),
        ("manifest.json", '{"kind": "folder-manifest"}', False),
        ("corpus.json", '{"kind": "corpus"}', False),
        ("stages.json", '{"kind": "distill-stages"}', False),
        ("w.safetensors", "no JSON", False),
    ):
        (tmp_path / name).write_text(text)
        assert is_report(tmp_path / name) is expected


def test_json_of_a_number_that_json_cannot_say_is_not_written(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1.0})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert read_json(tmp_path / "a.json") == {"x": 1.0}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_read_json_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_json(tmp_path / "none.json")
    (tmp_path / "torn.json").write_text('{"a": ')
    with pytest.raises(InputError, match=r"torn\.json: not valid JSON"):
        read_json(tmp_path / "torn.json")
    write_json(tmp_path / "x.json", {"kind": "corpus"})
    with pytest.raises(InputError, match="expected kind 'targets', found 'corpus'"):
        read_json(tmp_path / "x.json", kind="targets")


def _publish(path: Path, content: str) -> None:
    with publish_folder(path, extra={"step": 3}) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "f").write_text(content)


def test_a_folder_is_published_with_its_manifest_and_replaced_whole(tmp_path: Path) -> None:
    _publish(tmp_path / "c", "one")
    (tmp_path / ".tmp-c-stale123").mkdir()
    _publish(tmp_path / "c", "two")
    assert verify_folder(tmp_path / "c")["step"] == 3
    assert (tmp_path / "c" / "sub" / "f").read_text() == "two"
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: f.write_text("onf"), "expected SHA-256"),
        (lambda f: f.write_text("on"), "expected 3 bytes, found 2"),
        (lambda f: f.unlink(), "missing"),
        (lambda f: (f.parent / "more").write_text(""), "not listed"),
    ],
)
def test_verify_names_the_damaged_file(tmp_path: Path, damage, message: str) -> None:
    _publish(tmp_path / "c", "one")
    damage(tmp_path / "c" / "sub" / "f")
    with pytest.raises(InputError, match=message) as error:
        verify_folder(tmp_path / "c")
    assert "sub" in str(error.value)


def test_publishing_leaves_the_work_of_a_neighbour_alone(tmp_path: Path) -> None:
    with publish_folder(tmp_path / "c-half") as neighbour:
        (neighbour / "f").write_text("x")
        _publish(tmp_path / "c", "one")
        assert (neighbour / "f").is_file()
    assert (tmp_path / "c-half" / "f").read_text() == "x"


def test_publishing_through_a_link_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for content in ("one", "two"):
        _publish(tmp_path / "link", content)
        assert (tmp_path / "target" / "sub" / "f").read_text() == content
    assert (tmp_path / "link").is_symlink()


def test_a_file_that_a_desktop_left_is_no_damage(tmp_path: Path) -> None:
    _publish(tmp_path / "c", "one")
    (tmp_path / "c" / ".DS_Store").write_text("x")
    verify_folder(tmp_path / "c")


def test_a_killed_publish_leaves_the_old_folder(tmp_path: Path) -> None:
    _publish(tmp_path / "c", "one")
    # Die at each rename in turn: before the old folder moves away, and between the two renames.
    for fatal in (1, 2):
        code = (
            "import os, sys\nfrom pathlib import Path\nfrom captionbert.artifacts import files\n"
            "real, calls = os.rename, []\n"
            "def rename(a, b):\n    calls.append(a)\n"
            f"    os._exit(9) if len(calls) == {fatal} else real(a, b)\n"
            "os.rename = rename\n"
            "with files.publish_folder(Path(sys.argv[1])) as f: (f / 'sub').mkdir(); (f / 'sub/f').write_text('two')\n"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "c")], check=False)
        assert done.returncode == 9
        from captionbert.artifacts.files import recover_folder

        recover_folder(tmp_path / "c")
        verify_folder(tmp_path / "c")
        assert (tmp_path / "c" / "sub" / "f").read_text() == "one"


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom captionbert.artifacts.files import folder_lock\n"
        "try:\n    with folder_lock(sys.argv[1]): pass\nexcept Exception as e: print(e); sys.exit(2)"
    )
    with folder_lock(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert f"in use by process {os.getpid()}" in done.stdout
    with folder_lock(tmp_path):
        pass


def test_work_that_fails_before_it_writes_leaves_no_folder(tmp_path: Path) -> None:
    def fail(folder: Path, *, after: str | None = None) -> None:
        with folder_lock(folder):
            if after is not None:
                (folder / after).write_text("kept")
            raise InputError("refused")

    (tmp_path / "mine").mkdir()
    for folder, after in (("a/b", None), ("mine", None), ("c", "work")):
        with pytest.raises(InputError, match="refused"):
            fail(tmp_path / folder, after=after)
    assert sorted(p.name for p in tmp_path.rglob("*")) == [".lock", "c", "mine", "work"]


def test_a_lock_that_was_removed_under_a_waiting_process_is_no_lock(tmp_path: Path, monkeypatch) -> None:
    flock, taken = fcntl.flock, []

    def late(stream: Any, how: int) -> None:
        """The first time, as if a failing holder had removed its file between open and flock."""
        if not taken:
            (tmp_path / "run" / ".lock").unlink()
            (tmp_path / "run").rmdir()
        taken.append(how)
        flock(stream, how)

    monkeypatch.setattr("captionbert.artifacts.files.fcntl.flock", late)
    with folder_lock(tmp_path / "run"):
        assert len(taken) == 2
        assert (tmp_path / "run" / ".lock").read_text().startswith("process")
