"""`make bench`: measures the synthetic model and step5-nano, and writes docs/results.md.

`python -m tests.bench [synthetic|nano|build|start|requests|long|serving ...]` measures those alone
and leaves the other sections as they are. Numbers are printed and written, never asserted: a test
that depends on a machine's speed is none.
"""

import sys
from collections.abc import Callable, Mapping

from tests.bench import builds, long, nano, requests, serving, starts, synthetic
from tests.bench.document import Section, publish

Say = Callable[[str], object]
SECTIONS: Mapping[str, Callable[[Say], Section | list[Section]]] = {
    "synthetic": synthetic.run,
    "nano": nano.run,
    "build": builds.run,
    "start": starts.run,
    "requests": requests.run,
    "long": long.run,
    "serving": serving.run,
}


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def main() -> None:
    wanted = sys.argv[1:] or list(SECTIONS)
    if unknown := [name for name in wanted if name not in SECTIONS]:
        raise SystemExit(f"{unknown[0]}: the sections are {', '.join(SECTIONS)}")
    text = ""
    for name in wanted:
        found = SECTIONS[name](say)
        # Each is written at once, so that a later one that fails takes nothing with it.
        text = publish(found if isinstance(found, list) else [found])
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
