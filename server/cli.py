"""The `fourstep` command as a process: its streams, its signals, its last line.

Knows what surrounds a command. Does not know commands (cli_commands.py), which take a while to
import. Keeps true: whenever Ctrl-C or SIGTERM comes, no traceback comes of it; output that cannot
be written is named, with exit code 2.
"""

from server.ending import end_on_sigterm, importing


def main() -> None:
    """The console script."""
    with importing():
        from server.cli_commands import run
    end_on_sigterm()
    run()
