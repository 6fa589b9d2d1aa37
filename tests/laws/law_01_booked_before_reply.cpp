// SPDX-License-Identifier: Apache-2.0
// Law 1: the lease is booked before the reply leaves, so a client killed at any instruction leaves nothing behind.
// To see it fail: in daemon/create.cpp, create_region(), drop the call of book_lease() (the region then has no holder
// whose end could free it), or in daemon/session.cpp, end_session(), the loop with drop_lease().
#include "tests/e2e/support.hpp"
#include "tests/harness/ptrace_killer.hpp"

using namespace e2e;

namespace {

// Every request of this library that books something, in one life.
int whole_life(const std::string& socket, std::size_t size) {
  Session session = connect(socket);
  session.create_group({.name = "law"});
  session.join("law");
  Region region = session.create(size, {.name = "kv"});
  region.bytes()[0] = std::byte{1};
  const Ticket ticket = region.ticket(Rights::read, 2);
  auto published = std::move(region).publish();
  auto by_name = session.attach("kv");
  auto by_ticket = session.attach(ticket);
  auto replaced = session.create(size, {.name = "kv", .replace = true});
  by_name.release();
  by_ticket.release();
  published.release();
  replaced.release(true);
  return 0;
}

void kill_everywhere(const std::string& engine, std::size_t size) {
  CAPTURE(engine);
  CAPTURE(size);
  BrokerFixture broker({.engine = engine});
  const auto whole = harness::kill_after_system_call(0, [&] { return whole_life(broker.socket(), size); });
  REQUIRE(whole.status == 0);
  REQUIRE(broker.books() == "");
  long killed = 0;
  for (long k = 1; k <= whole.calls; ++k) {
    const auto stepped = harness::kill_after_system_call(k, [&] { return whole_life(broker.socket(), size); });
    const std::string left = broker.books();
    REQUIRE_MESSAGE(left == "", "killed after system call " << k << " of " << whole.calls << ": " << left);
    killed += stepped.killed;
  }
  MESSAGE(engine << ", " << size << " bytes: killed after each of " << killed << " system calls");
  CHECK(killed >= whole.calls - 2);
  CHECK(whole.calls > 40);
  Session after = connect(broker.socket());
  CHECK(after.try_create(size).has_value());
}

}  // namespace

TEST_CASE("law 1: a client killed after any of its system calls leaves nothing in the books") {
  for (const std::string& engine : harness::engines()) {
    kill_everywhere(engine, 64 * KiB);
    kill_everywhere(engine, 4 * MiB);
  }
}
