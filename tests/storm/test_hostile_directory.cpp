// SPDX-License-Identifier: Apache-2.0
// A pool's directory against processes that want to write it. The broker's files have mode 0400 there, and no seal: a
// later broker has to write it. So a process needs rights over the broker's files. docs/security.md says which have
// them. What such a process can do to its fellows is in test_hostile.cpp.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/storm/vandal.hpp"

namespace {

struct Made {
  harness::RawClient client;
  harness::RawPacket reply;
  std::size_t bytes = 0, control_bytes = 0;
  int directory() const { return reply.fds[0].get(); }
  int control() const { return reply.fds[1].get(); }
};

Made pool_on(const harness::BrokerFixture& broker) {
  Made made{harness::RawClient::connect(broker.socket()), {}};
  REQUIRE(made.client.hello().ok());
  shmbw_pool_create wish{};
  wish.slots = 4;
  made.reply = made.client.call(SHMBW_OP_POOL_CREATE, wish);
  REQUIRE(made.reply.ok());
  REQUIRE(made.reply.fds.size() == 2);
  made.bytes = made.reply.fixed<shmbw_pool_create_reply>().directory_bytes;
  made.control_bytes = made.reply.fixed<shmbw_pool_create_reply>().control_bytes;
  return made;
}

// The line of the attempt that succeeded, or 0.
#define REFUSED(condition) \
  if (!(condition)) return __LINE__ % 90 + 1
int attack_descriptor(int fd, std::size_t bytes) {
  REFUSED(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  REFUSED(::mmap(nullptr, bytes, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  REFUSED(::pwrite(fd, "X", 1, 0) == -1);
  REFUSED(::ftruncate(fd, 0) == -1);
  REFUSED(::ftruncate(fd, static_cast<off_t>(bytes) * 2) == -1);
  REFUSED(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == -1);
  REFUSED(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == -1);
  return 0;
}
int attack_file(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  for (const int flags : {O_RDWR, O_WRONLY, O_RDWR | O_TRUNC}) {
    REFUSED(::open(path.c_str(), flags | O_CLOEXEC) == -1 && errno == EACCES);
  }
  return 0;
}
int attack_mode(int fd) {
  REFUSED(::fchmod(fd, 0600) == -1 && errno == EPERM);
  return 0;
}

}  // namespace

TEST_CASE("nobody can write the directory of a pool by the descriptor that the broker gives") {
  const harness::BrokerFixture broker;
  const Made made = pool_on(broker);
  void* const map = ::mmap(nullptr, made.bytes, PROT_READ, MAP_SHARED, made.directory(), 0);
  REQUIRE(map != MAP_FAILED);
  const std::string before(static_cast<const char*>(map), made.bytes);
  CHECK(::mprotect(map, made.bytes, PROT_READ | PROT_WRITE) == -1);
  CHECK(::madvise(map, 4096, MADV_REMOVE) == -1);
  CHECK(attack_descriptor(made.directory(), made.bytes) == 0);
  const shmb::Fd copy = shmb::Fd::adopt(::dup(made.directory()));
  CHECK(attack_descriptor(copy.get(), made.bytes) == 0);
  CHECK(std::string(static_cast<const char*>(map), made.bytes) == before);
  ::munmap(map, made.bytes);
  // The control area is theirs to write, but not to cut or to grow.
  CHECK(::ftruncate(made.control(), 0) == -1);
  CHECK(::ftruncate(made.control(), static_cast<off_t>(made.control_bytes) * 2) == -1);
  CHECK(::fcntl(made.control(), F_ADD_SEALS, F_SEAL_WRITE) == -1);
}

TEST_CASE("a process of another user can neither open the directory of a pool for writing nor change its mode") {
  if (!harness::can_change_uid()) {
    MESSAGE("left out: this needs root, to become another user");
    return;
  }
  const harness::BrokerFixture broker;
  const Made made = pool_on(broker);
  const auto attack = [&] {
    if (const int line = attack_file(made.directory()); line != 0) return line;
    return attack_mode(made.directory());
  };
  CHECK(harness::Child::run_as(65534, 65534, attack).wait() == 0);
}

TEST_CASE("a program of the broker's own uid has to change the mode of the directory before it can write there") {
  const harness::BrokerFixture broker;
  const Made made = pool_on(broker);
  if (!harness::can_change_uid()) CHECK(attack_file(made.directory()) == 0);  // root needs no mode
  const auto seized = storm::seize_directory(made.directory(), made.bytes);
  REQUIRE(seized.size() == made.bytes / 8);
  // Nor can it cut the file under the others, or stop the broker's own writing.
  const std::string path = "/proc/self/fd/" + std::to_string(made.directory());
  const shmb::Fd writable = shmb::Fd::adopt(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(writable);
  CHECK(::ftruncate(writable.get(), 0) == -1);
  CHECK(::ftruncate(writable.get(), static_cast<off_t>(made.bytes) * 2) == -1);
  CHECK(::fcntl(writable.get(), F_ADD_SEALS, F_SEAL_WRITE) == -1);
  ::munmap(seized.data(), made.bytes);
}
