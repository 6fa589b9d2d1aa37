// SPDX-License-Identifier: Apache-2.0
// Seals as the books keep them: whatever a client does to memory that is to be sealed, only requests for it wait.
#include <fcntl.h>
#include <sys/uio.h>

#include <memory>

#include "base/compat.hpp"
#include "base/fault.hpp"
#include "base/mapping.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "tests/daemon/books/books_fixture.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/stuck_write.hpp"

using namespace shmb;
using namespace shmb::daemon::test;

namespace {

// Asks, and leaves the answer for later.
void ask_to_publish(Client& client, shmbw_region_ref region) {
  std::byte buffer[128];
  wire::Writer out(buffer);
  out.begin(SHMBW_OP_PUBLISH, 77, Status::ok, shmbw_publish{region});
  client.send_only(out.finish(0));
}

shmbw_attach attach_wish(shmbw_region_ref region, std::uint32_t rights, std::uint32_t flags = 0) {
  shmbw_attach wish{};
  wish.by = SHMBW_ATTACH_BY_ID;
  wish.rights = rights;
  wish.flags = flags;
  wish.region = region;
  return wish;
}

void ask_to_attach(Client& client, const std::vector<shmbw_attach>& wishes) {
  std::byte buffer[1024];
  wire::Writer out(buffer);
  out.begin_batch<shmbw_attach>(SHMBW_OP_ATTACH, 78, wishes.size());
  for (std::size_t i = 0; i < wishes.size(); ++i) out.element(i, wishes[i]);
  client.send_only(out.finish(0));
}

shmbw_attach_reply attach_answer(Client& client, std::size_t index = 0) {
  REQUIRE(!client.link().replies.empty());
  const Packet& packet = client.link().replies.back();
  REQUIRE(packet.op() == (SHMBW_OP_ATTACH | SHMBW_REPLY));
  REQUIRE(packet.status() == Status::ok);
  return wire::BatchView::open(packet.view())->element<shmbw_attach_reply>(index).value();
}
Status attach_status(Client& client, std::size_t index = 0) {
  return static_cast<Status>(attach_answer(client, index).outcome.status);
}

bool sealed_for_writing(const Fd& memory) { return (*sys::seals(memory.get()) & F_SEAL_WRITE) != 0; }

// The page of a region in a pipe, and nowhere mapped: a thread that seals the region waits for it.
struct PageInPipe {
  Fd out, in;
  explicit PageInPipe(const Fd& memory) {
    int ends[2] = {-1, -1};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    out = Fd::adopt(ends[0]);
    in = Fd::adopt(ends[1]);
    Mapping mapping = std::move(*Mapping::map(memory.get(), 0, 4096, Access::read_write));
    mapping.data()[0] = std::byte{1};
    const iovec part{mapping.data(), 4096};
    REQUIRE(::vmsplice(in.get(), &part, 1, 0) == 4096);
  }
};

}  // namespace

TEST_CASE("memory that is still referred to is not published, and other sessions do not wait for that check") {
  World world(system_config());
  Client writer = world.client(1000), other = world.client(2000);
  Created created = writer.create(), next = writer.create();
  {
    PageInPipe kept(created.memory);
    ask_to_publish(writer, created.ref());
    CHECK(writer.link().held);
    CHECK(other.create().status == Status::ok);
    CHECK(writer.link().held);
    writer.wait_while_held();
    REQUIRE(!writer.link().replies.empty());
    const Packet& refused = writer.link().replies.back();
    CHECK(refused.status() == Status::still_mapped);
    CHECK(refused.error().sentence.find("pipe") != std::string::npos);
    CHECK(refused.fds.empty());
    CHECK(!sealed_for_writing(created.memory));
  }
  CHECK(writer.publish(created.ref()).status() == Status::ok);
  CHECK(writer.publish(next.ref()).status() == Status::ok);
}

TEST_CASE("a write that never ends holds up the publication of that memory and nothing else") {
  World world(private_config());
  Client writer = world.client(1000), reader = world.client(1000), other = world.client(1000);
  Created created = writer.create({.name = "n"});
  writer.ready(created.ref());
  harness::StuckWrite stuck(created.memory.get());
  if (!stuck.stuck()) SKIP_CASE("userfaultfd is not allowed here");
  const std::uint32_t before = other.status().descriptors;
  ask_to_publish(writer, created.ref());
  REQUIRE(writer.link().held);
  // Another region of the same uid is published, this one is asked for, listed and refused as ever.
  Created free = other.create();
  CHECK(other.publish(free.ref()).status() == Status::ok);
  CHECK(other.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size() == 2);
  CHECK(other.attach_id(created.ref(), kWrite).status == Status::ok);
  // Closing writing takes the same lock: a session that would close it is served when the publication is over.
  other.ready(created.ref());
  ask_to_attach(reader, {attach_wish(created.ref(), kRead)});
  REQUIRE(reader.link().held);
  CHECK(stuck.let_go());
  writer.wait_while_held();
  reader.wait_while_held();
  CHECK(writer.link().replies.back().status() == Status::ok);
  CHECK(sealed_for_writing(created.memory));
  CHECK(attach_status(reader) == Status::ok);
  CHECK(attach_answer(reader).state == SHMBW_REGION_STATE_PUBLISHED);
  free = {};
  CHECK(other.status().descriptors == before + 1);  // the region that was made meanwhile
}

TEST_CASE("a write that never ends holds up the first readers of that memory and nothing else") {
  World world(private_config());
  Client writer = world.client(1000), reader = world.client(1000), second = world.client(1000),
         other = world.client(1000);
  Created created = writer.create(), free = writer.create();
  writer.ready(created.ref());
  writer.ready(free.ref());
  harness::StuckWrite stuck(created.memory.get());
  if (!stuck.stuck()) SKIP_CASE("userfaultfd is not allowed here");
  const std::uint32_t before = world.status().descriptors;
  ask_to_attach(reader, {attach_wish(created.ref(), kRead)});
  REQUIRE(reader.link().held);
  ask_to_attach(second, {attach_wish(created.ref(), kRead)});
  REQUIRE(second.link().held);
  // A writer could not map its descriptor once the seal is on.
  Client late = world.client(1000);
  ask_to_attach(late, {attach_wish(created.ref(), kWrite)});
  REQUIRE(late.link().held);
  CHECK(other.create().status == Status::ok);
  CHECK(other.attach_id(free.ref(), kRead).status == Status::ok);  // closes writing to that one
  CHECK(other.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size() == 3);
  CHECK(other.rows<shmbw_lease_record>(SHMBW_TABLE_LEASES).size() == 4);  // none of those who wait
  {
    Client leaves = world.client(1000);
    ask_to_attach(leaves, {attach_wish(created.ref(), kRead)});
    REQUIRE(leaves.link().held);
  }
  CHECK(stuck.let_go());
  reader.wait_while_held();
  second.wait_while_held();
  late.wait_while_held();
  for (Client* granted : {&reader, &second}) {
    CHECK(attach_status(*granted) == Status::ok);
    CHECK(attach_answer(*granted).state == SHMBW_REGION_STATE_WRITE_CLOSED);
    REQUIRE(granted->link().replies.back().fds.size() == 1);
    CHECK((::fcntl(granted->link().replies.back().fds[0].get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
    CHECK((*sys::seals(granted->link().replies.back().fds[0].get()) & F_SEAL_FUTURE_WRITE) != 0);
  }
  CHECK(attach_status(late) == Status::write_closed);
  CHECK(writer.publish(free.ref()).status() == Status::ok);
  late.close();
  CHECK(world.status().descriptors == before + 1);  // the region that was made meanwhile
}

TEST_CASE("a batch of first readers is answered when the last of its regions is sealed, each with its own outcome") {
  World world(private_config());
  Client writer = world.client(1000), reader = world.client(1000);
  Created stuck_one = writer.create(), refusing = writer.create(), fine = writer.create();
  for (const Created* one : {&stuck_one, &refusing, &fine}) writer.ready(one->ref());
  REQUIRE(sys::add_seals(refusing.memory.get(), F_SEAL_SEAL));
  harness::StuckWrite stuck(stuck_one.memory.get());
  if (!stuck.stuck()) SKIP_CASE("userfaultfd is not allowed here");
  ask_to_attach(reader, {attach_wish(fine.ref(), kRead), attach_wish(stuck_one.ref(), kRead),
                         attach_wish(refusing.ref(), kRead), attach_wish(fine.ref(), kRead)});
  REQUIRE(reader.link().held);
  // The others' seals are decided; its request waits for the last.
  for (int waited = 0; (*sys::seals(fine.memory.get()) & F_SEAL_FUTURE_WRITE) == 0 && waited < 30'000; ++waited)
    sys::rest(1'000'000);
  CHECK(writer.status().sessions == 2);
  world.books->woken();
  CHECK(reader.link().held);
  CHECK(stuck.let_go());
  reader.wait_while_held();
  CHECK(attach_status(reader, 0) == Status::ok);
  CHECK(attach_status(reader, 1) == Status::ok);
  CHECK(attach_status(reader, 2) == Status::unsupported);
  CHECK(attach_status(reader, 3) == Status::ok);
  CHECK(reader.link().replies.back().fds.size() == 3);
  CHECK(reader.rows<shmbw_lease_record>(SHMBW_TABLE_LEASES).size() == 3 + 2);
}

TEST_CASE("a batch that writes to a region first and reads it then closes no writing") {
  World world(private_config());
  Client writer = world.client(1000), both = world.client(1000);
  Created created = writer.create();
  writer.ready(created.ref());
  ask_to_attach(both, {attach_wish(created.ref(), kWrite), attach_wish(created.ref(), kRead)});
  both.wait_while_held();
  CHECK(attach_status(both, 0) == Status::ok);
  CHECK(attach_status(both, 1) == Status::not_ready);
  ask_to_attach(both, {attach_wish(created.ref(), kWrite, SHMBW_ATTACH_NO_FD), attach_wish(created.ref(), kRead)});
  both.wait_while_held();
  CHECK(attach_status(both, 0) == Status::ok);
  both.ready(created.ref());
  Client third = world.client(1000);
  ask_to_attach(third, {attach_wish(created.ref(), kWrite, SHMBW_ATTACH_NO_FD), attach_wish(created.ref(), kRead)});
  third.wait_while_held();
  CHECK(attach_status(third, 0) == Status::ok);
  CHECK(attach_status(third, 1) == Status::busy);
  CHECK((*sys::seals(created.memory.get()) & F_SEAL_FUTURE_WRITE) == 0);
  CHECK(third.attach_id(created.ref(), kRead).status == Status::ok);
}

TEST_CASE("a first reader that waits for the seal is refused nothing that it had room for when it asked") {
  shmb::daemon::Config config = private_config();
  config.limits.session_leases = 1;
  World world(config);
  Client writer = world.client(1000), reader = world.client(1000);
  Created created = writer.create();
  writer.ready(created.ref());
  harness::StuckWrite stuck(created.memory.get());
  if (!stuck.stuck()) SKIP_CASE("userfaultfd is not allowed here");
  ask_to_attach(reader, {attach_wish(created.ref(), kRead)});
  REQUIRE(reader.link().held);
  CHECK(stuck.let_go());
  {
    const harness::Injected full(fault::Call::reopen, EMFILE, 1, -1);
    reader.wait_while_held();
  }
  CHECK(attach_status(reader) == Status::ok);
  CHECK(reader.link().replies.back().fds.size() == 1);
}

TEST_CASE("a session that waits for a publication may end, and the region with it, before the kernel has answered") {
  for (bool revived : {false, true}) {
    World world(private_config());
    Client other = world.client(1000);
    harness::StuckWrite* held = nullptr;
    Fd memory;
    shmbw_region_ref ref{};
    std::unique_ptr<harness::StuckWrite> stuck;
    {
      Client writer = world.client(1000);
      writer.make_group({.name = "g"});
      Created created = writer.create();
      ref = created.ref();
      memory = std::move(created.memory);
      if (revived) REQUIRE(other.attach_id(ref, kWrite).status == Status::ok);
      if (revived) other.ready(ref);
      stuck = std::make_unique<harness::StuckWrite>(memory.get());
      held = stuck.get();
      if (!held->stuck()) SKIP_CASE("userfaultfd is not allowed here");
      ask_to_publish(writer, ref);
      REQUIRE(writer.link().held);
    }
    CHECK(other.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS).size() == (revived ? 1 : 0));
    if (revived) {
      ask_to_publish(other, ref);  // joins the one that is under way
      REQUIRE(other.link().held);
    }
    CHECK(held->let_go());
    if (revived) {
      other.wait_while_held();
      CHECK(other.link().replies.back().status() == Status::ok);
    } else {
      // The last word of the helper thread, which nobody waits for.
      auto woken = sys::poll_readable(world.books->wake_fd(), kMinute);
      REQUIRE(woken);
      CHECK(*woken);
      world.books->woken();
    }
    CHECK(sealed_for_writing(memory));
  }
}

TEST_CASE("a uid with more stuck publications than it may have holds up its own, another uid's go on") {
  World world(system_config());
  std::vector<Client> bad;
  std::vector<std::unique_ptr<harness::StuckWrite>> stuck;
  std::vector<Fd> memory;
  for (int i = 0; i < 6; ++i) {
    bad.push_back(world.client(1000));
    Created created = bad.back().create();
    memory.push_back(std::move(created.memory));
    stuck.push_back(std::make_unique<harness::StuckWrite>(memory.back().get()));
    if (!stuck.back()->stuck()) SKIP_CASE("userfaultfd is not allowed here");
    ask_to_publish(bad.back(), created.ref());
    REQUIRE(bad.back().link().held);
  }
  Client good = world.client(2000);
  for (int i = 0; i < 10; ++i) {
    Created mine = good.create();
    CHECK(good.publish(mine.ref()).status() == Status::ok);
  }
  for (auto& one : stuck) CHECK(one->let_go());
  for (std::size_t i = 0; i < bad.size(); ++i) {
    bad[i].wait_while_held();
    CHECK(bad[i].link().replies.back().status() == Status::ok);
    CHECK(sealed_for_writing(memory[i]));
  }
}

TEST_CASE("a broker ends although a publication is stuck") {
  harness::StuckWrite* held = nullptr;
  Fd memory;
  std::unique_ptr<harness::StuckWrite> stuck;
  {
    World world(private_config());
    world.check_at_end = false;
    Client writer = world.client(1000);
    Created created = writer.create();
    memory = std::move(created.memory);
    stuck = std::make_unique<harness::StuckWrite>(memory.get());
    held = stuck.get();
    if (!held->stuck()) SKIP_CASE("userfaultfd is not allowed here");
    const auto before = fault::count(fault::Call::add_seals);
    ask_to_publish(writer, created.ref());
    REQUIRE(writer.link().held);
    for (int waited = 0; fault::count(fault::Call::add_seals) == before && waited < 30'000; ++waited)
      sys::rest(1'000'000);
  }
  CHECK(held->let_go());
  for (int waited = 0; !sealed_for_writing(memory) && waited < 30'000; ++waited) sys::rest(1'000'000);
  CHECK(sealed_for_writing(memory));
}

TEST_CASE("waiting publications count for the session that asked, also after it has left, and leave others the table") {
  shmb::daemon::Config config = system_config();
  config.limits.uid_descriptors = 60;
  World world(config);
  Client other = world.client(2000);
  const std::uint32_t before = other.status().descriptors;
  {
    std::vector<Client> writers;
    std::vector<Created> regions;
    std::vector<std::unique_ptr<harness::StuckWrite>> stuck;
    for (int i = 0; i < 4; ++i) {  // as many as are sealed at a time for one user
      writers.push_back(world.client(1000));
      regions.push_back(writers.back().create());
      stuck.push_back(std::make_unique<harness::StuckWrite>(regions.back().memory.get()));
      if (!stuck.back()->stuck()) SKIP_CASE("userfaultfd is not allowed here");
      ask_to_publish(writers.back(), regions.back().ref());
      REQUIRE(writers.back().link().held);
    }
    // Of each, socket and pidfd, the region, its reader, and the copy that is sealed.
    CHECK(other.status().descriptors == before + 4 * 5);
    int left = 0;
    for (bool refused = false; left < 100 && !refused; ++left) {
      Client leaver = world.client(1000);
      const Created made = leaver.create();
      if (made.status != Status::ok) {
        CHECK(made.error.shortage.scope == SHMBW_SCOPE_UID);
        break;
      }
      ask_to_publish(leaver, made.ref());
      if (!leaver.link().held) {
        const Error why = leaver.link().replies.back().error();
        CHECK(why.status == Status::no_descriptors);
        CHECK(why.shortage.scope == SHMBW_SCOPE_UID);
        refused = true;
      }
      leaver.close();
    }
    CHECK(left > 20);
    CHECK(left < 45);
    CHECK(other.status().descriptors <= before + 60);
    Created mine = other.create();
    CHECK(other.publish(mine.ref()).status() == Status::ok);
    other.release(mine.ref());
    for (auto& each : stuck) CHECK(each->let_go());
    for (Client& each : writers) each.wait_while_held();
    writers.clear();
  }
  // Those that nobody waits for any more are done some time later.
  while (other.status().descriptors > before) {
    (void)sys::poll_readable(world.books->wake_fd(), kSecond);
    world.books->woken();
  }
  CHECK(other.status().descriptors == before);
}
