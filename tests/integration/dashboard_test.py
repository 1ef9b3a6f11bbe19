"""The dashboard for Grafana names series and labels that the head exports, and scheduler/web/README.md lists them all."""

import contextlib
import json

from dashboard import ROOT, busy_cluster, documented, targets
from exposition import parse
from launching.leftovers import wait_until

LIMIT_S = 30


def test_every_series_and_label_of_the_dashboard_is_exported(shoal_command):
    wanted = {name for t in targets() for name in t.series}
    assert len(wanted) > 35
    with busy_cluster(shoal_command):
        families = {}

        def complete():
            families.update(parse(shoal_command("metrics").stdout))
            return wanted <= families.keys()

        with contextlib.suppress(AssertionError):  # the next line shows what is missing
            wait_until(complete, LIMIT_S)
        assert wanted - families.keys() == set()
    labels = {name: {label for _, pairs, _ in family.samples for label in pairs} for name, family in families.items()}
    for t in targets():
        assert t.labels <= set().union(*(labels[name] for name in t.series)), t
    exported = {name for name in families if not name.startswith("shoal_user_")}
    assert exported - documented() == set()
    assert wanted - documented() - {"shoal_user_tracker_lost_total"} == set()


def test_panels_do_not_overlap_and_have_numbers_of_their_own():
    panels = json.loads((ROOT / "docs" / "grafana" / "shoal.json").read_text())["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    cells = [(x, y) for p in panels for g in [p["gridPos"]] for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])]
    assert len(set(cells)) == len(cells)
    assert all(0 <= x < 24 for x, _ in cells)
