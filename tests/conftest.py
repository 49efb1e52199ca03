"""What every test shares: a tiny config, model and tokenizer, a few captions, the shared data folder."""

import os
from pathlib import Path

import pytest

# Before torch is imported: two test processes that spin on two cores slow each other down many times over.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parent.parent
SUBJECTS = [
    "a man",
    "a woman",
    "two dogs",
    "a black cat",
    "the old boat",
    "a child",
    "three birds",
    "a red car",
]
VERBS = ["runs", "sleeps", "jumps", "waits", "plays", "stands", "turns", "rests"]
PLACES = ["on the beach", "in a park", "near the river", "under a tree", "by the road", "at night", "in snow"]


@pytest.fixture(scope="session")
def captions() -> list[str]:
    """200 distinct small captions."""
    rows = [f"{s} {v} {p}." for p in PLACES for v in VERBS for s in SUBJECTS]
    return rows[:200]


@pytest.fixture(scope="session")
def tiny_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved uncased WordPiece tokenizer; [PAD] is id 0, as in BERT."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = sorted({w for text in SUBJECTS + VERBS + PLACES for w in text.split()})
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocab = [
        *special,
        *words,
        *letters,
        *("##" + c for c in letters),
        *"0123456789",
        *".,!?;:'-",
        "##s",
        "##ing",
    ]
    ids = {token: i for i, token in enumerate(dict.fromkeys(vocab))}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=128,
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_config(tiny_tokenizer_dir: Path):
    """Two layers of width 32: every code path, milliseconds a call."""
    from transformers import PreTrainedTokenizerFast

    from captionbert.configuration_captionbert import CaptionBertConfig

    vocab = len(PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir))
    return CaptionBertConfig(
        vocab_size=vocab,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        projection_dim=24,
        max_position_embeddings=128,
        position_type="rotary",
    )


@pytest.fixture
def tiny_model(tiny_config):
    """A seeded model of `tiny_config`, in evaluation mode."""
    import torch

    from captionbert.modeling_captionbert import CaptionBertModel

    torch.manual_seed(0)
    return CaptionBertModel(tiny_config).eval()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real captions and STS pairs; the test skips where it is absent."""
    folder = Path(os.environ.get("CAPTIONBERT_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no shared data at {folder}; set CAPTIONBERT_SHARED to the folder that holds data/")
    return folder


@pytest.fixture
def structured_model(tiny_tokenizer_dir: Path):
    """Makes a seeded model for the tiny tokenizer: three layers of two heads of 32, the designated head (2, 0).

    `reads=True` sets that head by hand so that it finds the record of every word.
    """
    import torch
    from transformers import PreTrainedTokenizerFast

    from captionbert.configuration_captionbert import CaptionBertConfig
    from captionbert.modeling_captionbert import CaptionBertModel
    from captionbert.training.student import vocabulary_fields

    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_dir)

    def make(preset: str = "whole-key-lookup", *, reads: bool = False, **changes):
        fields = vocabulary_fields(tokenizer, [".", "!", "?", ";"]) if "relative" not in preset else {}
        small = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
        small |= {"vocab_size": len(tokenizer), "projection_dim": 24, "max_position_embeddings": 256}
        small |= {} if "relative" in preset else {"lookup_layer": 2}
        torch.manual_seed(0)
        model = CaptionBertModel(
            CaptionBertConfig.from_preset(preset, **{**small, **fields, **changes})
        ).eval()
        if reads:  # a constant query and key: only phases and the record norm tell places apart
            qkv = model.layers[1].attention.qkv
            with torch.no_grad():
                for start, length in ((0, 3.0), (64, 0.2)):  # head 0 of the queries, of the keys
                    qkv.weight[start : start + 32] = 0.0
                    qkv.bias[start : start + 32] = torch.tensor([length] * 16 + [0.0] * 16)
        return model

    return make


@pytest.fixture
def reading_model(structured_model):
    """A structured model that finds every record, with values where a trained model has them and a new one zeros."""
    import torch

    made = structured_model(reads=True)
    with torch.no_grad():
        made.embeddings.address_values.normal_()
        for parameter in made.layers[2].parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return made
