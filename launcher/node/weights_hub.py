"""Runs in a Python that has huggingface_hub, fed on stdin: lists a repository, and after "go" downloads it.

    stdin   {"repo", "revision", "directory", "num_threads"}\\n, then go\\n
    stdout  {"commit": sha, "files": {name: {"size_bytes", "sha256" or null, "git_sha1" or null}}}\\n,
            then {"fetched": name}\\n for each, or {"error": text, "hint": text}\\n at any point

Sent as source text (launcher/node/weights_fetch.py): it may import nothing of ours.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any


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
        return fetch(huggingface_hub, **request)
    except Exception as error:  # noqa: BLE001 - the edge: whatever the library raises is told with its words
        first = str(error).strip().splitlines()[0] if str(error).strip() else "no words"
        say(
            {
                "error": f"the download must succeed, got {type(error).__name__}: {first}",
                "hint": "what is here is kept: repeat the command; for gated repositories: hf auth login",
            }
        )
        return 1


def fetch(hub: Any, *, repo: str, revision: str | None, directory: str, num_threads: int) -> int:
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
    say({"commit": info.sha, "files": files})
    if sys.stdin.readline() != "go\n":
        return 0
    with ThreadPoolExecutor(num_threads) as pool:
        jobs = {
            pool.submit(hub.hf_hub_download, repo, name, revision=info.sha, local_dir=directory): name
            for name in sorted(files, key=lambda name: -(files[name]["size_bytes"] or 0))
        }
        try:
            for job in as_completed(jobs):
                job.result()
                say({"fetched": jobs[job]})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return 0


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
