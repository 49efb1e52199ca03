"""Whether this machine computes in bf16, or only imitates it: then bf16 takes some thirty times as long as fp32.

Everything that may choose its number type asks here, so that one machine gives one answer.
"""

import functools
import platform


@functools.cache
def has_bf16() -> bool:
    """True where matrix products in bf16 are an instruction of the accelerator or, without one, of the processor.

    x86: AVX-512 BF16 or AMX (most laptops and many servers have neither). ARM: what oneDNN finds.
    """
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def fast_dtype() -> str:
    """ "bf16" where it is computed, otherwise "fp32"."""
    return "bf16" if has_bf16() else "fp32"
