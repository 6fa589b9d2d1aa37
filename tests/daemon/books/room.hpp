// SPDX-License-Identifier: Apache-2.0
// The transport in this very thread, with books that only write down what they are told: the test turns the loop, so
// that what happens between two turns is the test's decision and nothing depends on time.
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <list>
#include <string>
#include <vector>

#include "daemon/kit/log.hpp"
#include "daemon/start/directory.hpp"
#include "daemon/transport/transport.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/temp_dir.hpp"

namespace room {

using namespace shmb;
using namespace shmb::daemon;

inline constexpr std::uint16_t kDescriptors =
    SHMBW_OP_CREATE;  // replies with as many descriptors as the tag's high half says
inline constexpr std::uint16_t kPing = SHMBW_OP_STATUS;
inline constexpr std::uint16_t kSilent = SHMBW_OP_READY;  // one-way
inline constexpr std::uint16_t kDrop = SHMBW_OP_GROUP_END;

class FakeBooks final : public BrokerEvents {
 public:
  struct Known {
    Link* link = nullptr;
    int number = 0;
    bool greeted = false;
  };
  std::list<Known> sessions;
  std::vector<std::string> told;
  int served = 0;
  bool refuse = false, is_idle = false, wants = false, confirmed = false;
  bool room_for_pidfds = true;
  int pidfds = 0;
  bool keeps_elsewhere = false;
  std::vector<Fd> elsewhere;  // to be closed; open as long as they are here
  bool choked = false;        // more descriptors wait for their close than should
  bool holds = false;         // requests are kept, and get no answer
  std::int64_t deadline = kNever;
  std::function<void(Known&)> during_packet;

  static Known& known(Session& session) { return reinterpret_cast<Known&>(session); }
  static const Known& known(const Session& session) { return reinterpret_cast<const Known&>(session); }
  Known& session(int number) {
    for (Known& each : sessions)
      if (each.number == number) return each;
    throw std::runtime_error("no such session");
  }
  int count(const std::string& what) const {
    int found = 0;
    for (const std::string& each : told) found += each.starts_with(what) ? 1 : 0;
    return found;
  }

  Session* connected(Link& link) override {
    if (refuse) return nullptr;
    sessions.push_back({&link, ++last_, false});
    return reinterpret_cast<Session*>(&sessions.back());
  }
  void packet(Session& session, const wire::PacketView& packet) override {
    Known& self = known(session);
    ++served;
    if (packet.header.op == SHMBW_OP_HELLO) {
      self.greeted = true;
      confirmed = self.link->confirm_start_time(wire::read_struct<shmbw_hello>(packet.fixed)->start_time);
    }
    if (packet.header.op == kDrop) return self.link->drop("the test says so");
    if (packet.header.op == kSilent || (packet.header.flags & SHMBW_HEADER_NO_REPLY) != 0) return;
    if (holds) return self.link->hold();
    if (during_packet) during_packet(self);
    std::vector<int> fds;
    if (packet.header.op == kDescriptors) fds.assign(packet.header.tag >> 32, null_.get());
    wire::Writer writer(buffer_);
    writer.begin_empty(packet.header.op | SHMBW_REPLY, packet.header.tag, Status::ok);
    self.link->reply(writer.finish(fds.size()), fds);
  }
  void given_up(Session& session, const wire::PacketView& packet) override {
    told.push_back("given up " + number(session) + " op " + std::to_string(packet.header.op));
  }
  bool greeted(const Session& session) const override { return known(session).greeted; }
  void end_of_file(Session& session) override { told.push_back("eof " + number(session)); }
  void process_died(Session& session, const sys::ExitInfo* how) override {
    told.push_back("died " + number(session) +
                   (how == nullptr ? " ?"
                    : how->killed  ? " by " + std::to_string(how->code)
                                   : " exit " + std::to_string(how->code)));
  }
  void disconnected(Session& session) override { told.push_back("disconnected " + number(session)); }
  bool wants_exit(const Session&) const override { return wants; }
  bool keep_pidfd(std::uint32_t) override {
    pidfds += room_for_pidfds ? 1 : 0;
    return room_for_pidfds;
  }
  void pidfd_closed(std::uint32_t) override { --pidfds; }
  void forget(Session& session) override {
    told.push_back("forget " + number(session));
    sessions.remove_if([&](Known& each) { return &each == &known(session); });
  }
  std::int64_t next_deadline() const override { return deadline; }
  void tick(std::int64_t) override {
    deadline = kNever;
    told.push_back("tick");
  }
  bool close_elsewhere(std::uint32_t, std::vector<Fd> fds) override {
    if (keeps_elsewhere) std::ranges::move(fds, std::back_inserter(elsewhere));
    return !choked;
  }
  bool closes_too_many(std::uint32_t) override { return choked; }
  int wake_fd() const override { return -1; }
  void woken() override {}
  bool idle() const override { return is_idle; }

 private:
  static std::string number(const Session& session) { return std::to_string(known(session).number); }
  int last_ = 0;
  Fd null_ = Fd::adopt(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::byte buffer_[4096];
};

inline std::vector<EngineChoice> engine_choices() {
  std::vector<EngineChoice> both = {EngineChoice::epoll};
  if (choose_engine(EngineChoice::io_uring)) both.push_back(EngineChoice::io_uring);
  return both;
}

class Room {
 public:
  explicit Room(EngineChoice choice, Config config = {}, std::uint64_t table = 4096)
      : chosen_(std::move(*choose_engine(choice))), transport(*chosen_.engine, config, table) {
    log::set_threshold(log::error);
    if (!transport.attach(books)) throw std::runtime_error("attach");
    auto socket = SocketFile::create(folder_.file("s"), 0600);
    auto admin = SocketFile::create(folder_.file("a"), 0600);
    if (!transport.listen_on(socket->take(), false) || !transport.listen_on(admin->take(), true))
      throw std::runtime_error("listen");
    // SocketFile takes its file away at the end of this scope: these names stay.
    std::filesystem::create_hard_link(folder_.file("s"), folder_.file("socket"));
    std::filesystem::create_hard_link(folder_.file("a"), folder_.file("admin"));
  }
  ~Room() { transport.close_all(); }

  std::string socket_path() const { return folder_.file("socket"); }
  harness::RawClient connect(bool admin = false) {
    return harness::RawClient::connect(folder_.file(admin ? "admin" : "socket"));
  }
  harness::RawClient greeted(bool admin = false) {
    harness::RawClient client = connect(admin);
    answer(client, client.ask(SHMBW_OP_HELLO, harness::RawClient::greeting()));
    return client;
  }
  harness::RawPacket answer(harness::RawClient& client, std::uint64_t tag) {
    harness::RawPacket packet;
    until([&] { return (packet = client.reply(tag, 0)).kind != harness::RawPacket::Kind::nothing; });
    return packet;
  }
  harness::RawPacket ping(harness::RawClient& client) { return answer(client, client.ask(kPing, shmbw_status{})); }
  // Sends only. The number of descriptors travels in the tag, so that any size can be asked for.
  static void ask_descriptors(harness::RawClient& client, std::uint64_t count) {
    std::byte buffer[256];
    wire::Writer writer(buffer);
    writer.begin_empty(kDescriptors, (count << 32) | 1, Status::ok);
    client.send(writer.finish(0));
  }
  static bool readable(harness::RawClient& client) {
    auto ready = sys::poll_readable(client.fd(), 0);
    return ready && *ready;
  }
  // Turns the loop until `done`; false: it did not come true in many turns of up to 10 ms.
  bool until(const std::function<bool()>& done) {
    for (int i = 0; i < 3000; ++i) {
      if (done()) return true;
      if (!transport.turn(10'000'000)) return false;
    }
    return done();
  }
  // Until nothing is left to do: turns that find nothing.
  void settle() {
    for (int i = 0; i < 6; ++i) (void)transport.turn(100'000);
  }

 private:
  ChosenEngine chosen_;
  harness::TempDir folder_;

 public:
  FakeBooks books;
  Transport transport;
};

}  // namespace room
