"""Finding what was kept of earlier samples."""

import random

from whale.engines.kept import Entry, Kept


def entry(*ids, size=1):
    return Entry(ids, "".join(map(str, ids)), size)


def test_the_longest_proper_beginning_is_found():
    kept = Kept(100)
    for ids in [(1,), (1, 2), (1, 2, 0, 5), (1, 3), (2,)]:
        kept.add(entry(*ids))
    assert kept.find((1, 2, 3)).ids == (1, 2)
    assert kept.find((1, 2)).ids == (1,), "something must be left to compute"
    assert kept.find((1, 2, 0, 5, 9)).ids == (1, 2, 0, 5)
    assert kept.find((3, 1)) is None
    assert kept.find((0,)) is None


def test_it_finds_what_a_search_through_all_would():
    pick = random.Random(0)
    words = lambda: tuple(pick.randrange(3) for _ in range(pick.randrange(1, 7)))  # noqa: E731
    kept, all_ids = Kept(1000), set()
    for ids in (words() for _ in range(60)):
        kept.add(entry(*ids))
        all_ids.add(ids)
    for context in (words() for _ in range(300)):
        begun = [ids for ids in all_ids if len(ids) < len(context) and context[: len(ids)] == ids]
        found = kept.find(context)
        assert (found.ids if found else None) == max(begun, key=len, default=None)


def test_the_oldest_make_room_and_the_budget_is_kept():
    kept = Kept(3)
    for number in range(5):
        kept.add(entry(number))
    kept.add(entry(9, size=4))
    assert (len(kept), kept.bytes) == (3, 3)
    assert kept.find((0, 1)) is None
    assert kept.find((4, 1)).state == "4"
    kept.remove((4,))
    kept.remove((4,))
    assert (len(kept), kept.bytes, kept.find((4, 1))) == (2, 2, None)
    kept.clear()
    assert (len(kept), kept.bytes, kept.find((3, 1))) == (0, 0, None)


def test_what_entries_share_counts_once_and_as_long_as_one_of_them_is_kept():
    kept, first, second = Kept(20), object(), object()
    sharing = lambda number, shared: Entry((number,), "", 1, shared, 10)  # noqa: E731
    kept.add(sharing(0, first))
    kept.add(sharing(1, first))
    assert kept.bytes == 12
    kept.remove((0,))
    assert kept.bytes == 11
    kept.add(sharing(2, second))  # needs 11 more
    assert (len(kept), kept.bytes) == (1, 11)
    assert kept.find((2, 0))
    kept.add(Entry((3,), "", 15, first, 10))
    assert len(kept) == 1, "alone over the budget"
    kept.remove((2,))
    assert kept.bytes == 0


def test_no_budget_keeps_nothing():
    kept = Kept(0)
    kept.add(entry(1))
    assert len(kept) == 0
