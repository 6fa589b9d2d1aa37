// SPDX-License-Identifier: Apache-2.0
// The common part of the library's tests: a session on a fixture's broker, and values that must be there.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>

#include "client/region/region.hpp"
#include "client/session/connect.hpp"
#include "tests/harness/broker_fixture.hpp"

namespace support {

using shmb::client::Deadline;
using shmb::client::Region;
using shmb::client::Session;

inline shmb::Result<std::shared_ptr<Session>> try_open(const std::string& socket) {
  shmb::client::ConnectOptions options;
  options.socket = socket;
  options.no_group = true;
  return shmb::client::connect(options);
}

// The value, or a failed case that says why.
template <class T>
T must(shmb::Result<T> result) {
  if (!result) FAIL("failed: " << result.error().sentence);
  return std::move(*result);
}
inline void must(shmb::Result<void> result) {
  if (!result) FAIL("failed: " << result.error().sentence);
}

inline std::shared_ptr<Session> open(const harness::BrokerFixture& broker) { return must(try_open(broker.socket())); }
inline std::shared_ptr<Session> open_admin(const harness::BrokerFixture& broker) {
  return must(try_open(broker.admin()));
}

inline shmb::client::CreateItem named(const std::string& name, std::uint64_t length) {
  shmb::client::CreateItem item;
  item.name = name;
  item.length = length;
  return item;
}
inline shmb::client::AttachItem at(const std::string& address, std::uint32_t rights = 0) {
  shmb::client::AttachItem item;
  item.target = must(shmb::client::Target::at(address));
  item.rights = rights;
  return item;
}
inline constexpr std::uint32_t kReadWrite = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;

template <class T>
shmb::Status status_of(const shmb::Result<T>& result) {
  return result ? shmb::Status::ok : result.error().status;
}

}  // namespace support

namespace doctest {
template <>
struct StringMaker<shmb::Status> {
  static String convert(shmb::Status status) { return toString(static_cast<int>(status)); }
};
}  // namespace doctest
