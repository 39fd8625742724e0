"""A link whose two ends are in one process."""

from __future__ import annotations

from holdfast.core.wire.links import Arrived, LinkDown, LinkUp
from holdfast.core.wire.messages import Renew, Renewed
from holdfast.runtime.net.loopback_link import Loopback

OURS, GUEST = 1, 1 << 20
RENEW, RENEWED = Renew(node="a", round=1), Renewed(lease_s=3.0)


def opened() -> Loopback:
    mirror = Loopback()
    mirror.open(OURS, GUEST)
    assert mirror.heard() == [LinkUp(link=GUEST, ours=False), LinkUp(link=OURS, ours=True)]
    return mirror


def test_what_is_said_at_one_end_comes_out_of_the_other_in_order_and_once() -> None:
    mirror = opened()
    mirror.say(OURS, RENEW)
    mirror.say(GUEST, RENEWED)
    assert mirror.heard() == [Arrived(link=GUEST, message=RENEW), Arrived(link=OURS, message=RENEWED)]
    assert mirror.heard() == []


def test_whoever_hangs_up_hears_no_more_and_is_heard_to_the_end() -> None:
    mirror = opened()
    mirror.say(OURS, RENEW)
    mirror.say(GUEST, RENEWED)
    mirror.close(OURS)
    heard = mirror.heard()
    assert heard[0] == Arrived(link=GUEST, message=RENEW)
    assert [(type(seen), seen.link) for seen in heard[1:]] == [(LinkDown, GUEST), (LinkDown, OURS)]
    assert not mirror.pairs


def test_a_link_that_is_not_here_is_no_matter() -> None:
    mirror = opened()
    mirror.close(7)
    assert mirror.heard() == []
