"""The STS harness: offline data, identity of what was measured (law 18), no stale score, errors."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr

from captionbert.artifacts.errors import InputError
from captionbert.configuration_captionbert import CaptionBertConfig
from captionbert.evaluation.measured import MeasuredModel, check_loaded, identify, load, open_measured
from captionbert.evaluation.sts import evaluate, render
from captionbert.evaluation.tasks import STS8, choose_tasks, find_pairs
from captionbert.export.folder import export_checkpoint
from captionbert.modeling_captionbert import CaptionBertModel
from captionbert.probes.scored_pairs import read_pairs


@pytest.fixture(scope="module")
def exported(
    tmp_path_factory: pytest.TempPathFactory, tiny_config: CaptionBertConfig, tiny_tokenizer_dir: Path
) -> Path:
    """The export of a tiny random model."""
    folder = tmp_path_factory.mktemp("sts")
    torch.manual_seed(0)
    CaptionBertModel(tiny_config).save_pretrained(folder / "checkpoint" / "model")
    shutil.copy(tiny_tokenizer_dir / "tokenizer.json", folder / "checkpoint" / "model")
    return export_checkpoint(folder / "checkpoint", folder / "exported")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, captions: list[str]) -> Path:
    """Two test files and the development file, 30 pairs each."""
    folder = tmp_path_factory.mktemp("data")
    for offset, name in enumerate(["stsb-test", "sts12-test", "stsb-dev"]):
        rows = [
            {"sentence1": captions[i + offset], "sentence2": captions[3 * i], "score": float(i % 6)}
            for i in range(30)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def expected_score(folder: Path, file: Path) -> float:
    """Spearman of the cosine, computed here without mteb."""
    pairs = read_pairs(file)
    model = load(identify(folder))
    a, b = model.encode(pairs.first), model.encode(pairs.second)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return float(spearmanr(cosine, pairs.scores)[0])


def test_scores_mean_missing_and_development(exported: Path, data: Path, tmp_path: Path) -> None:
    result = evaluate(exported, data=data, json=tmp_path / "result.json")
    assert list(result["tasks"]) == ["stsb", "sts12"]
    for key, line in result["tasks"].items():
        assert line["spearman"] == pytest.approx(
            expected_score(exported, data / f"{key}-test.jsonl"), abs=1e-5
        )
        assert line["pairs"] == 30
    values = [line["spearman"] for line in result["tasks"].values()]
    assert result["mean"] == pytest.approx(sum(values) / 2)
    assert result["mean_over"] == ["stsb", "sts12"]
    assert result["missing"] == ["sickr", "sts13", "sts14", "sts15", "sts16", "biosses"]
    assert list(result["development"]) == ["stsb-dev"]
    assert json.loads((tmp_path / "result.json").read_text()) == result
    text = render(result)
    assert "missing, no data file: sickr" in text
    assert "development, not in the mean" in text
    assert "effective rank" in text
    assert "CV" in text


def test_identity_data_digests_settings_and_versions_are_in_the_result(exported: Path, data: Path) -> None:
    from captionbert.artifacts.files import sha256_file

    result = evaluate(exported, tasks=["stsb"], data=data, batch_size=7, dtype="bf16", max_length=64)
    assert result["model"]["digest"] == identify(exported).digest
    assert result["tasks"]["stsb"]["data"]["sha256"] == sha256_file(data / "stsb-test.jsonl")
    wanted = {"batch_size": 7, "dtype": "bf16", "max_length": 64}
    assert {key: result["settings"][key] for key in wanted} == wanted
    assert {"mteb", "torch", "transformers", "sentence-transformers"} <= set(result["versions"])
    assert result["development"] == {}


def test_max_length_changes_what_is_read(exported: Path) -> None:
    texts = ["a man runs " * 10 + "on the beach", "a man runs " * 10 + "in a park"]
    short, whole = load(identify(exported), max_length=8), load(identify(exported))
    assert np.array_equal(*short.encode(texts))
    assert not np.array_equal(*whole.encode(texts))
    with pytest.raises(InputError, match=r"max_length 4096: outside 2\.\.128"):
        load(identify(exported), max_length=4096)


def test_no_stale_score_after_the_weights_change(exported: Path, data: Path, tmp_path: Path) -> None:
    """Same folder name, other weights: mteb's default cache would answer with the old score."""
    copy = tmp_path / "model"
    shutil.copytree(exported, copy)
    before = evaluate(copy, tasks=["stsb"], data=data)
    tensors = load_file(copy / "model.safetensors")
    tensors["projection.output.weight"] = tensors["projection.output.weight"].flip(1).contiguous()
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"model\.safetensors: differs from the record in captionbert\.json"):
        evaluate(copy, tasks=["stsb"], data=data)
    (copy / "captionbert.json").unlink()
    after = evaluate(copy, tasks=["stsb"], data=data)
    assert before["model"]["digest"] != after["model"]["digest"]
    assert before["tasks"]["stsb"]["spearman"] != after["tasks"]["stsb"]["spearman"]


def test_mteb_files_the_score_under_the_digest(exported: Path) -> None:
    identity = identify(exported)
    meta = MeasuredModel(load(identity), identity, batch_size=8).mteb_model_meta
    assert meta.revision == identity.digest
    assert meta.name == "local/exported"


# ---- law 18 ----


def test_a_live_model_is_refused(exported: Path) -> None:
    with pytest.raises(InputError, match="takes a folder, not a live SentenceTransformer"):
        evaluate(load(identify(exported)))  # type: ignore[arg-type]


def attach_tensor(base: torch.nn.Module) -> None:
    """An adapter as a new parameter."""
    base.register_parameter("arm", torch.nn.Parameter(torch.ones(3)))


def change_tensor(base: torch.nn.Module) -> None:
    """An adapter merged into a weight."""
    with torch.no_grad():
        base.final_norm.weight += 1  # type: ignore[union-attr,operator]


def attach_hook(base: torch.nn.Module) -> None:
    """An adapter behind a forward hook."""
    base.final_norm.register_forward_hook(lambda module, args, output: output * 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("attach", "message"),
    [
        (attach_tensor, "1 tensors are in memory but not in model.safetensors, first arm"),
        (change_tensor, "final_norm.weight in memory differs"),
        (attach_hook, "a hook sits on final_norm"),
    ],
)
def test_an_adapter_on_the_measured_model_is_refused(
    exported: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    attach,
    message: str,
) -> None:
    """Whichever way it is attached while mteb runs, the run ends in an error instead of a score."""
    import captionbert.evaluation.sts as sts

    run = sts._run

    def run_and_attach(measured: MeasuredModel, *rest: object) -> object:
        attach(measured.model[0].auto_model)
        return run(measured, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(sts, "_run", run_and_attach)
    with pytest.raises(InputError, match=message):
        evaluate(exported, tasks=["stsb"], data=data)


def test_the_loaded_model_passes_its_own_check(exported: Path) -> None:
    for dtype in ("fp32", "bf16", "fp16"):
        check_loaded(load(identify(exported), dtype=dtype), identify(exported))


# ---- bad input ----


def test_folders_without_data(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"none of the data files is there; expected at least one of stsb-test\.jsonl"
    ):
        find_pairs(tmp_path, list(STS8))
    with pytest.raises(InputError, match="no such folder"):
        find_pairs(tmp_path / "nowhere", list(STS8))


def test_unknown_names(exported: Path, data: Path) -> None:
    with pytest.raises(InputError, match=r"task 'sts21': unknown .* did you mean 'sts1"):
        choose_tasks("sts8", ["sts21"])
    with pytest.raises(InputError, match="suite 'mteb': unknown; known suites: sts8"):
        choose_tasks("mteb", None)
    with pytest.raises(InputError, match="dtype 'int8': unknown"):
        evaluate(exported, data=data, dtype="int8")
    with pytest.raises(InputError, match="batch_size 0"):
        evaluate(exported, data=data, batch_size=0)
    assert [task.key for task in choose_tasks("sts8", ["SICK-R", "sts12", "stsb-dev"])] == [
        "sickr",
        "sts12",
        "stsb-dev",
    ]


def test_places_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        identify(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"modules\.json is missing"):
        identify(tmp_path)


def test_online_without_a_network_says_what_to_do(exported: Path) -> None:
    """The suite runs offline, so mteb's download fails; no socket is needed to know what to advise."""
    with pytest.raises(
        InputError,
        match=r"could not fetch mteb/stsbenchmark-sts at b0fddb56.* give --data DIR with stsb-test",
    ):
        evaluate(exported, tasks=["stsb"])


def test_minilm_on_real_pairs(shared_data: Path) -> None:
    """The published row of data/README.md, on the smallest of its files (the command line runs them all)."""
    result = evaluate("packaged:minilm", tasks=["stsb"], data=shared_data / "data" / "sts")
    assert result["tasks"]["stsb"]["spearman"] == pytest.approx(0.8203, abs=0.0005)
    assert result["model"]["name"] == "minilm"


def test_a_consensus_and_a_graph_are_measured_as_the_probes_open_them(data: Path, monkeypatch) -> None:
    sys.path.append(str(Path(__file__).parent))
    made = importlib.import_module("encoder_setup").HandMade(
        "consensus:d", lambda text: np.random.default_rng([ord(c) for c in text]).standard_normal(5), width=5
    )
    made.facts |= {"teachers": {"a": "fp32", "b": "bf16"}}
    opened: list[tuple] = []
    monkeypatch.setattr("captionbert.evaluation.measured.open_fixed", lambda *a: opened.append(a) or made)
    result = evaluate("consensus:d", tasks=["stsb"], data=data, dtype="bf16")
    pairs = read_pairs(data / "stsb-test.jsonl")
    cosines = (made.encode(pairs.first) * made.encode(pairs.second)).sum(axis=1)
    assert result["tasks"]["stsb"]["spearman"] == pytest.approx(spearmanr(cosines, pairs.scores)[0], abs=1e-5)
    assert result["model"] == {"name": "consensus:d", "folder": "consensus:d", "digest": "consensus:d"}
    assert result["settings"]["dtype"] == "bf16, fp32"
    for word in ("packaged:paraphrase-l3", "onnx:g.onnx:t", f"a/b@{'0' * 40}"):
        open_measured(word, dtype="fp32", max_length=None, batch_size=8)
    assert [word for word, _ in opened[1:]] == ["packaged:paraphrase-l3", "onnx:g.onnx:t", f"a/b@{'0' * 40}"]
    with pytest.raises(InputError, match="max_length 64: consensus:d reads up to its own limit"):
        evaluate("consensus:d", tasks=["stsb"], data=data, max_length=64)
