"""`PY run_path.py SCRIPT args`: SCRIPT by `runpy.run_path`, which is what `--run-path` asks for.

Unlike torchrun's, modules beside the script can be imported, as with `python SCRIPT`.
"""

if __name__ == "__main__":
    import os
    import runpy
    import sys

    sys.argv = sys.argv[1:]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
