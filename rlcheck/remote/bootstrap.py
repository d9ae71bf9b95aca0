# ruff: noqa: ANN001, ANN201, ANN202, D100, D103
# Sent to the examined interpreter on its standard input, after a line `PAYLOAD = '...'` (JSON: sources, stack, name).
# It must be valid in every Python that somebody may point us to, Python 2 included, to say so clearly: no annotations.
import sys

sys.path[:1] = [entry for entry in sys.path[:1] if entry]
MARK = "rlcheck-scan:"


def answer(text):
    sys.stdout.write("\n" + MARK + text + "\n")
    sys.stdout.flush()


def main(payload):
    import importlib.abc
    import importlib.util
    import json
    import os

    payload = json.loads(payload)
    package = payload["package"]
    sources = payload["sources"]
    sys.dont_write_bytecode = True

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path=None, target=None):
            if name not in sources:
                return None
            return importlib.util.spec_from_loader(name, self, is_package=name == package)

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            exec(compile(sources[module.__name__], "<" + module.__name__ + ">", "exec"), module.__dict__)

    sys.meta_path.insert(0, Finder())
    search_path = list(sys.path)
    scan = importlib.import_module(package + ".main").scan
    answer(json.dumps(scan(payload["stack"], os.environ, "/", search_path)))


if sys.version_info < (3, 8):
    answer('{"too_old": "%d.%d.%d"}' % sys.version_info[:3])
else:
    main(globals()["PAYLOAD"])
