"""Does the dashboard show what is so, and act on what is asked, in a real browser?

Most of it with a fleet that the test makes up (`kit/fleet/dashboard_stage.py`), which keeps to the API's schemas; the last
one with a real supervisor and a real job.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from kit.browser import tile
from kit.fleet import dashboard_stage as made_up
from kit.fleet.dashboard_stage import Stage
from kit.jobs.ranks import Cluster
from kit.ports import port_of

pytest.importorskip("playwright", reason="playwright is not installed")
from playwright.sync_api import Page, expect

PAGES = ("", "#/jobs/train", "#/nodes/n9", "#/decisions", "#/history")
EVIL = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Two racks of three nodes, a job on four of them, and a decision."""
    names = ["n1", "n2", "n3", "n4"]
    nodes = [made_up.node(name, domain=f"rack-{1 + at // 2}", jobs=[on_it(2 * at)]) for at, name in enumerate(names)]
    others = [made_up.node("n10", "spare", domain="rack-1"), made_up.node("n9", "unfit", domain="rack-2", reason="Xid 79")]
    deeds = [made_up.deed("d1", "n9", "train", act="swap", trouble="device", seen="Xid 79: GPU 5", outcome="n4 has taken over")]
    opened = Stage(made_up.fleet(nodes + others, [made_up.job("train", names, ranks=8, spares=["n10"])], deeds))
    yield opened
    opened.close()


def on_it(first: int, **ranks: Any) -> dict[str, Any]:
    """Two ranks of the job on one node."""
    both = [made_up.rank(first, 0, **ranks), made_up.rank(first + 1, 1, **ranks)]
    return {"job": "train", "round": 1, "state": "running", "ranks": both}


def shown(page: Page) -> list[str]:
    """Names on the tiles that are shown, in order."""
    return page.locator(".nodes .cell:visible .name").all_text_contents()


# --- the fleet --------------------------------------------------------------------------------------------------------------


def test_the_fleet_shows_nodes_by_domain_jobs_and_decisions(page, stage):
    page.goto(stage.url)
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    expect(tile(page, "n9")).to_have_attribute("aria-label", "n9, unfit, Xid 79")
    assert page.locator(".group-name").all_text_contents() == ["rack-1 · 3", "rack-2 · 3"]
    assert shown(page) == ["n1", "n2", "n10", "n3", "n4", "n9"], "names are in the order in which people count"
    row = page.get_by_role("row", name=re.compile("^train"))
    assert row.locator("td").all_text_contents() == ["running", "1", "0", "4", "8", "1"]
    expect(page.get_by_role("list", name="Newest decisions")).to_contain_text("n4 has taken over")


def test_what_changes_is_shown_and_what_does_not_is_left_alone(page, stage):
    page.goto(stage.url)
    expect(tile(page, "n1")).to_be_visible()
    page.evaluate("for (const link of document.querySelectorAll('.tile')) link.dataset.old = 'yes'")
    touched = page.evaluate_handle(
        "() => { const seen = []; new MutationObserver((all) => { for (const one of all) if (one.target.closest?.('.tile'))"
        " seen.push(one.target.closest('.tile').querySelector('.name').textContent); })"
        ".observe(document.querySelector('.grid'), {subtree: true, childList: true, attributes: true}); return seen; }"
    )
    stage.change(
        nodes=[made_up.node("n2", "draining", domain="rack-1", reason="its fan is loud"), made_up.node("n20", domain="rack-2")],
        deeds=[made_up.deed("d2", "n2", act="swap", seen="its fan is loud", at_unix=made_up.BEGAN + 1)],
        gone={"nodes": ["n10"], "jobs": []},
    )
    expect(tile(page, "n2")).to_have_attribute("aria-label", "n2, draining, its fan is loud")
    assert shown(page) == ["n1", "n2", "n3", "n4", "n9", "n20"]
    assert page.locator(".tile[data-old]").count() == 5, "tiles that are still there are the same elements"
    assert set(touched.json_value()) == {"n2"}, "a node of which nothing was said was touched"
    expect(page.get_by_role("list", name="Newest decisions").get_by_role("listitem").first).to_contain_text("its fan is loud")
    expect(page.locator("#news")).to_contain_text("n2 is draining")


def test_nodes_are_filtered_by_state_and_by_name_and_grouped_otherwise(page, stage):
    page.goto(stage.url)
    page.get_by_role("button", name="unfit 1").click()
    expect(page.locator(".nodes .cell:visible")).to_have_count(1)
    stage.change(nodes=[made_up.node("n1", "unfit", domain="rack-1")])
    expect(page.locator(".nodes .cell:visible")).to_have_count(2)
    page.get_by_role("button", name="unfit 2").click()
    page.keyboard.press("/")
    page.keyboard.type("n1")
    expect(page.locator(".nodes .cell:visible")).to_have_count(2)
    assert shown(page) == ["n1", "n10"]
    page.keyboard.press("Escape")
    expect(page.locator(".nodes .cell:visible")).to_have_count(6)
    page.get_by_label("Group nodes by").select_option("state")
    assert page.locator(".group-name").all_text_contents() == ["fit · 3", "spare · 1", "unfit · 2"]


def test_keys_lead_through_the_grid_and_into_a_node(page, stage):
    page.goto(stage.url)
    expect(tile(page, "n1")).to_be_visible()
    assert page.locator(".nodes .tile[tabindex='0']").count() == 1, "Tab stops once in a grid"
    tile(page, "n1").focus()
    focused = "document.activeElement.querySelector('.name').textContent"
    for key, name in (
        ("ArrowRight", "n2"),
        ("ArrowDown", "n4"),
        ("ArrowUp", "n2"),
        ("End", "n9"),
        ("ArrowLeft", "n4"),
        ("Home", "n1"),
    ):
        page.keyboard.press(key)
        assert page.evaluate(focused) == name, key
    expect(page.locator("#peek")).to_contain_text("train, round 1 · step 12,840")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name=re.compile("^n1"))).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys and signs")).to_be_visible()


def test_a_node_s_history_has_what_became_of_its_gpus(page):
    said = [{"state": "unfit", "reason": "Xid 79", "at_unix": made_up.BEGAN}]
    said.append({"state": "fit", "reason": "it was replaced", "at_unix": made_up.BEGAN + 60})
    gpu = {"name": "0000:9b:00", "state": "fit", "reason": "it was replaced", "xid": 0, "at_unix": said[1]["at_unix"]}
    stage = Stage(made_up.fleet([made_up.node("n1", devices=[{**gpu, "history": said}])], [], []))
    try:
        page.goto(f"{stage.url}#/nodes/n1")
        history = page.get_by_role("region", name="History").get_by_role("listitem")
        expect(history).to_contain_text([re.compile("fit 0000:9b:00 .*it was replaced"), "Xid 79", "as it was heard"])
    finally:
        stage.close()


def test_a_node_that_is_repaired_shows_how_far_that_is_and_can_be_taken_from_it(page):
    repair = {"act": "reboot", "step": "run", "id": "1-1", "tries": 0, "daemon": "d", "until_unix": made_up.BEGAN, "waits": ""}
    probation = {**repair, "act": "probation", "step": "probation"}
    nodes = [made_up.node("n1", "unfit", repair=repair), made_up.node("n2", "spare", repair=probation)]
    stage = Stage(made_up.fleet(nodes, [], []))
    try:
        page.goto(f"{stage.url}#/nodes/n1")
        expect(page.get_by_text("reboot node (run)")).to_be_visible()
        expect(page.get_by_role("button", name="Drain")).to_be_enabled()
        page.goto(f"{stage.url}#/nodes/n2")
        expect(page.get_by_text("on probation until ")).to_be_visible()
        expect(page.get_by_role("button", name="Uncordon")).to_be_enabled()
    finally:
        stage.close()


def test_a_thousand_nodes_change_each_at_its_own_tile(page):
    names = [f"n{number}" for number in range(1000)]
    stage = Stage(made_up.fleet([made_up.node(name, domain=f"rack-{at // 32}") for at, name in enumerate(names)]))
    try:
        page.goto(stage.url)
        expect(page.locator(".tile")).to_have_count(1000)
        page.evaluate("for (const link of document.querySelectorAll('.tile')) link.dataset.old = 'yes'")
        for turn in range(20):
            some = range(turn, 1000, 20)
            stage.change(nodes=[made_up.node(names[at], "suspect", domain=f"rack-{at // 32}", reason="Xid 63") for at in some])
        expect(page.locator(".tile[data-look='suspect'][data-old]")).to_have_count(1000)
        expect(page.get_by_role("button", name="suspect 1,000")).to_be_visible()
    finally:
        stage.close()


# --- large clusters ---------------------------------------------------------------------------------------------------------

POOL = "gke-prod-us-central1-a3-mega-pool"


def test_what_names_share_is_said_once_and_tiles_show_what_tells_them_apart(page):
    nodes = [made_up.node(f"{POOL}-{at // 3}-c386bbc4-x{at}y{at}", domain=f"block-{at // 3}") for at in range(48)]
    stage = Stage(made_up.fleet(nodes))
    try:
        page.goto(stage.url)
        expect(page.locator(".tile")).to_have_count(48)
        assert page.locator(".group-name").first.text_content() == f"block-0 · 3 · {POOL}-0-c386bbc4-…"
        assert shown(page)[:4] == ["x0y0", "x1y1", "x2y2", "x3y3"]
        expect(tile(page, f"{POOL}-0-c386bbc4-x0y0")).to_have_attribute("title", f"{POOL}-0-c386bbc4-x0y0")
        stage.change(nodes=[made_up.node("a-stranger", domain="block-0")])
        expect(page.locator(".group-name").first).to_have_text("block-0 · 4")
        expect(tile(page, f"{POOL}-0-c386bbc4-x0y0")).to_contain_text(f"{POOL}-0-c386bbc4-x0y0")
    finally:
        stage.close()


def test_of_eight_thousand_ranks_what_differs_is_on_top_and_the_rest_is_folded_by_node(page):
    def on(at: int, **ranks: Any) -> dict[str, Any]:
        others = [made_up.rank(8 * at + slot, slot) for slot in range(1, 8)]
        job = {"job": "train", "round": 1, "state": "running", "ranks": [made_up.rank(8 * at, 0, **ranks), *others]}
        return made_up.node(f"{POOL}-c386bbc4-{at:04d}", jobs=[job])

    nodes = [on(at) for at in range(1000)]
    stage = Stage(made_up.fleet(nodes, [made_up.job("train", [node["name"] for node in nodes], ranks=8000)]))
    stage.answers["/api/jobs/train"] = {**stage.fleet["jobs"][0], "deeds": [], "rounds": [], "goodput": None, "incidents": []}
    try:
        page.goto(f"{stage.url}#/jobs/train")
        tiles, different = page.get_by_role("grid", name="Ranks").get_by_role("link"), page.get_by_label("Ranks that differ")
        expect(tiles).to_have_count(1000)
        expect(page.get_by_role("main")).to_contain_text("8,000 ranks, 8,000 running; step 12,840")
        expect(different).to_be_hidden()
        screens = page.evaluate("document.documentElement.scrollHeight / innerHeight")
        assert screens <= 3, f"{screens} screens"
        stage.change(nodes=[on(7, step=12_700), on(500, state="gone", exitcode=-9), on(70, beat_age_s=50.0), on(9, step_s=2.0)])
        expect(different.get_by_role("listitem")).to_have_text(
            [
                re.compile("exit -9 rank 4000 on"),
                re.compile("late rank 560 on .* last heartbeat 50 s ago"),
                re.compile("running rank 56 on .* step 12,700, 140 behind most"),
                re.compile("running rank 72 on .* a step takes 2.0 s, of most 412 ms"),
            ]
        )
        expect(tiles.nth(500)).to_have_attribute("aria-label", f"{POOL}-c386bbc4-0500, ranks 4000–4007, exit -9")
        page.get_by_label("Filter: 7, a node, late").fill("late")
        expect(page.locator(".folded .cell:visible")).to_have_count(1)
        page.reload()
        expect(page.locator(".folded .cell:visible")).to_have_count(0)  # the stage tells again of a rank that is not late
        expect(page.get_by_label("Filter: 7, a node, late")).to_have_value("late")
    finally:
        stage.close()


def test_filters_are_in_the_address_and_outlive_a_reload(page, stage):
    page.goto(stage.url)
    page.get_by_role("button", name="unfit 1").click()
    page.get_by_label("Filter by name, reason, job").fill("xid")
    for _ in range(2):
        expect(page).to_have_url(f"{stage.url}#/?text=xid&state=unfit")
        expect(page.locator(".nodes .cell:visible")).to_have_count(1)
        expect(page.get_by_role("button", name="unfit 1")).to_have_attribute("aria-pressed", "true")
        page.reload()
    page.goto(f"{stage.url}#/decisions?act=swap&node=n9")
    expect(page.get_by_label("What was done")).to_have_value("swap")
    page.get_by_label("Filter by any word").fill("taken over")
    expect(page).to_have_url(f"{stage.url}#/decisions?text=taken+over&act=swap&node=n9")


def test_a_decision_says_each_sentence_once(page, stage):
    again = made_up.deed("d3", "n9", seen="Xid 79: GPU 5", reason="Xid 79: GPU 5; n10 takes over", outcome="n10 takes over")
    page.goto(stage.url)
    expect(tile(page, "n1")).to_be_visible()
    stage.change(deeds=[{**again, "at_unix": made_up.BEGAN + 10}])
    newest = page.get_by_role("list", name="Newest decisions").get_by_role("listitem").first
    expect(newest.locator("p")).to_have_text([re.compile("n9"), "Xid 79: GPU 5", "n10 takes over (policy default)"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_nobody_is_kept_from_reading_it(page, stage, path, scheme):
    """By what axe finds against WCAG: contrast, names, roles, headings."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    page.emulate_media(color_scheme=scheme)
    for width in (400, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(stage.url + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator("#link")).to_have_text("live")
        found = axe.Axe().run(page).response["violations"]
        assert [(one["id"], one["impact"], [at["html"] for at in one["nodes"]]) for one in found] == []


# --- what it must never do ---------------------------------------------------------------------------------------------------


def test_names_and_reasons_are_text_and_nothing_else(page, stage):
    node = made_up.node(EVIL, "unfit", reason=EVIL, domain=EVIL, by=EVIL, jobs=[{**on_it(0), "job": EVIL}])
    said = {"state": "unfit", "reason": EVIL, "at_unix": made_up.BEGAN}
    node["devices"] = [{"name": EVIL, "xid": 79, **said, "history": [said]}]
    node["history"] = [{"state": EVIL, "reason": EVIL, "at_unix": made_up.BEGAN}]
    own = made_up.job(EVIL, [EVIL], state=EVIL)
    deed = made_up.deed(
        "d9", EVIL, EVIL, seen=EVIL, reason=EVIL, done=[EVIL], outcome=EVIL, policy=EVIL, act=EVIL, trouble=EVIL
    )
    brief = {"id": "../../x", "at_unix": made_up.BEGAN, "cause": EVIL, "rank": 0, "node": EVIL, "kind": EVIL, "confidence": 0.5}
    ended = {
        "number": 1,
        "attempt": 0,
        "began_unix": made_up.BEGAN,
        "ended_unix": made_up.BEGAN + 9,
        "world_size": 1,
        "nodes": [EVIL],
    }
    ended |= {"why": EVIL, "failure": {"rank": 0, "node": EVIL, "what": EVIL}, "lost_s": None}
    stage.answers[f"/api/jobs/{EVIL}"] = {**own, "deeds": [deed], "rounds": [ended], "goodput": None, "incidents": [brief]}
    stage.answers[f"/api/jobs/{EVIL}/incidents/../../x"] = {
        **brief,
        **{"evidence": [EVIL], "decision": EVIL, "groups": [{"ranks": [0], "where": EVIL, "stack": [EVIL]}]},
        "logs": [{"rank": 0, "path": EVIL, "lines": [EVIL]}],
        "errors": [{"rank": 0, "node": EVIL, "what": EVIL, "traceback": [EVIL]}],
    }
    page.goto(stage.url)
    expect(tile(page, "n1")).to_be_visible()
    stage.change(nodes=[node], jobs=[own], deeds=[deed])
    page.locator(".name", has_text=EVIL).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(EVIL)
    page.get_by_role("table").get_by_role("link", name=EVIL).first.click()
    page.get_by_role("region", name="Incidents").get_by_role("link", name=EVIL).first.click()
    expect(page.locator("pre").first).to_have_text(EVIL)
    page.get_by_role("link", name="Decisions").first.click()
    expect(page.get_by_role("list", name="Decisions")).to_contain_text(EVIL)
    assert page.locator("main img").count() == 0 and "owned" not in page.title()


def test_what_is_old_is_not_shown_as_fresh(page, stage):
    page.goto(stage.url)
    expect(page.locator("#link")).to_have_text("live")
    stage.cut()
    expect(page.get_by_role("alert")).to_contain_text(
        re.compile(r"No connection since \d\d:\d\d:\d\d: what is shown is as it was then")
    )
    expect(page.locator("#link")).to_have_text("no connection")
    stage.fleet["nodes"][0] |= {"state": "lost"}
    stage.mend()
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#stale")).to_be_hidden()
    expect(tile(page, "n1")).to_have_attribute("data-look", "lost")


def test_that_the_supervisor_is_silent_is_said_though_its_web_server_lives(page, stage):
    page.goto(stage.url)
    expect(page.locator("#link")).to_have_text("live")
    stage.say("silent", {"error": "the supervisor does not answer"})
    expect(page.get_by_role("alert")).to_contain_text("the supervisor does not answer")
    stage.change()
    expect(page.locator("#stale")).to_be_hidden()


# --- acting ------------------------------------------------------------------------------------------------------------------


def test_a_node_is_drained_after_a_question_and_with_a_reason(page, stage):
    page.goto(f"{stage.url}#/nodes/n1")
    expect(page.get_by_role("button", name="Uncordon")).to_be_disabled()
    page.get_by_role("button", name="Drain").click()
    dialog = page.get_by_role("dialog", name="Drain n1?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert stage.posts == []
    page.get_by_role("button", name="Drain").click()
    stage.refuses = "it has just started"
    page.keyboard.type("its fan is loud")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("it has just started")
    stage.refuses = ""
    dialog.get_by_role("button", name="Drain").click()
    expect(dialog).to_be_hidden()
    assert stage.posts == [("/api/nodes/n1/drain", {"reason": "its fan is loud"})] * 2
    stage.change(nodes=[made_up.node("n1", "draining", reason="its fan is loud", by="operator")])
    expect(page.get_by_role("button", name="Drain")).to_be_disabled()
    expect(page.get_by_role("button", name="Uncordon")).to_be_enabled()


def test_who_may_only_read_finds_no_button_that_works(page, stage):
    stage.answers["/api/role"] = {"role": "read", "logged_in": False}
    page.goto(f"{stage.url}#/jobs/train")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    expect(page.get_by_role("button", name="Restart")).to_be_disabled()


# --- a job, an incident, decisions ----------------------------------------------------------------------------------------


def test_a_job_shows_its_ranks_with_step_and_age_of_the_heartbeat(page, stage):
    page.goto(f"{stage.url}#/jobs/train")
    ranks = page.get_by_role("grid", name="Ranks").get_by_role("link")
    expect(ranks).to_have_count(8)
    expect(ranks.first).to_contain_text("12,840 · 412 ms")
    expect(ranks.first).to_contain_text("beat")
    late = on_it(0, beat_age_s=50.0)
    stage.change(nodes=[made_up.node("n1", domain="rack-1", jobs=[late])])
    expect(ranks.first).to_have_attribute("aria-label", "rank 0, late, step 12840")
    gone = on_it(0, state="gone", exitcode=-9)
    stage.change(nodes=[made_up.node("n1", domain="rack-1", jobs=[gone])])
    expect(ranks.first).to_have_attribute("aria-label", "rank 0, exit -9, step 12840")


def test_a_job_without_a_secret_is_shown_as_unauthenticated(page, stage):
    page.goto(f"{stage.url}#/jobs/train")
    expect(page.get_by_text("Needs at least")).to_be_visible()
    expect(page.get_by_text("Unauthenticated")).to_have_count(0)
    stage.change(jobs=[made_up.job("train", ["n1"], is_open=True)])
    expect(page.get_by_text("Unauthenticated")).to_be_visible()
    expect(page.get_by_text("give its nodes --token-file")).to_be_visible()


def test_decisions_are_filtered(page, stage):
    page.goto(f"{stage.url}#/decisions")
    listed = page.get_by_role("list", name="Decisions").get_by_role("listitem").filter(has=page.locator(".deed-head"))
    expect(listed).to_have_count(1)
    stage.change(deeds=[made_up.deed(f"m{at}", f"n{at}", "other", at_unix=made_up.BEGAN + at) for at in range(300)])
    expect(listed).to_have_count(200)
    page.get_by_role("button", name="Show older").click()
    expect(listed).to_have_count(301)
    page.get_by_label("What was done").select_option("swap")
    expect(listed).to_have_count(1)
    page.get_by_label("What was done").select_option("")
    page.get_by_label("Node", exact=True).fill("n299")
    expect(listed).to_have_count(1)
    page.get_by_label("Filter by any word").fill("no such word")
    expect(page.get_by_text("No decision is like that.")).to_be_visible()


def an_hour(back: int, **other: Any) -> dict[str, Any]:
    return made_up.hour((made_up.BEGAN // 3600 - back) * 3600, **other)


def test_the_history_shows_goodput_incidents_and_times_over_days(page, stage):
    took = {"detect": [1, 1, 0, 0], "act": [0, 0, 2, 0], "train": [0, 0, 0, 2]}
    old = an_hour(24 * 20, incidents={"device": 4}, lost_s=3500.0)
    new = [an_hour(3, incidents={"signal": 1, EVIL: 1}, **took), an_hour(2, trained_s=3600.0, lost_s=0.0)]
    stage.answers["/api/history"] = {"bounds_s": [0.1, 1.0, 10.0], "hours": [old, *new]}
    page.goto(f"{stage.url}#/history")
    expect(page.get_by_role("status").filter(has_text="incident")).to_have_text("2 incidents in 7 days, goodput 98.6 %")
    assert page.locator(".history .trained").count() in (1, 2), "columns of six hours"
    detect = page.get_by_role("region", name="Time to detect")
    expect(detect).to_contain_text("100 ms in the middle, 90 % within 820 ms")
    detect.get_by_text("As a table").click()
    expect(detect.get_by_role("row").last).to_contain_text("2100 ms820 ms")
    expect(page.get_by_role("region", name="Time to train again")).to_contain_text("10 s in the middle")
    expect(page.get_by_role("region", name="Incidents by cause")).to_contain_text(f"{EVIL}: 1")
    page.get_by_label("How far back").select_option("30")
    expect(page.get_by_role("status").filter(has_text="incident")).to_have_text("6 incidents in 30 days, goodput 74.6 %")
    expect(page.get_by_role("region", name="Incidents by cause")).to_contain_text("device: 4")
    page.reload()
    expect(page.get_by_label("How far back")).to_have_value("30")


def test_a_history_without_anything_says_so(page, stage):
    stage.answers["/api/history"] = {"bounds_s": [0.1, 1.0], "hours": []}
    page.goto(f"{stage.url}#/history")
    expect(page.get_by_role("status").filter(has_text="incident")).to_have_text("0 incidents in 7 days, goodput not known")
    expect(page.get_by_role("region", name="Time to act")).to_contain_text("No restart has been measured")


@pytest.mark.parametrize("path", PAGES)
def test_a_narrow_screen_is_not_scrolled_sideways(page, stage, path):
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(stage.url + path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_light_and_dark_are_chosen_and_remembered(page, stage):
    page.emulate_media(color_scheme="dark")
    page.goto(stage.url)
    expect(page.locator("#link")).to_have_text("live")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Theme: auto").click()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    assert page.evaluate(ground) == light


# --- the real thing ----------------------------------------------------------------------------------------------------------


def test_what_is_made_up_here_is_what_the_api_says(stage):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    from holdfast.supervisor.web.openapi import document

    schemas = document("1")["components"]
    jsonschema.validate(stage.fleet, {"$ref": "#/components/schemas/FleetShown", "components": schemas})


def test_a_real_job_is_seen_live_and_one_of_its_nodes_drained(page, holdfast: Any, job: Cluster, tmp_path: Any):
    pytest.importorskip("starlette", reason="starlette is not installed: pip install 'holdfast[supervisor]'")
    anywhere = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    running = holdfast.start("supervisor", *anywhere, "--state", tmp_path / "fleet", "--lease", "2")
    link, url = f"127.0.0.1:{port_of(running)}", f"http://127.0.0.1:{port_of(running, 'dashboard at')}/"
    agents = [job.agent(name, "2", "--supervisor", link, "--max-restarts", "3", nproc=2) for name in ("a", "b")]
    job.rank(3, 0, 1)  # so that it is known who waits
    agents.append(job.agent("c", "2", "--supervisor", link, nproc=2))
    page.goto(url)
    expect(tile(page, "c")).to_have_attribute("data-look", "spare")
    expect(tile(page, "a")).to_have_attribute("data-look", "fit")
    expect(tile(page, "b")).to_have_attribute("data-look", "fit")
    page.get_by_role("row", name=re.compile("^several running")).get_by_role("link").click()
    expect(page.get_by_role("grid", name="Ranks").get_by_role("link", name=re.compile("running"))).to_have_count(4)
    expect(page.get_by_role("main")).to_contain_text("1 spare")
    os.kill(job.rank(0, 0, 1)[0], signal.SIGKILL)
    expect(page.get_by_role("list", name="Decisions")).to_contain_text("SIGKILL")
    expect(page.get_by_role("region", name="Incidents").get_by_role("link").first).to_be_visible()
    page.get_by_role("region", name="Incidents").get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("SIGKILL")
    page.goto(f"{url}#/nodes/b")
    page.get_by_role("button", name="Drain").click()
    page.keyboard.type("its fan is loud")
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("unfit")
    expect(page.get_by_role("button", name="Uncordon")).to_be_enabled()
    expect(page.get_by_role("list", name="Decisions")).to_contain_text("its fan is loud")
    job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]
