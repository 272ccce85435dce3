"""`sparkctl dashboard`: a page on this machine that shows the clusters, live. It reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import AcceptKeysOption

if TYPE_CHECKING:
    from launcher.dashboard.access import Access

DEFAULT_PORT = 8899
MIN_KEY_CHARS = 16


def dashboard(
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN_ID", help="Only this run; default: all that are open.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port of the page; 0: a free one.")
    ] = DEFAULT_PORT,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="ADDRESS", help="Address to listen on; all but loopback need a key."
        ),
    ] = "127.0.0.1",
    key_file: Annotated[
        str | None,
        typer.Option("--key-file", metavar="FILE", help="Key of the page (0600); default: made and printed."),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="NAME", help="Host name that the page may be asked for by (repeatable)."
        ),
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Ask an idle cluster for one token every 30 s.")
    ] = True,
    accept_new_host_keys: AcceptKeysOption = False,
) -> None:
    """Serve a page with the state of nodes and ranks, tokens/s, Engram, KV use, queue and errors.

    Works offline, changes nothing, ends with Ctrl-C.
    """
    from launcher.connect import SshOptions
    from launcher.dashboard.collect import Collector
    from launcher.dashboard.http_server import DashboardServer
    from launcher.run_record import RunRecords

    access = _access(listen, key_file, tuple(item.lower() for item in name or ()))
    records = RunRecords()
    if run is not None:
        records.choose_all(run)
    options = SshOptions(accept_new_host_keys=accept_new_host_keys)
    collector = Collector(records, options, run_id=run, probes=probe)
    server = DashboardServer(listen, port, access, collector.state)
    collector.open()
    try:
        _say_where(listen, server.port, access, was_made=key_file is None)
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("stopped; the clusters go on", err=True)
    finally:
        collector.close()
        server.server_close()


def _access(listen: str, key_file: str | None, names: tuple[str, ...]) -> Access:
    import ipaddress
    import secrets

    from launcher.dashboard.access import Access
    from launcher.errors import UsageError

    try:
        address = ipaddress.ip_address(listen)
    except ValueError as error:
        raise UsageError(
            f"--listen must be an IP address, got {listen[:80]!r}",
            hint="sparkctl dashboard --listen 127.0.0.1",
        ) from error
    if key_file is not None:
        return Access(key=_read_key(key_file), names=names)
    return Access(key=None if address.is_loopback else secrets.token_urlsafe(24), names=names)


def _read_key(key_file: str) -> str:
    """Not from argv, where every user of the machine could read it."""
    from pathlib import Path

    from launcher.errors import UsageError

    path = Path(key_file).expanduser()
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--key-file must be a readable ASCII file, got: {error} ({path})",
            hint=f"(umask 077; openssl rand -hex 24 > {path})",
        ) from error
    if mode & 0o077:
        raise UsageError(
            f"--key-file must be readable by its user only, got mode {mode & 0o777:04o} ({path})",
            hint=f"chmod 600 {path}",
        )
    if len(text) < MIN_KEY_CHARS or not text.isprintable() or " " in text:
        raise UsageError(
            f"--key-file must hold one word of at least {MIN_KEY_CHARS} characters, got {len(text)} ({path})",
            hint=f"(umask 077; openssl rand -hex 24 > {path})",
        )
    return text


def _say_where(listen: str, port: int, access: Access, *, was_made: bool) -> None:
    host = f"[{listen}]" if ":" in listen else listen
    # Behind "#" a browser keeps it to itself: it stands in no request and no server's log.
    key = f"#key={access.key}" if access.key and was_made else ""
    typer.echo(f"dashboard  http://{host}:{port}/{key}")
    if access.key:
        typer.echo("warning: it is not encrypted: whoever sees the network sees the key", err=True)
    typer.echo("Ctrl-C ends it; the clusters go on", err=True)
