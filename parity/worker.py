"""One side of a parity run: a process that loads one model and answers one case a line.

Run by path, never imported by the package: `python worker.py SETTINGS.json`. The export side first makes the
training package unimportable, then loads the folder by AutoModel, as a user does. The reference side rebuilds
the model from the training checkpoint with the package's own classes, in an interpreter that need not have
the package installed. It reads a JSON case a line from stdin and answers a JSON line on stdout; tensors
travel through safetensors files.
"""

import hashlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

EXTRA_PADDING = 64
# Differs between a checkpoint and its export by nature, not by mistake.
CONFIG_NOISE = ("transformers_version", "auto_map", "architectures", "_name_or_path", "dtype", "torch_dtype")


def hide_package() -> None:
    """From here on `import captionbert` raises ImportError."""
    sys.modules["captionbert"] = None  # type: ignore[assignment]


def mount_package(root: Path) -> None:
    """Make the folder `root` importable as the package `captionbert`, installed or not."""
    spec = importlib.util.spec_from_file_location(
        "captionbert", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["captionbert"] = module
    spec.loader.exec_module(module)


class Worker:
    """A loaded model and tokenizer, and the cases run on them."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch

        self.torch = torch
        if settings.get("threads"):
            torch.set_num_threads(settings["threads"])
        self.dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        self.loading: dict[str, list[str]] = {}
        if settings["side"] == "export":
            hide_package()
            self._load_export(settings)
        else:
            mount_package(Path(settings["package_root"]))
            self._load_reference(settings)
        self.model.eval()

    def _load_export(self, settings: dict[str, Any]) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.model, info = AutoModel.from_pretrained(
            settings["folder"],
            trust_remote_code=True,
            dtype=self.dtypes[settings["dtype"]],
            output_loading_info=True,
        )
        self.loading = {
            key: sorted(str(item) for item in info[key])
            for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
        }
        self.tokenizer = AutoTokenizer.from_pretrained(settings["folder"], trust_remote_code=True)

    def _load_reference(self, settings: dict[str, Any]) -> None:
        from safetensors.torch import load_file
        from transformers import PreTrainedTokenizerFast

        from captionbert.configuration_captionbert import CaptionBertConfig
        from captionbert.modeling_captionbert import CaptionBertModel

        folder = Path(settings["model_folder"])
        self.model = CaptionBertModel(CaptionBertConfig.from_pretrained(folder))
        stored = {
            key: value.to(self.dtypes[settings["stored_dtype"]]) if value.is_floating_point() else value
            for key, value in load_file(folder / "model.safetensors").items()
        }
        self.model = self.model.to(self.dtypes[settings["stored_dtype"]])
        self.model.load_state_dict(stored, strict=True)
        self.model = self.model.to(self.dtypes[settings["dtype"]])
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_file=settings["tokenizer_file"])

    def hello(self) -> dict[str, Any]:
        """What was loaded: versions, where the class came from, every tensor's digest, the config."""
        import platform

        import transformers

        config = {key: value for key, value in self.model.config.to_dict().items() if key not in CONFIG_NOISE}
        return {
            "versions": {
                "python": platform.python_version(),
                "torch": self.torch.__version__,
                "transformers": transformers.__version__,
            },
            "threads": self.torch.get_num_threads(),
            "module": type(self.model).__module__,
            "loading": self.loading,
            "config": json.loads(json.dumps(config, default=str)),
            "tensors": {
                name: self._describe(value) for name, value in sorted(self.model.state_dict().items())
            },
        }

    def _describe(self, value: Any) -> str:
        data = (
            value.detach().contiguous().view(self.torch.uint8)
            if value.ndim
            else value.detach().reshape(1).view(self.torch.uint8)
        )
        return f"{value.dtype} {list(value.shape)} {hashlib.sha256(data.numpy().tobytes()).hexdigest()}"

    def run(self, case: dict[str, Any], out: str) -> dict[str, Any]:
        """Compute a case and save its tensors to `out`; a refusal by the model is an answer."""
        from safetensors.torch import save_file

        try:
            with self.torch.inference_mode():
                tensors = self._encode(case) if case["through"] == "encode" else self._forward(case)
        except ValueError as error:
            return {"refused": str(error)}
        save_file({key: value.contiguous().clone() for key, value in tensors.items()}, out)
        return {"tensors": sorted(tensors)}

    def _ids(self, text: str, length: int | None) -> list[int]:
        limit = self.model.config.max_position_embeddings
        ids = self.tokenizer(text, truncation=True, max_length=limit if length is None else max(length, 2))[
            "input_ids"
        ]
        ids = ids[:1] if length == 1 else ids
        if length is not None and len(ids) != length:
            raise RuntimeError(f"a text meant for {length} tokens gave {len(ids)}")
        return list(ids)

    def _encode(self, case: dict[str, Any]) -> dict[str, Any]:
        vectors = self.model.encode(
            [text[: 6 * (length or 999)] for text, length in case["rows"]], self.tokenizer
        )
        return {"vectors": self.torch.from_numpy(vectors)}

    def _forward(self, case: dict[str, Any]) -> dict[str, Any]:
        rows = [self._ids(text, length) for text, length in case["rows"]]
        if case["empty_row"]:
            rows.insert(0, [])
        width = max(len(row) for row in rows)
        ids, mask = self._pad(rows, width, "right")
        tensors = self._outputs(case, ids, mask, "")
        if case["study"] == "content":
            other = (ids + 7) % self.model.config.vocab_size
            tensors |= self._outputs(case, self.torch.where(mask.bool(), ids, other), mask, "moved.")
        elif case["study"]:
            tensors |= self._outputs(case, *self._pad(rows, width + EXTRA_PADDING, case["study"]), "moved.")
        return tensors

    def _pad(self, rows: list[list[int]], width: int, side: str) -> tuple[Any, Any]:
        ids = self.torch.full((len(rows), width), self.model.config.pad_token_id, dtype=self.torch.long)
        mask = self.torch.zeros_like(ids)
        for index, row in enumerate(rows):
            start = 0 if side == "right" else width - len(row)
            ids[index, start : start + len(row)] = self.torch.tensor(row, dtype=self.torch.long)
            mask[index, start : start + len(row)] = 1
        return ids, mask

    def _outputs(self, case: dict[str, Any], ids: Any, mask: Any, prefix: str) -> dict[str, Any]:
        self.model.set_attn_implementation(case["attention"])
        output = self.model(
            input_ids=ids,
            attention_mask=mask if case["send_mask"] else None,
            output_hidden_states="hidden_states" in case["outputs"],
            output_attentions="attentions" in case["outputs"],
            pointer_queries=self._every_token(mask) if "pointers" in case["outputs"] else None,
        )
        tensors = {
            "input_ids": ids,
            "attention_mask": mask,
            "last_hidden_state": output.last_hidden_state,
            "pooler_output": output.pooler_output,
        }
        if "pointers" in case["outputs"]:
            tensors["pointer_log_probs"] = output.pointer_log_probs
        for name in set(case["outputs"]) - {"pointers"}:
            tensors |= {f"{name}.{i:02d}": value for i, value in enumerate(output[name])}
        return {prefix + key: value for key, value in tensors.items()}

    def _every_token(self, mask: Any) -> tuple[Any, Any, tuple[tuple[int, int], ...]]:
        """Pointer queries of all visible tokens: the designated head, if any, and one at each end of the model."""
        config = self.model.config
        heads = [(1, 0), (config.num_hidden_layers, config.num_attention_heads - 1)]
        if getattr(config, "lookup_layer", None) is not None:
            heads.insert(0, (config.lookup_layer, config.lookup_head))
        rows, positions = mask.bool().nonzero(as_tuple=True)
        return rows, positions, tuple(dict.fromkeys(heads))


def main() -> None:
    """Serve cases until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    worker = Worker(settings)
    print(json.dumps(worker.hello()), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(worker.run(request["case"], request["out"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
