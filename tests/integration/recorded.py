"""A run's folder (docs/runs.md), as tests read it."""

import json

ACTIVITIES = ("out", "load", "fwd", "bwd", "opt", "save", "gather", "reduce", "window", "sync")


class Recorded:
    """A process's part of the folder."""

    def __init__(self, folder):
        self.folder = folder
        self.facts = json.loads((folder / "process.json").read_text())

    def rows(self, name):
        files = sorted(self.folder.glob(f"{name}.*.jsonl"))
        return [json.loads(line) for f in files for line in f.read_text().splitlines()]

    def events(self, kind):
        return [e for e in self.rows("events") if e["kind"] == kind]


def recorded(folder, role="rank"):
    found = [Recorded(f) for f in (folder / "processes").iterdir() if (f / "process.json").exists()]  # else its disk was full
    return sorted((p for p in found if p.facts["role"] == role), key=lambda p: p.facts["rank"])
