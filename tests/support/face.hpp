// SPDX-License-Identifier: Apache-2.0
// Sessions and results of the public C++ headers, for tests.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "client/face/shmbroker.hpp"

namespace support {

// A session that is in no group yet.
inline shmbroker::Session connect(const std::string& socket, const std::string& program = {}) {
  shmbroker::ConnectOptions options;
  options.socket = socket;
  options.program = program;
  options.join_group = false;
  return shmbroker::Session::connect(options);
}

template <class T>
shmbroker::Status status_of(const shmbroker::Result<T>& result) {
  return result ? shmbroker::Status::ok : result.error().status();
}
// "" for a value.
template <class T>
std::string sentence_of(const shmbroker::Result<T>& result) {
  return result ? std::string() : std::string(result.error().what());
}

}  // namespace support

namespace doctest {
template <>
struct StringMaker<shmbroker::Status> {
  static String convert(shmbroker::Status status) { return shmb_status_name(static_cast<int>(status)); }
};
}  // namespace doctest
