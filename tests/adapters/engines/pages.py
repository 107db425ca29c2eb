"""Recorded and written-down pages of real engines."""

from pathlib import Path

DATA = Path(__file__).parents[2] / "data"


def load_page(name: str) -> bytes:
    """A page by its file name under `data/metrics`, or one of the recordings in `data/real`."""
    for path in (DATA / "metrics" / f"{name}.txt", DATA / "real" / f"{name}.raw"):
        if path.exists():
            return path.read_bytes()
    raise FileNotFoundError(name)


def list_pages() -> list[str]:
    """Every page there is."""
    metrics = [path.stem if path.suffix == ".txt" else path.name for path in (DATA / "metrics").iterdir()]
    return sorted(metrics) + sorted(path.stem for path in (DATA / "real").glob("*metrics*.raw"))
