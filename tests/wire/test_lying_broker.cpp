// SPDX-License-Identifier: Apache-2.0
// The other direction: the library against a broker whose packets are not what they should be. Something stands between
// the two and changes one packet of a session: a byte, its length, its descriptors, its number. With any packet, every
// call returns success or an error with a sentence, in time; memory that is called ready can be touched; nothing leaks.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/compat.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "client/face/shmbroker.h"
#include "tests/harness/sanitizer.hpp"
#include "tests/support/wire.hpp"

namespace wire_test {
namespace {

// An answer that never comes costs this much; an undisturbed session has all the time it wants.
constexpr std::int64_t kShort = 20'000'000, kLong = 20'000'000'000;

struct Forged {
  Packet bytes;
  std::vector<shmb::Fd> fds;
  int copies = 1;
  bool hang_up = false;
};
using Forge = std::function<void(Forged&)>;

// Carries one session between a client and the broker, and lets `forge` have the packet `which` of the broker.
class Between {
 public:
  Between(const BrokerFixture& broker, int which, Forge forge)
      : broker_(broker), which_(which), forge_(std::move(forge)), stop_(shmb::Fd::adopt(::eventfd(0, EFD_CLOEXEC))) {
    auto listener = shmb::sys::seqpacket_socket(false);
    REQUIRE((listener && shmb::sys::bind_path(listener->get(), socket()) && shmb::sys::listen(listener->get(), 4)));
    listener_ = std::move(*listener);
    thread_ = std::thread([this] { carry(); });
  }
  Between(const Between&) = delete;
  Between& operator=(const Between&) = delete;
  ~Between() {
    (void)::eventfd_write(stop_.get(), 1);
    thread_.join();
  }
  std::string socket() const { return folder_.file("s"); }
  int packets() const { return packets_; }

 private:
  void carry() {
    pollfd first[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (::poll(first, 2, 10'000) < 1 || (first[1].revents != 0)) return;
    auto client = shmb::sys::accept(listener_.get());
    RawClient broker = RawClient::connect(broker_.socket());
    if (!client || !broker.connected()) return;
    listener_.reset();  // a second session is refused at once, not left waiting
    RawClient library(std::move(*client));
    for (;;) {
      pollfd both[3] = {{library.fd(), POLLIN, 0}, {broker.fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
      if (::poll(both, 3, 10'000) < 1 || both[2].revents != 0) return;
      if (both[0].revents != 0 && !pass(library, broker, false)) return;
      if (both[1].revents != 0 && !pass(broker, library, true)) return;
    }
  }
  bool pass(RawClient& from, RawClient& to, bool from_broker) {
    RawPacket packet = from.receive(0);
    if (packet.kind == RawPacket::Kind::nothing) return true;
    if (packet.kind != RawPacket::Kind::packet) return false;
    Forged forged{std::move(packet.bytes), std::move(packet.fds)};
    if (from_broker && packets_++ == which_) forge_(forged);
    std::vector<int> numbers;
    for (const auto& fd : forged.fds) numbers.push_back(fd.get());
    for (int i = 0; i < forged.copies; ++i)
      if (!to.send(forged.bytes, numbers)) return false;
    return !forged.hang_up;
  }

  const BrokerFixture& broker_;
  int which_;
  Forge forge_;
  std::atomic<int> packets_{0};
  harness::TempDir folder_;
  shmb::Fd stop_, listener_;
  std::thread thread_;
};

struct Outcome {
  int calls = 0, errors = 0;
  std::string wrong;
};

// A session with a bit of everything. Handles that were made are used and given back, whatever failed before.
class Program {
 public:
  explicit Program(std::int64_t timeout) : timeout_(timeout) {}

  Outcome run(const std::string& socket) {
    shmb_connect_options how{};
    how.size = sizeof how;
    how.socket = socket.c_str();
    how.flags = SHMB_CONNECT_NO_GROUP;
    how.timeout_ns = 2 * timeout_;
    shmb_session* session = nullptr;
    if (!good("connect", shmb_connect(&how, &session, &error_))) return out_;
    shmb_create_options wish{};
    wish.size = sizeof wish;
    wish.name = "x";
    wish.timeout_ns = timeout_;
    shmb_region *made = nullptr, *taken = nullptr;
    if (good("create", shmb_create(session, 9000, &wish, &made, &error_))) touch(made);
    shmb_attach_options rights{};
    rights.size = sizeof rights;
    rights.rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;
    rights.timeout_ns = timeout_;
    if (good("attach", shmb_attach(session, "x", &rights, &taken, &error_))) touch(taken);
    good("ping", shmb_ping(session, timeout_, &error_));
    shmb_region_stat stat{};
    stat.size = sizeof stat;
    good("stat", shmb_stat(session, "x", timeout_, &stat, &error_));
    shmb_watch_options watch{};
    watch.size = sizeof watch;
    watch.kind = SHMB_WATCH_NAME;
    watch.address = "y";
    watch.timeout_ns = timeout_;
    std::uint64_t number = 0;
    std::uint32_t state = 0;
    good("watch", shmb_watch(session, &watch, &number, &state, &error_));
    std::uint8_t ticket[16];
    std::int64_t expires = 0;
    if (made)
      good("ticket", shmb_ticket_create(made, SHMB_RIGHT_READ, 1, 1'000'000, timeout_, ticket, &expires, &error_));
    if (taken) good("release", shmb_release(taken, 0, &error_));
    if (made && good("publish", shmb_publish(made, timeout_, &error_))) read(made);
    wish.name = "y";
    shmb_region* event_maker = nullptr;
    if (good("create", shmb_create(session, 100, &wish, &event_maker, &error_))) touch(event_maker);
    shmb_event event{};
    event.size = sizeof event;
    good("event", shmb_next_event(session, timeout_, &event, &error_));
    if (event_maker) good("release", shmb_release(event_maker, SHMB_RELEASE_UNNAME, &error_));
    if (made) good("release", shmb_release(made, 0, &error_));
    shmb_disconnect(session);
    return out_;
  }

 private:
  bool good(const char* what, int status) {
    ++out_.calls;
    if (status == SHMB_OK) return true;
    ++out_.errors;
    std::size_t length = ::strnlen(error_.sentence, sizeof error_.sentence);
    if (status != error_.status) out_.wrong = std::string(what) + ": the error has another status";
    if (length < 8 || length == sizeof error_.sentence)
      out_.wrong = std::string(what) + ": an error without a sentence";
    for (std::size_t i = 0; i < length; ++i)
      if (static_cast<unsigned char>(error_.sentence[i]) < 0x20)
        out_.wrong = std::string(what) + ": control bytes in a sentence";
    return false;
  }
  void touch(shmb_region* region) {
    auto* bytes = static_cast<volatile char*>(shmb_region_data(region));
    std::uint64_t length = shmb_region_length(region);
    if (bytes == nullptr) return void(out_.wrong = "a region without memory");
    bytes[0] = 1;  // there is a page also where no byte was asked for
    if (length != 0) bytes[length - 1] = 1;
  }
  void read(shmb_region* region) {
    auto* bytes = static_cast<const volatile char*>(shmb_region_data(region));
    if (bytes == nullptr) return void(out_.wrong = "a published region without memory");
    if (const std::uint64_t length = shmb_region_length(region); length != 0) (void)bytes[length - 1];
  }

  std::int64_t timeout_;
  Outcome out_;
  shmb_error error_{};
};

class Liar {
 public:
  explicit Liar(const BrokerFixture& broker) : broker_(broker) {}

  // How long each packet of an undisturbed session is.
  std::vector<std::size_t> sizes() {
    std::vector<std::size_t> sizes;
    for (int which = 0;; ++which) {
      std::size_t size = 0;
      Between between(broker_, which, [&](Forged& forged) { size = forged.bytes.size(); });
      Outcome outcome = Program(kLong).run(between.socket());
      CHECK(outcome.errors == 0);
      CHECK(outcome.wrong == "");
      if (size == 0) return sizes;
      sizes.push_back(size);
    }
  }
  void lie(int which, const std::string& what, const Forge& forge) {
    INFO("packet ", which, ", ", what);
    Outcome outcome;
    {
      Between between(broker_, which, forge);
      outcome = Program(kShort).run(between.socket());
    }
    ++cases;
    failures += outcome.errors > 0;
    CHECK(outcome.wrong == "");
  }
  long cases = 0, failures = 0;

 private:
  const BrokerFixture& broker_;
};

}  // namespace

TEST_CASE("the library survives a broker whose packets have any byte, length or descriptor wrong") {
  BrokerOptions options;
  options.arguments = {"--log-level", "error"};
  BrokerFixture broker(options);
  REQUIRE_MESSAGE(broker.running(), broker.log());
  Liar liar(broker);
  const std::vector<std::size_t> sizes = liar.sizes();
  REQUIRE(sizes.size() >= 10);
  const std::size_t step = thorough() ? 1 : 11 * static_cast<std::size_t>(harness::kSlowdown);
  std::size_t turn = 0;
  for (std::size_t which = 0; which < sizes.size(); ++which) {
    int packet = static_cast<int>(which);
    auto byte = [&](std::size_t at, std::uint8_t value) {
      liar.lie(packet, "byte " + std::to_string(at) + " = " + std::to_string(value), [=](Forged& forged) {
        if (at < forged.bytes.size()) forged.bytes[at] = std::byte{value};
      });
    };
    for (std::size_t at = turn++ % step; at < sizes[which]; at += step)
      for (std::uint8_t value : {0xff, 0x80, 0x01, 0x00}) {
        byte(at, value);
        if (!thorough() && at % 2 == 0) break;
      }
    for (std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{23}, std::size_t{24}, sizes[which] - 1,
                               sizes[which] + 1, std::size_t{65536}, std::size_t{65537}}) {
      for (bool told : {false, true})
        liar.lie(packet, "length " + std::to_string(length), [=](Forged& forged) {
          forged.bytes.resize(length);
          if (!told || length < sizeof(shmbw_header)) return;
          shmbw_header header = header_of(forged.bytes);
          header.size = static_cast<std::uint32_t>(length);
          header.fixed = static_cast<std::uint16_t>(std::min<std::size_t>(header.fixed, length - sizeof header));
          set_header(forged.bytes, header);
        });
    }
    auto set_fds = [](Forged& forged) {
      shmbw_header header = header_of(forged.bytes);
      header.n_fds = static_cast<std::uint16_t>(forged.fds.size());
      set_header(forged.bytes, header);
    };
    for (bool told : {false, true}) {
      liar.lie(packet, "no descriptors", [=](Forged& forged) {
        forged.fds.clear();
        if (told) set_fds(forged);
      });
      liar.lie(packet, "a descriptor more", [=](Forged& forged) {
        forged.fds.push_back(shmb::Fd::adopt(::open("/dev/null", O_RDWR | O_CLOEXEC)));
        if (told) set_fds(forged);
      });
      liar.lie(packet, "253 descriptors", [=](Forged& forged) {
        while (forged.fds.size() < 253) forged.fds.push_back(shmb::Fd::adopt(::open("/dev/null", O_RDWR | O_CLOEXEC)));
        if (told) set_fds(forged);
      });
    }
    for (const char* path : {"/dev/null", "/", "/proc/self/exe"})
      liar.lie(packet, std::string(path) + " instead of memory", [=](Forged& forged) {
        for (auto& fd : forged.fds) fd = shmb::Fd::adopt(::open(path, O_RDONLY | O_CLOEXEC));
      });
    liar.lie(packet, "twice", [](Forged& forged) { forged.copies = 2; });
    liar.lie(packet, "never", [](Forged& forged) { forged.copies = 0; });
    liar.lie(packet, "twice, then the end", [](Forged& forged) { forged.copies = 2, forged.hang_up = true; });
    liar.lie(packet, "the end instead", [](Forged& forged) { forged.copies = 0, forged.hang_up = true; });
  }
  CHECK(liar.failures > liar.cases / 4);
  end_groups(broker);
  MESSAGE(liar.cases << " lies, " << liar.failures << " of them noticed by an error");
}

namespace {

constexpr std::size_t kElement = sizeof(shmbw_header) + sizeof(shmbw_batch);

template <class T>
Forge field(std::size_t at, T value) {
  return [=](Forged& forged) {
    if (at + sizeof value <= forged.bytes.size()) std::memcpy(forged.bytes.data() + at, &value, sizeof value);
  };
}

// A memory file with these seals, in place of each descriptor.
Forge memory_with(int seals, bool read_only = false) {
  return [=](Forged& forged) {
    for (auto& fd : forged.fds) {
      auto made = shmb::sys::memfd_create("lie", false);
      REQUIRE((made && shmb::sys::truncate(made->get(), 1 << 20)));
      if (seals != 0) REQUIRE(shmb::sys::add_seals(made->get(), seals));
      fd = read_only ? std::move(*shmb::sys::reopen_read_only(made->get())) : std::move(*made);
    }
  };
}

// The statuses of create, attach for writing, attach for reading by id, publish, watch, ticket and group, in this
// order; what is answered with success is written to or read.
std::vector<int> statuses(const BrokerFixture& broker, int which, const Forge& forge) {
  Between between(broker, which, forge);
  shmb_connect_options how{};
  how.size = sizeof how;
  const std::string socket = between.socket();
  how.socket = socket.c_str();
  how.flags = SHMB_CONNECT_NO_GROUP;
  how.timeout_ns = kLong;
  shmb_session* session = nullptr;
  REQUIRE(shmb_connect(&how, &session, nullptr) == SHMB_OK);
  std::vector<int> out;
  shmb_create_options wish{};
  wish.size = sizeof wish;
  wish.name = "x";
  wish.flags = SHMB_CREATE_MANY_WRITERS;
  wish.timeout_ns = kLong;
  shmb_attach_options reach{};
  reach.size = sizeof reach;
  reach.rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;
  reach.timeout_ns = kLong;
  shmb_region *made = nullptr, *taken = nullptr, *read = nullptr, *published = nullptr;
  const auto store = [](shmb_region* region) {
    if (region) static_cast<volatile char*>(shmb_region_data(region))[shmb_region_length(region) - 1] = 1;
  };
  out.push_back(shmb_create(session, 9000, &wish, &made, nullptr));
  store(made);
  out.push_back(shmb_attach(session, "x", &reach, &taken, nullptr));
  store(taken);
  const shmb_region_id id = shmb_region_get_id(made);
  reach.rights = SHMB_RIGHT_READ;
  out.push_back(made ? shmb_attach_id(session, &id, &reach, &read, nullptr) : -1);
  wish.name = nullptr;
  wish.flags = 0;
  if (shmb_create(session, 100, &wish, &published, nullptr) == SHMB_OK) {
    out.push_back(shmb_publish(published, kLong, nullptr));
    std::uint8_t ticket[16];
    out.push_back(shmb_ticket_create(published, SHMB_RIGHT_READ, 1, 1'000'000, kLong, ticket, nullptr, nullptr));
  }
  shmb_watch_options watch{};
  watch.size = sizeof watch;
  watch.kind = SHMB_WATCH_NAME;
  watch.address = "y";
  watch.timeout_ns = kLong;
  std::uint64_t number = 0;
  out.push_back(shmb_watch(session, &watch, &number, nullptr, nullptr));
  shmb_group_options options{};
  options.size = sizeof options;
  shmb_group group{};
  out.push_back(shmb_group_create(session, &options, &group, nullptr));
  for (shmb_region* region : {read, taken, published}) shmb_release(region, 0, nullptr);
  shmb_release(made, SHMB_RELEASE_UNNAME, nullptr);
  shmb_unname(session, "x", kLong, nullptr);
  shmb_disconnect(session);
  return out;
}

}  // namespace

TEST_CASE("an answer that is not what was asked for is refused before the caller gets memory") {
  BrokerOptions options;
  options.arguments = {"--log-level", "error"};
  BrokerFixture broker(options);
  REQUIRE_MESSAGE(broker.running(), broker.log());
  const std::vector<int> honest = statuses(broker, -1, {});
  REQUIRE(honest.size() == 7);
  for (const int status : honest) CHECK(status == SHMB_OK);
  struct Lie {
    const char* what;
    int which;  // the broker's packet: HELLO is 0
    std::size_t call;
    Forge forge;
  };
  const shmbw_region_ref other{0x1234567, 1, 0}, none{0, 1, 0}, elder{1, 77, 0};
  const std::uint32_t reads = SHMBW_RIGHT_MAP_READ, nothing = 0;
  const std::uint64_t zero = 0;
  constexpr std::size_t in_create = kElement, in_attach = kElement, in_plain = sizeof(shmbw_header);
  const std::vector<Lie> lies = {
      {"create: fewer rights", 1, 0, field(in_create + offsetof(shmbw_create_reply, rights), reads)},
      {"create: no region", 1, 0, field(in_create + offsetof(shmbw_create_reply, region), none)},
      {"create: fewer bytes", 1, 0, field(in_create + offsetof(shmbw_create_reply, bytes), std::uint64_t{4096})},
      {"create: more bytes than the file", 1, 0,
       field(in_create + offsetof(shmbw_create_reply, bytes), std::uint64_t{1} << 40)},
      {"create: no group", 1, 0, field(in_create + offsetof(shmbw_create_reply, group), zero)},
      {"create: a file that can shrink", 1, 0, memory_with(F_SEAL_GROW)},
      {"create: a file for reading", 1, 0, memory_with(F_SEAL_SHRINK, true)},
      {"attach: fewer rights", 2, 1, field(in_attach + offsetof(shmbw_attach_reply, rights), reads)},
      {"attach: no length", 2, 1, field(in_attach + offsetof(shmbw_attach_reply, length), zero)},
      {"attach: no bytes", 2, 1, field(in_attach + offsetof(shmbw_attach_reply, bytes), zero)},
      {"attach: neither", 2, 1,
       field(in_attach + offsetof(shmbw_attach_reply, length), std::array<std::uint64_t, 2>{})},
      {"attach: a file that can shrink", 2, 1, memory_with(0)},
      {"attach by id: no rights", 3, 2, field(in_attach + offsetof(shmbw_attach_reply, rights), nothing)},
      {"attach by id: another region", 3, 2, field(in_attach + offsetof(shmbw_attach_reply, region), other)},
      {"attach by id: another generation", 3, 2,
       field(in_attach + offsetof(shmbw_attach_reply, region) + offsetof(shmbw_region_ref, generation),
             std::uint32_t{77})},
      {"publish: another region", 5, 3, field(in_plain + offsetof(shmbw_publish_reply, region), elder)},
      {"publish: no right to read", 5, 3, field(in_plain + offsetof(shmbw_publish_reply, rights), nothing)},
      {"publish: a file that can shrink", 5, 3, memory_with(0)},
      {"ticket: none", 6, 4, field(in_plain, std::array<std::uint8_t, 16>{})},
      {"watch: none", 7, 5, field(in_plain + offsetof(shmbw_watch_reply, watch), zero)},
      {"group: none", 8, 6, field(in_plain + offsetof(shmbw_group_create_reply, group), zero)},
  };
  for (const Lie& lie : lies) {
    INFO(lie.what);
    const std::vector<int> told = statuses(broker, lie.which, lie.forge);
    REQUIRE(told.size() > lie.call);
    CHECK(told[lie.call] == SHMB_E_PROTOCOL);
  }
  end_groups(broker);
}

}  // namespace wire_test
