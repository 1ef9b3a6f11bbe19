"""The page that is committed (scheduler/web/page/dist) is the build of the sources that are committed."""

import hashlib
import re
from pathlib import Path

PAGE = Path("scheduler/web/page")
OTHERS = ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.js"]
MOST_BYTES = 300_000


def test_the_built_page_has_the_hash_of_its_sources():
    sources = [str(path.relative_to(PAGE)) for path in (PAGE / "src").rglob("*") if path.is_file()]
    hash_ = hashlib.sha256()
    for name in sorted(sources + OTHERS):
        content = (PAGE / name).read_bytes()
        hash_.update(f"{name}\0{len(content)}\0".encode() + content)
    built = (PAGE / "dist" / "index.html").read_text()
    found = re.search(r'<meta name="sources" content="([0-9a-f]{64})"', built)
    assert found, "the built page does not name its sources"
    assert found[1] == hash_.hexdigest(), "the page was built from other sources: run `./dev page`, and commit scheduler/web/page/dist"


def test_the_built_page_loads_nothing_and_has_one_place_for_a_snapshot():
    built = (PAGE / "dist" / "index.html").read_text()
    assert len(built.encode()) < MOST_BYTES
    assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(?!data:)', built)
    assert built.count("<!--snapshot-->") == 1
    assert ')page"' not in built  # it ends the page in C++
