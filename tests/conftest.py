"""What every test needs: Ctrl-C works in the commands that the tests start.

A shell that starts the suite in the background makes it ignore SIGINT, and children inherit that. A handler of
Python's own is reset to the default when a child is started.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
