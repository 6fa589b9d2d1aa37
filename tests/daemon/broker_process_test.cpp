// SPDX-License-Identifier: Apache-2.0
// shmbrokerd as a process: start, one instance, stop, idle end, and the sentence for each way a start can fail.
#include <doctest/doctest.h>

#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/raw_client.hpp"

using harness::BrokerFixture;
using harness::BrokerOptions;
using harness::RawClient;

TEST_CASE("a broker greets, creates, and has empty books after the client, on each engine and kernel") {
  for (const BrokerOptions& options : harness::engines_and_kernels()) {
    CAPTURE(harness::name_of(options));
    BrokerFixture broker(options);
    REQUIRE_MESSAGE(broker.running(), broker.log());
    RawClient client = RawClient::connect(broker.socket());
    REQUIRE(client.connected());
    REQUIRE(client.hello().ok());
    auto created = client.create(4096);
    CHECK(created.ok());
    CHECK(created.fds.size() == 1);
    auto status = client.status();
    REQUIRE(status.ok());
    CHECK(status.fixed<shmbw_status_reply>().regions == 1);
    CHECK(status.fixed<shmbw_status_reply>().engine ==
          (options.engine == "epoll" ? SHMBW_ENGINE_EPOLL : SHMBW_ENGINE_IO_URING));
  }
}
