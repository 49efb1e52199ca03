"""Does an exported folder give the same vectors in another environment? A script, for a second interpreter.

    main environment:    python tests/check_transformers_457.py write FOLDER REFERENCE.npz
    other environment:   python tests/check_transformers_457.py check FOLDER REFERENCE.npz

The other environment needs torch, transformers and safetensors, and the package is made unimportable in it.
With the same torch version, thread count and machine the vectors are equal; `--tolerance` (0 by default) is
for other torches. Exit status: 0 equal, 1 different.
"""

import argparse
import sys
from typing import Any

TEXTS = [
    "A man in a red jacket walks two dogs along the beach.",
    "Two children share one umbrella.",
    "a cat",
    " ".join(["The ferry leaves the harbour and the gulls follow it;"] * 12),
]


def outputs(folder: str) -> dict[str, Any]:
    """Ids, token states and sentence vectors of TEXTS, in float32, and what the loader reports."""
    sys.modules["captionbert"] = None  # type: ignore[assignment]
    import numpy as np
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model, info = AutoModel.from_pretrained(
        folder, trust_remote_code=True, dtype=torch.float32, output_loading_info=True
    )
    loose = {
        key: list(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]
    }
    if loose:
        raise SystemExit(f"keys do not match: {loose}")
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        result = model.eval()(**batch)
    return {
        "ids": batch["input_ids"].numpy(),
        "states": result.last_hidden_state.numpy(),
        "vectors": result.pooler_output.numpy(),
        "encoded": np.asarray(model.encode(TEXTS, tokenizer)),
    }


def main() -> int:
    """Write or check the reference; the exit status is the verdict."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("folder")
    parser.add_argument("reference")
    parser.add_argument("--tolerance", type=float, default=0.0)
    options = parser.parse_args()
    import numpy as np
    import transformers

    found = outputs(options.folder)
    if options.action == "write":
        np.savez(options.reference, **found)
        return 0
    expected = np.load(options.reference)
    worst = 0.0
    for name, value in found.items():
        if value.shape != expected[name].shape:
            print(f"{name}: shape {value.shape}, expected {expected[name].shape}")
            return 1
        worst = max(worst, float(np.abs(value.astype(np.float64) - expected[name].astype(np.float64)).max()))
    print(f"transformers {transformers.__version__}: maximum difference {worst:g} over {', '.join(found)}")
    return 0 if worst <= options.tolerance else 1


if __name__ == "__main__":
    raise SystemExit(main())
