"""Code that runs on a node: stdlib only, Python 3.10 or newer, shipped as a zip with each request.

The launcher sends the zip and a JSON request on stdin (`launcher/call_node.py`); answers are JSON lines.
Nothing is installed on a node; a run's directory keeps the copy of the zip that supervises it.
"""
