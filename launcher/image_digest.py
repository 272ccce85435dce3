"""An image by digest: a moving tag once gave one rank another SGLang build (40 files apart):
https://github.com/cqingwang/DeepSeek-v4.1-Flash-DGX-Sparks (docs/overnight-results.md)
"""

from __future__ import annotations

import re

_DIGEST = re.compile(r".+@sha256:[0-9a-f]{64}")
DIGEST_FORM = "NAME@sha256:64 hex digits"


def has_digest(image: str | None) -> bool:
    return image is not None and _DIGEST.fullmatch(image) is not None
