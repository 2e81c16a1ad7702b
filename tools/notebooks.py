"""Work on the notebooks: refresh them from their text sources, run them, record their outputs."""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(argv=None):
    """Run one command; returns 0 if all went well, 1 if a notebook failed."""
    parser = argparse.ArgumentParser(prog="tools/notebooks.py", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "notebooks", help="where they are (default: notebooks)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    text = "refresh notebooks/*.ipynb from notebooks/text/*.py; a changed cell loses its outputs"
    command = commands.add_parser("sync", help=text)
    command.set_defaults(do=sync)

    text = "run notebooks and write HTML pages; the notebooks themselves stay as they are"
    command = commands.add_parser("run", help=text)
    command.add_argument("--build", type=Path, default=ROOT / "build", help="where the pages go (default: build)")
    command.add_argument("--force", action="store_true", help="also run what is up to date")
    command.set_defaults(do=run)
    _add_common(command)

    text = "sync, run, and store the outputs in notebooks/*.ipynb, to be committed"
    command = commands.add_parser("record", help=text)
    command.set_defaults(do=record)
    _add_common(command)

    arguments = parser.parse_args(argv)
    return arguments.do(arguments)


def sync(arguments):
    import notebook_text

    for path in notebook_text.texts(arguments.folder):
        target, changed = notebook_text.sync(path)
        print(f"{target.name}: {'refreshed' if changed else 'up to date'}")
    return 0


def run(arguments):
    import notebook_run

    paths = _chosen(arguments)
    failures, device = [], None
    for path in paths:
        known = None if arguments.force else notebook_run.up_to_date(path, arguments.build)
        if known:
            print(f"{path.stem} ... up to date ({known.seconds:.1f} s on {known.date})", flush=True)
            continue
        device = device or notebook_run.device_line()
        _attempt(failures, path, notebook_run.run, arguments.build, device, arguments.timeout)
    if device or not (arguments.build / "index.html").exists():
        _write_pages(arguments)
    return _finish(failures, paths, f"pages: {arguments.build / 'index.html'}")


def record(arguments):
    import notebook_run

    sync(arguments)
    paths = _chosen(arguments)
    failures = []
    print(f"recording on {notebook_run.device_line()}", flush=True)
    for path in paths:
        _attempt(failures, path, notebook_run.record, arguments.timeout)
    return _finish(failures, paths, f"outputs stored in {arguments.folder}")


def _add_common(command):
    command.add_argument("names", nargs="*", metavar="NAME", help="how its name begins, such as 01 (default: all)")
    command.add_argument("--timeout", type=float, default=600, help="seconds that one cell may take (default: 600)")


def _chosen(arguments):
    """The notebooks asked for; ends the program if there are none."""
    import notebook_text

    paths = notebook_text.notebooks(arguments.folder)
    unknown = [name for name in arguments.names if not any(path.stem.startswith(name) for path in paths)]
    if unknown or not paths:
        wanted = f"whose name begins with {' or '.join(unknown)}" if unknown else "at all"
        sys.exit(f"no notebook {wanted} in {arguments.folder}")
    return [path for path in paths if not arguments.names or path.stem.startswith(tuple(arguments.names))]


def _attempt(failures, path, action, *values):
    """Do ``action`` on one notebook with a progress line; a failure is printed, and added to ``failures``."""
    from notebook_run import NotebookError

    print(f"{path.stem} ... ", end="", flush=True)
    began = time.perf_counter()
    try:
        action(path, *values)
    except NotebookError as error:
        failures.append(path.stem)
        print(f"FAILED after {time.perf_counter() - began:.1f} s\n{error}", flush=True)
    else:
        print(f"{time.perf_counter() - began:.1f} s", flush=True)


def _write_pages(arguments):
    from notebook_pages import Chapter, write_pages
    from notebook_run import Result, output_path, result_path
    from notebook_text import notebooks

    paths = [path for path in notebooks(arguments.folder) if output_path(path, arguments.build).exists()]
    chapters = [Chapter(path, Result.load(result_path(path, arguments.build))) for path in paths]
    write_pages(chapters, [output_path(path, arguments.build) for path in paths], arguments.build)


def _finish(failures, paths, done):
    if failures:
        print(f"{len(failures)} of {len(paths)} notebooks failed: {', '.join(failures)}")
        return 1
    print(done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
