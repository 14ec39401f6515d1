"""Write docs/report.png, the README's picture of the report: python docs/report_picture.py [report.html]

Needs Chromium (apt-get install chromium) and a report, for instance that of `make demo`.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PICTURE = Path(__file__).parent / "report.png"
WIDTH, HEIGHT = 1128, 2040  # the page's full width; header, findings, metrics and curves
LARGEST = 300_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main(report: Path) -> None:
    """Photograph the top of the page without a display, and reduce it to 256 colours."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"None of {', '.join(BROWSERS)} is installed. Install Chromium: apt-get install chromium")
    if not report.is_file():
        sys.exit(f"{report} does not exist. Run `make demo` first.")
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder) / "report.png"
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}"]
        size = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={taken}"]
        subprocess.run([browser, *options, *size, report.resolve().as_uri()], check=True, capture_output=True)
        with Image.open(taken) as page:
            page.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    if PICTURE.stat().st_size >= LARGEST:
        sys.exit(f"{PICTURE} has {PICTURE.stat().st_size:,} bytes; at most {LARGEST:,} are allowed. Lower HEIGHT.")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo/output/data/report.html"))
