// SPDX-License-Identifier: Apache-2.0
// The C ABI from a C program that is linked with the shared library and started by exec, writer and readers apart.
#include <sstream>

#include "tests/e2e/programs.hpp"
#include "tests/e2e/support.hpp"

using namespace e2e;

TEST_CASE("C programs on the shared library exchange data by name and by ticket") {
  in_every_world([](World& world) {
    const std::map<std::string, std::string> where = {{"SHMBROKER_SOCKET", world.socket()}};
    for (const char* length : {"1", "5000", "4194309"}) {
      const std::string group = std::string("train") + length;  // the broker may still be ending the last one
      Talker writer({c_peer(), "write", group, "weights", length}, where);
      std::istringstream said(writer.line());
      std::uint64_t id = 0;
      std::uint32_t generation = 0;
      std::string ticket;
      said >> id >> generation >> ticket;
      REQUIRE(ticket.size() == 32);
      CHECK(generation == 1);
      REQUIRE(program({c_peer(), "read", group + "/weights", length}, where).wait() == 0);
      REQUIRE(program({c_peer(), "ticket", ticket, length}, where).wait() == 0);
      writer.end_input();
      REQUIRE(writer.process().wait() == 0);
    }
  });
}
