// SPDX-License-Identifier: Apache-2.0
// Publishing as the books keep it: whatever a client does to memory that is to be sealed, its own request waits alone.
#include <fcntl.h>
#include <sys/uio.h>

#include "base/compat.hpp"
#include "base/fault.hpp"
#include "base/mapping.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "tests/daemon/books_fixture.hpp"
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

bool sealed_for_writing(const Fd& memory) { return (*sys::seals(memory.get()) & F_SEAL_WRITE) != 0; }

// The page of a region in a pipe, and nowhere mapped: who seals the region waits for it.
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

TEST_CASE("memory that something still refers to is not published, and nobody else waits to learn that") {
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
  // Closing writing takes the same lock: who would is served when the publication is over.
  std::byte buffer[256];
  wire::Writer out(buffer);
  out.begin_batch<shmbw_attach>(SHMBW_OP_ATTACH, 78, 1);
  shmbw_attach wish{};
  wish.by = SHMBW_ATTACH_BY_ID;
  wish.rights = kRead;
  wish.region = created.ref();
  other.ready(created.ref());
  out.element(0, wish);
  reader.send_only(out.finish(0));
  REQUIRE(reader.link().held);
  CHECK(stuck.let_go());
  writer.wait_while_held();
  reader.wait_while_held();
  CHECK(writer.link().replies.back().status() == Status::ok);
  CHECK(sealed_for_writing(created.memory));
  const auto granted = wire::BatchView::open(reader.link().replies.back().view())->element<shmbw_attach_reply>(0);
  CHECK(granted->outcome.status == 0);
  CHECK(granted->state == SHMBW_REGION_STATE_PUBLISHED);
  free = {};
  CHECK(other.status().descriptors == before + 1);  // the region that was made meanwhile
}

TEST_CASE("who waits for a publication may end, and the region with it, before the kernel has answered") {
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
