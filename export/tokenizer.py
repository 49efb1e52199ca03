"""The tokenizer of an export, written from one `tokenizer.json` so that each reader gives the same ids.

transformers 5 saves `tokenizer.json` and a config whose class name transformers 4 does not know; older
servers read `vocab.txt`. So the files are written here: one class name both versions know, the length limit,
lower-casing, the special tokens, padding on the right.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from captionbert.artifacts.errors import InputError
from captionbert.artifacts.files import read_json, write_json
from captionbert.configuration_captionbert import CaptionBertConfig

SPECIAL = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
# WordPiece looks at every prefix of a word: the limit keeps a 10,000-letter word from costing half a minute.
MOST_CHARACTERS_A_WORD = 100


def read_tokenizer(path: Path, config: CaptionBertConfig) -> Tokenizer:
    """A checked tokenizer without truncation or padding of its own.

    Raises:
        InputError: an unreadable file, ids past the vocabulary, a padding id that is not the model's, an
            empty added token, or a word limit that lets one word stall the reader.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise InputError(f"{path}: not a tokenizer file ({error})") from None
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values())
    if largest >= config.vocab_size:
        raise InputError(
            f"{path}: token id {largest} lies outside the model's vocabulary of {config.vocab_size}"
        )
    if tokenizer.token_to_id(SPECIAL["pad_token"]) != config.pad_token_id:
        found = tokenizer.token_to_id(SPECIAL["pad_token"])
        raise InputError(
            f"{path}: {SPECIAL['pad_token']} has id {found}, "
            f"the model's pad_token_id is {config.pad_token_id}"
        )
    fields = json.loads(tokenizer.to_str())
    if any(not token["content"] for token in fields.get("added_tokens", [])):
        raise InputError(f"{path}: an added token is empty; it would match everywhere")
    limit = fields["model"].get("max_input_chars_per_word", MOST_CHARACTERS_A_WORD)
    if limit > MOST_CHARACTERS_A_WORD:
        raise InputError(
            f"{path}: max_input_chars_per_word is {limit}, at most {MOST_CHARACTERS_A_WORD} is accepted"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def write_tokenizer(source: Path, out: Path, config: CaptionBertConfig) -> None:
    """Write the tokenizer files of an export into `out`. Raises as `read_tokenizer`."""
    tokenizer = read_tokenizer(source, config)
    tokenizer.save(str(out / "tokenizer.json"))
    fields: dict[str, Any] = json.loads(tokenizer.to_str())
    normalizer = fields.get("normalizer") or {}
    special = {role: token for role, token in SPECIAL.items() if tokenizer.token_to_id(token) is not None}
    is_bert = fields["model"]["type"] == "WordPiece" and normalizer.get("type") == "BertNormalizer"
    settings: dict[str, Any] = {
        "tokenizer_class": "BertTokenizer" if is_bert else "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": True,
        **special,
    }
    if is_bert:
        settings["do_lower_case"] = normalizer["lowercase"]
        settings["strip_accents"] = normalizer.get("strip_accents")
        settings["tokenize_chinese_chars"] = normalizer.get("handle_chinese_chars", True)
        vocabulary = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        (out / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary), encoding="utf-8")
    write_json(out / "tokenizer_config.json", settings)
    write_json(out / "special_tokens_map.json", special)


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """The settings file of an exported folder."""
    return read_json(folder / "tokenizer_config.json")
