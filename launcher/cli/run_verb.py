"""What typer would end with status 1 and no word:
a broken pipe of any kind, and a question nobody answers.
"""

from __future__ import annotations

import os
import select
from typing import Any

import typer
import typer.core

from launcher.errors import Interrupted, SparkctlError, UsageError


class Verbs(typer.core.TyperGroup):
    """The top command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if not _reader_is_gone():
                raise unexpected(error) from error  # a node's pipe, say
            _discard_output()
            raise typer.Exit(0) from None
        except typer.Abort as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise typer.Exit(Interrupted.exit_code) from None
            raise UsageError(
                "a question must have an answer, got the end of the input",
                hint="give the values as options: sparkctl topology init --nodes spark-1,spark-2",
            ) from error


def unexpected(error: Exception) -> SparkctlError:
    return SparkctlError(f"unexpected {type(error).__name__}: {error}", hint="SPARKCTL_DEBUG=1 shows where")


def _reader_is_gone() -> bool:
    """True for `sparkctl logs | head`: whoever read our output has gone, and nothing is wrong."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _discard_output() -> None:
    """What is still buffered must not fail a second time when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
