"""manifest.json beside the packed files: where they come from, and a checksum per MiB of their pages."""

import base64
import binascii
import hashlib
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from engram.errors import TableFormatError
from engram.regular_file import refuse_special_file
from engram.table_format import HEADER_BYTES, LAYOUT_VERSION, MAX_TP, PAGE_BYTES, table_file_name
from engram.write_file import write_atomically

MANIFEST_NAME: Final = "manifest.json"
BLOCK_BYTES: Final = 1 << 20
CHECKSUM_BYTES: Final = 16
# 203 GB of tables have 4.3 MB of checksums in base64; far more than that is no manifest.
MAX_MANIFEST_BYTES: Final = 64 << 20


def block_checksum(block: bytes | memoryview) -> bytes:
    """BLAKE2b-128, the fastest strong hash in the standard library on x86-64 and aarch64."""
    return hashlib.blake2b(block, digest_size=CHECKSUM_BYTES).digest()


class ManifestFile(BaseModel):
    """One packed file. Block b covers bytes [4096 + b MiB, 4096 + (b + 1) MiB) of it, the last one less."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    layer_id: Annotated[int, Field(ge=0, lt=1 << 16)]
    rank: Annotated[int, Field(ge=0)]
    tp: Annotated[int, Field(ge=1, le=MAX_TP)]
    table_id: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    file_bytes: Annotated[int, Field(gt=HEADER_BYTES, multiple_of=PAGE_BYTES, lt=1 << 62)]
    block_checksums: bytes

    @property
    def name(self) -> str:
        return table_file_name(self.layer_id, self.rank, self.tp)

    @property
    def num_blocks(self) -> int:
        return -(-(self.file_bytes - HEADER_BYTES) // BLOCK_BYTES)

    def block_range(self, block_idx: int) -> tuple[int, int]:
        """(offset_bytes, num_bytes) of a block in the file."""
        offset = HEADER_BYTES + block_idx * BLOCK_BYTES
        return offset, min(BLOCK_BYTES, self.file_bytes - offset)

    def checksum(self, block_idx: int) -> bytes:
        return self.block_checksums[block_idx * CHECKSUM_BYTES : (block_idx + 1) * CHECKSUM_BYTES]

    @field_validator("block_checksums", mode="before")
    @classmethod
    def _decode(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from error

    @field_serializer("block_checksums")
    def _encode(self, value: bytes) -> str:
        return base64.b64encode(value).decode("ascii")

    @model_validator(mode="after")
    def _one_checksum_per_block(self) -> Self:
        if self.rank >= self.tp:
            raise ValueError(f"rank must be below tp {self.tp}, got {self.rank}")
        if len(self.block_checksums) != self.num_blocks * CHECKSUM_BYTES:
            raise ValueError(
                f"block_checksums must hold {self.num_blocks} of {CHECKSUM_BYTES} bytes, "
                f"got {len(self.block_checksums)} bytes"
            )
        return self


class Manifest(BaseModel):
    """All packed files of one folder; they share source and revision."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    layout_version: int
    source_repo: Annotated[str, Field(min_length=1, max_length=200)]
    source_revision: Annotated[str, Field(pattern=r"^[0-9A-Za-z._-]{1,64}$")]
    checksum: Literal["blake2b-128 per MiB"]
    files: tuple[ManifestFile, ...]

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        if self.layout_version != LAYOUT_VERSION:
            raise ValueError(f"layout_version must be {LAYOUT_VERSION}, got {self.layout_version}")
        names = [file.name for file in self.files]
        if len(set(names)) != len(names):
            raise ValueError("files must be listed once each")
        return self

    def find(self, name: str) -> ManifestFile | None:
        return next((file for file in self.files if file.name == name), None)

    def with_file(self, file: ManifestFile) -> "Manifest":
        """The same manifest with this entry added, or in place of the one of its name."""
        others = tuple(old for old in self.files if old.name != file.name)
        return self.model_copy(update={"files": tuple(sorted((*others, file), key=lambda f: f.name))})


def new_manifest(*, source_repo: str, source_revision: str) -> Manifest:
    return Manifest(
        layout_version=LAYOUT_VERSION,
        source_repo=source_repo,
        source_revision=source_revision,
        checksum="blake2b-128 per MiB",
        files=(),
    )


def read_manifest(directory: Path) -> Manifest:
    """Raises TableFormatError when it is missing, damaged or of another layout version."""
    path = directory / MANIFEST_NAME
    refuse_special_file(path)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise TableFormatError(
            f"{MANIFEST_NAME} must be readable beside the packed files, got {error.strerror} ({path}).",
            hint="pack the tables into this folder: sparkctl engram pack",
        ) from error
    return parse_manifest(text, where=str(path))


def parse_manifest(text: bytes, where: str) -> Manifest:
    """`where` names the file in errors."""
    hint = (
        "the manifest is damaged or of another version; pack the tables again: sparkctl engram pack --restart"
    )
    if len(text) > MAX_MANIFEST_BYTES:
        raise TableFormatError(
            f"{MANIFEST_NAME} must be at most {MAX_MANIFEST_BYTES} bytes, got more ({where}).", hint=hint
        )
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "the document"
        raise TableFormatError(
            f"{MANIFEST_NAME} must be a valid manifest, got {name}: {first['msg']} ({where}).", hint=hint
        ) from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replaces the folder's manifest in one step."""
    write_atomically(directory / MANIFEST_NAME, manifest.model_dump_json(indent=1).encode("ascii") + b"\n")
