// SPDX-License-Identifier: Apache-2.0
// The records of a broker's books, as `shmbroker status --state` prints them. They must not contradict each other.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "base/mapping.hpp"
#include "base/sys_memory.hpp"
#include "daemon/books/reader.hpp"
#include "tests/daemon/books/books_fixture.hpp"

namespace shmb::daemon::test {

inline Packet& ask_books(Client& client) { return client.call(SHMBW_OP_BOOKS, shmbw_books{}); }

inline std::string text_of(std::span<std::byte> bytes) {
  auto reader = daemon::books::Reader::open(bytes);
  REQUIRE(reader);
  CHECK(reader->problems().empty());
  return reader->text();
}

// A sealed copy, of which each reader works on its own.
inline std::string text_in(Packet& reply) {
  REQUIRE(reply.status() == Status::ok);
  REQUIRE(reply.fds.size() == 1);
  const int fd = reply.fds[0].get();
  const auto map = Mapping::map(fd, 0, sys::file_facts(fd)->size, Access::read);
  REQUIRE(map);
  CHECK(map->size() == reply.fixed<shmbw_books_reply>().bytes);
  std::vector<std::byte> bytes(map->data(), map->data() + map->size());
  return text_of(bytes);
}

// The memory itself, as a later broker reads it: most of the file has no memory behind it.
inline std::string text_behind(int fd) {
  const auto map = Mapping::map(fd, 0, sys::file_facts(fd)->size, Access::read_write);
  REQUIRE(map);
  return text_of({map->data(), map->size()});
}

// The broker's own books, as a later broker would find them in the table of descriptors.
inline int own_books() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().starts_with("/memfd:shm:books ("))
      return std::stoi(entry.path().filename());
  }
  return -1;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

}  // namespace shmb::daemon::test
