"""Bound while transformers' image_utils.py and SGLang's image configs are imported."""

from sgl_ext.stand_ins import missing_name, refusing

MODES = ("NEAREST", "NEAREST_EXACT", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS")
InterpolationMode = refusing("torchvision.transforms.InterpolationMode", members=MODES)
pil_to_tensor = refusing("torchvision.transforms.functional.pil_to_tensor")


def __getattr__(name: str) -> object:
    raise missing_name(__name__, name)
