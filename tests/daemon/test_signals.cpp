// SPDX-License-Identifier: Apache-2.0
// The signals of an administrator, sent to a real broker: SIGHUP applies new limits or keeps the old ones whole.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <string>

#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"

using harness::BrokerFixture;
using harness::BrokerOptions;
using harness::RawClient;

namespace {

bool logs(const BrokerFixture& broker, const std::string& text) {
  for (int waited = 0; waited < 10'000; ++waited) {
    if (broker.log().find(text) != std::string::npos) return true;
    ::usleep(1000);
  }
  return false;
}

// Each with a text of its own, because the log keeps those of earlier reloads.
bool reload(BrokerFixture& broker, const std::string& config, const std::string& text) {
  broker.configure(config);
  broker.reload();
  return logs(broker, text);
}

bool creates(RawClient& client) {
  auto reply = client.create(4096);
  return reply.ok() && reply.fds.size() == 1;
}

constexpr const char* kTwo = "[limits]\ngroup_regions = 2\n";

}  // namespace

TEST_CASE("SIGHUP applies the limits of the file and frees nothing, on each engine and in each mode") {
  for (const std::string& engine : harness::engines())
    for (const bool system : {false, true}) {
      if (system && !harness::can_change_uid()) continue;
      CAPTURE(engine);
      CAPTURE(system);
      BrokerOptions options;
      options.engine = engine;
      options.system = system;
      options.config = kTwo;
      BrokerFixture broker(options);
      REQUIRE_MESSAGE(broker.running(), broker.log());
      if (system) ::chmod(broker.config_file().c_str(), 0644);
      RawClient client = RawClient::connect(broker.socket());
      REQUIRE(client.hello().ok());
      CHECK(creates(client));
      CHECK(creates(client));
      CHECK_FALSE(creates(client));
      CHECK(reload(broker, "[limits]\ngroup_regions = 3\n", "limits applied again"));
      CHECK(creates(client));
      CHECK(reload(broker, "log_level = \"debug\"\n[limits]\ngroup_regions = 1\nuid_regions = x\n",
                   broker.config_file() + ":4: "));
      CHECK_FALSE(creates(client));  // three are still the limit
      CHECK(client.status().fixed<shmbw_status_reply>().regions == 3);
    }
}

TEST_CASE("with an error in the file all limits stay as they were, and the service manager shows file and line") {
  harness::TempDir folder;
  BrokerOptions options;
  options.config = kTwo;
  BrokerFixture broker(options);
  REQUIRE_MESSAGE(broker.running(), broker.log());
  RawClient client = RawClient::connect(broker.socket());
  REQUIRE(client.hello().ok());
  const std::string file = broker.config_file();
  // The first key is good: it must not be applied either.
  CHECK(reload(broker, "[limits]\ngroup_regions = 9\nbites = 1\n",
               "the limits stay as they were: " + file + ":3: unknown key 'limits.bites'"));
  CHECK(creates(client));
  CHECK(creates(client));
  CHECK_FALSE(creates(client));
  std::filesystem::remove(file);
  broker.reload();
  CHECK(logs(broker, "the limits stay as they were: configuration file '" + file + "'"));
  CHECK_FALSE(creates(client));
  // A pipe without a writer would stop the broker for ever.
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  broker.reload();
  CHECK(logs(broker, "is no regular file"));
  CHECK_FALSE(creates(client));
  std::filesystem::remove(file);
  CHECK(reload(broker, "", "limits applied again"));  // an empty file means the defaults
  CHECK(creates(client));
}

TEST_CASE("several SIGHUPs at once are harmless, and SIGTERM after them ends the broker in order") {
  BrokerOptions options;
  options.config = kTwo;
  BrokerFixture broker(options);
  REQUIRE_MESSAGE(broker.running(), broker.log());
  for (int i = 0; i < 20; ++i) broker.reload();
  CHECK(logs(broker, "limits applied again; configuration read from " + broker.config_file()));
  CHECK(RawClient::connect(broker.socket()).hello().ok());
  CHECK(broker.books() == "");
  for (int i = 0; i < 20; ++i) broker.reload();
  CHECK(broker.stop() == 0);
}

TEST_CASE("keys that need a restart are named, and those of the command line are not") {
  BrokerOptions options;
  options.engine = "epoll";  // by the command line
  options.config = kTwo;
  BrokerFixture broker(options);
  REQUIRE_MESSAGE(broker.running(), broker.log());
  CHECK(reload(broker, "engine = \"io_uring\"\ndescriptors = 4096\nhello_timeout = \"9s\"\n",
               "for these keys restart the broker: descriptors, hello_timeout\n"));
}
