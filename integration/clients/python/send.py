"""Sends numbered events with PyPI fluent-logger in one of its modes, then ends; exit code 1 when one was refused.

    send.py HOST:PORT MODE TAG COUNT

MODE is seconds | nanoseconds, each with or without "-async". Event i carries {"seq": i} and the time
1700000000+i seconds, plus 1000003*i nanoseconds where the mode keeps them. This client knows no acks.
"""

import sys

from fluent import asyncsender, sender


def main() -> int:
    address, mode, tag, count = sys.argv[1:]
    host, port = address.rsplit(":", 1)
    module = asyncsender if mode.endswith("-async") else sender
    nanoseconds = mode.startswith("nanoseconds")
    client = module.FluentSender(
        tag, host=host, port=int(port), nanosecond_precision=nanoseconds, forward_packet_error=False, timeout=30.0
    )
    refused = 0
    for i in range(int(count)):
        at = 1_700_000_000 + i
        if nanoseconds:
            at = sender.EventTime(at, 1_000_003 * i)
        if not client.emit_with_time(None, at, {"seq": i}):
            refused += 1
    client.close()
    if refused:
        print(f"{refused} events refused: {client.last_error}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
