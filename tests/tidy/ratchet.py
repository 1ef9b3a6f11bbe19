"""Compares a survey with the record: faults may not grow, and the record follows when they shrink.

Counts of faults have to equal the record, which one command lowers: a record above the count would let new faults in unseen. A count
changes only when somebody works on these very faults, so this costs little.
"""

from __future__ import annotations

from typing import Any

from tidy.survey import MOST_FILES, Places, Survey

COUNTS = ("openings", "words", "hidden_imports", "wrong_imports", "private_imports", "private_patches")
REASONS = ("clocks", "locks", "host_waits", "folders")  # the record has a reason for each key
LOWER = "`python tests/tidy_test.py --record` lowers the record (tests/tidy.json)"
MOST_SHOWN = 20

Record = dict[str, Any]


def shown(places: Places) -> str:
    more = [f"and {len(places) - MOST_SHOWN} more"] if len(places) > MOST_SHOWN else []
    return "".join(f"\n    {place}" for place in places[:MOST_SHOWN] + more)


def of_counts(s: Survey, record: Record, rule: str) -> Places:
    found, recorded = s.places[rule], record[rule]
    faults = []
    for key in sorted({*found, *recorded}):
        now, before = len(found[key]) if key in found else 0, recorded.get(key, 0)
        if now > before:
            faults.append(f"{key}: {now}, at most {before}; the file changed last first:{shown(found[key])}")
        elif now < before:
            faults.append(f"{key}: {now}, recorded {before}. Well done; {LOWER}")
    return faults


def with_need(s: Survey, rule: str) -> dict[str, Places]:
    """The files and folders for which the record must have a reason."""
    if rule != "folders":
        return s.places[rule]
    return {key: [f"{place}: {size} source files"] for key, (size, place) in s.sizes[rule].items() if size > MOST_FILES}


def of_reasons(s: Survey, record: Record, rule: str) -> Places:
    needed, reasons = with_need(s, rule), record[rule]
    faults = [f"{key} is not listed:{shown(needed[key])}" for key in sorted(needed) if not reasons.get(key)]
    return faults + [f"{key} needs no reason any more. Well done; {LOWER}" for key in sorted(reasons) if key not in needed]


CIRCLES = ("circles", "folder_circles")


def of_circles(s: Survey, record: Record, rule: str) -> Places:
    found, recorded = getattr(s, rule), record[rule]
    faults = [f"new: {' '.join(one)}" for one in found if not any(set(one) <= set(old) for old in recorded)]
    return faults + [f"gone or smaller: {' '.join(old)}. Well done; {LOWER}" for old in recorded if old not in found]


def lowered(s: Survey, record: Record) -> Record:
    """Makes a new record of what is left. Nothing in it grows; a rule that the record lacks gets the present counts (people write the
    reasons)."""
    new: Record = {}
    for rule in COUNTS:
        now = {key: len(places) for key, places in sorted(s.places[rule].items())}
        before = record.get(rule, now)
        new[rule] = {key: min(count, before[key]) for key, count in now.items() if key in before}
    for rule in CIRCLES:
        found = getattr(s, rule)
        new[rule] = [one for one in found if any(set(one) <= set(old) for old in record.get(rule, found))]
    for rule in REASONS:
        needed, before = with_need(s, rule), record.get(rule)
        new[rule] = dict.fromkeys(sorted(needed), "") if before is None else {key: why for key, why in before.items() if key in needed}
    return new
