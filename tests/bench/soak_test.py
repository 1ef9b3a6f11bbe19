"""Growth as the soak defines it, its detection, and a few seconds of the soak itself."""

import argparse

import pytest
import soak
import soak_churn


def line(per_hour, *, start=100.0, seconds=600):
    return [(float(t), start + per_hour * t / 3600) for t in range(0, seconds, 10)]


@pytest.mark.parametrize(
    ("samples", "noise", "grows"),
    [
        (line(0), 0, 0),
        (line(60), 0, 60),
        (line(-60), 0, 0),
        (line(60), 20, 0),  # 60 per hour are 10 in ten minutes: less than the noise
        (line(600), 20, 478),  # 98 in the observed time, of which 20 are noise
        ([(float(t), 100.0 + 5 * (t % 2)) for t in range(100)], 5, 0),
        ([], 0, 0),
        (line(60)[:2], 0, 0),
    ],
)
def test_growth_is_the_slope_beyond_noise(samples, noise, grows):
    assert soak.growth_per_hour(samples, noise) == pytest.approx(grows, abs=1)


def report(**changes):
    """A report in which one measure is not steady: its values during the churn, and after everything was dropped."""
    steady = {m.name: 50.0 for m in soak.MEASURES}
    name, values, left = changes.get("name", "node: descriptors"), changes.get("values", [50.0]), changes.get("left", 50.0)
    samples = [(10.0 * i, {**steady, name: values[min(i, len(values) - 1)]}) for i in range(200)]
    made = soak.SoakReport("soak", [])
    made.fill(steady, samples, {**steady, name: left})
    return made


def test_a_steady_cluster_holds():
    made = report()
    assert made.good()
    assert "MISS" not in made.table()


def test_growth_is_a_miss_even_without_leftovers():
    made = report(values=[50.0 + i for i in range(200)])
    assert [r.ours for r in made.rows if not made.holds(r)] == ["node: descriptors growth"]
    assert "MISS" in made.table()


def test_growth_at_the_start_only_is_ignored():
    assert report(values=[0.0 + min(i, 90) for i in range(200)]).good()


def test_leftovers_at_the_end_are_a_miss():
    made = report(left=59.0)
    assert [r.ours for r in made.rows if not made.holds(r)] == ["node: descriptors left"]
    assert not report(name="/dev/shm: files", left=51.0).good()


def test_a_few_seconds_of_churn_stay_bounded():
    parser = argparse.ArgumentParser()
    soak.add_options(parser)
    quick = ",".join(a.__name__ for a in soak_churn.ACTIVITIES if a is not soak_churn.objects_put)
    made = soak.measure(parser.parse_args(["--minutes", "0.1", "--kill-head-every", "5", "--only", quick]))
    # Rows of growth are left out, because a process still warms up in its first seconds.
    misses = [row.ours for row in made.rows if not made.holds(row) and not row.ours.endswith(" growth")]
    assert not misses, made.table()
    assert not made.failures
    churned, heads = made.raw
    assert set(churned["counts"]) == set(quick.split(","))
    assert min(churned["counts"].values()) >= 2
    assert heads["heads killed"] >= 1
