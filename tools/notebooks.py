"""Work on the notebooks: refresh them from their text sources, run them, record their outputs."""

import argparse
import sys


def _sync(arguments):
    import notebook_text

    for path in notebook_text.texts():
        target, changed = notebook_text.sync(path)
        print(f"{target.relative_to(notebook_text.ROOT)}  {'refreshed' if changed else 'up to date'}")
    return 0


def main(argv=None):
    parser = argparse.ArgumentParser(prog="tools/notebooks.py", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    sync = commands.add_parser("sync", help="refresh notebooks/*.ipynb from notebooks/text/*.py; cells that are unchanged keep their outputs")
    sync.set_defaults(run=_sync)
    arguments = parser.parse_args(argv)
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
