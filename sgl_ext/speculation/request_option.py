"""`custom_params: {"spec": ...}` of a request: auto (the default), off, or a fixed width."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from sgl_ext.errors import SpecOptionError

FIELD = "spec"


class SpecMode(enum.StrEnum):
    AUTO = "auto"
    OFF = "off"
    FIXED = "fixed"
    DRAFT_ONLY = "draft-only"  # drafts and verifies none of it: what a draft costs, for `tune spec`


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecOption:
    """width: draft tokens verified in every step where mode is FIXED, else 0."""

    mode: SpecMode
    width: int = 0


AUTO = SpecOption(mode=SpecMode.AUTO)
OFF = SpecOption(mode=SpecMode.OFF)


def read_spec_option(custom_params: object, *, block: int) -> SpecOption:
    """The option in a request's custom_params, or AUTO where it has none.

    Accepts "auto", "off", false, and 0 (off) to block; "draft-only" is for measuring.

    Raises SpecOptionError otherwise: a request whose
    wish was dropped in silence would be measured as if it had been granted.
    """
    if custom_params is None:
        return AUTO
    if not isinstance(custom_params, Mapping):
        raise SpecOptionError(
            f"custom_params must be an object, got {type(custom_params).__name__} (request).",
            hint=f'send {{"custom_params": {{"{FIELD}": "auto"}}}}',
        )
    if FIELD not in custom_params:
        return AUTO
    wish = custom_params[FIELD]
    if wish is False or wish == SpecMode.OFF.value:
        return OFF
    if wish == SpecMode.AUTO.value:
        return AUTO
    if wish == SpecMode.DRAFT_ONLY.value:
        return SpecOption(mode=SpecMode.DRAFT_ONLY)
    if isinstance(wish, int) and not isinstance(wish, bool) and 0 <= wish <= block:
        return SpecOption(mode=SpecMode.FIXED, width=wish) if wish else OFF
    raise SpecOptionError(
        f'custom_params["{FIELD}"] must be "auto", "off" or a width of 0 to {block}, got {wish!r} (request).',
        hint=f"leave {FIELD} out for auto; this server's block is {block} draft tokens",
    )
