// SPDX-License-Identifier: Apache-2.0
// Tries every way to write that the kernel has, with nothing but a read-only reference. In system mode the reader is
// another user, and the writer goes on writing. In private mode both are the same user, and the first attach for
// reading has closed writing for ever.
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <shmbroker/shmbroker.hpp>
#include <string>

#include "parts.hpp"
#include "worker.hpp"

namespace main_job {
namespace {

constexpr std::uint64_t kArea = 4ULL << 20;
constexpr std::byte kContent{0x5a};

class Attempts {
 public:
  void refused(const char* way, bool wrote) {
    const char* reason = ::strerrorname_np(errno);
    require(!wrote, std::string(way) + " was allowed");
    seen_ += (seen_.empty() ? "" : ", ") + std::string(way) + " " + (reason != nullptr ? reason : "?");
    ++count_;
  }
  void print(const std::string& who) const {
    std::printf("%s: %d ways to write, all refused: %s\n", who.c_str(), count_, seen_.c_str());
  }

 private:
  std::string seen_;
  int count_ = 0;
};

bool maps_writable(int fd) {
  void* mapped = ::mmap(nullptr, kArea, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return false;
  ::munmap(mapped, kArea);
  return true;
}

void try_everything(const shmbroker::Session& session, const shmbroker::ReadOnlyRegion& region,
                    const std::string& who) {
  Attempts attempts;
  const int fd = region.descriptor();
  auto* data = const_cast<std::byte*>(region.data());
  attempts.refused("mmap", maps_writable(fd));
  attempts.refused("mprotect", ::mprotect(data, kArea, PROT_READ | PROT_WRITE) == 0);
  attempts.refused("pwrite", ::pwrite(fd, "x", 1, 0) == 1);
  attempts.refused("ftruncate", ::ftruncate(fd, 0) == 0);
  attempts.refused("punch", ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
  attempts.refused("remove", ::madvise(data, 4096, MADV_REMOVE) == 0);
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int again = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (again < 0) {
    attempts.refused("reopen", false);
  } else {  // the same user may open it: the seal still stands
    attempts.refused("reopen+mmap", maps_writable(again));
    attempts.refused("reopen+pwrite", ::pwrite(again, "x", 1, 0) == 1);
    attempts.refused("reopen+punch", ::fallocate(again, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
    ::close(again);
  }
  attempts.refused("truncate", ::truncate(path.c_str(), 0) == 0);
  ::close(fd);
  const auto lease = session.try_attach_writable(region.id());
  require(!lease, "the broker gave a writable lease");
  attempts.print(who);
  std::printf("asked for a writable reference, the broker says: %s\n", lease.error().what());
}

void become(std::uint32_t uid) {
  require(::setgroups(0, nullptr) == 0 && ::setresgid(uid, uid, uid) == 0 && ::setresuid(uid, uid, uid) == 0,
          "cannot become another user");
}

}  // namespace

void read_only(const std::string& socket, std::optional<std::uint32_t> uid) {
  auto session = shmbroker::Session::connect({.socket = socket, .program = "writer"});
  const auto region = session.create(kArea);
  std::fill_n(region.data(), kArea, kContent);
  const shmbroker::Ticket ticket = region.lend();  // for a child of this process
  Worker reader = Worker::start("reader", [&](Line parent) {
    if (uid) become(*uid);
    auto own = shmbroker::Session::connect({.socket = socket, .program = "reader"});
    const auto view = own.attach(ticket);
    require(view.bytes().front() == kContent && view.bytes().back() == kContent, "the reader sees something else");
    try_everything(own, view, uid ? "user " + std::to_string(*uid) : "same user");
    parent.say(0);
    if (parent.hear() == 0) return;
    require(view.bytes().front() == std::byte{1}, "the writer's next word did not arrive");
  });
  (void)reader.line().hear();
  require(std::ranges::all_of(region.bytes(), [](std::byte b) { return b == kContent; }), "the content has changed");
  region.data()[0] = std::byte{1};  // who wrote before may go on
  reader.line().say(1);
  require(reader.finish(), "the reader failed");
  std::printf("content unchanged; the writer wrote on, and the reader saw it\n");
}

}  // namespace main_job
