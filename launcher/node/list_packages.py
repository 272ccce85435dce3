"""Run by an environment's own Python: every package with its version and a hash of its installed files."""

from __future__ import annotations

# Of each package: name, version, and the files that its RECORD lists with their hashes. Scripts in bin/ hold
# the environment's own path, which differs from node to node.
LIST_PACKAGES = """
import hashlib, importlib.metadata, json
found = {}
for dist in importlib.metadata.distributions():
    record = dist.read_text("RECORD") or ""
    lines = sorted(line for line in record.splitlines() if not line.startswith("../")
                   and ".dist-info/" not in line and line.split(",")[1:2] != [""])
    text = "\\n".join(lines)
    found[dist.metadata["Name"]] = [dist.version, hashlib.sha256(text.encode()).hexdigest()]
print(json.dumps(found))
"""
