// SPDX-License-Identifier: Apache-2.0
// A message to a process that sleeps in poll(2) on the queue's descriptor. The library's sender writes one byte into
// the doorbell of its reader. Without that socket it asks the broker to ring: `by_the_broker` takes it away, by a
// socket without another end in its place. The floor is such a byte without a queue.
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "tools/benchmarks/floors/hop_ways.hpp"
#include "tools/benchmarks/kit/pool_library.hpp"

namespace shmb::bench {
namespace {

void sleep_on(int fd) {
  pollfd bell{fd, POLLIN, 0};
  if (poll(&bell, 1, -1) < 0 && errno != EINTR) give_up("poll");
}

class DoorbellEnds {
 public:
  DoorbellEnds(const std::string& socket, bool by_the_broker) : socket_(socket), by_the_broker_(by_the_broker) {}
  std::uint64_t enter(End end, std::uint64_t from_client) {
    const bool client = end == End::client;
    if (client) pool_ = std::make_unique<PoolLibrary>(socket_, PoolShape{});
    else pool_ = std::make_unique<PoolLibrary>(socket_, from_client);
    const QueueShape shape;
    pool_->open(out_, client ? "there" : "back", SHMB_QUEUE_WRITER, shape);
    pool_->open(in_, client ? "back" : "there", SHMB_QUEUE_READER, shape);
    message_ = pool_->message();
    shmb_error error;
    must_succeed(shmb_queue_descriptor(in_, &bell_, &error), error);
    return pool_->id();
  }
  void send(std::uint32_t number) {
    // The library asks for a doorbell again after ten seconds.
    if (by_the_broker_ && (!taken_ || sent_ % 500 == 0)) take_doorbells_away();
    if (by_the_broker_ && !taken_ && sent_ == 1000) give_up("the doorbell of the peer was not found");
    ++sent_;
    memcpy(bytes_, &number, sizeof number);
    pool_->send(out_, bytes_, sizeof bytes_);
  }
  std::uint32_t receive() {
    for (;;) {
      shmb_error error;
      const int status = shmb_queue_receive(in_, message_, 0, SHMB_NO_WAIT, &error);
      if (status == SHMB_OK) break;
      if (status != SHMB_E_EMPTY) must_succeed(status, error);
      sleep_on(bell_);
    }
    std::uint32_t number;
    memcpy(&number, shmb_message_data(message_), sizeof number);
    return number;
  }

 private:
  // A doorbell is a socket without a name that another process has made. So is the channel to the bench itself.
  void take_doorbells_away() {
    DIR* const folder = opendir("/proc/self/fd");
    if (folder == nullptr) give_up("/proc/self/fd");
    while (const dirent* entry = readdir(folder)) {
      const int fd = atoi(entry->d_name);
      sockaddr_un name{};
      ucred maker{};
      socklen_t name_size = sizeof name, maker_size = sizeof maker;
      if (entry->d_name[0] == '.' || getpeername(fd, reinterpret_cast<sockaddr*>(&name), &name_size) != 0) continue;
      if (name_size > sizeof(sa_family_t) || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &maker, &maker_size) != 0)
        continue;
      if (maker.pid == getpid() || maker.pid == getppid()) continue;
      Channel nobody = Channel::make();
      nobody.theirs = Fd();
      must(dup2(nobody.ours.get(), fd), "dup2");
      taken_ = true;
    }
    closedir(folder);
    errno = 0;
  }
  std::string socket_;
  bool by_the_broker_, taken_ = false;
  std::uint64_t sent_ = 0;
  std::unique_ptr<PoolLibrary> pool_;
  shmb_queue *out_ = nullptr, *in_ = nullptr;
  shmb_message* message_ = nullptr;
  int bell_ = -1;
  char bytes_[56] = {};
};

class BellEnds {
 public:
  std::uint64_t enter(End end, std::uint64_t) {
    socket_ = end == End::client ? pair_.ours.get() : pair_.theirs.get();
    return 0;
  }
  void send(std::uint32_t) {
    const char one = 1;
    if (::send(socket_, &one, sizeof one, MSG_NOSIGNAL) != 1) give_up("send");
  }
  std::uint32_t receive() {  // both ends count: the numbers follow each other from 1
    char one;
    sleep_on(socket_);
    if (recv(socket_, &one, sizeof one, MSG_DONTWAIT) != 1) give_up("recv");
    return ++received_;
  }

 private:
  Channel pair_ = Channel::make();
  int socket_ = -1;
  std::uint32_t received_ = 0;
};

}  // namespace

NamedWay doorbell_hop(const std::string& socket, bool by_the_broker) {
  return {by_the_broker ? "rung_by_the_broker" : "shmbroker",
          std::make_unique<WayOf<DoorbellEnds>>(socket, by_the_broker)};
}

NamedWay bare_bell() { return {"socket_and_poll", std::make_unique<WayOf<BellEnds>>()}; }

}  // namespace shmb::bench
