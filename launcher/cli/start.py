"""The console entry point. Until the verbs are imported, Ctrl-C ends the process without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    usual = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from launcher.cli import app

    signal.signal(signal.SIGINT, usual)
    app.main()
