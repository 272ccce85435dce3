"""The one import of paramiko, made quiet. It is slow to load: import it only for SSH nodes."""

from __future__ import annotations

import logging
import warnings

with warnings.catch_warnings():
    # cryptography warns about old ciphers that paramiko merely lists; users cannot act on it
    warnings.simplefilter("ignore")
    import paramiko

# Each failure is reported once, by our own error; paramiko would also print it with a traceback.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

__all__ = ["paramiko"]
