// SPDX-License-Identifier: Apache-2.0
// The same body against a broker of each engine, each with a fixture of its own.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "tests/harness/broker_fixture.hpp"

namespace support {

template <class Body>
void on_each_engine(harness::BrokerOptions options, Body&& body) {
  for (const std::string& engine : harness::engines()) {
    INFO("engine: ", engine);
    options.engine = engine;
    harness::BrokerFixture broker(options);
    REQUIRE_MESSAGE(broker.running(), broker.log());
    body(broker);
  }
}
template <class Body>
void on_each_engine(Body&& body) {
  on_each_engine(harness::BrokerOptions{}, std::forward<Body>(body));
}

}  // namespace support
