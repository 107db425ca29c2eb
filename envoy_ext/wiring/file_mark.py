"""When a file is another one than before.

Belongs to the composition layer, beside `app`.
"""

from pathlib import Path


def read_file_mark(path: str) -> object:
    """What changes with a file; None where there is none.

    Behind links too, which is how Kubernetes changes a mounted secret.
    """
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
