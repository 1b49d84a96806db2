"""NVIDIA's ModelOpt: NVFP4 as `NAME.weight` of two codes a byte, a scale of E4M3 for 16 weights in `NAME.weight_scale`
and one for all in `NAME.weight_scale_2`, by which both are multiplied; FP8 and MXFP8 as in other files (fp8.py).

Activations and caches are not quantised, whatever the settings say of them: their factors are left out.
"""

from __future__ import annotations

from torch_foundry.io.container import TensorInfo
from torch_foundry.io.packed import fp8
from torch_foundry.io.packed.blocks import Parts, Settings, small_floats
from torch_foundry.io.weights import Weight

# By name: rows and columns of weights that share a scale; None: the shape of the scales says it.
_ALGORITHMS: dict[str, fp8.Square | None] = {
    **dict.fromkeys(("nvfp4", "w4a16_nvfp4", "fp8", "fp8_per_channel_per_token", "mxfp8", "mixed_precision")),
    "fp8_pb_wo": (128, 128),
}
_BESIDE = ("weight_scale", "weight_scale_2", "input_scale")
_OF_CACHES = (".k_scale", ".v_scale")


def weights(parts: Parts, settings: Settings) -> dict[str, Weight]:
    """All weights of the container, by name. LoadError QUANT_CONFIG, PACK_*."""
    square = _ALGORITHMS[settings.text("quant_algo", tuple(_ALGORITHMS))]
    tensors, found = parts.container.tensors, dict[str, Weight]()
    read = {name for name in tensors if name.endswith(_OF_CACHES)}
    for name, info in tensors.items():
        base, _, leaf = name.rpartition(".")
        if leaf == "weight" and info.format == "u8":
            found[name] = _four_bits(parts, base, info)
            read |= {name, *(f"{base}.{each}" for each in _BESIDE)}
    for name, weight in fp8.matrices(parts, square, read).items():
        parts.put(found, name, weight)
    return found


def _four_bits(parts: Parts, base: str, info: TensorInfo) -> Weight:
    if len(info.shape) != 2:
        raise parts.error("PACK_SHAPE", info.name, "a matrix", list(info.shape))
    rows, columns = info.shape[0], info.shape[1] * 2
    scales = parts.part(f"{base}.weight_scale", ("f8_e4m3",), (rows, columns // 16))
    whole = parts.part(f"{base}.weight_scale_2", ("f32",))
    if whole.shape not in ((), (1,)):
        raise parts.error("PACK_SHAPE", whole.name, "one scale", list(whole.shape))
    factor = parts.read(whole.name).reshape(1)
    if not float(factor) > 0:
        raise parts.error("NONFINITE", whole.name, "a scale above 0", float(factor))
    return small_floats(parts, info.name, (rows, columns), "nvfp4", scales, factor)
