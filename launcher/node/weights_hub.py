"""Runs in a Python that has huggingface_hub, fed on stdin: lists a repository, then downloads it.

    stdin   {"repo", "revision"}\\n; later {"directory", "skip": [name], "num_threads"}\\n
    stdout  {"commit": sha, "files": {name: {"size_bytes", "sha256" or null, "git_sha1" or null}}}\\n,
            {"fetched": name, "sha256": hex}\\n for each, or {"error": text, "hint": text}\\n at any point

Sent as source text (launcher/node/weights_fetch.py): it may import nothing of ours. Names, log-in, redirects
and transport are the library's. Files on disk are ours: its own download of a file starts anew when it was
killed (huggingface_hub 1.33: the partial file's name is never used again). Remove when it resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

PARTIAL_SUFFIX = ".sparkctl-partial"  # as in weights_manifest.py
BLOCK_BYTES = 4 << 20
# A signed address lives for an hour or so: each try asks for a new one and goes on where the last ended.
MAX_TRIES = 5
_say_lock = threading.Lock()


def main() -> int:
    request = json.loads(sys.stdin.readline())
    try:
        import huggingface_hub
    except ImportError as error:
        hint = (
            f"install it there: {sys.executable} -m pip install 'sparkctl[fetch]'; or take over a "
            "checkpoint of the node: sparkctl weights fetch --from DIR"
        )
        say({"error": f"huggingface_hub must be installed in {sys.executable}, got: {error}.", "hint": hint})
        return 1
    try:
        commit, files = list_files(huggingface_hub, **request)
        say({"commit": commit, "files": files})
        line = sys.stdin.readline()
        if line:
            fetch(huggingface_hub, request["repo"], commit, files, **json.loads(line))
    except Exception as error:  # noqa: BLE001 - the edge: whatever the library raises is told with its words
        first = str(error).strip().splitlines()[0] if str(error).strip() else "no words"
        hint = "what is here is kept: repeat the command; for gated repositories: hf auth login"
        say({"error": f"The download must succeed, got {type(error).__name__}: {first}", "hint": hint})
        return 1
    return 0


def list_files(hub: Any, *, repo: str, revision: str | None) -> tuple[str, dict[str, dict[str, Any]]]:
    info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True)
    files = {
        item.rfilename: {
            "size_bytes": item.size,
            "sha256": item.lfs.sha256 if item.lfs else None,
            "git_sha1": None if item.lfs else item.blob_id,
        }
        for item in info.siblings
        if not any(part.startswith(".") for part in item.rfilename.split("/"))
    }
    return info.sha, files


def fetch(
    hub: Any,
    repo: str,
    commit: str,
    files: dict[str, dict[str, Any]],
    *,
    directory: str,
    skip: list[str],
    num_threads: int,
) -> None:
    def one(name: str) -> str:
        url = hub.hf_hub_url(repo, name, revision=commit)
        return fetch_file(hub, url, Path(directory) / name, files[name])

    names = sorted(set(files) - set(skip), key=lambda name: -files[name]["size_bytes"])
    pool = ThreadPoolExecutor(num_threads)
    jobs = {pool.submit(one, name): name for name in names}
    try:
        for job in as_completed(jobs):
            say({"fetched": jobs[job], "sha256": job.result()})
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def fetch_file(hub: Any, url: str, target: Path, entry: dict[str, Any]) -> str:
    """The sha256 of the file, which then has its name. A file that is there with the right bytes stays."""
    if target.is_file() and target.stat().st_size == entry["size_bytes"]:
        sha256, problem = check(target, entry)
        if not problem:
            return sha256
    partial = target.with_name(f".{target.name}{PARTIAL_SUFFIX}")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("ab") as file:
        if file.tell() > entry["size_bytes"]:
            file.truncate(0)
        for attempt in range(1, MAX_TRIES + 1):
            try:
                download(hub, url, file, entry["size_bytes"])
                break
            except Exception:  # the last one is raised, whatever it is
                if attempt == MAX_TRIES or not file.tell():
                    raise
        file.flush()
        os.fsync(file.fileno())
    sha256, problem = check(partial, entry)
    if problem:
        partial.unlink()
        raise ValueError(f"{target.name} must have the hash of the hub, got {problem}")
    partial.replace(target)
    return sha256


def download(hub: Any, url: str, file: Any, size_bytes: int) -> None:
    """Append to `file` what it lacks."""
    from huggingface_hub.file_download import http_get

    kept = file.seek(0, os.SEEK_END)
    if kept == size_bytes:
        return
    place = hub.get_hf_file_metadata(url).location
    headers = hub.utils.build_hf_headers()
    if urlparse(place).netloc != urlparse(url).netloc:  # a storage host gets no token
        headers.pop("authorization", None)
    http_get(place, file, resume_size=kept, headers=headers, expected_size=size_bytes)


def check(path: Path, entry: dict[str, Any]) -> tuple[str, str]:
    """(sha256, what is wrong or ""). Files outside LFS have git's own hash on the hub."""
    sha256 = hashlib.sha256()
    git_sha1 = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            sha256.update(block)
            if entry["git_sha1"]:
                git_sha1.update(block)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    seen = sha256.hexdigest()
    if entry["sha256"] and entry["sha256"] != seen:
        return seen, f"sha256 {seen[:16]}... for {entry['sha256'][:16]}..."
    if entry["git_sha1"] and entry["git_sha1"] != git_sha1.hexdigest():
        return seen, f"git hash {git_sha1.hexdigest()[:16]}... for {entry['git_sha1'][:16]}..."
    return seen, ""


def say(value: dict[str, Any]) -> None:
    with _say_lock:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
