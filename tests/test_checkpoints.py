"""Checkpoints: whole or absent, verified before use, never fewer than one good one."""

import resource
import shutil
from pathlib import Path

import pytest
import torch

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import verify_folder
from captionbert.training import checkpoints
from captionbert.training.checkpoints import TrainingState
from captionbert.training.step import LossScale, adam

STATE = TrainingState(
    5, LossScale(1024.0, 7, 1), [{"step": 0, "target_cosine": 0.123456789012345678}], {"value": 0.5}
)


@pytest.fixture
def trained(tiny_model):
    """A model and an optimizer with moments."""
    optimizer = adam(list(tiny_model.parameters()), 1e-3)
    torch.manual_seed(1)
    for parameter in tiny_model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return tiny_model, optimizer


def write(run: Path, step: int, trained, tokenizer: Path) -> Path:
    folder = run / "checkpoints" / checkpoints.step_name(step)
    state = TrainingState(step, STATE.loss_scale, STATE.curve, STATE.best)
    checkpoints.write_checkpoint(folder, trained[0], tokenizer, state, trained[1], "identity")
    return folder


def flip_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def test_model_optimizer_and_state_come_back_bit_for_bit(
    tmp_path: Path, trained, tiny_tokenizer_dir: Path
) -> None:
    model, optimizer = trained
    folder = write(tmp_path, 5, trained, tiny_tokenizer_dir)
    other = type(model)(model.config)
    other_optimizer = adam(list(other.parameters()), 1e-3)
    checkpoints.load_model_tensors(folder, other)
    checkpoints.load_optimizer(folder, other, other_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    saved, found = (
        checkpoints.optimizer_tensors(m, o) for m, o in ((model, optimizer), (other, other_optimizer))
    )
    assert saved.keys() == found.keys()
    assert all(torch.equal(saved[k], found[k]) for k in saved)
    assert checkpoints.read_state(folder) == STATE
    assert not [p for p in folder.rglob("*") if p.suffix in (".pkl", ".pt", ".bin")]


def test_the_model_folder_loads_by_itself(tmp_path: Path, trained, tiny_tokenizer_dir: Path) -> None:
    folder = write(tmp_path, 5, trained, tiny_tokenizer_dir)
    loaded = type(trained[0]).from_pretrained(folder / "model")
    assert all(torch.equal(a, b) for a, b in zip(trained[0].parameters(), loaded.parameters()))
    assert (folder / "model" / "tokenizer.json").is_file()


def test_the_newest_good_one_is_found_and_a_bad_one_named(
    tmp_path: Path, trained, tiny_tokenizer_dir: Path
) -> None:
    assert checkpoints.newest_good(tmp_path, "identity") == (None, [])
    folders = [write(tmp_path, step, trained, tiny_tokenizer_dir) for step in (4, 8, 12)]
    assert checkpoints.newest_good(tmp_path, "identity") == (folders[2], [])
    flip_byte(folders[2] / "optimizer.safetensors")
    (folders[1] / "state.json").unlink()
    found, passed = checkpoints.newest_good(tmp_path, "identity")
    assert found == folders[0]
    assert len(passed) == 2
    assert "step-00000012 is not usable" in passed[0]
    assert "optimizer.safetensors" in passed[0]
    assert "state.json" in passed[1]


def test_all_bad_stops(tmp_path: Path, trained, tiny_tokenizer_dir: Path) -> None:
    for step in (4, 8):
        flip_byte(write(tmp_path, step, trained, tiny_tokenizer_dir) / "model" / "model.safetensors")
    with pytest.raises(InputError, match=r"none of 2 checkpoints is usable, .* does not start over"):
        checkpoints.newest_good(tmp_path, "identity")


def test_a_checkpoint_of_another_run_is_passed_over(
    tmp_path: Path, trained, tiny_tokenizer_dir: Path
) -> None:
    write(tmp_path, 4, trained, tiny_tokenizer_dir)
    with pytest.raises(InputError, match="another identity"):
        checkpoints.newest_good(tmp_path, "somebody else")


def test_a_disk_that_fills_leaves_the_last_good_one(
    tmp_path: Path, trained, tiny_tokenizer_dir: Path
) -> None:
    first = write(tmp_path, 4, trained, tiny_tokenizer_dir)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(
            InputError, match=r"step-00000008: the checkpoint could not be written .*step-00000004"
        ):
            write(tmp_path, 8, trained, tiny_tokenizer_dir)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in first.parent.iterdir()] == ["step-00000004"]
    verify_folder(first)
    assert checkpoints.newest_good(tmp_path, "identity") == (first, [])
    write(tmp_path, 8, trained, tiny_tokenizer_dir)


def test_a_torn_temporary_of_the_same_step_is_replaced(
    tmp_path: Path, trained, tiny_tokenizer_dir: Path
) -> None:
    torn = tmp_path / "checkpoints" / ".tmp-step-00000004-abcdefgh"
    torn.mkdir(parents=True)
    (torn / "state.json").write_text("{")
    assert checkpoints.newest_good(tmp_path, "identity") == (None, [])
    folder = write(tmp_path, 4, trained, tiny_tokenizer_dir)
    assert [p.name for p in folder.parent.iterdir()] == ["step-00000004"]


def test_pruning_keeps_the_newest_and_touches_nothing_foreign(
    tmp_path: Path, trained, tiny_tokenizer_dir: Path
) -> None:
    folders = [write(tmp_path, step, trained, tiny_tokenizer_dir) for step in (4, 8, 12, 16)]
    home = folders[0].parent
    (home / "step-mine").mkdir()
    (home / "checkpoint-best-final").mkdir()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folders[0], elsewhere)
    (home / "step-00000001").symlink_to(elsewhere)
    checkpoints.prune(home, keep=2)
    assert sorted(p.name for p in home.iterdir()) == [
        "checkpoint-best-final",
        "step-00000001",
        "step-00000012",
        "step-00000016",
        "step-mine",
    ]
    assert (elsewhere / "state.json").is_file()


def test_pruning_waits_while_the_newest_is_not_whole(
    tmp_path: Path, trained, tiny_tokenizer_dir: Path
) -> None:
    folders = [write(tmp_path, step, trained, tiny_tokenizer_dir) for step in (4, 8)]
    flip_byte(folders[1] / "optimizer.safetensors")
    with pytest.raises(InputError, match="step-00000008"):
        checkpoints.prune(folders[0].parent, keep=1)
    assert folders[0].is_dir()


def test_pruning_ignores_damaged_steps_past_the_one_just_written(
    tmp_path: Path, trained, tiny_tokenizer_dir: Path
) -> None:
    folders = [write(tmp_path, step, trained, tiny_tokenizer_dir) for step in (4, 8, 10, 12)]
    flip_byte(folders[3] / "optimizer.safetensors")  # passed over when the run was resumed from step 8
    checkpoints.prune(folders[0].parent, keep=2, newest=folders[2])
    assert [folder.is_dir() for folder in folders] == [False, True, True, True]


def test_foreign_tensors_are_refused(tmp_path: Path, trained, tiny_tokenizer_dir: Path) -> None:
    folder = write(tmp_path, 4, trained, tiny_tokenizer_dir)
    config = trained[0].config
    other = type(trained[0])(type(config)(**{**config.to_dict(), "intermediate_size": 48}))
    with pytest.raises(InputError, match=r"tensor 'layers\.0.*': expected \(.*48.* found"):
        checkpoints.load_model_tensors(folder, other)
    with pytest.raises(InputError, match=r"expected .*48"):
        checkpoints.load_optimizer(folder, other, adam(list(other.parameters()), 1e-3))
    (folder / "optimizer.safetensors").unlink()
    with pytest.raises(InputError, match=r"optimizer\.safetensors: missing"):
        checkpoints.load_optimizer(folder, trained[0], trained[1])
