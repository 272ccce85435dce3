"""Bound while transformers' image_utils.py and video_utils.py are imported."""

from sgl_ext.stand_ins import missing_name, refusing

ImageReadMode = refusing("torchvision.io.ImageReadMode")
decode_image = refusing("torchvision.io.decode_image")


def __getattr__(name: str) -> object:
    raise missing_name(__name__, name)
