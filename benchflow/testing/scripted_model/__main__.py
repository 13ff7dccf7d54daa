"""The scripted model from the shell: `python -m benchflow.testing.scripted_model script.yaml --port 0`."""

from __future__ import annotations

import argparse
import signal
import sys

from benchflow.errors import BenchFlowError
from benchflow.testing.scripted_model.model_server import ScriptedModel


def main(argv: list[str] | None = None) -> int:
    """Print the base URL as the first line of stdout, and serve until SIGINT or SIGTERM.

    Args:
        argv: Command line without the program; None for that of the process.

    Returns:
        The exit status: 2 for an unusable script or address, else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchflow.testing.scripted_model", description=__doc__)
    parser.add_argument("script", help="a YAML file; see benchflow.testing.scripted_model.model_script")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets containers in (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--record", metavar="FILE", help="append every request to FILE as a JSON line")
    options = parser.parse_args(argv)
    # Blocked before the server's thread starts, so that `sigwait` below gets them.
    stops = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        with ScriptedModel(options.script, host=options.host, port=options.port, record=options.record) as model:
            print(model.base_url, flush=True)
            signal.sigwait(stops)
    except (BenchFlowError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
