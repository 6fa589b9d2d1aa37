// SPDX-License-Identifier: Apache-2.0
// See bystander.hpp. It speaks the raw wire, like its attackers, so that the library's patience hides nothing.
#include "tests/support/bystander.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/support/wire.hpp"

namespace wire_test {

namespace {

using State = Bystander::State;
constexpr int kPatience = 30'000;
constexpr std::size_t kSmall = 8192, kLarge = 3 << 20;

struct Map {
  explicit Map(int fd, std::size_t size)
      : size(size), at(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) {}
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;
  ~Map() {
    if (at != MAP_FAILED) ::munmap(at, size);
  }
  std::uint64_t* words() const { return static_cast<std::uint64_t*>(at); }
  std::size_t size;
  void* at;
};

class Round {
 public:
  Round(RawClient& maker, RawClient& taker, State& shared) : maker_(maker), taker_(taker), shared_(shared) {}

  struct Held {
    shmbw_region_ref ref{};
    std::uint64_t group = 0;
    shmb::Fd made, taken;
  };

  bool make(std::size_t size, Held& held) {
    shmbw_create create{};
    create.length = size;
    create.flags = SHMBW_CREATE_MANY_WRITERS;
    RawPacket made = maker_.call_batch(SHMBW_OP_CREATE, one(create));
    auto reply = made.element<shmbw_create_reply>(0);
    if (!made.ok() || reply.outcome.status != 0 || made.fds.size() != 1) return fault("create", made);
    if (reply.bytes < size) return fault("create: too few bytes", made);
    shmbw_ready ready{};
    ready.region = reply.region;
    ready.page_kind = SHMBW_PAGE_KIND_SMALL;
    shmbw_batch front{1, sizeof ready, 0};
    if (maker_.ask(SHMBW_OP_READY, front, {reinterpret_cast<const char*>(&ready), sizeof ready}) == 0)
      return fault("ready", {});
    shmbw_attach attach{};
    attach.by = SHMBW_ATTACH_BY_ID;
    attach.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;
    attach.region = reply.region;
    RawPacket taken = taker_.call_batch(SHMBW_OP_ATTACH, one(attach));
    auto got = taken.element<shmbw_attach_reply>(0);
    if (!taken.ok() || got.outcome.status != 0 || taken.fds.size() != 1) return fault("attach", taken);
    if (got.length != size || got.region.id != reply.region.id) return fault("attach: another region", taken);
    held = {reply.region, reply.group, std::move(made.fds[0]), std::move(taken.fds[0])};
    return true;
  }

  bool data_is_one(const Held& held, std::size_t size, std::uint64_t mark) {
    Map writer(held.made.get(), size), reader(held.taken.get(), size);
    if (writer.at == MAP_FAILED || reader.at == MAP_FAILED) return fault("mmap", {});
    for (std::size_t i = 0; i < size / sizeof mark; i += 509) writer.words()[i] = mark + i;
    for (std::size_t i = 0; i < size / sizeof mark; i += 509)
      if (reader.words()[i] != mark + i) return fault("the data are not those written", {});
    return true;
  }

  bool release(RawClient& client, const shmbw_region_ref& ref) {
    shmbw_release release{};
    release.region = ref;
    RawPacket done = client.call_batch(SHMBW_OP_RELEASE, one(release));
    if (!done.ok() || done.element<shmbw_release_reply>(0).outcome.status != 0) return fault("release", done);
    return true;
  }

  bool run(std::uint64_t number) {
    std::size_t size = number % 16 == 0 ? kLarge : kSmall;
    Held held;
    if (!make(size, held) || !data_is_one(held, size, number << 20)) return false;
    if (!release(taker_, held.ref) || !release(maker_, held.ref)) return false;
    for (RawClient* client : {&maker_, &taker_})
      if (RawPacket pong = client->status(); !pong.ok()) return fault("ping", pong);
    return true;
  }

  bool fault(const char* what, const RawPacket& packet) {
    std::string text = std::string(what) + " in round " + std::to_string(shared_.rounds) + ": ";
    if (packet.kind == RawPacket::Kind::nothing) text += "no answer in time";
    else if (packet.kind == RawPacket::Kind::end_of_file) text += "the broker hung up";
    else if (packet.kind == RawPacket::Kind::failed) text += std::strerror(packet.error);
    else if (packet.status() != 0) text += packet.sentence();
    else if (packet.fixed<shmbw_batch>().count != 0) text += error_of_element(packet).sentence;
    std::snprintf(shared_.wrong, sizeof shared_.wrong, "%s", text.c_str());
    shared_.failed = true;
    return false;
  }

 private:
  RawClient &maker_, &taker_;
  State& shared_;
};

int live(const std::string& socket, State& shared) {
  RawClient maker = RawClient::connect(socket), taker = RawClient::connect(socket);
  Round round(maker, taker, shared);
  if (!maker.hello().ok() || !taker.hello().ok()) return round.fault("hello", {}), 1;
  Round::Held always;
  if (!round.make(kSmall, always)) return 1;
  shared.group = always.group;
  shared.region = always.ref.id;
  while (!shared.stop) {
    if (shared.pause) {
      shared.paused = true;
      while (shared.pause && !shared.stop) ::usleep(200);
      shared.paused = false;
      continue;
    }
    auto number = static_cast<std::uint64_t>(++shared.begun);
    if (!round.run(number) || !round.data_is_one(always, kSmall, number)) return 1;
    ++shared.rounds;
    ::usleep(2000);  // it is to be served at any time, not to keep the broker busy
  }
  return 0;
}

}  // namespace

Bystander::Bystander(const std::string& socket, std::optional<uid_t> uid) {
  auto body = [this, socket] { return live(socket, *shared_); };
  child_ = uid ? harness::Child::run_as(*uid, *uid, body) : harness::Child::run(body);
}

Bystander::~Bystander() {
  shared_->stop = true;
  child_->wait();
  child_.reset();
}

bool Bystander::pause() {
  shared_->pause = true;
  for (int waited = 0; waited < kPatience && !shared_->paused && !shared_->failed; ++waited) {
    if (child_->wait_ended(0)) break;
    ::usleep(1000);
  }
  return shared_->paused;
}

void Bystander::resume() {
  shared_->pause = false;
  for (int waited = 0; waited < kPatience && shared_->paused && !child_->wait_ended(0); ++waited) ::usleep(1000);
}

long Bystander::rounds() const { return shared_->rounds; }

bool Bystander::goes_on() {
  long from = shared_->begun;
  for (int waited = 0; waited < kPatience && !shared_->failed; ++waited) {
    if (shared_->rounds > from) return true;
    if (child_->wait_ended(0)) break;
    ::usleep(1000);
  }
  return false;
}

std::string Bystander::wrong() const {
  if (shared_->failed) return shared_->wrong;
  return child_->wait_ended(0) ? "the bystander died" : "";
}

std::uint64_t Bystander::group() const { return shared_->group; }
std::uint64_t Bystander::region() const { return shared_->region; }

}  // namespace wire_test
