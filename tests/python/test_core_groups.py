# SPDX-License-Identifier: Apache-2.0
"""Groups, events, the way in, and the views of what there is."""
import asyncio
import os
import subprocess
import threading
import time

import pytest
import shmbroker


@pytest.mark.parametrize("wait", ["session.attach('never', wait=None)", "session.open_pool('never', wait=None)",
                                  "session.queue('never', role='reader', wait=None)"])
def test_a_wait_for_a_name_ends_with_the_group_of_its_session(session, python, wait):
    python(f"""
import threading, shmbroker
session, other = shmbroker.connect(group=""), shmbroker.connect(group="")
group = session.create_group("short")
session.join(group)
threading.Timer(0.3, lambda: other.end_group("short")).start()
try: {wait}
except shmbroker.GroupEnded as error: assert "has ended" in str(error), error
else: raise AssertionError
""", timeout=120)


def test_programs_started_apart_meet_in_the_users_group(python, broker):
    first = shmbroker.connect()
    region = first.create(4096, name="meeting-place", many_writers=True)
    memoryview(region)[0] = 3
    out = python("""
import shmbroker
region = shmbroker.connect().attach("meeting-place", write=True)
print(memoryview(region)[0], region.stat().group_name)
""")
    assert out == f"3 shell-{os.geteuid()}\n"
    apart = shmbroker.connect(group="")
    with pytest.raises(shmbroker.NotFound, match=f"the session's own group.*nor is it in group 'shell-{os.geteuid()}'"):
        apart.attach("elsewhere")
    assert apart.attach(f"shell-{os.geteuid()}/meeting-place", write=True).id == region.id


def test_a_name_in_the_users_group_goes_with_its_last_holder(python, broker):
    watcher = shmbroker.connect()
    assert watcher.names_with_holders and not shmbroker.connect(group="elsewhere").names_with_holders
    python("""
import os, shmbroker
session = shmbroker.connect()
region = session.create(4096, name="of-the-killed")
pool = session.create_pool([(4096, 1)], name="pool-of-the-killed")
kept = session.create(4096, name="kept-for-later", keep=60)
stays = session.create(4096, name="stays-for-now", name_with_holders=False)
os.kill(os.getpid(), 9)
""", status=-9)
    end = time.monotonic() + 30
    while {"of-the-killed", "pool-of-the-killed"} & {one.name for one in shmbroker.list().regions} or [
            one for one in shmbroker.list().pools if one["name"] == "pool-of-the-killed"]:
        assert time.monotonic() < end
    for gone in (lambda: watcher.attach("of-the-killed"), lambda: watcher.open_pool("pool-of-the-killed")):
        with pytest.raises(shmbroker.NotFound):
            gone()
    assert watcher.attach("kept-for-later").size == watcher.attach("stays-for-now").size == 4096


def test_a_group_is_named_by_its_variable_or_by_the_argument(python, broker):
    first = shmbroker.connect(group="trainer")
    region = first.create(4096, name="weights", many_writers=True)
    assert region.stat().group_name == "trainer"
    second = shmbroker.connect(group="trainer")
    assert second.attach("weights", write=True).id == region.id
    group = first.create_group("trainer", adopt_existing=True)
    variable = shmbroker.group_variable("trainer", group.token)
    assert shmbroker.connect(group=variable).attach("weights", write=True).id == region.id
    out = python("import shmbroker; print(shmbroker.connect().attach('weights', write=True).stat().group_name)",
                 SHMBROKER_GROUP=variable)
    assert out == "trainer\n"
    assert shmbroker.connect(group=f"@{group.id}").attach("weights", write=True).id == region.id
    assert shmbroker.connect(group=f"{os.geteuid()}:trainer").attach("weights", write=True).id == region.id
    with pytest.raises(shmbroker.NotFound):
        shmbroker.connect(group="trainer:" + "ab" * 16)
    with pytest.raises(shmbroker.Invalid, match="zeros"):
        shmbroker.connect(group="trainer:" + "00" * 16)
    with pytest.raises(ValueError):
        shmbroker.connect(group="a/b")
    for no_name in (5, b"trainer", group):
        with pytest.raises(TypeError, match='group is None or a str .*"NAME:TOKEN", or "" for a group of its own.*, not'):
            shmbroker.connect(group=no_name)


def test_a_variable_that_names_no_group_is_refused_with_its_form(broker, monkeypatch):
    for value in ("trainer", "trainer:", "trainer:" + "AB" * 16):
        monkeypatch.setenv("SHMBROKER_GROUP", value)
        with pytest.raises(shmbroker.Invalid, match="^SHMBROKER_GROUP is not NAME:TOKEN .*`shmbroker run` sets it"):
            shmbroker.connect()


def test_a_group_is_joined_left_and_ended(session):
    group = session.create_group("short", limit_bytes=1 << 20)
    assert session.join(group) == group.id
    region = session.create(4096, name="in-it")
    with pytest.raises(shmbroker.OutOfShared) as refused:
        session.create(4 << 20)
    assert refused.value.scope == "group" and refused.value.limit == 1 << 20
    advice = str(refused.value).partition("raise the group's limit: `shmbroker ")[2].partition("`")[0]
    subprocess.run([os.environ["SHMBROKER_TOOL"], *advice.split()], check=True, capture_output=True)
    session.create(4 << 20).close()
    other = shmbroker.connect(group="")
    assert other.join("short") == group.id
    other.leave()
    watch = other.watch(group=group.id)
    assert watch.state == 0
    region.close()
    with pytest.raises(TimeoutError) as still:
        other.wait_group(group.id, timeout=0.01)
    assert "the group did not end before the deadline: it still has members" in str(still.value)
    endings = []
    ender = threading.Timer(0.05, lambda: endings.append(session.end_group(group)))
    ender.start()
    other.wait_group(group.id, timeout=30)
    event = other.next_event(timeout=30)
    assert event.kind == "group_ended" and event.group == group.id and event.watch == watch.id
    ender.join()
    assert endings[0].members == 1
    with pytest.raises(TimeoutError):
        other.next_event(timeout=0)
    session.create_group("twice")
    with pytest.raises(shmbroker.Exists):
        session.create_group("twice")


def test_events_tell_of_names_regions_and_reclaims(session, python):
    group = session.create_group("eventful")
    session.join(group)
    watch = session.watch(name="comes")
    region = session.create(4096, name="comes")
    event = session.next_event(timeout=30)
    assert (event.kind, event.text, event.region, event.watch) == ("name_appeared", "comes", region.id, watch.id)
    session.unwatch(watch)
    published = session.watch(region=region.id, events=shmbroker.EVENT_PUBLISHED)
    region.publish()
    assert session.next_event(timeout=30).kind == "region_published"
    again = session.watch(region=region.id)
    assert again.state & shmbroker.EVENT_PUBLISHED
    session.unwatch(published.id)
    session.watch(reclaim=group.id)
    python("import os, shmbroker; r = shmbroker.connect().create(1 << 20); os.kill(os.getpid(), 9)", status=-9,
           SHMBROKER_GROUP=shmbroker.group_variable("eventful", group.token))
    reclaim = session.next_event(timeout=30)
    assert reclaim.kind == "reclaim" and reclaim.code == 9 and reclaim.bytes == 1 << 20 and reclaim.pid > 0


def test_events_come_in_an_event_loop(session):
    session.create(1)
    session.watch(name="soon")

    async def main():
        waiting = asyncio.create_task(session.next_event_async(timeout=30))
        await asyncio.sleep(0.01)
        region = session.create(4096, name="soon")
        event = await waiting
        with pytest.raises(TimeoutError):
            await session.next_event_async(timeout=0.01)
        return event, region

    event, region = asyncio.run(main())
    assert event.region == region.id


def test_the_views_show_what_there_is(session, broker):
    session.join(session.create_group("viewed"))
    region = session.create(8192, name="seen", keep="released")
    status = shmbroker.status()
    assert status.socket == broker.socket and status.version.endswith(shmbroker.__version__) and status.regions >= 1
    listing = shmbroker.list("viewed")
    assert [(one.name, one.length, one.holders) for one in listing.regions] == [("seen", 8192, 1)]
    assert listing.groups[0].group == "viewed" and listing.groups[0].members == 1 and listing.broker.pid == status.pid
    assert session.attach(listing.regions[0].address, write=True).id == region.id
    with pytest.raises(shmbroker.NotFound):
        shmbroker.list("no-such-group")
    region.close(unname=True)


def test_the_views_say_when_no_broker_answers(tmp_path):
    with pytest.raises(shmbroker.NoBroker):
        shmbroker.status(str(tmp_path / "socket"))
    for call, sentence in ((lambda: shmbroker.status(tmp_path), "socket is a str or None"),
                           (lambda: shmbroker.list(5), 'group is None or a str \\("NAME", "UID:NAME", "@ID"\\)'),
                           (lambda: shmbroker.list(timeout=None), "timeout is a number of seconds, not 'NoneType'")):
        with pytest.raises(TypeError, match=sentence):
            call()
    for timeout in (-1, 0, float("nan"), float("inf")):
        with pytest.raises(shmbroker.Invalid, match="a call to the broker has a limit"):
            shmbroker.status(timeout=timeout)


def test_the_views_name_every_field_of_the_command(session):
    region = session.create(8192, name="all-fields")
    listing = shmbroker.list()
    assert not listing.more.keys() - {"hidden", "processes"}
    for row in (listing.broker, *listing.groups, *listing.regions):
        unknown = row.more.keys() - {"descriptors_reserved", "in_flight", "supervisors", "supervisor_lost"}
        assert not unknown, unknown
    assert region.size == 8192


def test_the_command_is_looked_for_where_it_may_be(monkeypatch):
    from shmbroker import views
    assert subprocess.run([views.tool(), "--version"], check=True, capture_output=True).stdout
    monkeypatch.delenv("SHMBROKER_TOOL", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(shmbroker.NotFound, match="SHMBROKER_TOOL"):
        views.tool()
